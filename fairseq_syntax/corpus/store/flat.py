"""The syntax of several sentences as flat arrays, as returned by stores and contained in batches.

The arrays describe words and arcs, concatenated over B sentences with W words and A arcs in total. On the host they are
NumPy arrays; :mod:`fairseq_syntax.data.packing` packs them into one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

Array = TypeVar("Array")  # np.ndarray, or torch.Tensor


@dataclass
class FlatArcs(Generic[Array]):
    """A parser's labelled distribution, without arcs of low probability."""

    n_arcs: Array  # [B] int32: the number of arcs in each sentence
    dependent: Array  # [A] int32: the 0-based word within its sentence
    head: Array  # [A] int32: the same; a root arc has head == dependent
    label: Array  # [A] int32: the id in the deprel inventory
    prob: Array  # [A] float32
    n_piece_arcs: int | None  # the number of arcs between pieces, if known on the host, which avoids synchronization

    def rows(self) -> list[tuple[int, int, int, float]]:
        """(dependent, head, label, prob) of each arc as Python numbers, for NumPy arrays."""
        columns = (self.dependent, self.head, self.label, self.prob)
        return list(zip(*(np.asarray(column).tolist() for column in columns)))


class Lengths(NamedTuple):
    """The lengths of each sentence, on the host."""

    pieces: np.ndarray  # [B] int32, without </s>
    words: np.ndarray  # [B] int32


@dataclass
class FlatSyntax(Generic[Array]):
    """The syntax of B sentences."""

    n_pieces: Array  # [B] int32: the number of pieces in each sentence, without </s>
    n_words: Array  # [B] int32: the number of words in each sentence
    pieces: Array  # [W] int32: the number of pieces of each word, at least 1
    head: Array  # [W] int32: the 0-based head within the sentence; a root is its own head
    deprel: Array  # [W] int32: the id in its label inventory, like the next two
    upos: Array  # [W] int32
    xpos: Array  # [W] int32
    n_tree_arcs: int | None  # the number of arcs of the 1-best tree between pieces, like FlatArcs.n_piece_arcs
    arcs: FlatArcs[Array] | None = None  # only if requested
    parsed: Array | None = None  # [B] int32: 0 hides the parse from systems that read it; None means all 1
    lengths: Lengths | None = None  # n_pieces and n_words on the host, if kept
    heads: np.ndarray | None = None  # head on the host, if kept


WORD_FIELDS = ("pieces", "head", "deprel", "upos", "xpos")
LABEL_FIELDS = ("deprel", "upos", "xpos")
ARC_FIELDS = ("n_arcs", "dependent", "head", "label", "prob")


def concatenate(parts: Sequence[FlatSyntax[np.ndarray]]) -> FlatSyntax[np.ndarray]:
    """Concatenate several parts; arcs are kept if all have them."""

    def joined(names: Sequence[str], items: Sequence[Any]) -> dict[str, Any]:
        return {name: np.concatenate([getattr(item, name) for item in items]) for name in names}

    tree_arcs = _sum([part.n_tree_arcs for part in parts])
    flat = FlatSyntax(**joined(("n_pieces", "n_words", *WORD_FIELDS), parts), n_tree_arcs=tree_arcs)
    runs = [part.arcs for part in parts if part.arcs is not None]
    if len(runs) == len(parts):
        flat.arcs = FlatArcs(**joined(ARC_FIELDS, runs), n_piece_arcs=_sum([run.n_piece_arcs for run in runs]))
    if any(part.parsed is not None for part in parts):
        flat.parsed = np.concatenate([np.ones_like(p.n_words) if p.parsed is None else p.parsed for p in parts])
    return flat


def _sum(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number or 0 for number in numbers)
