"""Supervised heads: matrices and losses against loops, and what they do and do not do to a Transformer."""

import itertools
import math
import random
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from data_errors import data_error
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from random_parses import Line, batch, pad, random_line
from tiny_syntax import dictionary, sample, tiny_model

from fairseq_syntax.criterions.chunked_cross_entropy import SupervisedHeadCriterion
from fairseq_syntax.criterions.lasyn_em import LaSynEMCriterion
from fairseq_syntax.model.attachments import link, parents
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.losses import system_losses
from fairseq_syntax.systems.supervised_heads import (
    SupervisedHeads,
    SupervisedHeadsConfig,
    child_matrix,
    child_nll,
    parent_matrix,
)


def parent_nll(scores, syntax):
    """−Σ A_parent ⊙ log Â_parent."""
    return parents(syntax).nll(scores)


def loop_matrices(line: Line) -> tuple[list[list[float]], list[list[float]]]:
    """Child and parent matrix of a line's pieces, by walking over the words."""
    n = sum(line.pieces)
    parent_of = []  # of each piece
    for word, (start, count) in enumerate(zip(line.starts, line.pieces)):
        parent_of.append(line.starts[line.heads[word]])
        parent_of += [start] * (count - 1)
    child, parent = ([[0.0] * n for _ in range(n)] for _ in range(2))
    for i in range(n):
        parent[i][parent_of[i]] = 1.0
        children = [j for j in range(n) if j != i and parent_of[j] == i]
        for j in children or [i]:
            child[i][j] = 1 / len(children or [i])
    return child, parent


def loop_loss(scores: torch.Tensor, lines: list[Line], left: bool, which: int) -> float:
    """Sum of A log Â by loops over rows and columns, in Python's floats."""
    total, width = 0.0, scores.shape[1]
    for b, line in enumerate(lines):
        offset = width - len(line.tokens) if left else 0
        keys = range(offset, offset + len(line.tokens))  # </s> is among them
        for i, row in enumerate(loop_matrices(line)[which]):
            logits = [scores[b, i + offset, j].item() for j in keys]
            normaliser = math.log(sum(math.exp(s) for s in logits))
            total -= sum(a * (logits[j] - normaliser) for j, a in enumerate(row))
    return total


LINES = [[random_line(random.Random(seed * 10 + i)) for i in range(seed % 4 + 1)] for seed in range(12)]
LINES += [
    [Line([1], [0], [(1, 1, 1)], [5, 2])],
    [Line([3], [0], [(1, 1, 1)], [5, 6, 7, 2]), random_line(random.Random(3))],
]


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lines", LINES)
def test_matrices_by_loops(lines, left):
    syntax = batch(lines, left)
    width = syntax.size[1]
    for ours, which in ((child_matrix(syntax), 0), (parent_matrix(syntax), 1)):
        expected = torch.zeros(len(lines), width, width)
        for b, line in enumerate(lines):
            o, n = (width - len(line.tokens) if left else 0), sum(line.pieces)
            expected[b, o : o + n, o : o + n] = torch.tensor(loop_matrices(line)[which])
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(ours.sum(-1), syntax.real.float())


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lines", LINES)
def test_losses_by_loops(lines, left):
    torch.manual_seed(0)
    syntax = batch(lines, left)
    scores = 3 * torch.randn(len(lines), syntax.size[1], syntax.size[1])
    for nll, which in ((child_nll, 0), (parent_nll, 1)):
        assert nll(scores, syntax).item() == pytest.approx(loop_loss(scores, lines, left, which), rel=1e-5, abs=1e-5)


