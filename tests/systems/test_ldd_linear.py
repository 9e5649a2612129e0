"""The linear-time form of attention with sparse factors, against loops and against the dense form."""

import math
import random

import pytest
import torch
from torch.autograd import gradcheck

from fairseq_syntax.model.sparse_factors import SparseFactors, sparse_factor_attention

Entry = tuple[int, int, int, int, float]


def random_entries(rng: random.Random, lengths: list[int], T: int, H: int, left: bool, share=0.3) -> list[Entry]:
    """(batch, head, query, key, factor) between unpadded columns; some places twice."""
    entries = []
    for b, n in enumerate(lengths):
        start = T - n if left else 0
        for h in range(H):
            for i in range(n):
                for j in range(n):
                    for _ in range(2):
                        if rng.random() < share / 2:
                            entries.append((b, h, start + i, start + j, rng.random()))
    return entries


def collect(entries: list[Entry], size: tuple[int, int, int]) -> SparseFactors:
    columns = list(zip(*entries)) if entries else [(), (), (), (), ()]
    b, h, i, j = (torch.tensor(c, dtype=torch.long) for c in columns[:4])
    return SparseFactors.of(size, b, h, i, j, torch.tensor(columns[4], dtype=torch.float64))


def padding_mask(lengths: list[int], T: int, left: bool) -> torch.Tensor:
    mask = torch.ones(len(lengths), T, dtype=torch.bool)
    for b, n in enumerate(lengths):
        mask[b, T - n :] = False if left else mask[b, T - n :]
        mask[b, :n] = mask[b, :n] if left else False
    return mask


def by_loops(q, k, v, entries: list[Entry], mask) -> list:
    """softmax(S ⊙ P) V in Python floats, one query at a time."""
    B, H, T, d = v.shape
    q, k, v = (None if x is None else x.tolist() for x in (q, k, v))
    factor: dict[tuple[int, ...], float] = {}
    for *place, p in entries:
        factor[tuple(place)] = factor.get(tuple(place), 0.0) + p
    out = [[[[0.0] * d for _ in range(T)] for _ in range(H)] for _ in range(B)]
    for b in range(B):
        keys = [j for j in range(T) if not mask[b][j]]
        for h in range(H):
            for i in range(T):
                logits = []
                for j in keys:
                    p = factor.get((b, h, i, j), 0.0)
                    logits.append(p if q is None else p * sum(x * y for x, y in zip(q[b][h][i], k[b][h][j])))
                top = max(logits)
                weights = [math.exp(x - top) for x in logits]
                for c in range(d):
                    out[b][h][i][c] = sum(w * v[b][h][j][c] for w, j in zip(weights, keys)) / sum(weights)
    return out


def dense(q, k, v, factors, mask):
    scores = factors.dense(v.dtype) if q is None else (q @ k.transpose(2, 3)) * factors.dense(v.dtype)
    scores = scores.masked_fill(mask[:, None, None, :], float("-inf"))
    return scores.softmax(dim=-1, dtype=torch.promote_types(v.dtype, torch.float32)).to(v.dtype) @ v


def random_case(seed: int, *, lengths=(5, 1, 7, 2), H=3, d=4, left=False, dtype=torch.float64, scale=1.0, share=0.3):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    lengths, T = list(lengths), max(lengths)
    entries = random_entries(rng, lengths, T, H, left, share)
    q, k, v = (torch.randn(len(lengths), H, T, d, generator=generator, dtype=torch.float64) for _ in range(3))
    q, k, v = (q * scale).to(dtype), k.to(dtype), v.to(dtype)
    return q, k, v, entries, collect(entries, (len(lengths), H, T)), padding_mask(lengths, T, left)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 2.0])  # from no entry to an entry everywhere
def test_equals_loops(left, share):
    q, k, v, entries, factors, mask = random_case(1, left=left, share=share)
    expected = torch.tensor(by_loops(q, k, v, entries, mask.tolist()), dtype=torch.float64)
    torch.testing.assert_close(sparse_factor_attention(q, k, v, factors, mask), expected)
    torch.testing.assert_close(dense(q, k, v, factors, mask), expected)


def test_factors_as_logits_equal_loops():
    _, _, v, entries, factors, mask = random_case(2)
    expected = torch.tensor(by_loops(None, None, v, entries, mask.tolist()), dtype=torch.float64)
    torch.testing.assert_close(sparse_factor_attention(None, None, v, factors, mask), expected)


