"""PASCAL: Equations 2 and 3 by loops, an encoder layer by loops, and the same numbers in any batch."""

import io
import itertools
import math
import random
from argparse import Namespace
from functools import partial

import pytest
import torch
from data_errors import data_error
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from random_parses import EOS, PAD, Line, batch, flat, pad, random_line
from tiny_syntax import encode, sample, tiny_model, tiny_task

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model import dense_factors, window_factors
from fairseq_syntax.model.attention import HeadInputs, ScoreTerm, SyntaxSelfAttention
from fairseq_syntax.model.dense_factors import FactorTerm
from fairseq_syntax.model.heads import Step
from fairseq_syntax.systems.pascal import Pascal, PascalConfig, gaussian

LINES = [random_line(random.Random(seed)) for seed in range(6)]
EMPTY = Line([], [], [], [EOS])
# The options that change the factor, each alone and some together.
OPTIONS = [
    {},
    {"pascal_heads": 1},
    {"pascal_heads": 3, "pascal_variance": 4.0},
    {"parent_only": True},
    {"pascal_add": True, "pascal_heads": 2},
    {"parent_only": True, "pascal_add": True},
    {"pascal_layers": "0,1", "pascal_heads": 2},
    {"pascal_layers": "1"},
]


def factor_by_loops(line: Line, variance: float = 1.0, parent_only: bool = False) -> list[list[float]]:
    """Equation 3 for each piece and ``</s>`` of one sentence that stands alone."""
    n = len(line.tokens)
    rows = []
    for t in range(n):
        if t == n - 1:
            middle = float(t)
        else:
            parent = line.heads[line.word_of_piece[t]]
            places = [line.starts[parent] + i for i in range(line.pieces[parent])]
            middle = sum(places) / len(places)
        row = []
        for j in range(n):
            if parent_only:
                # Halves go to the even position, as in IEEE 754 and in PyTorch.
                row.append(1.0 if j == round(middle) else 0.0)
            else:
                row.append(math.exp(-((j - middle) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance))
        rows.append(row)
    return rows


def attention_by_loops(attention, x, factor, num_scaled: int, add: bool) -> list[list[float]]:
    """Multi-head attention of one sentence, x [n][C], head by head and place by place in Python's floats."""
    n, channels = len(x), len(x[0])
    heads, d = attention.num_heads, attention.head_dim

    def project(layer):
        w, b = layer.weight.tolist(), layer.bias.tolist()
        return [[sum(w[o][c] * row[c] for c in range(channels)) + b[o] for o in range(channels)] for row in x]

    q, k, v = project(attention.q_proj), project(attention.k_proj), project(attention.v_proj)
    joined = [[0.0] * channels for _ in range(n)]
    for h in range(heads):
        at = range(h * d, (h + 1) * d)
        for t in range(n):
            scores = [sum(q[t][c] * k[j][c] for c in at) / math.sqrt(d) for j in range(n)]
            if h < num_scaled:
                scores = [s + f if add else s * f for s, f in zip(scores, factor[t])]
            total = sum(math.exp(s) for s in scores)
            for c in at:
                joined[t][c] = sum(math.exp(s) / total * v[j][c] for j, s in enumerate(scores))
    w, b = attention.out_proj.weight.tolist(), attention.out_proj.bias.tolist()
    return [[sum(w[o][c] * row[c] for c in range(channels)) + b[o] for o in range(channels)] for row in joined]


each_variant = pytest.mark.parametrize(
    "options", [{}, {"parent_only": True}, {"pascal_add": True}, {"parent_ignoring": 0.5}], ids=str
)


def scaling(heads: int, **options) -> Pascal:
    """The system in an encoder of one layer."""
    return Pascal(PascalConfig(pascal_heads=heads, **options), Namespace(encoder_layers=1), None)


def the_term(model, lines, left, layer=0) -> FactorTerm:
    return model.encoder.systems["pascal"].term(Step.of(batch(lines, left)), layer)


# -- Equation 3 -----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 4),
    left=st.booleans(),
    variance=st.floats(0.1, 10),
    parent_only=st.booleans(),
)
def test_the_factor_against_loops(seed, n, left, variance, parent_only):
    """Row by row, for split words, roots, several sentences in a line and </s>, whatever the padding."""
    lines = [random_line(random.Random(seed + i)) for i in range(n)]
    term = scaling(1, pascal_variance=variance, parent_only=parent_only).eval().term(Step.of(batch(lines, left)), 0)
    width = max(len(line.tokens) for line in lines)
    factor = term.scores(torch.ones(n, 1, width, width, dtype=torch.float64), None)
    for b, line in enumerate(lines):
        columns = slice(width - len(line.tokens), width) if left else slice(0, len(line.tokens))
        expected = torch.tensor(factor_by_loops(line, variance, parent_only), dtype=torch.float64)
        torch.testing.assert_close(factor[b, 0, columns, columns], expected, atol=1e-6, rtol=1e-5)


