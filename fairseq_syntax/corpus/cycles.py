"""Cycles of heads, where a root is its own head: a word is below a root, or its ancestors end in a cycle.

All use pointer doubling: after k doublings, each word has its ancestor 2^k steps up, which is a root or on a cycle once
there are as many steps as words. :func:`.trees.parents_without_cycles` does the same on a device, without waiting for
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def cycle_through(heads: Sequence[int]) -> int | None:
    """The first word on a cycle of 0-based heads, where a root is its own head; None if all words are below a root."""
    ancestors = list(heads)  # the parents, then those two, four, eight … steps up
    for _ in range(len(heads).bit_length()):
        further = [ancestors[ancestor] for ancestor in ancestors]
        if further == ancestors:
            break
        ancestors = further
    # So many steps lead to a root or onto a cycle, and the words of a cycle to one another.
    return min((ancestor for ancestor in ancestors if heads[ancestor] != ancestor), default=None)


def without_cycles(heads: Sequence[int]) -> list[int]:
    """The 0-based heads with the first word of each cycle as a root, its own head, as models treat them.

    Tokens of several words can cause cycles if their words have heads on both sides.
    """
    trees = list(heads)
    while (first := cycle_through(trees)) is not None:
        trees[first] = first
    return trees


def ends_in_cycle(heads: np.ndarray, steps: int) -> np.ndarray:
    """Whether each word's ancestors end in a cycle: [W] bool.

    Args:
        heads: [W] int, 0-based in all the words, of one or several sentences
        steps: 2^steps is at least the number of words of any sentence
    """
    ancestor = heads
    for _ in range(steps):
        ancestor = ancestor[ancestor]
    return heads[ancestor] != ancestor
