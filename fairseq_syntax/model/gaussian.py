"""The Gaussian by which attention is weighted around a position, without its denormal tail."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

# What is smaller counts as 0. A score of less than 1e20 that is multiplied by it leaves exp() at 1, and a weight that
# is multiplied by it is lost beside any other, so nothing changes in float32 or float64. Below 1e-38 float32 is
# denormal: a Gaussian 14 standard deviations off. On many processors a product with it takes some hundred cycles.
NEGLIGIBLE = 1e-30


def gaussian_window(distance: Tensor, variance: float) -> Tensor:
    """``exp(−d² / 2σ²)``, elementwise; exactly 0 where that is below :data:`NEGLIGIBLE`.

    Args:
        distance: d, any shape, float
        variance: σ²
    """
    exponent = distance.square() * (-0.5 / variance)
    return F.threshold(exponent.clamp(min=-80).exp(), NEGLIGIBLE, 0.0)  # the clamp: no denormal is made to begin with