def test_the_constant_of_equation_3():
    """The factor at the parent itself is 1/√(2πσ²), not 1."""
    parent, position = torch.tensor(1.5, dtype=torch.float64), torch.arange(4)
    expected = [math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) for x in (1.5, 0.5, 0.5, 1.5)]
    assert gaussian(parent, position, 1.0).tolist() == pytest.approx(expected, rel=1e-12)


# -- the layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"pascal_heads": 2}, {"pascal_heads": 3, "pascal_add": True}, {"parent_only": True}]
)
def test_attention_against_loops(options, left):
    """In float64. The published code scales the wrong rows of the wrong sentences where not all heads are scaled."""
    model = tiny_model("pascal_transformer", **options).double().eval()
    attention = model.encoder.layers[0].self_attn
    lines = LINES[:4]
    term = the_term(model, lines, left)
    # Gaussians are made in float32; for a comparison in float64 they are replaced by the loops' own.
    width = max(len(line.tokens) for line in lines)
    tokens = pad(lines, left)
    x = torch.randn(width, len(lines), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out, observed = attention(x, tokens.eq(PAD), terms=[term])
    assert not observed
    for b, line in enumerate(lines):
        n = len(line.tokens)
        columns = slice(width - n, width) if left else slice(0, n)
        factor = factor_by_loops(line, parent_only=options.get("parent_only", False))
        expected = attention_by_loops(
            attention, x[columns, b].tolist(), factor, options.get("pascal_heads", 4), options.get("pascal_add", False)
        )
        torch.testing.assert_close(out[columns, b], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-5)


def test_only_the_chosen_heads_of_the_right_sentence_change():
    """The factor of one sentence reaches its own rows in its own heads, and no others."""
    model = tiny_model("pascal_transformer", pascal_heads=2).eval()
    lines = [random_line(random.Random(i), max_words=4, max_sentences=1) for i in (0, 4, 2)]
    width = max(len(line.tokens) for line in lines)
    scores = torch.ones(3, 2, width, width)
    plain = the_term(model, lines, True).scores(scores, None)
    other = [Line(l.pieces, [0] * len(l.heads), l.labels, l.tokens) for l in lines]
    assert other[1].heads != lines[1].heads
    changed = the_term(model, [lines[0], other[1], lines[2]], True).scores(scores, None)
    assert torch.equal(plain[[0, 2]], changed[[0, 2]]) and not torch.equal(plain[1], changed[1])
    assert the_term(model, lines, True).heads == slice(0, 2)


def test_a_term_that_changes_nothing_is_plain_attention():
    """The same numbers as fairseq's own attention, for any run of heads, with and without padding."""

    class Nothing(ScoreTerm):
        def __init__(self, heads):
            self.heads = heads

        def scores(self, scores, x):
            return scores

    attention = SyntaxSelfAttention(16, 4).eval()
    x = torch.randn(5, 3, 16)
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0]]).bool()
    for mask in (None, padding):
        expected = attention(x, mask)[0]
        for heads in (slice(0, 1), slice(1, 3), slice(3, 4), slice(0, 4), slice(None)):
            actual = attention(x, mask, terms=[Nothing(heads)])[0]
            torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
        both = attention(x, mask, terms=[Nothing(slice(0, 1)), Nothing(slice(2, 4))])[0]
        torch.testing.assert_close(both, expected, atol=1e-6, rtol=1e-5)


