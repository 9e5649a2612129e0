"""Availability of PyTorch devices."""

from __future__ import annotations

import torch

from fairseq_syntax.errors import SyntaxDataError


def check_device(name: str | None) -> None:
    """Raise SyntaxDataError if PyTorch cannot use a device. None is accepted, for a device that is chosen later."""
    if name is None:
        return
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # no such name, no driver, no CUDA in PyTorch
        reason = str(error).strip().partition("\n")[0]
        raise SyntaxDataError(f"{name} cannot be used: {reason}"[:300], option="--device", hint="cpu can") from error
