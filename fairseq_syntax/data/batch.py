"""The views that models take of a batch's syntax, expanded on the device from flat tensors.

:class:`SyntaxBatch` takes the words and arcs of a batch, packed (:mod:`fairseq_syntax.data.packing`) or not. Views are
made by gathers over padded [B, T] grids, where T counts columns of ``src_tokens`` (pieces, ``</s>`` and padding, on
either side), so that no view depends on the padding side or on the other sentences. Columns are 0-based.
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
    """Views of a batch's syntax, each computed at its first use: a model pays for those it takes.

    Args:
        syntax: what the batch brings, packed or not, on the device of ``tokens``
        tokens: LongTensor [B, T], the padded tokens of the side that was parsed, each ending in ``</s>``
        pad: the padding index
    """

    def __init__(self, syntax: BatchSyntax, tokens: Tensor, pad: int) -> None:
        self.flat = unpack(syntax)
        self.size = tokens.size()
        self.device = tokens.device
        self.tokens, self._pad = tokens, pad

        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """Compute ``make()`` once per batch and ``key``, for views that only one system needs."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # -- sentences without a parse ---------------------------------------------------------------------------------

    @property
    def parsed(self) -> Tensor | None:
        """[B] bool: False where a sentence has no parse or is treated as having none; None: all have one."""
        return None if self.flat.parsed is None else self.flat.parsed.bool()

    @cached_property
    def for_readers(self) -> SyntaxBatch:
        """The batch for systems that read a given parse at inference too.

        A sentence without a parse has words that are roots all, without labels, and arcs of probability 0. What a
        system takes that for is its neutral form, or :class:`~fairseq_syntax.model.attention.WhereParsed` is.
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
            n_tree_arcs=None,  # of the tree that was there, as the heads
            heads=None,
        )
        return SyntaxBatch(flat, self.tokens, self._pad)

    # -- where things are ------------------------------------------------------------------------------------------

    @cached_property
    def n_pieces(self) -> Tensor:
        """[B] int64: pieces of each sentence, without ``</s>``."""
        return self.flat.n_pieces.long()

    @cached_property
    def n_words(self) -> Tensor:
        """[B] int64: words of each sentence."""
        return self.flat.n_words.long()

    @cached_property
    def lengths(self) -> Lengths:
        """:attr:`n_pieces` and :attr:`n_words` on the host; where they did not stay there, it waits for the device."""
        return self.flat.lengths or Lengths(self.flat.n_pieces.cpu().numpy(), self.flat.n_words.cpu().numpy())

    @cached_property
    def padding(self) -> Tensor:
        """[B, T] bool: True on padding."""
        return self.tokens.eq(self._pad)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: column of the first piece (0 with padding on the right)."""
        # argmax: the first of several maxima; PyTorch has none of bool
        return (~self.padding).int().argmax(dim=1)

    @cached_property
    def rows(self) -> Tensor:
        """[B] int64: the rows of the batch."""
        return torch.arange(self.size[0], device=self.device)

    @cached_property
    def column(self) -> Tensor:
        """[B, T] int64: each place's own column."""
        return torch.arange(self.size[1], device=self.device).expand(self.size)

    @cached_property
    def offset_in_sentence(self) -> Tensor:
        """[B, T] int64: distance from the sentence's first piece; negative on left padding."""
        return self.column - self.start[:, None]

    @cached_property
    def real(self) -> Tensor:
        """[B, T] bool: True on pieces, False on ``</s>`` and padding."""
        return (self.offset_in_sentence >= 0) & (self.offset_in_sentence < self.n_pieces[:, None])

    # -- words, flat over the batch --------------------------------------------------------------------------------

    @cached_property
    def pieces(self) -> Tensor:
        """[W] int64: pieces of each word."""
        return self.flat.pieces.long()

    @cached_property
    def pieces_so_far(self) -> Tensor:
        """[W] int64: pieces of the batch up to and with each word."""
        return self.pieces.cumsum(0)

    @cached_property
    def pieces_before(self) -> Tensor:
        """[B] int64: pieces of the batch before each sentence."""
        return exclusive_cumsum(self.n_pieces)

    @cached_property
    def first_word(self) -> Tensor:
        """[B] int64: flat index of each sentence's first word."""
        return exclusive_cumsum(self.n_words)

    @cached_property
    def batch_of_word(self) -> Tensor:
        """[W] int64: row of the batch that each word stands in."""
        return self.rows.repeat_interleave(self.n_words, output_size=self.pieces.numel())

    @cached_property
    def word_in_sentence(self) -> Tensor:
        """[W] int64: number of each word within its sentence."""
        return torch.arange(self.pieces.numel(), device=self.device) - self.first_word[self.batch_of_word]

    @cached_property
    def word_start(self) -> Tensor:
        """[W] int64: column of each word's first piece."""
        return self.pieces_so_far - self.pieces + (self.start - self.pieces_before)[self.batch_of_word]

    @cached_property
    def word_middle(self) -> Tensor:
        """[W] float32: mean column of each word's pieces (halves occur)."""
        return self.word_start + (self.pieces - 1) / 2

    @cached_property
    def parent(self) -> Tensor:
        """[W] int64: flat index of each word's parent; a root is its own parent."""
        return self.flat.head.long() + self.first_word[self.batch_of_word]

    @cached_property
    def word_deprel(self) -> Tensor:
        """[W] int64: dependency label id of each word."""
        return self.flat.deprel.long()

    # -- pieces, padded --------------------------------------------------------------------------------------------

    @cached_property
    def word_of_piece(self) -> Tensor:
        """[B, T] int64: flat index of the word that each piece belongs to, -1 on ``</s>`` and padding."""
        flat_piece = self.pieces_before[:, None] + self.offset_in_sentence
        # The first word up to which there are more pieces than before this one.
        word = torch.searchsorted(self.pieces_so_far, flat_piece.contiguous(), right=True)
        return word.masked_fill(~self.real, -1)

    def of_word(self, per_word: Tensor, other: Tensor | float) -> Tensor:
        """Spread a value per word over its pieces.

        Args:
            per_word: [W]
            other: what ``</s>`` and padding get, a number of that dtype or [B, T]

        Returns:
            [B, T] of ``per_word``'s dtype
        """
        if not per_word.numel():  # a batch of empty lines: nothing to spread, and nothing to index
            per_word = per_word.new_zeros(1)
        spread = per_word[self.word_of_piece.clamp(min=0)]
        if isinstance(other, Tensor):
            other = other.to(spread.dtype)
        return torch.where(self.real, spread, other)

    @cached_property
    def parent_middle(self) -> Tensor:
        """[B, T] float32: middle column of each piece's parent word; ``</s>`` and padding are their own parent."""
        return self.of_word(self.word_middle[self.parent], self.column)

    @cached_property
    def parent_first(self) -> Tensor:
        """[B, T] int64: column of the first piece of the parent word; ``</s>`` and padding: their own column."""
        return self.of_word(self.word_start[self.parent], self.column)

    @cached_property
    def first_piece(self) -> Tensor:
        """[B, T] int64: column of the first piece of the own word; ``</s>`` and padding: their own column."""
        return self.of_word(self.word_start, self.column)

    @cached_property
    def begins_word(self) -> Tensor:
        """[B, T] bool: True on the first piece of each word."""
        return self.real & self.first_piece.eq(self.column)

    @cached_property
    def deprel(self) -> Tensor:
        """[B, T] int64: dependency label id of each piece's word, 0 on ``</s>`` and padding."""
        return self.of_word(self.word_deprel, 0)

    @cached_property
    def upos(self) -> Tensor:
        """[B, T] int64: universal tag id of each piece's word, 0 on ``</s>`` and padding."""
        return self.of_word(self.flat.upos.long(), 0)

    @cached_property
    def xpos(self) -> Tensor:
        """[B, T] int64: language-specific tag id of each piece's word, 0 on ``</s>`` and padding."""
        return self.of_word(self.flat.xpos.long(), 0)

    # -- arcs ------------------------------------------------------------------------------------------------------

    def expand_arcs(
        self, sentence: Tensor, dependent: Tensor, head: Tensor, label: Tensor, prob: Tensor, total: int | None = None
    ) -> PieceArcs:
        """Expand arcs between words to arcs between pieces: every piece of the dependent to every piece of the head.

        Args:
            sentence: [A] int64, row of the batch
            dependent, head: [A] int64, word within the sentence, 0-based
            label: [A] int64
            prob: [A] float
            total: number of arcs after expansion, where the host knows it
        """
        offset = self.first_word[sentence]
        dependent, head = dependent + offset, head + offset
        fan_out = self.pieces[head]
        copies = self.pieces[dependent] * fan_out
        if total is None:
            total = int(copies.sum())  # waits for the device
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
        """The parser's labelled distribution between words.

        Raises:
            ValueError: the batch brings trees only; a model that needs arcs has said so before
        """
        if self.flat.arcs is None:
            raise ValueError("a batch of trees only")
        return self.flat.arcs

    @cached_property
    def batch_of_arc(self) -> Tensor:
        """[A] int64: row of the batch that each arc stands in."""
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
        """The 1-best tree as piece arcs of probability 1, labelled; the root points to itself."""
        ones = torch.ones(self.pieces.numel(), device=self.device)
        return self.expand_arcs(
            self.batch_of_word,
            self.word_in_sentence,
            self.flat.head.long(),
            self.word_deprel,
            ones,
            self.flat.n_tree_arcs,
        )


def exclusive_cumsum(counts: Tensor) -> Tensor:
    """Sum of all entries before each one: where each of several concatenated runs begins. Same shape as ``counts``."""
    return counts.cumsum(0) - counts


def places_of(mask: Tensor, count: int) -> Tensor:
    """The indices at which ``mask`` is True: [count] int64, ascending.

    What ``nonzero`` gives, for a number that the host knows already: the host does not wait for the device.

    Args:
        mask: bool, any shape
        count: how many are True
    """
    mask = mask.flatten()
    # All that is False goes to one place more, which is cut off.
    place = torch.where(mask, mask.cumsum(0) - 1, count)
    element = torch.arange(mask.numel(), device=mask.device)
    return element.new_zeros(count + 1).scatter_(0, place, element)[:count]
