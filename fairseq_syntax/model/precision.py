"""Automatic mixed precision: its dtype, and how to turn it off for one computation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

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
