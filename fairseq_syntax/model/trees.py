"""Depths, paths, subtrees, traversals and levels of the dependency trees of a batch, computed on the device.

Words are numbered over the whole batch. Sums over paths to the root and over subtrees take a number of steps that is
logarithmic in the length of the longest line: each step doubles the distance covered.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.corpus.cycles import ends_in_cycle
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.devices import full_precision
from fairseq_syntax.model.neighbourhoods import word_grid

UNCONNECTED = -1  # the distance of words that no path connects


class Paths:
    """The path from each word to its root. Unless stated otherwise, tensors are int64 [W], 0-based.

    A token of several words (a CoNLL-U range) can close a cycle if these words have heads on both sides of it. The
    first word of a cycle then counts as a root.

    Args:
        parent: flat index of each word's parent; a root is its own parent
        steps: 2^steps is at least the number of words of any line
        may_have_cycles: False if there are known to be none
    """

    def __init__(self, parent: Tensor, steps: int, may_have_cycles: bool = True) -> None:
        self._steps = steps
        self.parent = parents_without_cycles(parent, steps) if may_have_cycles else parent
        """Flat index of each word's parent; a root is its own parent."""

    @cached_property
    def is_root(self) -> Tensor:
        """[W] bool."""
        return self.parent == torch.arange(self.parent.numel(), device=self.parent.device)

    @cached_property
    def _ancestors(self) -> list[Tensor]:
        """The ancestor of each word 1, 2, 4, … steps up, [W + 1]; W, no word, above the roots."""
        above = self.parent.masked_fill(self.is_root, self.parent.numel())
        ancestors = [F.pad(above, (0, 1), value=self.parent.numel())]
        for _ in range(1, self._steps):
            ancestors.append(ancestors[-1][ancestors[-1]])
        return ancestors

    def path_sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` [W] over each word and its ancestors."""
        total = F.pad(values, (0, 1))
        for ancestor in self._ancestors:
            total = total + total[ancestor]
        return total[:-1]

    def subtree_sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` [W] over each word and its descendants."""
        total = F.pad(values, (0, 1))
        for ancestor in self._ancestors:
            total = total.index_add(0, ancestor, total)
        return total[:-1]

    @cached_property
    def depth(self) -> Tensor:
        """The distance from the root, which has depth 0."""
        return self.path_sum(torch.ones_like(self.parent)) - 1


class Forest(Paths):
    """The trees of a batch."""

    @classmethod
    def of(cls, syntax: SyntaxBatch) -> Forest:
        """The trees of a batch, made once per batch."""
        return syntax.once(cls, lambda: cls(syntax))

    def __init__(self, syntax: SyntaxBatch) -> None:
        self._host_parent: np.ndarray | None = None
        steps, lengths, heads = syntax.size[1].bit_length(), syntax.flat.lengths, syntax.flat.heads
        may_have_cycles = True
        if heads is not None and lengths is not None:
            words = lengths.words.astype(np.int64)
            self._host_parent = heads + np.repeat(words.cumsum() - words, words)
            may_have_cycles = bool(ends_in_cycle(self._host_parent, steps).any())
        self._syntax, self._line = syntax, syntax.batch_of_word
        super().__init__(syntax.parent, steps, may_have_cycles)

    @cached_property
    def subtree_size(self) -> Tensor:
        """The number of words of each word's subtree, including itself."""
        return self.subtree_sum(torch.ones_like(self.parent))

    @cached_property
    def preorder(self) -> Tensor:
        """The rank of each word in its line, heads before their children, children (and roots) from left to right."""
        # From the rank of a head to that of its child, one counts the head and the subtrees of earlier siblings.
        parent = torch.where(self.is_root, self.parent.numel() + self._line, self.parent)
        siblings, order = parent.sort(stable=True)
        before = F.pad(self.subtree_size[order].cumsum(0), (1, 0))[:-1]
        first = torch.searchsorted(siblings, siblings)
        before_in_place = torch.empty_like(before).index_copy_(0, order, before - before[first])
        return self.path_sum(before_in_place + (~self.is_root).long())

    @cached_property
    def postorder(self) -> Tensor:
        """The rank of each word in its line, children before their heads, children (and roots) from left to right."""
        # Unlike in pre-order, a word's ancestors come after it in post-order, and its descendants before it.
        return self.preorder - self.depth + self.subtree_size - 1

    @cached_property
    def dominates(self) -> Tensor:
        """[B, W', W'] bool: whether word i (row) of a line is word j or an ancestor of it; False outside the line."""
        pre, size = self._by_line(self.preorder), self._by_line(self.subtree_size)
        word = torch.arange(pre.size(1), device=pre.device)
        real = word < self._syntax.n_words[:, None]
        # A subtree is contiguous in pre-order.
        after = pre[:, :, None] <= pre[:, None, :]
        return after & (pre[:, None, :] < (pre + size)[:, :, None]) & real[:, :, None] & real[:, None, :]

    @cached_property
    def depth_difference(self) -> Tensor:
        """[B, W', W'] int64: the depth of word j (column) of a line minus word i's; undefined outside the line."""
        depth = self._by_line(self.depth)
        return depth[:, None, :] - depth[:, :, None]

    @cached_property
    def distance(self) -> Tensor:
        """[B, W', W'] int64: the number of edges on the path between two words of a line, in either direction.

        :data:`UNCONNECTED` between words of different sentences, and outside the line.
        """
        with full_precision(self.dominates):  # bfloat16 has no integers above 256 without gaps
            above = self.dominates.float()
            common = (above.transpose(1, 2) @ above).long()  # the number of common ancestors, exact
        depth = self._by_line(self.depth)
        # The depth of the lowest common ancestor is the number of common ones minus one.
        edges = depth[:, None, :] + depth[:, :, None] - 2 * (common - 1)
        return torch.where(common > 0, edges, UNCONNECTED)

    def _by_line(self, values: Tensor) -> Tensor:
        """Values [W] of the words of each line, [B, W']; 0 outside the line."""
        return F.pad(values, (0, 1))[word_grid(self._syntax)]

    @cached_property
    def level_sizes(self) -> list[int]:
        """The number of words of each depth in the batch, beginning with the roots; at least one level.

        It is computed on the host. If the heads are there, no device is waited for.
        """
        host: Paths = self
        if self.parent.device.type != "cpu" and self._host_parent is not None:
            host = Paths(torch.from_numpy(self._host_parent), self._steps)
        return host.depth.bincount(minlength=1).tolist()

    @cached_property
    def by_level(self) -> Tensor:
        """The words sorted by depth, those of the same depth in their order."""
        return self.depth.argsort(stable=True)

    @cached_property
    def parent_in_level(self) -> list[Tensor]:
        """For each level, the index of each word's parent among the words of the level above; 0 for roots."""
        place = torch.empty_like(self.parent)
        levels = self.by_level.split(self.level_sizes)
        for level in levels:
            place[level] = torch.arange(level.numel(), device=level.device)
        above = place[self.parent].masked_fill(self.is_root, 0)
        return [above[level] for level in levels]


