"""Relative positions, relative depth, structural positions: against loops over pairs, in both forms, in any batch."""

import math
import random
from argparse import Namespace

import pytest
import torch
from random_parses import Line, batch, pad, random_line
from tiny_syntax import check_same_in_any_batch, encode, sample, tiny_model

from fairseq_syntax.model.attention import HeadInputs
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.relative_attention import RelativeEmbeddings, RelativeTerm, sums_by_bucket
from fairseq_syntax.model.trees import Forest, piece_depth
from fairseq_syntax.systems.relative_depth import DepthBuckets, DepthTerm
from fairseq_syntax.systems.relative_positions import distance_buckets
from fairseq_syntax.systems.structural_positions import (
    StructuralConfig,
    StructuralPositions,
    sinusoids,
    structural_buckets,
)

LINES = [random_line(random.Random(seed), max_words=9) for seed in range(6)]
SYSTEMS = [
    ("relative_depth", {}),
    ("relative_depth", {"depth_clip": 1}),
    ("relative_positions", {"relative_clip": 3}),
    ("structural_positions", {"structural_positions": "absolute"}),
    ("structural_positions", {"structural_positions": "relative", "structural_clip": 2}),
    ("structural_positions", {"structural_positions": "both"}),
]


def path_up(line: Line, word: int) -> list[int]:
    """The word and all above it."""
    path = [word]
    while line.heads[path[-1]] != path[-1]:
        path.append(line.heads[path[-1]])
    return path


def first_column(line: Line, width: int, left: bool) -> int:
    return width - len(line.tokens) if left else 0


# ------------------------------------------------------------------------------------------------- relative positions


def attention_by_loops(q, k, v, bucket, keys, values, padding):
    """Shaw's formulas, pair by pair, in float64: [B, H, T, d]."""
    B, H, T, d = q.shape
    q, k, v, keys, values = (x.double() for x in (q, k, v, keys, values))
    out = torch.zeros(B, H, T, d, dtype=torch.float64)
    for b in range(B):
        places = [j for j in range(T) if not padding[b, j]]
        for h in range(H):
            for i in places:
                e = [(q[b, h, i] @ (k[b, h, j] + keys[bucket(b, i, j)])).item() for j in places]
                top = max(e)
                weights = [math.exp(x - top) for x in e]
                for j, w in zip(places, weights):
                    out[b, h, i] += w / sum(weights) * (v[b, h, j] + values[bucket(b, i, j)])
    return out