def test_gradients_are_softmax_minus_target_and_never_touch_padding():
    lines = LINES[3]
    syntax, padding = batch(lines, True), pad(lines, True).eq(1)
    scores = torch.randn(len(lines), *syntax.size[1:] * 2).requires_grad_()
    for nll, matrix in ((child_nll, child_matrix), (parent_nll, parent_matrix)):
        (gradient,) = torch.autograd.grad(nll(scores, syntax), scores)
        weights = scores.masked_fill(padding[:, None], -math.inf).softmax(-1)
        expected = (weights - matrix(syntax)) * syntax.real[:, :, None]
        torch.testing.assert_close(gradient, expected)


def test_losses_of_half_precision_scores_are_summed_in_single():
    lines = LINES[2]
    syntax = batch(lines, False)
    scores = (4 * torch.randn(len(lines), *syntax.size[1:] * 2)).half()
    for nll in (child_nll, parent_nll):
        ours = nll(scores, syntax)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, nll(scores.float(), syntax))


@pytest.mark.parametrize("left", [True, False])
def test_a_batch_is_the_sum_of_its_sentences(left):
    lines = [random_line(random.Random(seed)) for seed in range(5)]
    syntax = batch(lines, left)
    scores = torch.randn(len(lines), *syntax.size[1:] * 2)
    for nll in (child_nll, parent_nll):
        alone = 0.0
        for b, line in enumerate(lines):
            n = len(line.tokens)
            place = slice(-n, None) if left else slice(0, n)
            alone += nll(scores[b : b + 1, place, place], batch([line], left))
        torch.testing.assert_close(nll(scores, syntax), alone)


def test_attachment_counts_words_by_first_pieces():
    for lines in LINES:
        syntax = batch(lines, True)
        scores = torch.randn(len(lines), *syntax.size[1:] * 2)
        correct = words = 0
        for b, line in enumerate(lines):
            offset = syntax.size[1] - len(line.tokens)
            for word, start in enumerate(line.starts):
                candidates = [scores[b, start + offset, other + offset].item() for other in line.starts]
                correct += candidates.index(max(candidates)) == line.heads[word]
                words += 1
        assert [x.item() for x in parents(syntax).counts(scores)] == [correct, words]
        perfect = torch.nn.functional.one_hot(link(syntax), syntax.size[1]).float()
        assert parents(syntax).counts(perfect)[0] == words


def heads_of(**options) -> SupervisedHeads:
    """The system in an encoder of two layers."""
    return SupervisedHeads(SupervisedHeadsConfig(**options), Namespace(encoder_layers=2), None)


def test_a_head_without_weight_is_in_no_layer():
    assert heads_of(child_weight=0.0, child_layer=1, parent_layer=0).layers() == [0]
    assert heads_of(child_weight=0.0, parent_weight=0.0).layers() == []


def test_weights_and_scale():
    lines = LINES[1]
    syntax = batch(lines, True)
    scores = {(1, head): torch.randn(len(lines), *syntax.size[1:] * 2) for head in range(3)}
    system = heads_of(child_head=2, parent_head=0, child_weight=0.3, parent_weight=0.7)
    parts = {name: system.loss(name, scores[place], Step.of(syntax)) for name, place in system.supervises().items()}
    child, parent = child_nll(scores[1, 2], syntax), parent_nll(scores[1, 0], syntax)
    torch.testing.assert_close(parts["child"].loss, 0.3 * child)
    torch.testing.assert_close(parts["parent"].loss, 0.7 * parent)
    assert heads_of(child_head=2, parent_weight=0.0).supervises() == {"child": (1, 2)}


# ------------------------------------------------------------------------------------------------ in a Transformer

SENTENCES = [random_line(random.Random(seed)) for seed in range(4)]
TASK = SimpleNamespace(target_dictionary=dictionary())


def criterion(smoothing=0.0):
    return SupervisedHeadCriterion(TASK, sentence_avg=False, label_smoothing=smoothing)


