"""Where automatic mixed precision must keep its hands off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager:
    """A context in which automatic mixed precision leaves operations on the device of ``like`` alone."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
