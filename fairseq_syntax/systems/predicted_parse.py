"""PASCAL and LDD without a parser: their factors come from a parent head in a lower layer of the same encoder.

A parent head of layer s, supervised (``supervised_heads``) or biaffine (``lisa``), gives for each word a distribution
over heads, ``P[i, w] = softmax_w`` of its scores over the first pieces of words. Higher layers use it in training and
at inference, where no parse is given:

- ``predicted_pascal``: PASCAL's factor in expectation, a mixture of Gaussians,
  ``D[i, j] = Σ_w P[i, w] N(j; mid(w), σ²)``;
- ``predicted_ldd``: LDD's unlabelled factor, ``P[i, w]`` itself at every piece of w.

All pieces of a word have the row of its first piece. ``</s>`` is its own parent, as in PASCAL; in LDD, its row and
column are 0. Word boundaries follow the segmentation's marks (:func:`~fairseq_syntax.corpus.segmentation.word_marks`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.dense_factors import FactorTerm
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, HeadSystem, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.systems.pascal import gaussian


class WordColumns(NamedTuple):
    """The words of a batch, determined only from its tokens. All are [B, T]."""

    real: Tensor  # bool, True on pieces, False on </s> and padding
    first: Tensor  # int64, the column of the first piece of each piece's word; for </s> and padding, their own
    begins: Tensor  # bool, True on the first pieces of words
    middle: Tensor  # float32, at the first piece of a word the mean column of its pieces, elsewhere the own column


def find_words(tokens: Tensor, pad: int, eos: int, starts: Tensor, ends: Tensor) -> WordColumns:
    """Find words by the marks of their pieces.

    Args:
        tokens: [B, T] int64
        starts, ends: [V] bool, whether a symbol begins a word, and whether the next symbol does
    """
    real = tokens.ne(pad) & tokens.ne(eos)
    after = torch.cat((torch.ones_like(real[:, :1]), ~real[:, :-1] | ends[tokens[:, :-1]]), dim=1)
    begins = real & (starts[tokens] | after)
    column = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    # The running maximum propagates the column of a word's first piece to its later pieces.
    first = column.masked_fill(real & ~begins, 0).cummax(dim=1).values
    pieces = torch.zeros_like(column).scatter_add_(1, first, torch.ones_like(column))
    return WordColumns(real, first, begins, column + (pieces - 1).clamp(min=0) / 2)


def predicted_parents(scores: Tensor, words: WordColumns) -> Tensor:
    """P: for each piece, the probability that the head of its word is the word that begins at column w.

    Both the scores of the parent head and P (float32) are [B, T, T]; row: dependent, column: head. Rows of ``</s>`` and
    padding have 1 on the diagonal.
    """
    itself = torch.eye(scores.size(1), dtype=torch.bool, device=scores.device)
    # [B, T, T]; every row allows its own column (a root is its own head), so no row is all −inf.
    allowed = torch.where(words.real[:, :, None], words.begins[:, None, :], itself)
    rows = scores.float().masked_fill(~allowed, float("-inf")).softmax(dim=-1)
    return rows.gather(1, words.first[:, :, None].expand_as(rows))  # later pieces have the row of the first


def pascal_factor(parents: Tensor, words: WordColumns, variance: float) -> Tensor:
    """``D[i, j] = Σ_w P[i, w] N(j; mid(w), σ²)``, [B, T, T] float32."""
    column = torch.arange(parents.size(1), device=parents.device)
    # Row w is the Gaussian around the word that begins at w; P is 0 if none begins there.
    return parents @ gaussian(words.middle[:, :, None], column, variance)


def ldd_factor(parents: Tensor, words: WordColumns) -> Tensor:
    """``P[i, w(j)]`` between real pieces and 0 elsewhere, [B, T, T] float32."""
    spread = parents.gather(2, words.first[:, None, :].expand_as(parents))
    return spread * (words.real[:, :, None] & words.real[:, None, :])


@dataclass
class PredictedConfig(SystemConfig):
    predicted_layers: str | None = option(
        None, "scaled encoder layers, from 0, comma-separated; -1 is the top layer", "above the parent head's"
    )
    predicted_heads: int | None = option(None, "number of scaled heads, the first ones of a layer", "all", low=1)
    predicted_variance: float = option(1.0, "variance of predicted_pascal's Gaussians", low=1e-3, high=1e4)
    parent_gradient_after: int = option(
        1000, "updates before the factor's gradient reaches the parent head; -1 means never", low=-1
    )
    given_parse: float = option(
        0.0, "probability of using the input parse instead of the predicted one in training", low=0, high=1
    )
    given_parse_updates: int = option(0, "updates over which that probability decays to 0; 0: constant", low=0)


class PredictedParse(EncoderSystem):
    """Code shared by the two systems: reading the parent head of a lower layer."""

    config = PredictedConfig
    starts: Tensor
    ends: Tensor

    def __init__(self, options: PredictedConfig, args: Namespace, task: SyntaxTask) -> None:
        from fairseq_syntax.corpus.segmentation import word_marks

        super().__init__(options, args, task)
        dictionary, segmenter = task.source_dictionary, task.segmenter("source")
        marks = word_marks(dictionary.symbols, segmenter.kind if segmenter else None)
        # Stored as numbers, because checkpoints are averaged (by --store-ema and by fairseq's script).
        self.register_buffer("starts", torch.tensor([float(mark.starts) for mark in marks]))
        self.register_buffer("ends", torch.tensor([float(mark.ends) for mark in marks]))
        self.pad, self.eos = dictionary.pad(), dictionary.eos()
        chosen = options.predicted_layers
        self._layers = layer_numbers("--predicted-layers", chosen, args.encoder_layers) if chosen else ()
        self.place: Place = (0, 0)  # until connect() finds the parent head
        self.updates = 0
        if options.given_parse:
            self.training_needs = frozenset({"tree"})

    def connect(self, systems: Mapping[str, HeadSystem]) -> None:
        """Find the parent head to read, and the layers above it."""
        places = [place for s in systems.values() if (place := s.parent_head()) is not None]
        if len(places) != 1:
            raise SyntaxDataError(
                f"{self.name} reads the parent head of another system, and there are {len(places)}",
                hint=f"--encoder-syntax supervised_heads,{self.name} or --encoder-syntax lisa,{self.name}",
            )
        self.place = places[0]
        self._layers = self._layers or (self.place[0] + 1,)
        lowest, layer = min(self._layers), self.place[0]
        if lowest <= layer:
            raise SyntaxDataError(
                f"{self.name} acts on encoder layer {lowest}, and the parent head that it reads is in layer {layer}",
                hint="choose a lower --parent-layer (or --lisa-layer), or higher --predicted-layers",
            )

    def layers(self) -> Sequence[int]:
        return (self.place[0], *self._layers)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        if layer == self.place[0]:
            return HeadClaims(reads=frozenset({self.place[1]}))
        return HeadClaims(scales=frozenset(range(self.options.predicted_heads or num_heads)))

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each update."""
        self.updates = num_updates

    def factor(self, parents: Tensor, words: WordColumns) -> Tensor:
        """The factor [B, T, T] of the scores, from the distribution over parents."""
        raise NotImplementedError

    def term(self, step: Step, layer: int) -> FactorTerm | None:
        # If --encoder-layerdrop has dropped the parent head's layer, the layers above are plain in this step.
        if layer == self.place[0] or self.place not in step.scores:
            return None
        # Computed once, outside the layers, so that activation checkpointing recomputes a layer with the same factor.
        factor = step.once(f"{self.name} factor", lambda: self._factor(step))
        return FactorTerm(factor[:, None], self.options.predicted_heads)

    def _factor(self, step: Step) -> Tensor:
        words = find_words(step.tokens, self.pad, self.eos, self.starts > 0.5, self.ends > 0.5)
        scores = step.scores[self.place]
        if not 0 <= self.options.parent_gradient_after <= self.updates:
            scores = scores.detach()
        parents = predicted_parents(scores, words)
        if self.training and self.options.given_parse:
            # If the marks join a word to the previous one, the column of the previous word represents both.
            head = words.first.gather(1, step.parse.parent_first)
            given = torch.zeros_like(parents).scatter_(2, head[:, :, None], 1.0)
            # One draw per sentence, so that all its words use the same tree.
            share, falling = self.options.given_parse, self.options.given_parse_updates
            left = max(0.0, 1 - self.updates / falling) if falling else 1.0
            chosen = torch.rand(parents.size(0), 1, 1, device=parents.device) < share * left
            parents = torch.where(chosen, given, parents)
        return self.factor(parents, words)


@register_encoder_system("predicted_pascal")
class PredictedPascal(PredictedParse):
    """PASCAL's factor from a predicted distribution over parents."""

    def factor(self, parents: Tensor, words: WordColumns) -> Tensor:
        return pascal_factor(parents, words, self.options.predicted_variance)


@register_encoder_system("predicted_ldd")
class PredictedLdd(PredictedParse):
    """LDD's unlabelled factor from a predicted distribution over parents."""

    def factor(self, parents: Tensor, words: WordColumns) -> Tensor:
        return ldd_factor(parents, words)


# The parent head is in the layer below the top one, which reads it, since higher heads parse better. In layer 0, a noun
# cannot tell yet which preposition belongs to it.
_HEAD = {"parent_layer": -2, "parent_head": 0, "child_weight": 0.0}
register_presets("parser_free_pascal_transformer", encoder_syntax="supervised_heads,predicted_pascal", **_HEAD)
register_presets("parser_free_ldd_transformer", encoder_syntax="supervised_heads,predicted_ldd", **_HEAD)