def test_at_inference_it_is_the_plain_transformer_to_the_last_bit():
    ours, plain = tiny_model("supervised_head_transformer"), tiny_model("transformer")
    assert ours.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(ours.state_dict())
    net_input = sample(SENTENCES, left=True, syntax=False)["net_input"]
    ours.eval(), plain.eval()
    assert torch.equal(
        ours.encoder(net_input["src_tokens"], net_input["src_lengths"])["encoder_out"][0],
        plain.encoder(net_input["src_tokens"], net_input["src_lengths"])["encoder_out"][0],
    )
    torch.testing.assert_close(ours(**net_input)[0], plain(**net_input)[0])  # scores read: other kernels, same function


@pytest.mark.parametrize("options", [{}, {"child_head": 3, "parent_head": 1, "child_layer": 0, "parent_layer": 1}])
def test_the_observed_scores_are_queries_times_keys(options):
    model = tiny_model("supervised_head_transformer", **options)
    inputs = {}
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_pre_hook(lambda _, args, number=number: inputs.__setitem__(number, args[0]))
    _, extra = model(**sample(SENTENCES, left=True)["net_input"])
    system = model.encoder.systems["supervised_heads"]
    scores = extra["encoder_step"].scores
    assert set(scores) == set(system.supervises().values())
    for (layer, head), actual in scores.items():
        attention, x = model.encoder.layers[layer].self_attn, inputs[layer].transpose(0, 1)
        d = slice(4 * head, 4 * head + 4)
        q, k = attention.q_proj(x)[..., d], attention.k_proj(x)[..., d]
        torch.testing.assert_close(actual, q @ k.transpose(1, 2) / 2)


def test_the_loss_of_equation_9():
    model = tiny_model("supervised_head_transformer", child_weight=0.25, parent_weight=2.0)
    batched = sample(SENTENCES, left=True)
    loss, _, log = criterion(0.1)(model, batched)
    translation = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(model, batched)[0]
    scores = model(**batched["net_input"])[1]["encoder_step"].scores
    tokens = sum(sum(line.pieces) for line in SENTENCES)
    child, parent = (loop_loss(scores[1, head].detach(), SENTENCES, True, head) for head in (0, 1))
    expected = translation + 0.25 * child + 2.0 * parent
    torch.testing.assert_close(loss, expected)
    assert log["translation_loss"] == translation and log["child_tokens"] == tokens
    assert log["child_nll"].item() == pytest.approx(child, rel=1e-4)


def test_syntax_losses_reach_the_queries_and_keys_of_their_heads_only():
    model = tiny_model("supervised_head_transformer", child_head=2, child_weight=1.0, parent_weight=0.0)
    batched = sample(SENTENCES, left=True)
    extra = model(**batched["net_input"])[1]
    loss, _ = system_losses(model, extra, batched)
    loss.backward()
    attention = model.encoder.layers[1].self_attn
    for projection in (attention.q_proj, attention.k_proj):
        touched = projection.weight.grad.view(4, 4, 16).abs().sum((1, 2)) > 0
        assert touched.tolist() == [False, False, True, False]
    assert not attention.v_proj.weight.grad.any()
    assert model.encoder.layers[0].fc1.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("combination", [c for n in (1, 2) for c in itertools.combinations(
    ["supervised_heads", "lisa", "pascal", "sennrich_haddow"], n)])  # fmt: skip