def attend_densely(term, q, k, v, padding):
    given = HeadInputs(q, q, q, k, v, term.tensors)
    scores = term.scores(q @ k.transpose(2, 3), given).masked_fill(padding[:, None, None, :], -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ v + term.output(weights, given)


def attend(term, q, k, v, padding):
    return term.attend(HeadInputs(q, q, q, k, v, term.tensors), padding)


@pytest.fixture
def heads():
    """Queries, keys and values of three heads of four dimensions for the first lines, and where the padding is."""
    lines = LINES[:3]
    torch.manual_seed(0)
    padding = pad(lines, left=True).eq(1)
    return lines, padding, *torch.randn(3, 3, 3, padding.size(1), 4).unbind(0)


def depth_buckets(step, most):
    return DepthBuckets(piece_depth(step.parse), len(Forest.of(step.parse).level_sizes), most)


@pytest.mark.parametrize("most", [1, 2, 20])
def test_relative_depth_by_loops_in_both_forms(heads, most):
    lines, padding, q, k, v = heads
    vectors = RelativeEmbeddings([0], 2 * most + 1, 4).by_layer()[0]
    step = Step.of(batch(lines, left=True))
    term = DepthTerm(depth_buckets(step, most), vectors)

    def bucket(b, i, j):
        depth = []
        for column in (i, j):
            place = column - first_column(lines[b], padding.size(1), True)
            words = lines[b].word_of_piece
            depth.append(len(path_up(lines[b], words[place])) - 1 if place < len(words) else 0)
        return max(-most, min(most, depth[1] - depth[0])) + most

    expected = attention_by_loops(q, k, v, bucket, *vectors.detach(), padding)
    real = ~padding[:, None, :, None]
    for actual in (attend_densely(term, q, k, v, padding), attend(term, q, k, v, padding)):
        assert torch.allclose(actual.double() * real, expected, atol=1e-5)


def test_gradients_of_the_two_forms_agree(heads):
    lines, padding, q, k, v = heads
    embeddings = RelativeEmbeddings([0], 5, 4)
    step = Step.of(batch(lines, left=True))
    term = DepthTerm(depth_buckets(step, 2), embeddings.by_layer()[0])
    weight = torch.randn(q.shape) * ~padding[:, None, :, None]
    actual = []
    for form in (attend_densely, attend):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        (form(term, *inputs, padding) * weight).sum().backward()
        actual.append([*(x.grad for x in inputs), *(p.grad.clone() for p in embeddings.parameters())])
        embeddings.zero_grad()
    for dense, fast in zip(*actual):
        assert torch.allclose(dense, fast, atol=1e-5)


def test_relative_positions_by_loops(heads):
    _, padding, q, k, v = heads
    vectors = RelativeEmbeddings([0], 5, 4).by_layer()[0]
    term = RelativeTerm(distance_buckets(padding.size(1), 2, q.device), vectors)
    expected = attention_by_loops(q, k, v, lambda b, i, j: max(-2, min(2, j - i)) + 2, *vectors.detach(), padding)
    real = ~padding[:, None, :, None]
    assert torch.allclose(attend_densely(term, q, k, v, padding).double() * real, expected, atol=1e-5)


# ------------------------------------------------------------------------------------------- distances in the tree


def tree_bucket(line: Line, a: int | None, b: int | None, most: int) -> int:
    """r from word a to word b by walking up; None is ``</s>``."""
    if a == b:
        return 0
    if a is None or b is None:
        return most if b is None else -most
    up, down = path_up(line, a), path_up(line, b)
    if b in up or a in down:
        r = len(down) - len(up)
    elif up[-1] != down[-1]:
        r = most if a < b else -most
    else:
        common = next(word for word in up if word in down)
        length = up.index(common) + down.index(common)
        r = length if a < b else -length
    return max(-most, min(most, r))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("most", [1, 3, 16])
def test_structural_distances_by_walking_up(most, left):
    buckets = structural_buckets(batch(LINES, left), most) - most
    assert buckets.abs().max() <= most
    for b, line in enumerate(LINES):
        start = first_column(line, buckets.size(1), left)
        words = [*line.word_of_piece, None]
        for i, one in enumerate(words):
            for j, other in enumerate(words):
                assert buckets[b, start + i, start + j] == tree_bucket(line, one, other, most), (line, one, other)


def test_in_a_chain_they_are_the_distances_of_words():
    """Plain relative positions of words, also of one in two pieces."""
    chain = batch([Line([1, 1, 2, 1], [0, 0, 1, 2], [(1, 1, 1)] * 4, [5] * 5 + [2])], False)
    word = torch.tensor([0, 1, 2, 2, 3])
    assert structural_buckets(chain, 2)[0, :5, :5].equal((word - word[:, None]).clamp(-2, 2) + 2)


def test_structural_distances_are_exact_in_mixed_precision():
    """In a tree of more than 256 levels, with a leaf beside every word of the long path."""
    heads = [w - 1 if w % 2 else max(w - 2, 0) for w in range(540)]
    deep = batch([Line([1] * 540, heads, [(1, 1, 1)] * 540, [5] * 540 + [2])], False)
    expected = structural_buckets(deep, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert structural_buckets(deep, 16).equal(expected)


def test_sinusoids_are_fairseqs():
    from fairseq.modules import SinusoidalPositionalEmbedding

    for dim in (8, 9):
        expected = SinusoidalPositionalEmbedding.get_embedding(40, dim)
        assert torch.allclose(sinusoids(torch.arange(40)[None], dim)[0], expected, atol=1e-6)


def test_absolute_positions_are_the_fused_formula():
    args = Namespace(encoder_embed_dim=8, encoder_attention_heads=2, encoder_layers=1)
    system = StructuralPositions(StructuralConfig(structural_positions="absolute"), args, None)
    step = Step.of(batch(LINES, left=False))
    sequence = torch.randn(*step.tokens.shape, 8)
    actual = system.positions(sequence, step)
    table = sinusoids(torch.arange(10)[None], 8)[0]
    for b, line in enumerate(LINES):
        for place, word in enumerate([*line.word_of_piece, None]):
            depth = 0 if word is None else len(path_up(line, word)) - 1
            expected = torch.tanh(
                system.absolute["depth"].weight @ table[depth] + system.absolute["sequence"].weight @ sequence[b, place]
            )
            assert torch.allclose(actual[b, place], expected, atol=1e-5)


# ------------------------------------------------------------------------------------------------------- in a model


@pytest.mark.parametrize("name, options", SYSTEMS)
def test_a_sentence_does_not_depend_on_its_batch(name, options):
    model = tiny_model("syntax_transformer", encoder_syntax=name, **options).eval()
    check_same_in_any_batch(model, LINES)


@pytest.mark.parametrize("name, options", SYSTEMS)
def test_the_parse_matters_to_systems_that_read_it_and_everything_learns(name, options):
    model = tiny_model("syntax_transformer", encoder_syntax=name, **options)
    flat = [Line(l.pieces, [0] * len(l.heads), l.labels, l.tokens) for l in LINES]
    model.eval()
    changed = any(not torch.allclose(a, b) for a, b in zip(encode(model, LINES, True), encode(model, flat, True)))
    assert changed == (name != "relative_positions")
    model.train()
    model(**sample(LINES, left=True)["net_input"])[0].square().sum().backward()
    for parameter in model.encoder.systems.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
    for embeddings in model.encoder.systems.modules():
        if isinstance(embeddings, RelativeEmbeddings):
            for vectors in embeddings.vectors.values():  # [layers, 2, R, d]: each layer has vectors of its own
                assert (vectors.grad.abs().sum(dim=(1, 2, 3)) > 0).all()


@pytest.mark.parametrize("name, options", SYSTEMS)
def test_checkpointed_activations_and_half_precision(name, options):
    gradients = []
    for checkpointed in (False, True):
        model = tiny_model("syntax_transformer", encoder_syntax=name, checkpoint_activations=checkpointed, **options)
        model(**sample(LINES, left=True)["net_input"])[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients))
    half = tiny_model("syntax_transformer", encoder_syntax=name, **options).to(torch.bfloat16).eval()
    assert all(x.dtype == torch.bfloat16 and x.isfinite().all() for x in encode(half, LINES, True))


def test_it_combines_with_pascal_in_one_layer():
    model = tiny_model("syntax_transformer", encoder_syntax="relative_depth,pascal", pascal_heads=2).eval()
    check_same_in_any_batch(model, LINES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_weights_of_a_bucket_are_added_up_in_full(dtype, monkeypatch):
    """In half precision a sum of a thousand small weights stops growing long before it is 1.

    On a CPU PyTorch itself adds up in float32; a GPU adds in the precision that it is given, so that is looked at.
    """
    added, original = [], torch.Tensor.scatter_add_
    monkeypatch.setattr(torch.Tensor, "scatter_add_", lambda x, *rest: added.append(x.dtype) or original(x, *rest))
    weights = torch.full((1, 2, 3, 1000), 1e-3).to(dtype)
    buckets = torch.zeros(1, 2, 3, 1000, dtype=torch.long)
    buckets[..., 500:] = 4
    actual = sums_by_bucket(weights, buckets, 5)
    assert actual.dtype == dtype
    half = torch.full((1, 2, 3), 500 * weights[0, 0, 0, 0].item(), dtype=torch.float64)
    torch.testing.assert_close(actual[..., 0].double(), half, rtol=4e-3, atol=0)
    torch.testing.assert_close(actual[..., 4].double(), half, rtol=4e-3, atol=0)
    assert not actual[..., 1:4].any()
    assert added == [torch.float64 if dtype == torch.float64 else torch.float32]