def test_factors_of_one_place_are_summed_before_the_exponential():
    q = k = torch.tensor([[[[1.0], [2.0], [0.0]]]])
    v = torch.tensor([[[[1.0], [10.0], [100.0]]]])
    twice = collect([(0, 0, 1, 0, 0.25), (0, 0, 1, 0, 0.5)], (1, 1, 3))
    w = math.exp(2.0 * 0.75)
    out = sparse_factor_attention(q, k, v, twice)
    torch.testing.assert_close(out[0, 0, 1, 0].item(), (w + 110) / (w + 2))
    assert twice.factor.tolist() == [0.75, 0.0] and twice.void.tolist() == [False, True]


def test_entries_of_no_head_are_left_out():
    """Whatever their places and factors; in a sentence, too, each of whose keys has an entry."""
    q, k, v, entries, _, mask = random_case(13, share=2.0, scale=30.0)
    rng = random.Random(1)
    others = [(b, -1, i, j, 5.0) for b, _, i, j, _ in rng.sample(entries, 20)]
    mixed = entries + others
    rng.shuffle(mixed)
    expected = torch.tensor(by_loops(q, k, v, entries, mask.tolist()), dtype=torch.float64)
    factors, without = collect(mixed, (4, 3, 7)), collect(entries, (4, 3, 7))
    torch.testing.assert_close(factors.dense(), without.dense())
    out, grads = gradients(lambda *x: sparse_factor_attention(*x, factors, mask), (q, k, v), 0)
    torch.testing.assert_close(out, expected)
    _, expected_grads = gradients(lambda *x: sparse_factor_attention(*x, without, mask), (q, k, v), 0)
    for a, b in zip(grads, expected_grads):
        torch.testing.assert_close(a, b)
    nothing = collect(others, (4, 3, 7))
    out, _ = gradients(lambda *x: sparse_factor_attention(*x, nothing, mask), (q, k, v), 0)
    torch.testing.assert_close(out, torch.tensor(by_loops(q, k, v, [], mask.tolist()), dtype=torch.float64))


def test_no_mask_is_no_padding():
    q, k, v, _, factors, mask = random_case(3, lengths=(6, 6))
    assert not mask.any()
    assert torch.equal(sparse_factor_attention(q, k, v, factors), sparse_factor_attention(q, k, v, factors, mask))


def gradients(function, inputs, seed):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.dtype)
    return out, torch.autograd.grad(out, inputs, weight)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 1e-2)])
@pytest.mark.parametrize("left", [False, True])
def test_gradients_equal_those_of_the_dense_form(dtype, tolerance, left):
    q, k, v, _, factors, mask = random_case(4, lengths=(23, 1, 40, 9), d=16, left=left, dtype=dtype, scale=0.25)
    out, grads = gradients(lambda *x: sparse_factor_attention(*x, factors, mask), (q, k, v), 0)
    # The dense form in float64 is the truth that both precisions approximate.
    expected, expected_grads = gradients(lambda *x: dense(*x, factors, mask), [x.double() for x in (q, k, v)], 0)
    assert out.dtype == dtype and all(g.dtype == dtype for g in grads)
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    for got, wanted in zip(grads, expected_grads):
        torch.testing.assert_close(got.double(), wanted, atol=tolerance * wanted.abs().max().item(), rtol=tolerance)


def test_gradients_of_factors_as_logits():
    _, _, v, _, factors, mask = random_case(5)
    out, (grad,) = gradients(lambda x: sparse_factor_attention(None, None, x, factors, mask), (v,), 0)
    expected, (expected_grad,) = gradients(lambda x: dense(None, None, x, factors, mask), (v,), 0)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("share", [0.3, 2.0])
def test_gradcheck(share):
    q, k, v, _, factors, mask = random_case(6, lengths=(4, 1, 3), H=2, d=2, share=share)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    assert gradcheck(lambda *x: sparse_factor_attention(*x, factors, mask), inputs)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("share", [0.3, 2.0])  # 2.0: rows whose keys all have entries, so that no logit is 0