def test_the_chosen_layers_and_no_others():
    """From the same weights and layer by layer: a layer differs from the plain one where it is chosen."""
    lines, chosen = LINES[:3], {"": [], "0": [0], "1": [1], "0,1": [0, 1]}
    states = {}
    for layers in chosen:
        model = tiny_model("pascal_transformer" if layers else "syntax_transformer", pascal_layers=layers or None)
        states[layers] = model.eval().encoder(pad(lines, True), src_syntax=flat(lines), return_all_hiddens=True)[
            "encoder_states"
        ]
    for layers, (embedded, first, second) in states.items():
        assert torch.equal(embedded, states[""][0])
        assert torch.allclose(first, states[""][1], atol=1e-5) == (0 not in chosen[layers])
        same_first = "0" if 0 in chosen[layers] else ""
        assert torch.allclose(second, states[same_first][2], atol=1e-5) == (1 not in chosen[layers])


def test_two_terms_of_different_heads():
    """Each term gets its own heads, the second what the first has left; observed scores are those after both."""

    class Plus(ScoreTerm):
        def __init__(self, heads, value):
            self.heads, self.value = heads, value

        def scores(self, scores, x):
            assert scores.shape[1] == len(range(*self.heads.indices(4)))
            return scores + self.value

    attention = SyntaxSelfAttention(16, 4).eval()
    x = torch.randn(5, 2, 16)
    _, zero = attention(x, None, observe=[0, 1, 2, 3])
    terms = [Plus(slice(1, 3), 1.0), Plus(slice(2, 4), 10.0)]
    _, actual = attention(x, None, terms=terms, observe=[3, 1, 0, 2])
    expected = torch.stack(zero, dim=1) + torch.tensor([0.0, 1.0, 11.0, 10.0])[None, :, None, None]
    torch.testing.assert_close(torch.stack(actual, dim=1), expected[:, [3, 1, 0, 2]])


def at_once(term: ScoreTerm, q, k, v, padding):
    """Attention by the term's form in one operation."""
    return term.attend(HeadInputs(q, q, q, k, v), padding)


def by_scores(term, q, k, v, padding) -> torch.Tensor:
    """Attention by the term's dense reference; heads that it does not touch attend as ever."""
    scores = q @ k.transpose(2, 3)
    scores = torch.cat([term.scores(scores[:, term.heads], None), scores[:, term.heads.stop :]], dim=1)
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None, :], -math.inf)
    return scores.softmax(dim=3) @ v


def check_form(term, inputs, gradient, padding):
    """The form in one operation computes what the dense one does, and its gradients."""
    actual, expected = [], []
    for form, into in ((partial(at_once, term), actual), (partial(by_scores, term), expected)):
        q, k, v = (x.detach().requires_grad_() for x in inputs)
        out = form(q, k, v, padding)
        into += [out, *torch.autograd.grad(out, (q, k, v), gradient)]
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"parent_only": True}, {"pascal_add": True}, {"parent_ignoring": 0.5}], ids=str
)
def test_the_form_in_one_operation_is_the_dense_form(options, left, monkeypatch):
    """With its gradients, for two of three heads, of strided tensors as projections make them, in parts or at once."""
    lines = LINES[:4]
    syntax = batch(lines, left)
    inputs = [torch.randn(syntax.size[1], 4, 3, 8, dtype=torch.float64).permute(1, 2, 0, 3) for _ in range(3)]
    gradient = torch.randn_like(inputs[0])
    scores = 3 * syntax.size[1] ** 2
    for padding, cached in itertools.product((pad(lines, left).eq(PAD), None), (1, 3 * scores, 4 * scores)):
        monkeypatch.setattr(dense_factors, "CACHED", cached)
        check_form(scaling(2, **options).train().term(Step.of(syntax), 0), inputs, gradient, padding)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("options", [{}, {"parent_only": True}, {"parent_ignoring": 0.2}], ids=str)