@pytest.mark.parametrize("left", [True, False])
def test_a_batch_says_what_its_sentences_say_alone(combination, left):
    """Whatever systems share an encoder, and here even a layer."""
    model = tiny_model("syntax_transformer", encoder_syntax=",".join(combination), lisa_head=2, pascal_layers="1")
    model.eval()
    batched = sample(SENTENCES, left)
    logits, extra = model(**batched["net_input"])
    _, together = system_losses(model, extra, batched)
    alone: dict = {}
    for b, line in enumerate(SENTENCES):
        one = sample([line], left)
        logits_of_one, extra = model(**one["net_input"])
        torch.testing.assert_close(logits[b], logits_of_one[0], rtol=1e-4, atol=1e-5)
        for name, value in system_losses(model, extra, one)[1].items():
            alone[name] = alone.get(name, 0) + value
    assert together.keys() == alone.keys()
    for name, value in together.items():
        torch.testing.assert_close(value, alone[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("systems", ["supervised_heads", "lisa,supervised_heads", "pascal,supervised_heads,lisa"])
def test_checkpointed_activations_give_the_same_gradients(systems):
    gradients = []
    for checkpointed in (False, True):
        model = tiny_model(
            "syntax_transformer", encoder_syntax=systems, lisa_head=3, checkpoint_activations=checkpointed
        )
        criterion()(model, sample(SENTENCES, True))[0].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arch", ["supervised_head_transformer", "lisa_transformer", "sennrich_haddow_transformer"])
def test_half_precision(arch, dtype):
    model = tiny_model(arch)
    batched = sample(SENTENCES, True)
    expected = criterion()(model, batched)[0]
    loss = criterion()(model.to(dtype), batched)[0]
    assert math.isfinite(loss.item()) and loss.item() == pytest.approx(expected.item(), rel=0.05)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_training_without_the_parse_is_an_error():
    with data_error(option="--task"):
        criterion()(tiny_model("supervised_head_transformer"), sample(SENTENCES, True, syntax=False))
    model = tiny_model("supervised_head_transformer", child_weight=0.0, parent_weight=0.0)
    assert "child_nll" not in criterion()(model, sample(SENTENCES, True, syntax=False))[2]


def test_a_head_that_the_layer_does_not_have():
    with data_error("head 4"):
        tiny_model("supervised_head_transformer", child_head=4)


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["supervised_head_transformer", "lisa_transformer"])
def test_both_learn_the_trees_of_a_few_sentences_and_metrics_say_so(arch):
    model = tiny_model(arch, encoder_embed_dim=32)
    batched = sample(SENTENCES, True)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        loss, sample_size, _ = criterion()(model, batched)
        (loss / sample_size).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad(), metrics.aggregate() as aggregate:
        SupervisedHeadCriterion.reduce_metrics([criterion()(model, batched)[2]] * 2)
    values = aggregate.get_smoothed_values()
    name = "lisa" if arch == "lisa_transformer" else "parent"
    assert values[f"{name}_uas"] == 100.0
    assert values[f"{name}_loss"] < 0.3 and values["translation_loss"] < 0.3


def test_with_a_decoder_of_its_own_criterion():
    """The losses come on top of latent tags' as they do on top of cross entropy, and nothing else changes."""
    model = tiny_model("lasyn_transformer", encoder_syntax="supervised_heads", latent_values=3)
    em = LaSynEMCriterion(TASK, 1, tag_weight=0.0, label_smoothing=0.0, sentence_avg=False)
    batched = sample(SENTENCES, True)
    loss, _, log = em(model, batched)
    extra = model(**batched["net_input"])[1]
    syntax_loss, _ = system_losses(model, extra, batched)
    system = model.encoder.systems["supervised_heads"]
    system.places.clear()
    torch.testing.assert_close(loss, em(model, batched)[0] + syntax_loss)
    assert syntax_loss > 0 and log["parent_nll"] > 0


@pytest.mark.parametrize("layer", [0, 1])
def test_with_dependency_distributions_in_the_same_encoder(layer):
    model = tiny_model(
        "syntax_transformer",
        encoder_syntax="ldd,supervised_heads",
        ldd_variant="UDP",
        encoder_embed_dim=32,
        child_layer=layer,
        parent_layer=layer,
        child_head=2,
    )
    batched = sample(SENTENCES, True)
    loss = criterion()(model, batched)[0]
    loss.backward()
    assert math.isfinite(loss.item())
    alone = [criterion()(model, sample([line], False))[2]["child_nll"] for line in SENTENCES]
    torch.testing.assert_close(criterion()(model, batched)[2]["child_nll"], sum(alone), rtol=1e-4, atol=1e-4)
