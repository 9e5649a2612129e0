"""The syntax of one batch: a few flat tensors from the host, expanded on the device.

The loader ships word-level facts only, concatenated over the sentences of the batch::

    counts [3, B]   int32   pieces (without </s>), words and arcs of each sentence
    pieces [W]      int32   pieces of each word, at least 1; W is the number of words in the batch
    words  [4, W]   int32   head (0-based within its sentence; a root is its own head), deprel, upos and xpos ids
    arcs   [3, A]   int32   dependent, head (a root arc has head == dependent), label id       (only where wanted)
    probs  [A]      float32 probability of each arc                                            (only where wanted)
    n_piece_arcs    int     arcs between pieces; known on the host, so that the device need not wait for their number
    n_tree_arcs     int     the same for the 1-best tree
    parsed [B]      int32   0: systems that read the parse are not to see this sentence's (missing: all 1)

A batch's dictionary has them packed (:func:`pack`): one tensor, which goes to a device in one copy, and beside it what
only the host needs to know. :class:`SyntaxBatch` takes either.

Each model takes its own view from :class:`SyntaxBatch`. Views are made by gathers over padded [B, T] grids, where T
counts columns of ``src_tokens`` (pieces, ``</s>`` and padding, on either side), so that no view depends on the padding
side or on the other sentences. Columns are 0-based.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

Made = TypeVar("Made")

HEAD, DEPREL, UPOS, XPOS = range(4)
WORD_ROWS = ("head", "deprel", "upos", "xpos")


class PieceArcs(NamedTuple):
    """Labelled arcs between pieces: one entry per pair of pieces of the two words. All tensors are [N]."""

    batch: Tensor  # int64, row of the batch
    dependent: Tensor  # int64, column of the dependent piece
    head: Tensor  # int64, column of the head piece
    label: Tensor  # int64, id in the deprel inventory
    prob: Tensor  # float32


def pack(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a batch as one tensor.

    fairseq pins what a batch has in host memory and copies it to the GPU without waiting, tensor by tensor; and halves
    what is float32 with ``--fp16``, which the bytes of a probability must not be.

    Args:
        flat: NumPy arrays of int32 and float32, and integers, by the names in the module docstring

    Returns:
        ``packed`` [N] int32: the bytes of all arrays in turn; ``layout``: their names and shapes;
        ``host_counts``: the array ``counts``, which stays on the host; and the integers
    """
    arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    if wrong := [name for name, a in arrays.items() if a.dtype not in (np.int32, np.float32)]:
        raise ValueError(f"arrays of four bytes an element wanted: {wrong[0]} has {arrays[wrong[0]].dtype}")
    parts = [np.ascontiguousarray(a).reshape(-1).view(np.int32) for a in arrays.values()]
    return {
        "packed": torch.from_numpy(np.concatenate(parts)),
        "layout": {name: tuple(a.shape) for name, a in arrays.items()},
        "host_counts": flat["counts"],
        **{name: value for name, value in flat.items() if name not in arrays},
    }


