"""Local attention: attention to a window of source tokens around a position.

Luong, Pham and Manning (2015), Effective Approaches to Attention-based Neural Machine Translation, section 3.2; a
baseline of the DLAA paper (its Equations 7 and 8). It needs no parse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.lstm import SyntaxLSTMModel, register_lstm
from fairseq_syntax.model.lstm_attention import Encoded, negative_infinity_at
from fairseq_syntax.model.options import option
from fairseq_syntax.model.position_attention import GuidedAttention, GuidedConfig, LogGaussian, PositionMemory

KINDS = ("monotonic", "predictive")


@dataclass
class WindowMemory(PositionMemory):
    """The source tokens of a batch, [N, S].

    Attributes:
        windows: [S, N, S], for each target step, row and source column, 0 inside the window and −inf outside; None if
            the position is predicted
    """

    windows: Tensor | None

    def select(self, rows: Tensor) -> WindowMemory:
        windows = None if self.windows is None else self.windows.index_select(1, rows)
        return replace(super().select(rows), windows=windows)


@dataclass
class LocalAttentionConfig(GuidedConfig):
    local_attention: str = option(
        "predictive",
        "monotonic: Luong's local-m, a window around the step; predictive: local-p, a window around a "
        "predicted position",
        choices=KINDS,
    )
    local_window: int = option(5, "window size: tokens on each side", low=1, high=1000)


class WindowAttention(GuidedAttention):
    """Attention over the tokens at a distance of at most D from a position.

    With ``monotonic`` (local-m), the position is the target step, limited to the last source token. With ``predictive``
    (local-p), it is predicted, and the weights are multiplied by a Gaussian around it with σ = D/2. D is the option
    ``local_window``.
    """

    def __init__(self, options: LocalAttentionConfig, hidden_size: int, source_size: int) -> None:
        predicts = options.local_attention == "predictive"
        if options.guided_updates and not predicts:
            message = "--local-attention monotonic predicts no position to be guided"
            raise SyntaxDataError(message, option="--guided-updates")
        super().__init__(options, hidden_size, source_size, options.local_window / 2, predicts)
        self.window = options.local_window

    def remember(self, encoded: Encoded) -> WindowMemory:
        padding = encoded.padding.t()
        length = (~padding).sum(dim=1)
        # Equation 8: positions are in [0, S]; the last token is S − 1.
        tokens = self.remember_positions(encoded.states.transpose(0, 1), padding, length.float())
        windows = None
        if self.position is None:
            place = torch.arange(padding.size(1), device=length.device)
            centre = place[:, None].minimum(length - 1)  # [S, N], for each step
            outside = (place - centre[:, :, None]).abs() > self.window
            windows = negative_infinity_at(outside | padding, encoded.states)
        return WindowMemory(**vars(tokens), windows=windows)

    def weights(self, hidden: Tensor, position: Tensor | None, memory: WindowMemory, step: int) -> Tensor:
        if position is None:
            assert memory.windows is not None
            # After the longest source's length, each window stays at the last token.
            window = memory.windows[min(step, len(memory.windows) - 1)]  # [N, S]
            return F.softmax(memory.keys.dots(hidden, plus=window), dim=1, dtype=torch.float32)
        factor, square = LogGaussian.apply(memory.place, position, self.sigma)
        # 0 inside the window and at least 1 outside, which puts scores below −1e29. No mask is needed, also not in the
        # gradient.
        outside = F.hardshrink(square, self.window**2)
        scores = memory.keys.dots(hidden, plus=memory.bias).sub(outside, alpha=1e30)
        return (F.log_softmax(scores, dim=1, dtype=torch.float32) + factor).exp()  # Luong's Equation 10


@register_lstm("local_attention_lstm")
class LocalAttentionModel(SyntaxLSTMModel):
    """LSTM encoder and decoder with Luong's local attention."""

    config = LocalAttentionConfig

    @classmethod
    def build_attention(cls, options: LocalAttentionConfig, hidden_size: int, source_size: int) -> WindowAttention:
        return WindowAttention(options, hidden_size, source_size)
