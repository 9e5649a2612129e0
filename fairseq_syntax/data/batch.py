"""Views of a batch's syntax for models, expanded on the device from flat tensors.

:class:`SyntaxBatch` is made from the words and arcs of a batch, packed (:mod:`fairseq_syntax.data.packing`) or not.
Views are computed by gathers over padded [B, T] grids, where T is the number of columns of ``src_tokens`` (pieces,
``</s>``, and padding on either side), so they do not depend on the side of padding or on other sentences. Columns are
0-based.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fairseq_syntax.corpus.store.flat import LABEL_FIELDS, FlatArcs, Lengths
from fairseq_syntax.data.packing import BatchSyntax, unpack

__all__ = ["PieceArcs", "SyntaxBatch", "exclusive_cumsum", "places_of"]

Made = TypeVar("Made")


class PieceArcs(NamedTuple):
    """Labelled arcs between pieces: one entry per pair of pieces of the two words. All tensors are [N]."""

    batch: Tensor  # int64, row of the batch
    dependent: Tensor  # int64, column of the dependent piece
    head: Tensor  # int64, column of the head piece
    label: Tensor  # int64, id in the deprel inventory
    prob: Tensor  # float32


class SyntaxBatch:
    """Views of a batch's syntax, each computed on first use, so a model only pays for those that it uses.

    Args:
        syntax: the syntax in the batch, packed or not, on the device of ``tokens``
        tokens: [B, T] int64, the padded tokens of the parsed side; each sentence ends in ``</s>``
        pad: the padding index

    Attributes:
        n_pieces, n_words: [B] int64, the number of pieces (without ``</s>``) and of words in each sentence
        pieces: [W] int64, the number of pieces of each word
        word_deprel: [W] int64, the dependency label id of each word
        parsed: [B] bool, False for sentences without a parse, or treated as such; None if all have one
    """

    def __init__(self, syntax: BatchSyntax, tokens: Tensor, pad: int) -> None:
        self.flat = flat = unpack(syntax)
        self.tokens, self._pad = tokens, pad
        self.size, self.device = tokens.size(), tokens.device
        self.n_pieces, self.n_words = flat.n_pieces.long(), flat.n_words.long()
        self.pieces, self.word_deprel = flat.pieces.long(), flat.deprel.long()
        self.parsed = None if flat.parsed is None else flat.parsed.bool()
        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """The result of ``make()``, computed once per batch and ``key``, for views that only one system needs."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @cached_property
    def for_readers(self) -> SyntaxBatch:
        """The batch for systems that also read a given parse at inference.

        In a sentence without a parse, all words are roots without labels, and arcs have probability 0. Either this is
        neutral for a system, or the system uses :class:`~fairseq_syntax.model.attention.WhereParsed`.
        """
        if self.parsed is None:
            return self
        keep = self.parsed[self.batch_of_word]
        itself = self.word_in_sentence.to(self.flat.head.dtype)
        arcs = self.flat.arcs
        if arcs is not None:
            arcs = replace(arcs, prob=arcs.prob.masked_fill(~self.parsed[self.batch_of_arc], 0.0))
        flat = replace(
            self.flat,
            head=torch.where(keep, self.flat.head, itself),
            **{name: getattr(self.flat, name).masked_fill(~keep, 0) for name in LABEL_FIELDS},
            arcs=arcs,
            n_tree_arcs=None,  # computed from the former tree, like the heads
            heads=None,
        )
        return SyntaxBatch(flat, self.tokens, self._pad)

    # -- where things are ------------------------------------------------------------------------------------------

    @cached_property
    def lengths(self) -> Lengths:
        """:attr:`n_pieces` and :attr:`n_words` on the host; synchronizes with the device unless they are kept there."""
        return self.flat.lengths or Lengths(self.flat.n_pieces.cpu().numpy(), self.flat.n_words.cpu().numpy())

    @cached_property
    def padding(self) -> Tensor:
        """[B, T] bool: True on padding."""
        return self.tokens.eq(self._pad)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: the column of the first piece (0 with padding on the right)."""
        # argmin returns the first of several minima; it does not accept bool
        return self.padding.view(torch.uint8).argmin(dim=1)

    @cached_property
    def rows(self) -> Tensor:
        """[B] int64: the row numbers of the batch."""
        return torch.arange(self.size[0], device=self.device)

    @cached_property
    def column(self) -> Tensor:
        """[B, T] int64: the column of each position."""
        return torch.arange(self.size[1], device=self.device).expand(self.size)

    @cached_property
    def offset_in_sentence(self) -> Tensor:
        """[B, T] int64: the distance from the sentence's first piece; negative on left padding."""
        return self.column - self.start[:, None]

    @cached_property
    def real(self) -> Tensor:
        """[B, T] bool: True on pieces, False on ``</s>`` and padding."""
        return (self.offset_in_sentence >= 0) & (self.offset_in_sentence < self.n_pieces[:, None])

    @cached_property
    def real_or_end(self) -> Tensor:
        """[B, T] bool: True on pieces and the first ``</s>``, False on padding and where a language token stands."""
        return (self.offset_in_sentence >= 0) & (self.offset_in_sentence <= self.n_pieces[:, None])

    # -- words, flat over the batch --------------------------------------------------------------------------------

    @cached_property
    def pieces_so_far(self) -> Tensor:
        """[W] int64: the number of pieces in the batch up to and including each word."""
        return self.pieces.cumsum(0)

    @cached_property
    def pieces_before(self) -> Tensor:
        """[B] int64: the number of pieces in the batch before each sentence."""
        return exclusive_cumsum(self.n_pieces)

    @cached_property
    def first_word(self) -> Tensor:
        """[B] int64: the flat index of each sentence's first word."""
        return exclusive_cumsum(self.n_words)

    @cached_property
    def batch_of_word(self) -> Tensor:
        """[W] int64: the batch row of each word."""
        return self.rows.repeat_interleave(self.n_words, output_size=self.pieces.numel())

    @cached_property
    def word_in_sentence(self) -> Tensor:
        """[W] int64: the 0-based index of each word within its sentence."""
        return torch.arange(self.pieces.numel(), device=self.device) - self.first_word[self.batch_of_word]

    @cached_property
    def word_start(self) -> Tensor:
        """[W] int64: the column of each word's first piece."""
        return self.pieces_so_far - self.pieces + (self.start - self.pieces_before)[self.batch_of_word]

    @cached_property
    def parent(self) -> Tensor:
        """[W] int64: the flat index of each word's parent; a root is its own parent."""
        return self.flat.head.long() + self.first_word[self.batch_of_word]

    # -- pieces, padded --------------------------------------------------------------------------------------------

    @cached_property
    def word_of_piece(self) -> Tensor:
        """[B, T] int64: the flat index of each piece's word; -1 on ``</s>`` and padding."""
        return self._word_near.masked_fill(~self.real, -1)

    @cached_property
    def _word_near(self) -> Tensor:
        """[B, T] int64: the flat index of each piece's word; on ``</s>`` and padding, of any word."""
        flat_piece = self.pieces_before[:, None] + self.offset_in_sentence
        # The first word up to which there are more pieces than precede this one.
        word = torch.searchsorted(self.pieces_so_far, flat_piece.contiguous(), right=True)
        return word.clamp_(max=max(self.pieces.numel() - 1, 0))

    def of_word(self, per_word: Tensor, other: Tensor | float) -> Tensor:
        """Spread a value per word [W] over the word's pieces: [B, T] of its dtype.

        Args:
            other: the value for ``</s>`` and padding, a number or a tensor [B, T]
        """
        if not per_word.numel():  # a batch of empty lines has nothing to spread or to index
            per_word = per_word.new_zeros(1)
        spread = per_word[self._word_near]
        if isinstance(other, Tensor):
            other = other.to(spread.dtype)
        return torch.where(self.real, spread, other)

    @cached_property
    def parent_middle(self) -> Tensor:
        """[B, T] float32: the middle column of each piece's parent word; for ``</s>`` and padding, their own."""
        middle = self.word_start + (self.pieces - 1) / 2
        return self.of_word(middle[self.parent], self.column)

    @cached_property
    def parent_first(self) -> Tensor:
        """[B, T] int64: the column of the parent word's first piece; for ``</s>`` and padding, their own."""
        return self.of_word(self.word_start[self.parent], self.column)

    @cached_property
    def first_piece(self) -> Tensor:
        """[B, T] int64: the column of the first piece of each piece's word; for ``</s>`` and padding, their own."""
        return self.of_word(self.word_start, self.column)

    @cached_property
    def begins_word(self) -> Tensor:
        """[B, T] bool: True on the first piece of each word."""
        return self.real & self.first_piece.eq(self.column)

    @cached_property
    def deprel(self) -> Tensor:
        """[B, T] int64: the dependency label id of each piece's word; 0 on ``</s>`` and padding."""
        return self.of_word(self.word_deprel, 0)

    @cached_property
    def upos(self) -> Tensor:
        """[B, T] int64: the universal tag id of each piece's word; 0 on ``</s>`` and padding."""
        return self.of_word(self.flat.upos.long(), 0)

    @cached_property
    def xpos(self) -> Tensor:
        """[B, T] int64: the language-specific tag id of each piece's word; 0 on ``</s>`` and padding."""
        return self.of_word(self.flat.xpos.long(), 0)

    # -- arcs ------------------------------------------------------------------------------------------------------

    def expand_arcs(
        self, sentence: Tensor, dependent: Tensor, head: Tensor, label: Tensor, prob: Tensor, total: int | None = None
    ) -> PieceArcs:
        """Expand arcs between words to arcs from every piece of the dependent to every piece of the head.

        Args:
            sentence, dependent, head, label: [A] int64, the batch row, the 0-based words within it, and the label
            prob: [A] float
            total: the number of arcs after expansion, if the host knows it
        """
        offset = self.first_word[sentence]
        dependent, head = dependent + offset, head + offset
        fan_out = self.pieces[head]
        copies = self.pieces[dependent] * fan_out
        if total is None:
            total = int(copies.sum())  # synchronizes with the device
        arc = torch.arange(copies.numel(), device=self.device).repeat_interleave(copies, output_size=total)
        within = torch.arange(total, device=self.device) - exclusive_cumsum(copies)[arc]
        width = fan_out[arc]
        return PieceArcs(
            batch=sentence[arc],
            dependent=self.word_start[dependent][arc] + within // width,
            head=self.word_start[head][arc] + within % width,
            label=label[arc],
            prob=prob[arc],
        )

    @property
    def arcs(self) -> FlatArcs[Tensor]:
        """The parser's labelled distribution between words; ValueError in a batch of trees only."""
        if self.flat.arcs is None:
            raise ValueError("a batch of trees only")
        return self.flat.arcs

    @cached_property
    def batch_of_arc(self) -> Tensor:
        """[A] int64: the batch row of each arc."""
        return self.rows.repeat_interleave(self.arcs.n_arcs.long(), output_size=self.arcs.prob.numel())

    @cached_property
    def piece_arcs(self) -> PieceArcs:
        """The parser's labelled distribution between pieces. A root arc goes from a word to itself."""
        arcs = self.arcs
        return self.expand_arcs(
            self.batch_of_arc, arcs.dependent.long(), arcs.head.long(), arcs.label.long(), arcs.prob, arcs.n_piece_arcs
        )

    @cached_property
    def tree_arcs(self) -> PieceArcs:
        """The 1-best tree as labelled piece arcs with probability 1; a root points to itself."""
        head, ones = self.flat.head.long(), torch.ones(self.pieces.numel(), device=self.device)
        return self.expand_arcs(
            self.batch_of_word, self.word_in_sentence, head, self.word_deprel, ones, self.flat.n_tree_arcs
        )


def exclusive_cumsum(counts: Tensor) -> Tensor:
    """The sum of all entries before each one, which is the start of each concatenated run; the shape of ``counts``."""
    return counts.cumsum(0) - counts


def places_of(mask: Tensor, count: int) -> Tensor:
    """The flat indices [count] int64 at which ``mask`` (bool, any shape) is True ``count`` times, ascending.

    Like ``nonzero``, but without synchronizing with the device, since the host knows the number.
    """
    mask = mask.flatten()
    # All False elements go to one extra place, which is dropped.
    place = torch.where(mask, mask.cumsum(0) - 1, count)
    element = torch.arange(mask.numel(), device=mask.device)
    return element.new_zeros(count + 1).scatter_(0, place, element)[:count]
