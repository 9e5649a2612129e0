"""LDD in its seven variants: the factor against loops, and the encoder's behaviour with it."""

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_data
from data_errors import data_error
from fairseq.models import ARCH_CONFIG_REGISTRY
from ldd_models import GROUPS, LABELS, PAD, Task, build, flat_of, some_sentences, tokens_of

import fairseq_syntax  # noqa: F401  registers the model
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.label_groups import read_label_groups
from fairseq_syntax.data.labels import UNKNOWN
from fairseq_syntax.model.attention import HeadInputs
from fairseq_syntax.model.heads import Step
from fairseq_syntax.systems.ldd import VARIANTS, Ldd, LddConfig, LddTerm


def factor_by_loops(sentence: StoredSentence, variant: str) -> np.ndarray:
    """[L, pieces, pieces], from the definitions, word by word."""
    word_of = [w for w, n in enumerate(sentence.pieces) for _ in range(n)]
    T, L = len(word_of), len(GROUPS)
    if variant in ("ULDD", "UUDD"):
        return np.full((L, T, T), 1 / (T * L) if variant == "ULDD" else 1 / T) if T else np.zeros((L, 0, 0))
    if variant in ("LDP", "UDP"):
        arcs = [(w, h, label, 1.0) for w, (h, label) in enumerate(zip(sentence.head, sentence.deprel))]
    else:
        arcs = sentence.arcs
    group_of = {"root": 0, "nsubj": 1, "obj": 2, "iobj": 2, "det": 3, "aux:pass": 3}
    out = np.zeros((L, T, T))
    for dependent, head, label, p in arcs:
        for i in range(T):
            for j in range(T):
                if word_of[i] == dependent and word_of[j] == head:
                    if variant in ("UDD", "UDP"):
                        out[:, i, j] += p
                    elif dependent == head:
                        out[0, i, j] += p
                    elif LABELS[label] in group_of:
                        out[group_of[LABELS[label]], i, j] += p
    return out


def term_of(syntax: SyntaxBatch, variant: str, form: str = "auto"):
    """The term of a variant in its layer."""
    args = Namespace(encoder_layers=1, encoder_embed_dim=8, ldd_label_groups_text=GROUPS.to_text())
    return Ldd(LddConfig(ldd_variant=variant, ldd_form=form), args, Task()).term(Step.of(syntax), 0)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_factor_equals_loops(variant, left):
    sentences = some_sentences()
    tokens = tokens_of(sentences, left)
    syntax = SyntaxBatch(flat_of(sentences), tokens, PAD)
    term = term_of(syntax, variant)
    B, T = tokens.shape
    factor = term.scores(torch.ones(B, len(GROUPS), T, T), torch.zeros(T, B, 8))
    expected = torch.zeros(B, len(GROUPS), T, T)
    for b, sentence in enumerate(sentences):
        n = sum(sentence.pieces)
        start = T - n - 1 if left else 0
        expected[b, :, start : start + n, start : start + n] = torch.from_numpy(factor_by_loops(sentence, variant))
    torch.testing.assert_close(factor, expected)
    assert torch.equal(factor, term.scores(torch.ones_like(factor) * (2 if variant == "LDA" else 1), None))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_forms_agree(variant, left):
    """The other form of each variant against the dense one, output and gradients."""
    sentences = some_sentences(1)
    tokens = tokens_of(sentences, left)
    syntax = SyntaxBatch(flat_of(sentences), tokens, PAD)
    term = term_of(syntax, variant, "linear")
    (B, T), H = tokens.shape, len(GROUPS)
    q, k, v, weight = torch.randn(4, B, H, T, 6, generator=torch.Generator().manual_seed(0)).unbind(0)
    mask = tokens.eq(PAD)
    weight = weight * ~mask[:, None, :, None]
    results = []
    for form in ("linear", "dense"):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        if form == "linear":
            out = term.attend(HeadInputs(q, q, *inputs), mask)
        else:
            scores = term.scores(inputs[0] @ inputs[1].transpose(2, 3), None)
            out = scores.masked_fill(mask[:, None, None, :], float("-inf")).softmax(-1) @ inputs[2]
        grads = torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True)
        results.append((out * ~mask[:, None, :, None], [torch.zeros_like(q) if g is None else g for g in grads]))
    torch.testing.assert_close(results[0][0], results[1][0])
    for got, wanted in zip(results[0][1], results[1][1]):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_form_is_chosen_by_the_number_of_entries():
    sentences = some_sentences(2, (20, 30))
    syntax = SyntaxBatch(flat_of(sentences), tokens_of(sentences, False), PAD)
    x = torch.randn(2, len(GROUPS), syntax.size[1], 4)
    inputs = HeadInputs(x, x, x, x, x)
    few, many = (term_of(syntax, variant) for variant in ("LDP", "UDD"))
    assert few.attend(inputs, None) is not None and many.attend(inputs, None) is None
    assert term_of(syntax, "LDP", "dense").attend(inputs, None) is None
    assert isinstance(many, LddTerm) and not many.without_dropout
    assert term_of(syntax, "UDD", "linear").without_dropout
    assert term_of(syntax, "ULDD", "linear").without_dropout


