"""Values of options: numeric ranges, for declarations, help texts and checks, sentence numbers, and devices."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

from fairseq_syntax.errors import SyntaxDataError


@dataclass(frozen=True)
class Range:
    """The finite numbers from ``low`` to ``high`` inclusive; None means no bound.

    As the ``type=`` of an argument, it converts the text and rejects values outside the range. Its ``str`` completes
    the sentence "must be …".
    """

    kind: type
    low: float | None = None
    high: float | None = None

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or (isinstance(value, float) and not math.isfinite(value)):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __call__(self, text: str) -> float:
        try:
            value = self.kind(text)
        except ValueError:
            value = math.nan
        if value not in self:
            raise argparse.ArgumentTypeError(f"must be {self}, not {text}")
        return value

    def __str__(self) -> str:
        if self.low is None and self.high is None:
            return "a whole number" if self.kind is int else "a finite number"
        if self.high is None:
            return f"at least {self.low:.10g}"
        if self.low is None:
            return f"at most {self.high:.10g}"
        return f"from {self.low:.10g} to {self.high:.10g}"


def whole(low: int | None = None, high: int | None = None) -> Range:
    """Whole numbers."""
    return Range(int, low, high)


def real(low: float | None = None, high: float | None = None) -> Range:
    """Finite floating-point numbers."""
    return Range(float, low, high)


def check_sentences(numbers: Iterable[int], count: int, path: str | os.PathLike[str]) -> None:
    """Raise SyntaxDataError for a sentence number, from 1, above the count of those in a file."""
    for number in numbers:
        if not 1 <= number <= count:
            raise SyntaxDataError(f"no sentence {number}: there are {count}", path=path, option="--sentences")


def check_device(name: str | None) -> None:
    """Raise SyntaxDataError if PyTorch cannot use a device. None is accepted, for a device that is chosen later."""
    if name is None:
        return
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # no such name, no driver, no CUDA in PyTorch
        reason = str(error).strip().partition("\n")[0]
        raise SyntaxDataError(f"{name} cannot be used: {reason}"[:300], option="--device", hint="cpu can") from error