def test_windows_of_long_sentences_are_the_dense_form(options, left, monkeypatch):
    """With gradients, for two of three heads, with padding and short lines; not if all columns have a factor."""
    used = []
    monkeypatch.setattr(window_factors, "SHORTEST", 40)
    monkeypatch.setattr(window_factors, "ROWS", 5)
    windows = window_factors.Windows.of
    monkeypatch.setattr(window_factors.Windows, "of", lambda *args: used.append(windows(*args)) or used[-1])
    rng = random.Random(1)
    lines = [*(random_line(rng, max_words=12, max_sentences=12) for _ in range(5)), EMPTY]
    syntax = batch(lines, left)
    assert syntax.size[1] >= 40
    inputs = [torch.randn(syntax.size[1], len(lines), 3, 8, dtype=torch.float64).permute(1, 2, 0, 3) for _ in range(3)]
    gradient = torch.randn_like(inputs[0])
    for padding in (pad(lines, left).eq(PAD), None):
        term = scaling(2, pascal_variance=0.05, **options).train().term(Step.of(syntax), 0)
        check_form(term, inputs, gradient, padding)
    assert len(used) == 2 and None not in used
    assert window_factors.window_factor_attention(*inputs, torch.ones(len(lines), 1, *[syntax.size[1]] * 2)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_factor_is_denormal(dtype):
    """And what is cut away is nothing: exp(score · d) is the same number."""
    position = torch.arange(0, 400, dtype=dtype) / 8
    for variance in (0.5, 1.0, 4.0):
        factor = gaussian(torch.zeros((), dtype=dtype), position, variance)
        whole = torch.tensor(
            [math.exp(-(float(p) ** 2) / 2 / variance) / math.sqrt(2 * math.pi * variance) for p in position],
            dtype=dtype,
        )
        assert not ((factor > 0) & (factor < torch.finfo(torch.float32).tiny)).any()
        for score in (1e10, -1e10):
            torch.testing.assert_close(torch.exp(factor * score), torch.exp(whole * score), rtol=1e-4, atol=0)


# -- any batch, either side -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_encoder_gives_a_sentence_the_same_in_any_batch(options):
    model = tiny_model("pascal_transformer", **options).eval()
    lines = [*LINES, EMPTY]
    alone = [encode(model, [line], False)[0] for line in lines]
    order = list(range(len(lines)))
    for shuffle, left in ((0, True), (1, False), (2, True)):
        random.Random(shuffle).shuffle(order)
        actual = encode(model, [lines[i] for i in order], left)
        for i, row in zip(order, actual):
            torch.testing.assert_close(row, alone[i], atol=2e-6, rtol=1e-5)
    assert encode(model, [EMPTY, EMPTY], True)[0].shape == (1, 16)


@pytest.mark.parametrize("options", [{}, {"pascal_heads": 2, "pascal_add": True}], ids=str)
def test_the_loss_of_a_batch_is_that_of_its_sentences(options):
    model = tiny_model("pascal_transformer", **options).double().eval()
    criterion = LabelSmoothedCrossEntropyCriterion(tiny_task(), sentence_avg=False, label_smoothing=0.1)
    together = [criterion(model, sample(LINES, left))[0] for left in (True, False)]
    alone = sum(criterion(model, sample([line], False))[0] for line in LINES)
    for loss in together:
        torch.testing.assert_close(loss, alone, atol=1e-5, rtol=1e-6)


def test_the_parse_reaches_the_output():
    """Other heads, other numbers; for each sentence whose heads changed, and for no other."""
    model = tiny_model("pascal_transformer").eval()
    lines = [random_line(random.Random(i), max_words=5, max_sentences=1) for i in range(5)]
    other = [Line(l.pieces, [len(l.heads) - 1] * len(l.heads), l.labels, l.tokens) for l in lines]
    differ = [l.heads != o.heads for l, o in zip(lines, other)]
    assert any(differ)
    before, after = encode(model, lines, True), encode(model, other, True)
    assert [not torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after)] == differ


