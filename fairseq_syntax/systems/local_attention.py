"""Local attention: a window of source tokens around a position.

Luong, Pham and Manning (2015), Effective Approaches to Attention-based Neural Machine Translation, section 3.2; a
baseline of the DLAA paper (its Equations 7 and 8). It needs no parse.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
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
from fairseq_syntax.model.options import option, read_options

KINDS = ("monotonic", "predictive")


@dataclass
class WindowMemory:
    """The source tokens of a batch, flat: that of column s of sentence b is ``b · S + s``.

    Attributes:
        tokens: keys and values of [B · S, H]
        position: from the decoder's state to the share of the source before the position, [N, H] to [N] float32; None
            where the position is the step
        first: [N] int64, flat index of column 0 of each row's sentence
        length: [N] float32, tokens of each row's sentence, with ``</s>``
        columns: S
        offset: [2D + 1] int64, of the window's places from its centre: -D to D
        guide: all tokens of each row's sentence, in a guided start
    """

    tokens: RowMemory
    position: Callable[[Tensor], Tensor] | None
    first: Tensor
    length: Tensor
    columns: int
    offset: Tensor
    guide: Guide | None = None

    def select(self, rows: Tensor) -> WindowMemory:
        """The memory of other rows; keys and values are shared."""
        return replace(self, first=self.first.index_select(0, rows), length=self.length.index_select(0, rows))


class WindowAttention(GuidedAttention):
    """Attention over the tokens at most ``window`` away from a position.

    Args:
        hidden_size, source_size: of the decoder, and of the encoder's states
        kind: ``monotonic`` (local-m: the position is the step, or the last token once the source is at its end) or
            ``predictive`` (local-p: the position is predicted, and the weights are multiplied by a Gaussian around it
            with σ = D/2)
        window: D
        guided_updates, guide_weight: as in :class:`.GuidedAttention`
    """

    def __init__(
        self,
        hidden_size: int,
        source_size: int,
        kind: str = "predictive",
        window: int = 5,
        guided_updates: int = 0,
        guide_weight: float = 1.0,
    ) -> None:
        super().__init__(hidden_size, source_size, guided_updates, guide_weight)
        if guided_updates and kind == "monotonic":
            raise SyntaxDataError(
                "--local-attention monotonic predicts no position to be guided", option="--guided-updates"
            )
        self.kind, self.window = kind, window
        self.position = PositionPredictor(hidden_size) if kind == "predictive" else None

    def remember(self, encoded: Encoded) -> WindowMemory:
        columns, rows, _ = encoded.states.shape
        tokens = self.table(encoded.states.transpose(0, 1).flatten(0, 1))
        position = None if self.position is None else self.position.for_loop()
        first = torch.arange(rows, device=encoded.states.device) * columns
        guide = None
        if share := self.guided_share():
            place = torch.arange(columns, device=first.device).expand(rows, -1)
            bias = negative_infinity_at(encoded.padding.t(), tokens.keys.shared)
            guide = Guide(first[:, None] + place, place.float(), bias, share)
        offset = torch.arange(-self.window, self.window + 1, device=first.device)
        length = (~encoded.padding).sum(dim=0).float()
        return WindowMemory(tokens, position, first, length, columns, offset, guide)

    @property
    def guide_sigma(self) -> float:
        return self.window / 2

    def centre(self, hidden: Tensor, memory: WindowMemory, step: int) -> Tensor:
        """p_t, [N] float32: ``S · sigmoid(v' tanh(W_p h_t))`` (Luong's Equation 9), or the step."""
        if memory.position is None:
            return (memory.length - 1).clamp(max=step)
        return memory.length * memory.position(hidden)

    def forward(self, hidden: Tensor, memory: WindowMemory, step: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        centre = self.centre(hidden, memory, step)[:, None]
        token = centre.detach().ceil() + memory.offset
        outside = (token < 0) | (token >= memory.length[:, None])
        if self.position is not None:  # else the centre is a whole number, and the last place within the window
            outside |= token > centre + self.window
        token = token.masked_fill(outside, 0)
        members = (token.long() + memory.first[:, None])[:, None]
        bias = negative_infinity_at(outside, hidden)[:, None]
        if memory.guide is not None:
            memory.guide.positions.append(self.centre(hidden.detach(), memory, step))
        gaussian = None
        if self.position is not None:  # Luong's Equation 10
            gaussian = gaussian_window(token - centre, (self.window / 2) ** 2)[:, None]
        out, weights = self.attend(hidden, memory.tokens, members, bias, gaussian, memory.guide)
        return out, (members, weights)

    def over_source(self, reads: list[tuple[Tensor, Tensor]], memory: WindowMemory) -> Tensor:
        steps = []
        for members, weights in reads:
            column = members[:, 0] - memory.first[:, None]
            empty = weights.new_zeros(column.size(0), memory.columns)
            steps.append(empty.scatter_add_(1, column, weights[:, 0]))
        return torch.stack(steps, dim=1)


@dataclass
class LocalAttentionConfig(GuidedConfig):
    """The options of local attention."""

    local_attention: str = option(
        "predictive",
        "monotonic: Luong's local-m, around the step; predictive: local-p, around a predicted position",
        choices=KINDS,
    )
    local_window: int = option(5, "tokens to either side", low=1, high=1000)


@register_lstm("local_attention_lstm")
class LocalAttentionModel(SyntaxLSTMModel):
    """LSTM encoder and decoder with Luong's local attention."""

    title, config = "local attention", LocalAttentionConfig

    @classmethod
    def build_attention(cls, args: Namespace, hidden_size: int, source_size: int) -> WindowAttention:
        config = read_options(LocalAttentionConfig, args)
        kind, window = config.local_attention, config.local_window
        return WindowAttention(hidden_size, source_size, kind, window, config.guided_updates, config.guide_weight)
