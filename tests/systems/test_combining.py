"""What systems may claim of one head, what they hand each other, and what becomes of their losses."""

import itertools
import math
import random
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import lstm_models
import pytest
import torch
from data_errors import data_error
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.modules import FairseqDropout
from random_parses import Line, flat, random_line
from tiny_syntax import dictionary, sample, tiny_model
from torch import nn

from fairseq_syntax.compat.models import name_dropouts
from fairseq_syntax.criterions.chunked_cross_entropy import SupervisedHeadCriterion
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import HeadInputs, ScoreTerm
from fairseq_syntax.model.decoder import DecoderSystem, build_decoder
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS, EncoderSystem, SyntaxTransformerEncoder
from fairseq_syntax.model.heads import HeadClaims, HeadLoss, Step
from fairseq_syntax.model.losses import system_losses
from fairseq_syntax.model.options import SystemConfig, add_options, option, option_name, read_options
from fairseq_syntax.model.relative_attention import RelativeEmbeddings
from fairseq_syntax.systems.lisa import LisaConfig
from fairseq_syntax.systems.pascal import Pascal, PascalConfig
from fairseq_syntax.systems.relative_depth import DepthConfig
from fairseq_syntax.tasks.config import SyntaxTranslationConfig
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask

LINES = [random_line(random.Random(seed)) for seed in range(4)]
TASK = SimpleNamespace(target_dictionary=dictionary())


def criterion(sentence_avg=False):
    return SupervisedHeadCriterion(TASK, sentence_avg=sentence_avg, label_smoothing=0.1)


# ------------------------------------------------------------------------------------------------- claims on a head


def combined(systems: str, **options):
    return tiny_model("syntax_transformer", encoder_syntax=systems, **options)


@pytest.fixture
def two_groups(tmp_path):
    """Of the labels of tiny models: LDD then has two heads where others have four."""
    path = tmp_path / "groups.txt"
    path.write_text("one: a b\ntwo: c d\n")
    return str(path)


def built_with(systems: str, groups: str):
    """A model that has room for a parent head below the layers that read one."""
    options = {"encoder_layers": 4, "lisa_layer": 1, "parent_layer": 1}
    return combined(systems, **options, ldd_label_groups=groups, ldd_variant="LDP").eval()


@pytest.fixture(scope="module")
def by_itself(tmp_path_factory):
    """Each system, and whether it reads the parent head of another one, without which it is refused."""
    groups = tmp_path_factory.mktemp("groups") / "groups.txt"
    groups.write_text("one: a b\ntwo: c d\n")
    systems = {}
    for name in ENCODER_SYSTEMS:
        try:
            systems[name] = built_with(name, str(groups)).encoder.systems[name], False
        except SyntaxDataError:
            systems[name] = built_with(f"supervised_heads,{name}", str(groups)).encoder.systems[name], True
    return systems


def may_meet(pair, by_itself) -> bool:
    """By the table of what may be claimed of one head, for every head, from the hooks of each system."""
    (one, one_reads), (other, other_reads) = (by_itself[name] for name in pair)
    for reader, reads, giver in ((one, one_reads, other), (other, other_reads, one)):
        place = giver.parent_head()
        changed = (layer for layer in reader.layers() if reader.claims(layer, 4).scales)
        if reads and (place is None or place[0] >= min(changed)):
            return False
    if one_reads and other_reads:
        return False
    for layer, head in itertools.product(range(4), range(4)):
        heads = next((n for s in (one, other) if (n := s.attention_heads(layer)) is not None), 4)
        for a, b in ((one, other), (other, one)):
            mine, its = (s.claims(layer, heads) if layer in s.layers() else HeadClaims() for s in (a, b))
            trains, trained = ((layer, head) in s.supervises().values() for s in (a, b))
            if head in mine.replaces and (head in its.replaces or trained):
                return False
            if (trains and trained) or (head in mine.gives and head in its.scales):
                return False
            if not a.project_scores(layer) and b.reads_queries and layer in b.layers():
                return False
    return True


