"""The sizes at which one form of a computation becomes faster than another, by kind of device.

Those of CPUs were measured, on one core in float32. Those of GPUs are estimates from counts (docs/gpus.md) or guesses
until ``make gpu`` has run on one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Thresholds:
    """The figures of a kind of device.

    Attributes:
        scores_per_entry: so many scores cost LDD's dense form as much as one entry costs the linear one, forward and
            backward (measured with 16 heads of 32 dimensions, 32 to 512 tokens)
        scratch: elements of the largest scratch matrix of LaSyn's output layer and of a chunk of its loss
        heap: whether the k largest of a row are found by a heap, which long rows and a k of some tens are slow in
        fused: whether FlexAttention, compiled, is there and has a backward pass
    """

    scores_per_entry: int
    scratch: int
    heap: bool
    fused: bool


CPU = Thresholds(scores_per_entry=60, scratch=1 << 22, heap=True, fused=False)
# Estimated: LDD's linear form has some fifty kernels more, which the dense one costs more than from 512 tokens on.
GPU = Thresholds(scores_per_entry=4000, scratch=1 << 24, heap=False, fused=True)


def thresholds(device: torch.device) -> Thresholds:
    """The figures of a device."""
    return GPU if device.type == "cuda" else CPU
