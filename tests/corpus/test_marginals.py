"""Arc marginals against the enumeration of all trees."""

from __future__ import annotations

import math

import pytest
import torch
from enumerated_trees import enumerated, single_root_trees

from fairseq_syntax.corpus.parsing.marginals import arc_marginals, log_partition


def test_the_number_of_trees_is_cayleys():
    for n in range(1, 6):
        assert len(single_root_trees(n)) == n ** (n - 1)
        assert torch.isclose(log_partition(torch.zeros(n + 1, n + 1)), torch.tensor((n - 1) * math.log(n)).double())


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_marginals_equal_enumeration(n, scale):
    torch.manual_seed(n)
    scores = torch.randn(3, n + 1, n + 1, dtype=torch.float64) * scale
    got = arc_marginals(scores, torch.full((3,), n))
    for b in range(3):
        total, expected = enumerated(scores[b])
        assert torch.allclose(got[b], expected, atol=1e-9, rtol=0)
        assert abs(float(log_partition(scores[b])) - total) < 1e-9 * max(1.0, abs(total))


@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_scores_of_any_size(scale):
    torch.manual_seed(0)
    scores = torch.randn(20, 5, 5, dtype=torch.float64) * scale
    got = arc_marginals(scores, torch.full((20,), 4))
    for b in range(20):
        total, expected = enumerated(scores[b])
        assert torch.allclose(got[b], expected, atol=1e-9, rtol=0)
        assert abs(float(log_partition(scores[b])) - total) < 1e-9 * scale


def test_two_tight_pairs_far_from_the_root():
    # Words 1 and 2, and 3 and 4, cling to each other; inversion alone loses the answer in rounding.
    scores = torch.full((1, 5, 5), -60.0, dtype=torch.float64)
    for a, b in [(1, 2), (3, 4)]:
        scores[0, a, b] = scores[0, b, a] = 0.0
    scores[0, 1, 0] = -59.0
    got = arc_marginals(scores, torch.tensor([4]))
    assert torch.allclose(got[0], enumerated(scores[0])[1], atol=1e-9, rtol=0)


def test_missing_arcs_have_no_mass():
    torch.manual_seed(3)
    scores = torch.randn(1, 5, 5, dtype=torch.float64)
    scores[0, 2, 0] = scores[0, 1, 3] = -torch.inf
    got = arc_marginals(scores, torch.tensor([4]))
    assert torch.allclose(got[0], enumerated(scores[0])[1], atol=1e-9, rtol=0)
    assert got[0, 2, 0] == got[0, 1, 3] == 0.0
    # and by elimination: with one pair so tight that inversion fails
    scores[0, 3, 4] = scores[0, 4, 3] = 80.0
    got = arc_marginals(scores, torch.tensor([4]))
    assert torch.allclose(got[0], enumerated(scores[0])[1], atol=1e-9, rtol=0)


def test_a_sentence_has_the_same_marginals_in_any_batch():
    torch.manual_seed(4)
    lengths = torch.tensor([7, 1, 4, 6])
    scores = torch.randn(4, 8, 8)
    got = arc_marginals(scores, lengths)
    for b, n in enumerate(lengths.tolist()):
        alone = arc_marginals(scores[b : b + 1, : n + 1, : n + 1], torch.tensor([n]))
        assert torch.allclose(got[b, : n + 1, : n + 1], alone[0], atol=1e-12)
        assert got[b, n + 1 :].abs().sum() == got[b, :, n + 1 :].abs().sum() == 0
        assert torch.allclose(got[b, 1 : n + 1].sum(dim=1), torch.ones(n, dtype=torch.float64))
        assert torch.isclose(got[b, :, 0].sum(), torch.tensor(1.0, dtype=torch.float64))
    garbage = scores.clone()
    garbage[1, 2:], garbage[1, :, 2:] = torch.nan, torch.inf
    assert torch.equal(arc_marginals(garbage, lengths)[1], got[1])


def test_long_sentences_stay_accurate():
    torch.manual_seed(5)
    scores = torch.randn(1, 41, 41, dtype=torch.float64) * 5
    got = arc_marginals(scores, torch.tensor([40]))
    leaf = scores[0].clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(log_partition(leaf), leaf)
    assert torch.allclose(got[0], expected, atol=1e-8)