def test_scores_of_a_thousand(sign, share):
    _, _, v, entries, _, mask = random_case(7, share=share, dtype=torch.float32)
    # Factors that float32 holds exactly, as it holds logits near 1000 to no better than 6e-5.
    entries = [(*place, round(p * 8) / 8) for *place, p in entries]
    factors = collect(entries, (4, 3, 7))
    q = torch.full_like(v, 1.0)
    k = torch.full_like(v, sign * 250.0)  # d = 4, so that every score is ±1000
    expected = torch.tensor(by_loops(q, k, v, entries, mask.tolist()))
    out, grads = gradients(lambda *x: sparse_factor_attention(*x, factors, mask), (q, k, v), 0)
    _, dense_grads = gradients(lambda *x: dense(*x, factors, mask), [x.double() for x in (q, k, v)], 0)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    # The gradient of a query is a sum of keys, of 250 each here.
    for got, wanted, size in zip(grads, dense_grads, (250.0, 1.0, 1.0)):
        torch.testing.assert_close(got / size, wanted.float() / size, atol=1e-5, rtol=1e-5)


def test_one_token_without_another():
    v = torch.randn(1, 2, 1, 3)
    q = torch.full_like(v, -1000.0)
    factors = collect([(0, 0, 0, 0, 1.0)], (1, 2, 1))  # head 0 has an entry, head 1 has none
    out, grads = gradients(lambda *x: sparse_factor_attention(*x, factors), (q, q, v), 0)
    torch.testing.assert_close(out, v)
    assert grads[0].abs().max() == 0 and grads[1].abs().max() == 0


def test_padded_keys_get_no_gradient_and_nothing_from_their_values():
    q, k, v, _, factors, mask = random_case(8, left=True)
    _, grads = gradients(lambda *x: sparse_factor_attention(*x, factors, mask), (q, k, v), 0)
    padded = mask[:, None, :, None].expand_as(v)
    assert all(g[padded].abs().max() == 0 for g in grads)
    changed = torch.where(padded, torch.full_like(v, 7.0), v)
    real = ~padded
    torch.testing.assert_close(
        sparse_factor_attention(q, k, v, factors, mask)[real],
        sparse_factor_attention(q, k, changed, factors, mask)[real],
    )


def test_any_memory_order():
    """Projections come as [T, B, H * d]; nothing may depend on it."""
    q, k, v, _, factors, mask = random_case(9)
    as_projected = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (q, k, v)]
    a, grads_a = gradients(lambda *x: sparse_factor_attention(*x, factors, mask), (q, k, v), 0)
    b, grads_b = gradients(lambda *x: sparse_factor_attention(*x, factors, mask), as_projected, 0)
    torch.testing.assert_close(a, b)
    for x, y in zip(grads_a, grads_b):
        torch.testing.assert_close(x, y)


def test_the_same_matrix_for_every_head():
    rng = random.Random(10)
    lengths, H = [4, 6, 1], 3
    entries = random_entries(rng, lengths, 6, 1, left=False)
    b, _, i, j, factor = (torch.tensor(column) for column in zip(*entries))
    shared = SparseFactors.of((3, H, 6), b, None, i, j, factor)
    copies = collect([(b, h, i, j, p) for b, _, i, j, p in entries for h in range(H)], (3, H, 6))
    assert shared.size == copies.size
    torch.testing.assert_close(shared.dense(), copies.dense())
    q, k, v = (torch.randn(3, H, 6, 4, dtype=torch.float64) for _ in range(3))
    mask = padding_mask(lengths, 6, left=False)
    actual, expected = (
        gradients(lambda *x, f=f: sparse_factor_attention(*x, f, mask), (q, k, v), 0) for f in (shared, copies)
    )
    for a, b in zip((actual[0], *actual[1]), (expected[0], *expected[1])):
        torch.testing.assert_close(a, b)


def test_dense_factors():
    rng = random.Random(11)
    entries = random_entries(rng, [3, 5], 5, 2, left=True)
    expected = torch.zeros(2, 2, 5, 5)
    for b, h, i, j, p in entries:
        expected[b, h, i, j] += p
    torch.testing.assert_close(collect(entries, (2, 2, 5)).dense(), expected)


def test_factors_of_another_batch_are_refused():
    q, k, v, _, factors, mask = random_case(12)
    with pytest.raises(ValueError, match="factors for"):
        sparse_factor_attention(q[:, :2], k[:, :2], v[:, :2], factors, mask)


def test_saves_nothing_quadratic():
    """What is kept for the backward pass does not grow with T × T."""
    kept = []

    def count(x):
        kept.append(x.numel())
        return x

    T, H, d = 200, 2, 4
    entries = [(0, h, i, (i * 7 + h) % T, 0.5) for h in range(H) for i in range(T)]
    factors = collect(entries, (1, H, T))
    q, k, v = (torch.randn(1, H, T, d, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        sparse_factor_attention(q, k, v, factors)
    assert kept and max(kept) <= H * T * d