# -- in a model --------------------------------------------------------------------------------------------------------


def encode(model, sentences, left=False, arcs=True) -> list[torch.Tensor]:
    """Encoder states of each sentence [pieces + 1, C]."""
    tokens = tokens_of(sentences, left)
    out = model.encoder(tokens, src_syntax=flat_of(sentences, arcs))["encoder_out"][0]
    return [out[tokens[b].ne(PAD), b] for b in range(len(sentences))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_results_depend_on_nothing_else_in_the_batch(variant, tmp_path):
    model = build(tmp_path, ldd_variant=variant).eval()
    sentences = some_sentences(4)
    with torch.no_grad():
        alone = [encode(model, [s])[0] for s in sentences]
        for left in (False, True):
            for got, wanted in zip(encode(model, sentences, left), alone):
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
            for got, wanted in zip(encode(model, sentences[::-1], left), alone[::-1]):
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_each_variant_reads(variant, tmp_path):
    """Distributions, the tree or nothing of the parse: changing the rest changes nothing."""
    model = build(tmp_path, ldd_variant=variant).eval()
    sentence, other = some_sentences(5, (6, 6))
    reads_arcs, reads_tree = variant in ("LDD", "LDA", "UDD"), variant in ("LDP", "UDP")
    other.pieces = sentence.pieces
    tokens = tokens_of([sentence], False)

    def states(s):
        with torch.no_grad():
            return model.encoder(tokens, src_syntax=flat_of([s]))["encoder_out"][0]

    def mixed(arcs_from, tree_from):
        return StoredSentence(
            sentence.pieces, tree_from.head, tree_from.deprel, sentence.upos, sentence.xpos, arcs_from.arcs
        )

    base = states(sentence)
    assert torch.equal(states(mixed(other, sentence)), base) == (not reads_arcs)
    assert torch.equal(states(mixed(sentence, other)), base) == (not reads_tree)


def test_presets_have_16_heads_in_the_first_layer_and_8_elsewhere(tmp_path):
    model = build(tmp_path, ldd_label_groups="ud", encoder_layers=3)
    assert [layer.self_attn.num_heads for layer in model.encoder.layers] == [16, 8, 8]
    assert {layer.self_attn.num_heads for layer in model.decoder.layers} == {8}
    for arch in ("ldd_transformer", "ldd_transformer_iwslt_de_en"):
        args = Namespace()
        ARCH_CONFIG_REGISTRY[arch](args)
        assert (args.encoder_syntax, args.encoder_attention_heads, args.decoder_attention_heads) == ("ldd", 8, 8)


def test_lda_has_no_query_and_key(tmp_path):
    model = build(tmp_path, ldd_variant="LDA")
    names = {n for n, _ in model.encoder.layers[0].self_attn.named_parameters()}
    assert names == {"v_proj.weight", "v_proj.bias", "out_proj.weight", "out_proj.bias"}


@pytest.mark.parametrize("variant", ["LDD", "LDA", "UDD", "ULDD"])
@pytest.mark.parametrize("form", ["linear", "dense"])
def test_checkpointed_layers_have_the_same_gradients(variant, form, tmp_path):
    sentences = some_sentences(6)
    grads = []
    for checkpoint in (False, True):
        model = build(tmp_path, ldd_variant=variant, ldd_form=form, checkpoint_activations=checkpoint).train()
        sum(x.square().sum() for x in encode(model, sentences)).backward()
        grads.append({n: p.grad for n, p in model.encoder.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and any("layers.0.self_attn" in n for n in grads[0])
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype, tmp_path):
    sentences = some_sentences(7)
    model = build(tmp_path, ldd_form="linear").train()
    exact = encode(model, sentences)
    with torch.autocast("cpu", dtype=dtype):
        mixed = encode(model, sentences)
        loss = sum(x.float().square().sum() for x in mixed)
    loss.backward()
    for got, wanted in zip(mixed, exact):
        torch.testing.assert_close(got.float(), wanted, atol=0.05, rtol=0.05)
    assert all(torch.isfinite(p.grad).all() for p in model.encoder.layers.parameters())


@pytest.mark.parametrize("variant", ["LDD", "UDD", "LDP"])
def test_half_precision_factors(variant, tmp_path):
    model = build(tmp_path, ldd_variant=variant, ldd_form="linear").eval()
    sentences = some_sentences(11)
    tokens, flat = tokens_of(sentences, True), flat_of(sentences)
    with torch.no_grad():
        exact = model.encoder(tokens, src_syntax=flat)["encoder_out"][0]
        halved = replace(flat, arcs=replace(flat.arcs, prob=flat.arcs.prob.half()))
        half = model.encoder(tokens, src_syntax=halved)["encoder_out"][0]
    torch.testing.assert_close(half, exact, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("form, kept", [("auto", 0), ("dense", 0), ("linear", 1)])
def test_attention_dropout(form, kept, tmp_path):
    """It makes training random in the dense form; the linear form, asked for by name, leaves it out."""
    model = build(tmp_path, ldd_form=form, attention_dropout=0.5, encoder_layers=1)
    sentences = some_sentences(8)
    model.train()
    assert torch.equal(encode(model, sentences)[1], encode(model, sentences)[1]) == bool(kept)
    model.eval()
    exact = build(tmp_path, ldd_form="dense", encoder_layers=1).eval()
    torch.testing.assert_close(encode(model, sentences)[1], encode(exact, sentences)[1], atol=1e-5, rtol=1e-5)


@pytest.mark.matrix(7)
@pytest.mark.parametrize("others", ["", ",structural_positions"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_linear_form_leaves_attention_dropout_out(variant, others, tmp_path):
    """In every variant, and beside another system; one regime for a table of ablations."""
    if variant == "LDA" and others:
        return  # refused: it has no queries
    options = {"encoder_syntax": f"ldd{others}", "ldd_variant": variant, "attention_dropout": 0.5, "encoder_layers": 1}
    sentences = some_sentences(8)
    model = build(tmp_path, ldd_form="linear", **options).train()
    assert torch.equal(encode(model, sentences)[1], encode(model, sentences)[1])
    model = build(tmp_path, ldd_form="dense", **options).train()
    assert not torch.equal(encode(model, sentences)[1], encode(model, sentences)[1])


def test_several_layers(tmp_path):
    model = build(tmp_path, ldd_layers="0,1")
    assert [layer.self_attn.num_heads for layer in model.encoder.layers] == [4, 4]
    assert torch.isfinite(encode(model, some_sentences(9))[0]).all()


def test_a_trained_model_needs_no_group_file(tmp_path):
    """The groups are in the checkpoint's options."""
    args = Namespace(arch="ldd_transformer_tiny", ldd_label_groups=str(tmp_path / "mine.txt"))
    ARCH_CONFIG_REGISTRY[args.arch](args)
    (tmp_path / "mine.txt").write_text(GROUPS.to_text(), encoding="utf-8")
    Ldd(LddConfig(ldd_label_groups=args.ldd_label_groups), args, Task())
    (tmp_path / "mine.txt").unlink()
    again = Ldd(LddConfig(), args, Task())
    assert again.group_of_label.tolist() == [-1, 0, 1, 2, 2, 3, -1, 3]


def test_errors(tmp_path):
    def fails(name, **options):
        with data_error(name):
            build(tmp_path, **options)

    fails("--ldd-variant", ldd_variant="LDX")
    fails("--ldd-form", ldd_form="sparse")
    fails("--ldd-layers", ldd_layers="first")
    fails("66", encoder_embed_dim=66, encoder_attention_heads=6, ldd_label_groups="ud")
    fails(str(tmp_path / "none"), ldd_label_groups=str(tmp_path / "none"))
    fails("SBJ", task=Task([UNKNOWN, "SBJ", "OBJ", "VMOD"]))
    assert build(tmp_path, ldd_variant="UDD", task=Task([UNKNOWN, "SBJ", "OBJ", "VMOD"])) is not None


def test_missing_syntax(tmp_path):
    sentences = some_sentences(10)
    tree = flat_of(sentences, arcs=False)
    tokens = tokens_of(sentences, False)
    for variant in VARIANTS:
        encoder = build(tmp_path, ldd_variant=variant).eval().encoder
        with data_error(option="--task"):
            encoder(tokens)
        if variant in ("LDD", "LDA", "UDD"):
            with data_error("--distributions"):
                encoder(tokens, src_syntax=tree)
        else:
            assert torch.isfinite(encoder(tokens, src_syntax=tree)["encoder_out"][0]).all()


def test_ud_groups_are_the_default(tmp_path):
    model = build(tmp_path, ldd_label_groups=None)
    assert model.encoder.systems["ldd"].groups.names == read_label_groups("ud").names


# -- from files --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_trains_and_translates(toy, tmp_path):
    """The checkpoint brings its label groups, and LDD reads the arcs of the store."""
    groups = tmp_path / "groups.txt"
    groups.write_text("subject: nsubj root\nrest: obj obl nmod\n-: case\n", encoding="utf-8")
    options = {"arch": "ldd_transformer_tiny", "ldd_label_groups": groups, "max_epoch": 1}
    checkpoint = toy_data.train(toy.data, tmp_path, **options)
    groups.unlink()
    assert checkpoint["cfg"]["model"].ldd_label_groups_text.splitlines()[0] == "subject: nsubj root"
    output = toy_data.fairseq(
        "generate", toy.data, "--task", "syntax_translation", "--path", tmp_path / "checkpoint_last.pt", "--cpu"
    )
    assert output.count("\nH-") == toy_data.SIZES["test"]


@pytest.mark.slow
def test_a_store_without_arcs(tmp_path):
    """A clear error for what reads distributions; the tree is enough for the others."""
    data = toy_data.make(tmp_path, arcs=False).data
    options = {"arch": "ldd_transformer_tiny", "encoder_embed_dim": 64, "max_epoch": 1}
    with data_error("--distributions", path="valid.en-de.en.syntax.arrow"):
        toy_data.train(data, tmp_path / "a", **options)
    toy_data.train(data, tmp_path / "b", **options, ldd_variant="LDP")
