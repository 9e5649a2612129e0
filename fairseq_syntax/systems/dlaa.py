"""DLAA: attention over the dependency block of a predicted position.

Qiu et al. (2019), Dependency-Based Local Attention Approach to Neural Machine Translation, sections 4 and 5. At each
step, the decoder predicts a source position (Equation 8), takes the dependency block of the word at this position (the
word, its parent, its children and its siblings, Equations 17 and 18), and attends to the states of the block
(Equation 19).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.model.lstm import SyntaxLSTMModel, register_lstm
from fairseq_syntax.model.lstm_attention import Encoded, words_to_pieces
from fairseq_syntax.model.neighbourhoods import RELATIONS, line_relatives, word_grid, word_means
from fairseq_syntax.model.options import option
from fairseq_syntax.model.position_attention import GuidedAttention, GuidedConfig, LogGaussian, PositionMemory

logger = logging.getLogger(__name__)

ALIGNMENTS = ("interpolate", "hard", "gaussian")


@dataclass
class BlockMemory(PositionMemory):
    """The words of a batch of B sentences with up to W words, and their dependency blocks.

    Attributes:
        first: [N] int64, for each row of the decoder, the row of :attr:`blocks` for the first word of its sentence
        blocks: [B · W, R · W], for each word as the predicted position, what is added to the scores of the words of its
            sentence: 0 inside the word's block and −inf outside. R is 1, or 2 for ``interpolate``, with the block of
            the next word after the word's own
    """

    first: Tensor
    blocks: Tensor

    def select(self, rows: Tensor) -> BlockMemory:
        return replace(super().select(rows), first=self.first.index_select(0, rows))


@dataclass
class DLAAConfig(GuidedConfig):
    dlaa_block_size: int = option(10, "maximum number of words in a block", low=1, high=1000)
    dlaa_alignment: str = option(
        "interpolate",
        "how to use a predicted position between two words: interpolate the contexts of both blocks; "
        "round (no gradient for the predictor); or round and weight by a Gaussian",
        choices=ALIGNMENTS,
    )
    dlaa_sigma: float | None = option(
        None, "standard deviation of the Gaussian, in words", "a quarter of the block size", low=0.1, high=1000.0
    )


class BlockAttention(GuidedAttention):
    """Attention over the dependency block of the predicted position.

    For a position between two words, ``interpolate`` attends to the blocks of both words and mixes the two contexts
    linearly. ``hard`` attends to the block of the nearest word, so the predictor has no gradient. ``gaussian`` attends
    to the same block, and multiplies the weights by Luong's Gaussian around the position.
    """

    def __init__(self, options: DLAAConfig, hidden_size: int, source_size: int) -> None:
        if options.dlaa_alignment == "hard" and not options.guided_updates:
            logger.warning(
                "--dlaa-alignment hard rounds the predicted position: the predictor gets no gradient and stays as it "
                "was initialised, unless --guided-updates trains it"
            )
        sigma = options.dlaa_block_size / 4 if options.dlaa_sigma is None else options.dlaa_sigma
        super().__init__(options, hidden_size, source_size, sigma)
        self.block_size, self.alignment = options.dlaa_block_size, options.dlaa_alignment

    def remember(self, encoded: Encoded) -> BlockMemory:
        syntax, length = encoded.parse, encoded.parse.n_words  # [B]
        states = F.embedding(word_grid(syntax), word_means(encoded.states, syntax))  # [B, W, E]
        B, W, _ = states.shape
        if self.alignment == "hard":
            assert self.position is not None
            # A zero gradient for the predictor, since distributed training waits for a gradient of every parameter.
            states = states + 0 * self.position.score.weight.sum().type_as(states)
        last = (length - 1).clamp(min=0)  # [B]
        place = torch.arange(W, device=length.device)
        # A sentence without words has one place with a zero state, since a softmax over nothing is NaN.
        # The span is S − 1 rather than Equation 8's S, which is not the position of a word.
        words = self.remember_positions(states, place > last[:, None], last.float())
        members, present = line_relatives(syntax, self.block_size, RELATIONS)  # [B, W, K] each
        # A word is the first member of its block. Places without a word get word 0, since a row of only −inf gives NaN.
        present[:, :, 0] = True
        # Absent members are written to column W, which is dropped.
        blocks = torch.full((B, W, W + 1), float("-inf"), device=length.device, dtype=states.dtype)
        blocks = blocks.scatter(2, members.masked_fill(~present, W), 0.0)[:, :, :W]
        if self.alignment == "interpolate":
            after = (place + 1).minimum(last[:, None])  # [B, W], the next word; for the last word, itself
            blocks = torch.cat((blocks, blocks.gather(1, after[:, :, None].expand(-1, -1, W))), dim=2)
        first, blocks = syntax.rows * W, blocks.flatten(0, 1)
        return BlockMemory(**vars(words), first=first, blocks=blocks)

    def weights(self, hidden: Tensor, position: Tensor, memory: BlockMemory, step: int) -> Tensor:  # type: ignore[override]
        keys, where = memory.keys, position.detach()
        word = where.long() if self.alignment == "interpolate" else where.round().long()  # [N]
        bias = F.embedding(memory.first + word, memory.blocks)  # [N, R W]
        if self.alignment == "interpolate":
            # [N, 2, W]: the blocks of the words before and after the position
            bias = bias.view(len(hidden), 2, -1)
            in_blocks = F.softmax(keys.dots(hidden)[:, None] + bias, dim=2, dtype=torch.float32)  # [N, 2, W]
            fraction = position - word  # [N]; carries the gradient of the predictor
            return torch.bmm(torch.stack((1 - fraction, fraction), dim=1)[:, None], in_blocks).squeeze(1)
        scores = keys.dots(hidden, plus=bias)  # [N, W]
        if self.alignment == "hard":
            return F.softmax(scores, dim=1, dtype=torch.float32)
        factor, _ = LogGaussian.apply(memory.place, position, self.sigma)
        return (F.log_softmax(scores, dim=1, dtype=torch.float32) + factor).exp()

    def over_source(self, weights: Tensor, encoded: Encoded) -> Tensor:
        return words_to_pieces(weights, encoded)


@register_lstm("dlaa_lstm")
class DLAAModel(SyntaxLSTMModel):
    """LSTM encoder and decoder with attention over dependency blocks."""

    config = DLAAConfig
    training_needs = inference_needs = frozenset({"tree"})

    @classmethod
    def build_attention(cls, options: DLAAConfig, hidden_size: int, source_size: int) -> BlockAttention:
        return BlockAttention(options, hidden_size, source_size)
