"""A change to ``--quant-noise-scalar``: it works without a GPU, on which fairseq puts the scales of all parameters."""

from __future__ import annotations

import torch
from fairseq.modules.quantization.scalar import ops
from torch import Tensor


def emulate_int8_histogram(
    w: Tensor, scale: Tensor | None = None, zero_point: Tensor | None = None, bits: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """fairseq's: parameters rounded to ``bits`` bits, with the scale and the zero point of a histogram of them."""
    if scale is None or zero_point is None:
        observer = torch.ao.quantization.HistogramObserver().to(w.device)
        observer(w.float())
        scale, zero_point = (value.to(w) for value in observer.calculate_qparams())
    return ops.quantize(w, scale, zero_point, bits=bits), scale, zero_point


def install() -> None:
    """Replace fairseq's function for its only method."""
    ops.emulate_int8_histogram = emulate_int8_histogram
