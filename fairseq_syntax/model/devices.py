"""What depends on the device of a tensor: mixed precision, and which form of a computation is the faster one.

The thresholds for CPUs were measured on one core in float32. Those for GPUs are estimated from kernel counts
(docs/gpus.md) or guessed, until ``make gpu`` has been run on one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor


def autocast_dtype(like: Tensor) -> torch.dtype | None:
    """The dtype of automatic mixed precision on the device of ``like``; None if it is disabled."""
    device = like.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else None


def full_precision(like: Tensor) -> AbstractContextManager:
    """A context without automatic mixed precision on the device of ``like``."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of one kind of device.

    Attributes:
        scores_per_entry: the number of scores that cost LDD's dense form as much as one entry costs the linear form,
            forward and backward (measured with 16 heads of size 32 and 32 to 512 tokens)
        scratch: elements of the largest scratch matrix of LaSyn's output layer, and of a chunk of its loss
    """

    scores_per_entry: int
    scratch: int


CPU = Thresholds(scores_per_entry=60, scratch=1 << 22)
# Estimated: LDD's linear form has some fifty kernels more, so the dense one is slower only from 512 tokens on.
GPU = Thresholds(scores_per_entry=4000, scratch=1 << 24)


def thresholds(device: torch.device) -> Thresholds:
    """The thresholds of a device."""
    return GPU if device.type == "cuda" else CPU