def test_a_saved_model_uses_the_parse():
    """An evaluation path that skips the attention would give a loaded model's output without the syntax."""
    model = tiny_model("pascal_transformer")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = tiny_model("pascal_transformer", seed=9).eval()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    line = Line([1, 2, 1, 1], [1, 1, 1, 1], [(1, 1, 1)] * 4, [4, 5, 6, 7, 8, EOS])
    other = Line(line.pieces, [3, 0, 0, 3], line.labels, line.tokens)
    with torch.no_grad():
        torch.testing.assert_close(encode(loaded, [line], True)[0], encode(model.eval(), [line], True)[0])
        assert not torch.allclose(encode(loaded, [line], True)[0], encode(loaded, [other], True)[0], atol=1e-4)


# -- parent ignoring ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("add", [False, True])
def test_parent_ignoring(add):
    """One draw per token, shared by the heads: its row is 1 (0 for addition) throughout, the others are whole."""
    system = scaling(3, parent_ignoring=0.5, pascal_add=add)
    torch.manual_seed(0)
    syntax = batch(LINES, True)
    width = syntax.size[1]
    start = torch.zeros if add else torch.ones
    scores = start(len(LINES), 3, width, width)
    whole = scaling(3, pascal_add=add).term(Step.of(syntax), 0).scores(scores, None)
    ignored = system.train().term(Step.of(syntax), 0).scores(scores, None)
    assert torch.equal(ignored[:, 0], ignored[:, 1]) and torch.equal(ignored[:, 0], ignored[:, 2])
    neutral = (ignored == scores).all(dim=3)[:, 0]
    same = (ignored == whole).all(dim=3)[:, 0]
    assert (neutral | same).all()
    share = neutral.float().mean().item()
    assert 0.3 < share < 0.7
    # Off at evaluation, and 0 and 1 are what they say.
    assert torch.equal(system.eval().term(Step.of(syntax), 0).scores(scores, None), whole)
    assert torch.equal(
        scaling(3, parent_ignoring=1.0, pascal_add=add).term(Step.of(syntax), 0).scores(scores, None), scores
    )


def test_the_draws_of_two_batches_differ():
    system = scaling(1, parent_ignoring=0.5).train()
    torch.manual_seed(0)
    first, second = (system.term(Step.of(batch(LINES, True)), 0).factor for _ in range(2))
    assert not torch.equal(first, second)


# -- training -------------------------------------------------------------------------------------------------------


def gradients(model, lines=LINES, left=True) -> dict[str, torch.Tensor]:
    model.zero_grad()
    criterion = LabelSmoothedCrossEntropyCriterion(tiny_task(), sentence_avg=False, label_smoothing=0.1)
    criterion(model, sample(lines, left))[0].backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_reach_every_parameter(options):
    """And are those of finite differences, for a parameter of the scaled heads."""
    model = tiny_model("pascal_transformer", **options).double()
    actual = gradients(model)
    assert set(actual) == {name for name, p in model.named_parameters() if p.requires_grad}
    # A sum of logits stands for the loss, which fairseq computes in float32: too coarse for differences.
    net_input, wanted = sample(LINES, True)["net_input"], torch.arange(20.0, dtype=torch.float64).sin()
    weight = model.encoder.layers[0].self_attn.q_proj.weight
    model.zero_grad()
    (model(**net_input)[0] * wanted).sum().backward()
    sums = []
    for step in (0.005, -0.01):
        with torch.no_grad():
            weight[1, 2] += step
            sums.append((model(**net_input)[0] * wanted).sum().item())
    assert weight.grad[1, 2].item() == pytest.approx((sums[0] - sums[1]) / 0.01, rel=0.01, abs=1e-3)


