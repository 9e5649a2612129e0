"""Attention of LSTM decoders around a predicted position of the source, with a guided start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from fairseq.models.lstm import Linear
from torch import Tensor, nn

from fairseq_syntax.model.devices import full_precision
from fairseq_syntax.model.heads import HeadLoss
from fairseq_syntax.model.loop_gradients import DeferredLinear
from fairseq_syntax.model.lstm_attention import GlobalAttention, PaddedMemory
from fairseq_syntax.model.options import SystemConfig, option


@dataclass
class GuidedConfig(SystemConfig):
    """The options of a guided start (:class:`GuidedAttention`)."""

    guided_updates: int = option(
        0,
        "for the first N updates, attend globally with decreasing weight, and train the predictor towards "
        "the mean position of that attention; needs --criterion chunked_cross_entropy",
        "0, as in the paper",
        low=0,
    )
    guide_weight: float = option(1.0, "weight of the predictor's loss in these updates", low=1e-6, high=1e3)


class LogGaussian(torch.autograd.Function):
    """``−(s − p)² / 2σ²``, the logarithm of a Gaussian, and (s − p)² without a gradient, in few kernels: [N, S] each.

    Its arguments are the places s, [S]; the positions p, [N] float32; and σ.
    """

    @staticmethod
    def forward(ctx: Any, place: Tensor, position: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        distance = place - position[:, None]  # [N, S]
        square = distance.square()
        ctx.save_for_backward(distance)
        ctx.rate = 1 / sigma**2
        ctx.mark_non_differentiable(square)
        ctx.set_materialize_grads(False)
        return square * (-0.5 * ctx.rate), square

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[None, Tensor | None, None]:
        if grad is None:
            return None, None, None
        (distance,) = ctx.saved_tensors
        with full_precision(grad):
            return None, torch.bmm(grad[:, None], distance[:, :, None]).flatten() * ctx.rate, None


@dataclass
class Guide:
    """Global attention that guides the position predictor in the first updates.

    Attributes:
        share: the share of global attention in the weights, between 0 and 1
        weights: for each step so far, the weights [N, S] of global attention, without gradient
        positions: for each step so far, the predicted positions [N], with a gradient for the predictor only
    """

    share: float
    weights: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)

    def nll(self, place: Tensor, sigma: float) -> Tensor:
        """``Σ_s a_s (s − p)² / 2σ²``, [N, T], for the weights a of global attention and the predicted position p.

        Up to a constant, this is the cross entropy between the weights of the places s, [S], and a Gaussian of width σ
        around p. Its minimum is at the mean place under the weights.
        """
        weights, positions = torch.stack(self.weights, dim=1), torch.stack(self.positions, dim=1)
        return (weights * (place - positions[:, :, None]).square()).sum(dim=2) / (2 * sigma**2)


class PositionPredictor(nn.Module):
    """The weights of ``sigmoid(v' tanh(W_p h))``, the relative position in the source, between 0 and 1.

    This is Equation 9 of Luong et al. (2015) and Equation 8 of Qiu et al. (2019).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_proj = Linear(hidden_size, hidden_size, bias=False)
        self.score = Linear(hidden_size, 1, bias=False)


Positions = TypeVar("Positions", bound="PositionMemory")


@dataclass
class PositionMemory(PaddedMemory):
    """The places of the source, and the weights that predict a position among them.

    Attributes:
        of_hidden: has W_p after W_h if a position is predicted
        place: [S] int64, the places, 0-based
        span: [N] float32, which the predicted relative position is multiplied by
        score: v, [1, H]; None if no position is predicted
        guide: None except in a guided start
    """

    place: Tensor
    span: Tensor
    score: DeferredLinear | None
    guide: Guide | None

    def select(self: Positions, rows: Tensor) -> Positions:
        return replace(super().select(rows), span=self.span.index_select(0, rows))

    def position(self, projected: Tensor) -> Tensor:
        """The predicted positions, [N] float32, 0-based, from ``W_p h`` [N, H]."""
        assert self.score is not None
        return self.span * torch.sigmoid(self.score(torch.tanh(projected)).squeeze(1).float())


class GuidedAttention(GlobalAttention):
    """Attention around a predicted position, with a guided start.

    The translation loss alone trains the predictor slowly. Its gradient comes from the difference between two
    neighbouring places, and far from the right place both are useless. So in the first updates, the decoder attends to
    the whole sentence with the same keys and values, and the predictor learns the mean position of this global
    attention (:meth:`Guide.nll`). This loss trains only the predictor: if it trained the decoder's states too, they
    would attend to one place, which is easy to predict. In the second half of these updates, the share of global
    attention decreases to 0. Afterwards, and in validation and search from the start, the model is the paper's.

    Args:
        sigma: the standard deviation of the Gaussian around the position, in places
        predicts: whether a position is predicted at all
    """

    def __init__(
        self, options: GuidedConfig, hidden_size: int, source_size: int, sigma: float, predicts: bool = True
    ) -> None:
        super().__init__(hidden_size, source_size)
        self.guided_updates, self.guide_weight = options.guided_updates, options.guide_weight
        self.sigma, self.num_updates = sigma, 0
        self.position = PositionPredictor(hidden_size) if predicts else None

    def supervises(self) -> tuple[str, ...]:
        return ("position",) if self.guided_updates else ()

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each training step."""
        self.num_updates = num_updates

    def guided_share(self) -> float:
        """The current share of global attention: 1 in the first half of the guided updates, then decreasing to 0."""
        if not self.training or self.num_updates >= self.guided_updates:
            return 0.0
        return min(1.0, 2 - 2 * self.num_updates / self.guided_updates)

    def remember_positions(self, states: Tensor, padding: Tensor, span: Tensor) -> PositionMemory:
        """The memory of :meth:`remember_places`, with positions from 0 to ``span`` [N] float32."""
        predictor, share = self.position, self.guided_share()
        more = () if predictor is None else (predictor.hidden_proj.weight,)
        places = self.remember_places(states, padding, more)
        return PositionMemory(
            **vars(places),
            place=torch.arange(states.size(1), device=states.device),
            span=span,
            score=None if predictor is None else DeferredLinear(predictor.score.weight),
            guide=Guide(share) if share else None,
        )

    def weights(self, hidden: Tensor, position: Tensor | None, memory: Any, step: int) -> Tensor:
        """The weights around a position, [N, S] float32; arguments as in :meth:`forward`.

        Args:
            position: [N] float32; None if no position is predicted
        """
        raise NotImplementedError

    def forward(self, hidden: Tensor, memory: Any, step: int) -> tuple[Tensor, Tensor]:
        of_hidden, *projected = memory.of_hidden(hidden).split(hidden.size(1), dim=1)
        position = memory.position(projected[0]) if projected else None
        weights = self.weights(hidden, position, memory, step)
        if (guide := memory.guide) is not None:
            everywhere = self.everywhere(hidden, memory)
            guide.weights.append(everywhere.detach())
            # From the detached state, since this loss trains only the predictor.
            projected_alone = memory.of_hidden(hidden.detach())[:, hidden.size(1) :]
            guide.positions.append(memory.position(projected_alone))
            weights = weights * (1 - guide.share) + everywhere * guide.share
        return torch.tanh(memory.values.sums(weights, plus=of_hidden)), weights

    def losses(self, memory: Any, real: Tensor) -> dict[str, HeadLoss]:
        """The loss ``position`` while there is a guide."""
        guide: Guide | None = memory.guide
        if guide is None:
            return {}
        nll = torch.where(real, guide.nll(memory.place, self.sigma), 0.0).sum()
        return {"position": HeadLoss.of(self.guide_weight, nll, real.sum())}