def unpack(flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was packed, as views; anything else as it is."""
    if "packed" not in flat:
        return flat
    layout = flat["layout"]
    parts = flat["packed"].split([math.prod(shape) for shape in layout.values()])
    arrays = {name: part.view(shape) for part, (name, shape) in zip(parts, layout.items())}
    if "probs" in arrays:
        arrays["probs"] = arrays["probs"].view(torch.float32)
    return {**{name: value for name, value in flat.items() if name not in ("packed", "layout")}, **arrays}


def has_arcs(flat: Mapping[str, Any]) -> bool:
    """Whether a batch brings the parser's distributions."""
    return "arcs" in flat.get("layout", flat)


class SyntaxBatch:
    """Views of a batch's syntax.

    Args:
        flat: the tensors described in the module docstring, or a batch's dictionary, on the device of ``tokens``
        tokens: LongTensor [B, T], the padded tokens of the side that was parsed, each ending in ``</s>``
        pad: the padding index
    """

    def __init__(self, flat: Mapping[str, Any], tokens: Tensor, pad: int) -> None:
        self.flat = unpack(flat)
        self.size = tokens.size()
        self.device = tokens.device
        self.tokens, self._pad = tokens, pad

        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What ``make`` makes of this batch, made when it is first asked for by this ``key``; a system's own view."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # -- sentences without a parse ---------------------------------------------------------------------------------

    @property
    def parsed(self) -> Tensor | None:
        """[B] bool: False where a sentence has no parse, or is to be read as if it had none; None: all have one."""
        parsed = self.flat.get("parsed")
        return None if parsed is None else parsed.bool()

    @cached_property
    def for_readers(self) -> SyntaxBatch:
        """The parse as those systems see it that read it of a given sentence, at inference too.

        A sentence without a parse has words that are roots all, without labels, and arcs of probability 0. What a
        system takes that for is its neutral form, or :class:`~fairseq_syntax.model.attention.WhereParsed` is.
        """
        if self.parsed is None:
            return self
        keep = self.parsed[self.batch_of_word]
        word = torch.arange(keep.numel(), device=self.device) - self.first_word[self.batch_of_word]
        words = self.flat["words"].masked_fill(~keep, 0)
        words[HEAD] = torch.where(keep, words[HEAD], word.to(words.dtype))
        flat = {**self.flat, "words": words}
        flat.pop("n_tree_arcs", None)  # of the tree that was there
        if "probs" in flat:
            rows = torch.arange(self.size[0], device=self.device)
            sentence = rows.repeat_interleave(self.counts[2], output_size=flat["probs"].numel())
            flat["probs"] = flat["probs"].masked_fill(~self.parsed[sentence], 0.0)
        return SyntaxBatch(flat, self.tokens, self._pad)

    # -- where things are ------------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> Tensor:
        """[3, B] int64: pieces, words, arcs of each sentence."""
        return self.flat["counts"].long()

    @cached_property
    def host_counts(self) -> np.ndarray:
        """:attr:`counts` on the host, [3, B] int32; where it did not stay there, the host waits for the device."""
        known = self.flat.get("host_counts")
        return self.flat["counts"].cpu().numpy() if known is None else known

    @cached_property
    def padding(self) -> Tensor:
        """[B, T] bool: True on padding."""
        return self.tokens.eq(self._pad)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: column of the first piece (0 with padding on the right)."""
        return (~self.padding).int().argmax(dim=1)

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
        return (self.offset_in_sentence >= 0) & (self.offset_in_sentence < self.counts[0, :, None])

    # -- words, flat over the batch --------------------------------------------------------------------------------

    @cached_property
    def pieces(self) -> Tensor:
        """[W] int64: pieces of each word."""
        return self.flat["pieces"].long()

    @cached_property
    def first_word(self) -> Tensor:
        """[B] int64: flat index of each sentence's first word."""
        return exclusive_cumsum(self.counts[1])

    @cached_property
    def batch_of_word(self) -> Tensor:
        """[W] int64: row of the batch that each word stands in."""
        rows = torch.arange(self.size[0], device=self.device)
        return rows.repeat_interleave(self.counts[1], output_size=self.pieces.numel())

    @cached_property
    def word_start(self) -> Tensor:
        """[W] int64: column of each word's first piece."""
        row = self.batch_of_word
        return exclusive_cumsum(self.pieces) - exclusive_cumsum(self.counts[0])[row] + self.start[row]

    @cached_property
    def word_middle(self) -> Tensor:
        """[W] float32: mean column of each word's pieces (halves occur)."""
        return self.word_start + (self.pieces - 1) / 2

    @cached_property
    def parent(self) -> Tensor:
        """[W] int64: flat index of each word's parent; a root is its own parent."""
        return self.flat["words"][HEAD].long() + self.first_word[self.batch_of_word]

    @cached_property
    def word_deprel(self) -> Tensor:
        """[W] int64: dependency label id of each word."""
        return self.flat["words"][DEPREL].long()

    # -- pieces, padded --------------------------------------------------------------------------------------------

    @cached_property
    def word_of_piece(self) -> Tensor:
        """[B, T] int64: flat index of the word that each piece belongs to, -1 on ``</s>`` and padding."""
        flat_piece = exclusive_cumsum(self.counts[0])[:, None] + self.offset_in_sentence
        word = torch.searchsorted(self.pieces.cumsum(0), flat_piece.contiguous(), right=True)
        return word.masked_fill(~self.real, -1)

    def of_word(self, per_word: Tensor, other: Tensor | float) -> Tensor:
        """Spread a value per word over its pieces.

        Args:
            per_word: [W]
            other: what ``</s>`` and padding get, a scalar or [B, T]

        Returns:
            [B, T] of ``per_word``'s dtype
        """
        if not per_word.numel():  # a batch of empty lines: nothing to spread, and nothing to index
            per_word = per_word.new_zeros(1)
        spread = per_word[self.word_of_piece.clamp(min=0)]
        other = torch.as_tensor(other, dtype=spread.dtype, device=spread.device)
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
    def deprel(self) -> Tensor:
        """[B, T] int64: dependency label id of each piece's word, 0 on ``</s>`` and padding."""
        return self.of_word(self.word_deprel, 0)

    @cached_property
    def upos(self) -> Tensor:
        """[B, T] int64: universal tag id of each piece's word, 0 on ``</s>`` and padding."""
        return self.of_word(self.flat["words"][UPOS].long(), 0)

    @cached_property
    def xpos(self) -> Tensor:
        """[B, T] int64: language-specific tag id of each piece's word, 0 on ``</s>`` and padding."""
        return self.of_word(self.flat["words"][XPOS].long(), 0)

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
            total = int(copies.sum())
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

    @cached_property
    def piece_arcs(self) -> PieceArcs:
        """The parser's labelled distribution between pieces. A root arc goes from a word to itself."""
        n = self.flat["probs"].numel()
        rows = torch.arange(self.size[0], device=self.device)
        sentence = rows.repeat_interleave(self.counts[2], output_size=n)
        dependent, head, label = self.flat["arcs"].long()
        total = self.flat.get("n_piece_arcs")
        return self.expand_arcs(sentence, dependent, head, label, self.flat["probs"], total)

    @cached_property
    def tree_arcs(self) -> PieceArcs:
        """The 1-best tree as piece arcs of probability 1, labelled; the root points to itself."""
        row = self.batch_of_word
        word = torch.arange(self.pieces.numel(), device=self.device) - self.first_word[row]
        head = self.flat["words"][HEAD].long()
        ones = torch.ones(self.pieces.numel(), device=self.device)
        return self.expand_arcs(row, word, head, self.word_deprel, ones, self.flat.get("n_tree_arcs"))


def exclusive_cumsum(counts: Tensor) -> Tensor:
    """Sum of all entries before each one: where each of several concatenated runs begins. Same shape as ``counts``."""
    return counts.cumsum(0) - counts


def places_of(mask: Tensor, count: int) -> Tensor:
    """Where ``mask`` is True, as indices [count] int64 into its elements, ascending.

    What ``nonzero`` gives, for a number that the host knows already: the host does not wait for the device.

    Args:
        mask: bool, any shape
        count: how many are True
    """
    mask = mask.flatten()
    place = torch.where(mask, mask.cumsum(0) - 1, count)
    element = torch.arange(mask.numel(), device=mask.device)
    return element.new_zeros(count + 1).scatter_(0, place, element)[:count]
