"""Every dependency tree of a few words, and what a distribution over them sums to: the oracle of the marginals."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import torch


@lru_cache
def single_root_trees(n: int) -> list[tuple[int, ...]]:
    """All head tuples of n words: heads[i] in 0..n for word i + 1, one root, no cycle."""
    return [
        heads
        for heads in itertools.product(range(n + 1), repeat=n)
        if heads.count(0) == 1 and all(_reaches_root(heads, word) for word in range(1, n + 1))
    ]


def _reaches_root(heads: tuple[int, ...], word: int) -> bool:
    for _ in heads:
        if word == 0:
            return True
        word = heads[word - 1]
    return word == 0


def enumerated(scores: torch.Tensor) -> tuple[float, torch.Tensor]:
    """log partition and [N+1, N+1] marginals of one sentence, by brute force."""
    n = scores.shape[0] - 1
    trees, rows = single_root_trees(n), scores.tolist()
    totals = [sum(rows[word][head] for word, head in enumerate(heads, start=1)) for heads in trees]
    top = max(totals)
    weights = [math.exp(total - top) for total in totals]
    mass = sum(weights)
    marginals = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    array = marginals.numpy()
    for heads, weight in zip(trees, weights):
        for word, head in enumerate(heads, start=1):
            array[word, head] += weight / mass
    return top + math.log(mass), marginals