@pytest.mark.matrix(30)
@pytest.mark.parametrize("first, second", [*itertools.permutations(sorted(ENCODER_SYSTEMS), 2)])
def test_any_two_systems_work_together_or_are_refused(first, second, by_itself, two_groups):
    """In one model, as they are by default; whatever else is in the batch."""
    pair = first, second
    try:
        model = built_with(",".join(pair), two_groups)
    except SyntaxDataError as error:
        assert not may_meet(pair, by_itself) and any(name in str(error) for name in pair), error
        return
    assert may_meet(pair, by_itself)
    with torch.no_grad():
        whole = model(**sample(LINES, left=True)["net_input"])[0]
        for row, line in enumerate(LINES):
            alone = model(**sample([line], left=False)["net_input"])[0][0]
            torch.testing.assert_close(alone, whole[row], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("other", ["relative_depth", "relative_positions", "structural_positions"])
@pytest.mark.parametrize("order", [1, -1])
def test_ldd_sets_the_size_of_the_heads_that_others_act_on(other, order, two_groups):
    systems = ["ldd", other][::order]
    model = combined(",".join(systems), ldd_layers="0", ldd_label_groups=two_groups, ldd_variant="LDP")
    embeddings = next(m for m in model.encoder.systems[other].modules() if isinstance(m, RelativeEmbeddings))
    sizes = {layer: vectors.size(-1) for layer, vectors in embeddings.by_layer().items()}
    heads = [layer.self_attn.num_heads for layer in model.encoder.layers]
    assert heads == [2, 4]
    assert sizes == {0: 8, 1: 4}


@pytest.mark.parametrize("kind", ["absolute", "both"])
def test_positions_in_the_tree_want_positions(kind):
    options = {"structural_positions": kind, "no_token_positional_embeddings": True}
    with data_error("--no-token-positional-embeddings"):
        combined("structural_positions", **options)
    assert combined("structural_positions", **{**options, "structural_positions": "relative"}).encoder.systems


@pytest.mark.parametrize("order", list(itertools.permutations(["lisa", "supervised_heads"])))
def test_two_losses_on_one_head_are_refused(order):
    with data_error("head 0", "layer 1"):
        combined(",".join(order))
    combined(",".join(order), lisa_head=2)
    combined(",".join(order), lisa_layer=0)
    combined(",".join(order), child_weight=0.0)  # what has no weight claims nothing


def test_two_losses_of_one_system_on_one_head_are_refused():
    with data_error("child", "parent", "head 1"):
        combined("supervised_heads", child_head=1)
    combined("supervised_heads", child_head=1, child_layer=0)


@pytest.mark.parametrize("other", ["lisa", "supervised_heads"])
def test_a_head_that_another_system_computes_is_refused(other):
    options = {"ldd_variant": "LDA", "ldd_layers": "1", "ldd_label_groups_text": "root: root\na: a\nb: b c\nd: d\n"}
    with data_error("layer 1"):
        combined(f"ldd,{other}", **options)
    combined(f"ldd,{other}", **{**options, "ldd_variant": "UDP"})


@pytest.mark.parametrize("other", ["relative_depth", "relative_positions", "structural_positions"])
@pytest.mark.parametrize("order", [1, -1])
def test_queries_that_another_system_leaves_out_are_missed(other, order, two_groups):
    """Half of relative positions would do nothing."""
    names = ",".join(["ldd", other][::order])
    options = {"ldd_variant": "LDA", "ldd_label_groups": two_groups}
    with data_error("ldd", other, "layer 0"):
        combined(names, **options)
    combined(names, **options, depth_layers="1", relative_layers="1", structural_layers="1")
    combined(names, **options, depth_layers="1", relative_layers="1", structural_positions="absolute")


@pytest.mark.parametrize("order", ["pascal,lisa", "lisa,pascal"])
def test_scores_are_replaced_before_they_are_scaled(order):
    """Whatever the order of the option, PASCAL scales what the biaffine head computes, and the loss sees that."""
    model = combined(order, lisa_layer=0, pascal_heads=2).eval()
    seen = {}
    model.encoder.layers[0].register_forward_pre_hook(lambda _, args: seen.__setitem__("x", args[0]))
    step = model(**sample(LINES, True)["net_input"])[1]["encoder_step"]
    distance = model.encoder.systems["pascal"].term(step, 0).factor[:, 0]
    expected = model.encoder.systems["lisa"].biaffine(seen["x"]) * distance
    torch.testing.assert_close(step.scores[0, 0], expected)


# ------------------------------------------------------------------------------------------- what a system can do


class Lookahead(EncoderSystem):
    """A test system: a head of layer 0 hands its distribution on to layer 1, which reads it and adds values by it."""

    name = "lookahead"

    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.offsets = nn.Parameter(torch.randn(3, 4))

    def layers(self):
        return (0, 1)

    def claims(self, layer, num_heads):
        return HeadClaims(reads=frozenset({1})) if layer == 0 else HeadClaims(scales=frozenset({0, 1, 2}))

    def term(self, step, layer):
        if layer == 0 or (0, 1) not in step.scores:
            return None
        scores = step.scores[0, 1].masked_fill(step.padding[:, None], -math.inf)
        return LookaheadTerm(scores.softmax(-1), self.offsets)


class LookaheadTerm(ScoreTerm):
    heads = slice(0, 3)

    def __init__(self, distribution, offsets):
        self.tensors = (distribution,)
        self.offsets = offsets

    def scores(self, scores, inputs: HeadInputs):
        return scores + inputs.tensors[0][:, None] + torch.einsum("bhid,hd->bhi", inputs.q, self.offsets)[..., None]

    def output(self, weights, inputs: HeadInputs):
        return (weights * inputs.tensors[0][:, None]).sum(-1, keepdim=True) * self.offsets[:, None]


class Blocks(EncoderSystem):
    """A test system: a linear map after the embeddings and after layer 0."""

    name = "blocks"

    def __init__(self, size=16) -> None:
        super().__init__(None, None, None)
        self.maps = nn.ModuleList(nn.Linear(size, size) for _ in range(2))

    def blocks(self):
        return (None, 0)

    def block(self, x, step, layer):
        assert step.tokens.shape == x.shape[1::-1]
        return x + self.maps[0 if layer is None else 1](x)


def encoder_with(*systems, **options):
    """The encoder of a tiny model, built anew with systems that have no options."""
    model = tiny_model("syntax_transformer", **options)
    torch.manual_seed(1)
    encoder = SyntaxTransformerEncoder(
        model.encoder.cfg, model.encoder.dictionary, model.encoder.embed_tokens, {s.name: s for s in systems}
    )
    return encoder.eval()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_distribution_of_a_layer_below_by_loops(checkpointed):
    torch.manual_seed(0)
    encoder = encoder_with(Lookahead(), checkpoint_activations=checkpointed).double()
    tokens = sample(LINES, True)["net_input"]["src_tokens"]
    seen = {}
    for i in range(2):
        encoder.layers[i].self_attn.register_forward_pre_hook(lambda _, args, i=i: seen.__setitem__(i, args[0]))
    encoder.layers[1].self_attn.out_proj.register_forward_pre_hook(lambda _, a: seen.__setitem__("out", a[0].detach()))
    out = encoder(tokens)["encoder_out"][0]  # as in search: nothing is observed for a criterion
    offsets = encoder.systems["lookahead"].offsets
    for b in range(len(tokens)):
        real = [j for j in range(tokens.size(1)) if tokens[b, j] != 1]

        def heads_of(i, b=b):
            attention, x = encoder.layers[i].self_attn, seen[i][:, b].detach()
            return [p(x).view(-1, 4, 4) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]

        q0, k0, _ = heads_of(0)
        q, k, v = heads_of(1)
        for i in real:
            below = torch.stack([q0[i, 1] @ k0[j, 1] / 2 for j in real]).softmax(0)
            for h in range(4):
                logits = [q[i, h] @ k[j, h] / 2 for j in real]
                if h < 3:
                    logits = [s + p + (q[i, h] / 2) @ offsets[h] for s, p in zip(logits, below)]
                weights = torch.stack(logits).softmax(0)
                expected = sum(w * v[j, h] for w, j in zip(weights, real))
                if h < 3:
                    expected = expected + (weights @ below) * offsets[h]
                torch.testing.assert_close(seen["out"][i, b, 4 * h : 4 * h + 4], expected.detach())
    out.sum().backward()
    assert offsets.grad.abs().sum() > 0


def test_a_gradient_goes_through_what_is_handed_on_with_checkpointed_activations_too():
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        encoder = encoder_with(Lookahead(), checkpoint_activations=checkpointed).train()
        out = encoder(sample(LINES, True)["net_input"]["src_tokens"])["encoder_out"][0]
        (out * torch.arange(16.0)).square().sum().backward()
        gradients.append({name: p.grad for name, p in encoder.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("left", [True, False])
def test_blocks_run_after_embeddings_and_layers_and_with_layerdrop_too(left):
    torch.manual_seed(0)
    blocks = Blocks()
    encoder, plain = encoder_with(blocks), encoder_with()
    plain.load_state_dict(encoder.state_dict(), strict=False)
    tokens = sample(LINES, left)["net_input"]["src_tokens"]
    x, _ = plain.forward_embedding(tokens)
    mask = tokens.eq(1)
    x = blocks.block(x.masked_fill(mask[:, :, None], 0).transpose(0, 1), Step(tokens, mask), None)
    skipped = blocks.block(x, Step(tokens, mask), 0)
    x = blocks.block(plain.layers[0](x, mask), Step(tokens, mask), 0)
    torch.testing.assert_close(encoder(tokens)["encoder_out"][0], plain.layers[1](x, mask))
    encoder.train()
    encoder.encoder_layerdrop = 1.0
    torch.testing.assert_close(encoder(tokens)["encoder_out"][0], skipped)


# ------------------------------------------------------------------------------------------------------- in a decoder


class Believer(DecoderSystem):
    """A test system: head 1 of each decoder layer scores by its inputs, and learns to look at the token before."""

    name = "believer"
    training_needs = frozenset({"tree"})

    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def layers(self):
        return (0, 1)

    def claims(self, layer, num_heads):
        return HeadClaims(replaces=frozenset({1}))

    def supervises(self):
        return {"before": (1, 1)}

    def term(self, step, layer):
        return BelieverTerm(self.weight)

    def loss(self, name, scores, step):
        future = torch.ones_like(scores[0]).triu(1).bool()
        at = torch.arange(scores.size(1)).sub(1).clamp(min=0)
        nll = -scores.masked_fill(future, -math.inf).log_softmax(-1)[:, torch.arange(len(at)), at]
        real = step.tokens.ne(1)
        nll = nll.masked_fill(~real, 0).sum()
        zero = torch.zeros_like(nll)
        return HeadLoss(2 * nll, nll, real.sum(), zero, zero)


class BelieverTerm(ScoreTerm):
    heads = slice(1, 2)

    def __init__(self, weight):
        self.weight = weight

    def scores(self, scores, inputs: HeadInputs):
        return torch.einsum("tbc,cd,sbd->bts", inputs.x, self.weight, inputs.memory)[:, None]

    def output(self, weights, given):
        return weights.square().sum(-1, keepdim=True).expand(-1, -1, -1, 4)


def model_with_decoder(system, arch="syntax_transformer", **options):
    """A tiny model whose decoder is built anew with one more system."""
    model = tiny_model(arch, decoder_layers=2, **options)
    systems = {**getattr(model.decoder, "systems", {}), system.name: system}
    torch.manual_seed(3)
    cfg = model.decoder.cfg
    model.decoder = build_decoder(cfg, model.decoder.dictionary, model.decoder.embed_tokens, systems)
    return model.eval()


@pytest.mark.parametrize("arch", ["syntax_transformer", "lasyn_transformer"])
def test_a_search_says_what_the_whole_target_says(arch):
    """Step by step, with rows of the beam exchanged on the way, as all at once; beside latent tags too."""
    torch.manual_seed(0)
    model = model_with_decoder(Believer(), arch, **({"latent_values": 3} if arch == "lasyn_transformer" else {}))
    model.double()
    net_input = sample([line for line in LINES[:2] for _ in range(2)], True, syntax=False)["net_input"]  # a beam of 2
    net_input["prev_output_tokens"][1::2, 1:] = torch.randint(4, 20, (2, 4))
    with torch.no_grad():
        whole, extra = model(**net_input)
        assert extra["decoder_step"].scores.keys() == {(1, 1)}
        encoder_out = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
        order, state, tokens = torch.arange(4), {}, net_input["prev_output_tokens"]
        for t in range(tokens.size(1)):
            step, _ = model.decoder(tokens[order][:, : t + 1], encoder_out, incremental_state=state)
            torch.testing.assert_close(step[:, -1], whole[order, t])
            change = torch.tensor([1, 0, 3, 2])
            model.decoder.reorder_incremental_state_scripting(state, change)
            order = order[change]


def test_a_plain_head_beside_it_and_the_future_are_as_ever():
    """By fairseq's own decoder where no term changes anything; and no token sees those after it."""

    class Idle(Believer):
        def claims(self, layer, num_heads):
            return HeadClaims()

        def term(self, step, layer):
            return ScoreTerm()

    model = model_with_decoder(Idle())
    plain = tiny_model("transformer", decoder_layers=2).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "systems" not in k})
    net_input = sample(LINES, True, syntax=False)["net_input"]
    torch.testing.assert_close(model(**net_input)[0], plain(**net_input)[0])
    model = model_with_decoder(Believer())
    before = model(**net_input)[0]
    net_input["prev_output_tokens"][:, 3] += 1
    after = model(**net_input)[0]
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_losses_of_a_decoder_are_collected_and_need_the_targets_parse():
    model = model_with_decoder(Believer())
    batched = sample(LINES, True)
    assert model.losses == ("before",) and model.target_training_needs == {"tree"}
    with data_error("believer"):
        criterion()(model, batched)
    batched["tgt_syntax"] = flat([Line([1] * 4, [0] * 4, [(1, 1, 1)] * 4, row.tolist()) for row in batched["target"]])
    loss, _, log = criterion()(model, batched)
    torch.testing.assert_close(loss, log["translation_loss"] + 2 * log["before_nll"])
    loss.backward()
    assert model.decoder.systems["believer"].weight.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------------------- their losses


@pytest.mark.parametrize("sentence_avg", [False, True])
@pytest.mark.parametrize("systems", ["supervised_heads", "lisa"])
def test_a_batch_is_its_halves_accumulated(systems, sentence_avg):
    """Gradients of an update do not depend on how its sentences are spread over batches and workers."""
    model = combined(systems).double()
    gradients, objectives = [], []
    for parts in ([LINES], [LINES[:1], LINES[1:]]):
        model.zero_grad()
        total = size = 0
        for part in parts:
            loss, sample_size, _ = criterion(sentence_avg)(model, sample(part, True))
            loss.backward()
            total, size = total + loss.item(), size + sample_size
        gradients.append([p.grad / size for p in model.parameters() if p.grad is not None])
        objectives.append(total / size)
    assert objectives[0] == pytest.approx(objectives[1])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("systems", ["supervised_heads", "lisa", "pascal,supervised_heads"])
def test_a_layer_that_is_left_out_has_no_loss_in_that_step(systems):
    model = combined(systems, encoder_layerdrop=0.5).train()
    batched = sample(LINES, True)
    dropped = 0
    for seed in range(12):
        torch.manual_seed(seed)
        model.zero_grad()
        loss, _, log = criterion()(model, batched)
        name = "lisa" if systems == "lisa" else "parent"
        loss.backward()
        tokens = sum(sum(line.pieces) for line in LINES)
        assert log[f"{name}_tokens"] in (0, tokens)
        if log[f"{name}_tokens"] == 0:
            dropped += 1
            torch.testing.assert_close(loss.detach(), log["translation_loss"])
    assert 0 < dropped < 12
    assert set(criterion()(model.eval(), batched)[2]) == set(log)  # the same entries whatever was left out


def test_layers_left_out_are_fairseqs_own_choice():
    """The same seed leaves out the same layers as in a plain Transformer."""
    ours, plain = (tiny_model(arch, encoder_layerdrop=0.5, encoder_layers=4) for arch in (
        "supervised_head_transformer", "transformer"))  # fmt: skip
    plain.load_state_dict(ours.state_dict())
    tokens = sample(LINES, True)
    for seed in range(4):
        outs = []
        for model in (ours, plain):
            torch.manual_seed(seed)
            net_input = {k: v for k, v in tokens["net_input"].items() if k != "src_syntax" or model is ours}
            outs.append(model.train()(**net_input)[0])
        torch.testing.assert_close(*outs)


def test_a_filler_counts_nothing_and_leaves_the_dropout_of_what_follows(monkeypatch):
    """On a device that is one of several, or none of the GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    task = SyntaxTranslationTask.__new__(SyntaxTranslationTask)
    task.cfg = SimpleNamespace(parse_dropout=0.0)
    model, optimizer = combined("lisa", dropout=0.1), SimpleNamespace(backward=lambda loss: loss.backward())
    step = (sample(LINES, True), model, criterion(), optimizer, 0)
    drawn = torch.get_rng_state()
    _, size, log = task.train_step(*step, ignore_grad=True)
    assert torch.equal(torch.get_rng_state(), drawn) and size == 0 and not any(log.values())
    assert task.train_step(*step)[1] > 0 and not torch.equal(torch.get_rng_state(), drawn)


def test_a_batch_without_parses_is_refused_for_the_systems_that_read_them_now():
    model = combined("pascal,supervised_heads")
    net_input = sample(LINES, True)["net_input"]
    del net_input["src_syntax"]
    with data_error("pascal and supervised_heads", option="--task"):
        model.train()(**net_input)
    with data_error("pascal", option="--task") as caught:
        model.eval()(**net_input)
    assert "supervised_heads" not in str(caught.value)


def test_a_model_without_such_systems_has_no_such_loss():
    model = tiny_model("pascal_transformer")
    batched = sample(LINES, True)
    assert model.losses == () and system_losses(model, model(**batched["net_input"])[1], batched) == (0.0, {})
    assert combined("lisa,supervised_heads", lisa_head=3).losses == ("lisa", "child", "parent")
    assert isinstance(model.encoder.systems["pascal"], Pascal)


@pytest.mark.parametrize("layers", ["-1", "1", "0,-1"])
def test_all_heads_of_a_layer_are_those_that_another_system_gives_it(layers):
    groups = {"ldd_label_groups_text": "root: root\na: a\nb: b c\nd: d\n", "ldd_variant": "UDP", "ldd_layers": layers}
    model = combined("ldd,pascal", encoder_attention_heads=2, pascal_layers=layers, **groups)
    numbers = sorted({int(i) % 2 for i in layers.split(",")})
    assert [i for i, layer in enumerate(model.encoder.layers) if layer.self_attn.num_heads == 4] == numbers
    step = model.encoder(**{k: v for k, v in sample(LINES, True)["net_input"].items() if k.startswith("src")})["step"]
    claims = model.encoder.systems["pascal"].claims(1, 4)
    assert claims.scales == {0, 1, 2, 3}
    assert model.encoder.systems["pascal"].term(step, 1).heads.indices(4)[:2] == (0, 4)


NAMES = ["TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayerBase", "TransformerDecoderLayerBase"]


@pytest.mark.parametrize("retained", [["MultiheadAttention"], NAMES[:2], NAMES[2:3], [*NAMES, "MultiheadAttention"]])
@pytest.mark.parametrize("systems", ["pascal,supervised_heads", "dbsa", "lasyn,dbsa"])
def test_dropout_is_retained_under_fairseqs_names(systems, retained):
    """``--retain-dropout --retain-dropout-modules``: in the same modules as a plain Transformer's."""

    def kept(model) -> set[str]:
        name_dropouts(model)
        for name, module in model.named_modules():
            if hasattr(module, "make_generation_fast_") and isinstance(module, FairseqDropout):
                module.make_generation_fast_(name, retain_dropout=True, retain_dropout_modules=retained)
        return {name for name, module in model.named_modules() if getattr(module, "apply_during_inference", False)}

    decoder = {"decoder_syntax": "dbsa"} if "dbsa" in systems else {}
    arch = "lasyn_transformer" if "lasyn" in systems else "syntax_transformer"
    encoder = {} if "lasyn" in systems else {"encoder_syntax": systems}
    ours, plain = kept(tiny_model(arch, **encoder, **decoder)), kept(tiny_model("transformer"))
    assert ours == plain and ours


def test_options_are_of_their_types_wherever_they_come_from():
    assert read_options(PascalConfig, Namespace()) == PascalConfig()
    assert read_options(PascalConfig, Namespace(pascal_heads=None, pascal_layers=1)) == PascalConfig(pascal_layers="1")
    # An override at generation is whatever its user wrote, and 'False' is true in Python.
    for said, wanted in ((False, False), ("False", False), ("true", True), (1, True)):
        assert read_options(LisaConfig, Namespace(lisa_gold=said)).lisa_gold is wanted
    wrong = ((LisaConfig, "lisa_gold", "no"), (DepthConfig, "depth_clip", 2.9), (PascalConfig, "pascal_variance", "x"))
    for config, name, value in wrong:
        with pytest.raises(SyntaxDataError) as refusal:
            read_options(config, Namespace(**{name: value}))
        assert refusal.value.option == option_name(name)
    parser = ArgumentParser()
    add_options(parser, PascalConfig)
    assert vars(parser.parse_args([])) == {
        "pascal_heads": None, "pascal_layers": None, "pascal_variance": None, "parent_ignoring": None,
        "parent_only": False, "pascal_add": False}  # fmt: skip
    assert parser.parse_args(["--pascal-heads", "2", "--pascal-add"]).pascal_heads == 2
    assert "(default: 0)" in " ".join(parser.format_help().split())


def test_a_renamed_option_reads_older_checkpoints():
    @dataclass
    class Renamed(SystemConfig):
        clip: int = option(2, "a number", low=1, was="depth_clip")

    assert read_options(Renamed, Namespace(depth_clip=5)).clip == 5
    assert read_options(Renamed, Namespace(depth_clip=5, clip=3)).clip == 3, "an override has the new name"
    with pytest.raises(SyntaxDataError) as refusal:
        read_options(Renamed, Namespace(depth_clip=0))
    assert refusal.value.option == "--clip"


@pytest.mark.parametrize("arch", ["transformer", "pascal_transformer", "dbsa_transformer", "lasyn_transformer"])
def test_a_decoder_without_cross_attention_has_none(arch):
    def count(**options) -> int:
        return sum("encoder_attn." in name for name, _ in tiny_model(arch, **options).named_parameters())

    assert count() > 0 and count(no_cross_attention=True) == 0


@pytest.mark.parametrize("side, arch", [("encoder", "pascal_transformer"), ("decoder", "dbsa_transformer")])
def test_pruned_layers_are_refused_where_systems_act(side, arch):
    """fairseq gives those that are kept new numbers, and systems act in layers by their number."""
    tiny_model("transformer", **{f"{side}_layers": 2, f"{side}_layers_to_keep": "1"})
    with data_error(f"--{side}-layers-to-keep"):
        tiny_model(arch, **{f"{side}_layers": 2, f"{side}_layers_to_keep": "1"})


@pytest.mark.parametrize("arch", ["transformer", "pascal_transformer"])
def test_one_embedding_for_two_dictionaries_is_refused(arch):
    for target, refused in ((dictionary(), False), (dictionary(30), True)):
        task = SyntaxTranslationTask(SyntaxTranslationConfig(source_lang="a", target_lang="b"), dictionary(), target)
        args = Namespace(arch=f"{arch}_tiny", encoder_layers=1, decoder_layers=1, merge_src_tgt_embed=True)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        with data_error("--merge-src-tgt-embed") if refused else nullcontext():
            task.build_model(args)


@pytest.mark.parametrize("arch", ["lisa_transformer", "supervised_head_transformer", "pascal_transformer"])
def test_a_criterion_that_would_leave_losses_out_is_refused(arch):
    task = SyntaxTranslationTask(SyntaxTranslationConfig(source_lang="a", target_lang="b"), dictionary(), dictionary())
    args = Namespace(arch=f"{arch}_tiny", encoder_layers=1, decoder_layers=1)
    ARCH_CONFIG_REGISTRY[args.arch](args)
    task.build_model(args)

    def build(name):
        return task.build_criterion(Namespace(criterion=name, sentence_avg=False, label_smoothing=0.0))

    if arch != "pascal_transformer":
        with data_error("lisa" if arch == "lisa_transformer" else "child, parent"):
            build("label_smoothed_cross_entropy")
    else:
        build("label_smoothed_cross_entropy")
    for name in ("supervised_head", "lisa"):
        build(name)


def test_a_criterion_that_doubles_batches_does_not_double_their_parses():
    """fairseq's R-Drop."""
    task = SyntaxTranslationTask(SyntaxTranslationConfig(source_lang="a", target_lang="b"), dictionary(), dictionary())
    options = {"criterion": "label_smoothed_cross_entropy_with_rdrop", "sentence_avg": False, "label_smoothing": 0.0}
    for arch in ("pascal_transformer_tiny", "relative_depth_transformer_tiny", "transformer_tiny"):
        args = Namespace(arch=arch, encoder_layers=1, decoder_layers=1)
        ARCH_CONFIG_REGISTRY[arch](args)
        task.build_model(args)
        task.build_criterion(Namespace(**options, rdrop_alpha=0))
        if arch == "transformer_tiny":
            task.build_criterion(Namespace(**options, rdrop_alpha=5))
        else:
            with data_error("--rdrop-alpha"):
                task.build_criterion(Namespace(**options, rdrop_alpha=5))


@pytest.mark.parametrize("arch", ["dlaa_lstm", "local_attention_lstm"])
def test_a_criterion_that_would_leave_out_the_loss_of_an_lstm_is_refused(arch):
    for updates in (0, 3):
        cfg = SyntaxTranslationConfig(source_lang="a", target_lang="b")
        task = SyntaxTranslationTask(cfg, dictionary(), dictionary())
        args = Namespace(arch=arch, guided_updates=updates, encoder_layers=1, decoder_layers=1)
        ARCH_CONFIG_REGISTRY[arch](args)
        model = task.build_model(args)
        criteria = [
            Namespace(criterion=name, sentence_avg=False, label_smoothing=0.0)
            for name in ("supervised_head", "cross_entropy")
        ]
        task.build_criterion(criteria[0])
        if not updates:
            task.build_criterion(criteria[1])
            continue
        with data_error("position"):
            task.build_criterion(criteria[1])
        model.decoder.attention.supervises = tuple  # so an attention cannot have a loss that no one is told of
        with pytest.raises(ValueError, match="position"):
            model.train()(**lstm_models.net_input(lstm_models.lines(1)))
