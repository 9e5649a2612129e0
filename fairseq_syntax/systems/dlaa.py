"""DLAA: attention over the dependency block of a predicted position.

Qiu et al. (2019), Dependency-Based Local Attention Approach to Neural Machine Translation, sections 4 and 5. At each
step the decoder predicts a position of the source (Equation 8), takes the block of the word that stands there (the
word, its parent, its children, its siblings, Equations 17 and 18) and attends to the states of the block (Equation 19).
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.data.batch import exclusive_cumsum
from fairseq_syntax.model.gaussian import gaussian_window
from fairseq_syntax.model.lstm import SyntaxLSTMModel, register_lstm
from fairseq_syntax.model.lstm_attention import (
    Encoded,
    Guide,
    GuidedAttention,
    GuidedConfig,
    PositionPredictor,
    RowMemory,
    negative_infinity_at,
)
from fairseq_syntax.model.neighbourhoods import RELATIONS, flat_relatives, word_means
from fairseq_syntax.model.options import option, read_options

logger = logging.getLogger(__name__)

ALIGNMENTS = ("interpolate", "hard", "gaussian")


@dataclass
class BlockMemory:
    """The dependency blocks of a batch. Words are flat over the batch; word W is none, with a key and value of zeros.

    Attributes:
        words: keys and values of [W + 1, H]
        position: from the decoder's state to the share of the source before the position, [N, H] to [N] float32
        blocks: [W + 1, K] int64, the members of each word's block
        bias: [W + 1, K], −inf in empty places
        first, last: [N] int64 and float32, of each row's sentence the first word (flat) and the last (within it)
        word_of_piece: [N, S] int64, flat word of each source token, −1 on ``</s>`` and padding
        pieces: [W] int64, pieces of each word
        guide: all words of each row's sentence, in a guided start
    """

    words: RowMemory
    position: Callable[[Tensor], Tensor]
    blocks: Tensor
    bias: Tensor
    first: Tensor
    last: Tensor
    word_of_piece: Tensor
    pieces: Tensor
    guide: Guide | None = None

    def select(self, rows: Tensor) -> BlockMemory:
        """The memory of other rows; the blocks are shared."""
        first, last, word_of_piece = (t.index_select(0, rows) for t in (self.first, self.last, self.word_of_piece))
        return replace(self, first=first, last=last, word_of_piece=word_of_piece)


class BlockAttention(GuidedAttention):
    """Attention over the dependency block of the predicted position.

    Args:
        hidden_size, source_size: of the decoder, and of the encoder's states
        block_size: the most words in a block
        alignment: what to do with a position between two words. ``interpolate``: attend to the blocks of both and mix
            the two contexts by the fraction; ``hard``: the block of the nearest word, which leaves the predictor
            without a gradient; ``gaussian``: the same block, its weights multiplied by Luong's Gaussian around the
            position
        sigma: of the Gaussian, in words
        guided_updates, guide_weight: as in :class:`.GuidedAttention`
    """

    def __init__(
        self,
        hidden_size: int,
        source_size: int,
        block_size: int = 10,
        alignment: str = "interpolate",
        sigma: float = 2.5,
        guided_updates: int = 0,
        guide_weight: float = 1.0,
    ) -> None:
        super().__init__(hidden_size, source_size, guided_updates, guide_weight)
        self.block_size, self.alignment, self.sigma = block_size, alignment, sigma
        self.position = PositionPredictor(hidden_size)

    def remember(self, encoded: Encoded) -> BlockMemory:
        syntax = encoded.parse
        total = syntax.pieces.numel()
        words = self.table(word_means(encoded.states, syntax))  # keys and values of [W + 1, H]
        members, present = flat_relatives(syntax, self.block_size, RELATIONS)  # [W, K] each
        # A sentence without words has a block of the empty word alone, so that its context is zero.
        none = torch.full_like(members[:1], total) if total else members.new_full((1, members.size(1)), total)  # [1, K]
        present = torch.cat((present, torch.arange(none.size(1), device=none.device)[None] == 0))  # [W + 1, K]
        length = syntax.n_words  # [B]
        first = torch.where(length > 0, exclusive_cumsum(length), total)  # [B]
        return BlockMemory(
            words,
            self.position.for_loop(),
            torch.cat((members, none)),
            negative_infinity_at(~present, words.keys.shared),
            first,
            (length - 1).clamp(min=0).float(),
            syntax.word_of_piece,
            syntax.pieces,
            self.whole_sentences(first, length, total, words.keys.shared),
        )

    @property
    def guide_sigma(self) -> float:
        return self.sigma

    def whole_sentences(self, first: Tensor, length: Tensor, total: int, like: Tensor) -> Guide | None:
        """All words of sentences that begin with word ``first`` and have ``length`` words, [N] int64, of ``total``."""
        share = self.guided_share()
        if not share:
            return None
        place = torch.arange(max(1, int(length.max())), device=length.device).expand(length.size(0), -1)  # [N, W']
        # a sentence without words has the empty word, as its block has
        absent = place >= length.clamp(min=1)[:, None]
        members = (first[:, None] + place).masked_fill(absent, total)  # [N, W']
        return Guide(members, place.float(), negative_infinity_at(absent, like), share)

    def predict(self, hidden: Tensor, memory: BlockMemory) -> Tensor:
        """Equation 8 over words from 0 on: ``p_t = (S − 1) · sigmoid(v' tanh(W_p h_t))``. [N, H] to [N] float32."""
        return memory.last * memory.position(hidden)

    def forward(self, hidden: Tensor, memory: BlockMemory, step: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        # R is the number of blocks that a row reads: 2 to interpolate, else 1.
        position = self.predict(hidden, memory)  # [N]
        factor: Tensor | None = None
        if self.alignment == "interpolate":
            below = position.detach().floor()
            fraction = position - below
            word = torch.stack((below, torch.minimum(below + 1, memory.last)), dim=1)  # [N, 2]
            factor = torch.stack((1 - fraction, fraction), dim=1)[:, :, None]  # [N, 2, 1]
        else:
            word = position.detach().round()[:, None]  # [N, 1]
        word = word.long() + memory.first[:, None]  # [N, R], flat
        members = F.embedding(word, memory.blocks)  # [N, R, K]
        bias = F.embedding(word, memory.bias)  # [N, R, K]
        if self.alignment == "gaussian":
            distance = members - memory.first[:, None, None] - position[:, None, None]  # [N, 1, K]
            factor = gaussian_window(distance, self.sigma**2)  # [N, 1, K]
        if memory.guide is not None:
            memory.guide.positions.append(self.predict(hidden.detach(), memory))
        elif self.alignment == "hard":
            # A gradient of zero for the predictor: processes that train together wait for one of every parameter.
            hidden = hidden + 0 * position[:, None].type_as(hidden)
        out, weights = self.attend(hidden, memory.words, members, bias, factor, memory.guide)  # [N, H]; [N, R, K]
        return out, (members, weights)

    def over_source(self, reads: list[tuple[Tensor, Tensor]], memory: BlockMemory) -> Tensor:
        """A word's weight is shared equally by its pieces; ``</s>`` has none."""
        N = memory.first.numel()
        total = memory.pieces.numel()
        per_piece = F.pad(1 / memory.pieces, (0, 1))  # [W + 1]
        piece = memory.word_of_piece.masked_fill(memory.word_of_piece < 0, total)  # [N, S]
        steps = []
        for members, weights in reads:
            members, weights = members.view(N, -1), weights.view(N, -1)  # [N, R K]
            over_words = weights.new_zeros(N, total + 1).scatter_add_(1, members, weights)  # [N, W + 1]
            steps.append(over_words.gather(1, piece) * per_piece[piece])  # [N, S]
        return torch.stack(steps, dim=1)


@dataclass
class DLAAConfig(GuidedConfig):
    """The options of DLAA."""

    dlaa_block_size: int = option(10, "most words in a block", low=1, high=1000)
    dlaa_alignment: str = option(
        "interpolate",
        "what to do with a predicted position between two words: mix the contexts of both blocks; round (no gradient "
        "for the predictor); or round and weigh by a Gaussian",
        choices=ALIGNMENTS,
    )
    dlaa_sigma: float | None = option(
        None, "standard deviation of the Gaussian, in words", "a quarter of the block size", low=0.1, high=1000.0
    )


@register_lstm("dlaa_lstm")
class DLAAModel(SyntaxLSTMModel):
    """LSTM encoder and decoder with attention over dependency blocks."""

    title, config = "dlaa", DLAAConfig
    training_needs = inference_needs = frozenset({"tree"})

    @classmethod
    def build_attention(cls, args: Namespace, hidden_size: int, source_size: int) -> BlockAttention:
        config = read_options(DLAAConfig, args)
        size, alignment, guided = config.dlaa_block_size, config.dlaa_alignment, config.guided_updates
        sigma = size / 4 if config.dlaa_sigma is None else config.dlaa_sigma
        if alignment == "hard" and not guided:
            logger.warning(
                "--dlaa-alignment hard rounds the predicted position: the predictor gets no gradient and stays as it "
                "was initialised, unless --guided-updates trains it"
            )
        return BlockAttention(hidden_size, source_size, size, alignment, sigma, guided, config.guide_weight)