def piece_depth(syntax: SyntaxBatch) -> Tensor:
    """The depth of each piece's word, [B, T] int64; 0 for roots, ``</s>`` and padding."""
    return syntax.once(piece_depth, lambda: syntax.of_word(Forest.of(syntax).depth, 0))


def piece_distance(syntax: SyntaxBatch) -> Tensor:
    """The number of edges between the words of two pieces, [B, T, T] int64; 0 between the pieces of a word.

    :data:`UNCONNECTED` between different sentences, and between ``</s>`` and other pieces; undefined on padding.
    """

    def make() -> Tensor:
        distance = F.pad(Forest.of(syntax).distance, (0, 1, 0, 1), value=UNCONNECTED)
        distance[:, -1, -1] = 0
        return between_pieces(syntax, distance)

    return syntax.once(piece_distance, make)


def between_pieces(syntax: SyntaxBatch, between_words: Tensor) -> Tensor:
    """Spread values of pairs of words over the pairs of their pieces: [B, T, T].

    Args:
        between_words: [B, W' + 1, W' + 1], by the words of the line; the last row and column are those of ``</s>`` and
            padding
    """
    place = syntax.of_word(syntax.word_in_sentence, between_words.size(1) - 1)  # [B, T]
    rows = between_words.gather(1, place[:, :, None].expand(-1, -1, between_words.size(2)))  # [B, T, W' + 1]
    return rows.gather(2, place[:, None, :].expand(-1, place.size(1), -1))


def parents_without_cycles(parent: Tensor, steps: int) -> Tensor:
    """:func:`.cycles.without_cycles` of all words of a batch at once, on any device; arguments as in :class:`Paths`."""
    word = torch.arange(parent.numel(), device=parent.device)
    ancestor, first = parent, word
    for _ in range(steps):
        first = torch.minimum(first, first[ancestor])
        ancestor = ancestor[ancestor]
    # So many steps up, every word has reached a root or is on a cycle.
    on_cycle = torch.zeros_like(parent, dtype=torch.bool).index_fill_(0, ancestor, True)
    return torch.where(on_cycle & (first == word), word, parent)