@pytest.mark.parametrize("options", [{"parent_ignoring": 0.5}, {"pascal_layers": "0,1", "dropout": 0.2}], ids=str)
def test_checkpointed_activations_give_the_same_gradients(options):
    """The layer is run again in the backward pass, and must meet the same draws."""
    actual = []
    for checkpoint in (False, True):
        model = tiny_model("pascal_transformer", checkpoint_activations=checkpoint, **options)
        assert hasattr(model.encoder.layers[0], "precheckpoint_forward") == checkpoint
        torch.manual_seed(3)
        actual.append(gradients(model.train()))
    assert actual[0].keys() == actual[1].keys()
    for name in actual[0]:
        torch.testing.assert_close(actual[0][name], actual[1][name], msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"pascal_heads": 2}, {"pascal_add": True}], ids=str)
def test_half_precision(options, dtype):
    """Whole in half precision as --fp16 has it, and under autocast as --amp has it: finite, and near float32."""
    lines = [*LINES, EMPTY]
    model = tiny_model("pascal_transformer", **options).eval()
    expected = encode(model, lines, True)
    with torch.autocast("cpu", dtype=dtype):
        mixed = encode(model, lines, True)
    # fairseq halves what is float32 in a batch too; here that is nothing.
    half = encode(model.to(dtype), lines, True)
    for row, a, b in zip(expected, mixed, half):
        assert torch.isfinite(a).all() and torch.isfinite(b).all()
        assert b.dtype == dtype
        torch.testing.assert_close(a.float(), row, atol=0.1, rtol=0.1)
        torch.testing.assert_close(b.float(), row, atol=0.15, rtol=0.1)
    loss, *_ = LabelSmoothedCrossEntropyCriterion(tiny_task(), False, 0.1)(model, sample(LINES, True))
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_the_same_seed_gives_the_same_weights():
    first, second, third = (tiny_model("pascal_transformer", seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not all(torch.equal(first[k], third[k]) for k in first)


def test_it_starts_from_the_weights_of_the_plain_transformer():
    """PASCAL has no parameters of its own: the two differ in what they compute, and in nothing else."""
    ours = tiny_model("pascal_transformer", seed=4).state_dict()
    plain = tiny_model("syntax_transformer", seed=4).state_dict()
    assert ours.keys() == plain.keys()
    assert all(torch.equal(ours[k], plain[k]) for k in ours)


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_no_syntax_is_an_error(training):
    model = tiny_model("pascal_transformer").train(training)
    with data_error("pascal", option="--task"):
        model(**sample(LINES, True, syntax=False)["net_input"])


def test_print_alignment_is_an_error():
    """fairseq's forward_align passes tokens only: better no alignment than one without the syntax."""
    from fairseq.sequence_generator import EnsembleModelWithAlignment

    model = tiny_model("pascal_transformer").eval()
    net_input = sample(LINES, True)["net_input"]
    with data_error(option="--task"):
        EnsembleModelWithAlignment([model]).forward_align(
            net_input["src_tokens"], net_input["src_lengths"], net_input["prev_output_tokens"]
        )


def test_more_heads_than_a_layer_has():
    with data_error("pascal", "head 4", "layer 0"):
        tiny_model("pascal_transformer", pascal_heads=5)


@pytest.mark.parametrize("names", ["pascal,pascal", "paskal"])
def test_systems_that_are_named_twice_or_do_not_exist(names):
    with pytest.raises(SyntaxDataError) as refusal:
        tiny_model("pascal_transformer", encoder_syntax=names)
    assert refusal.value.option == "--encoder-syntax"
