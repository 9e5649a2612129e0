"""A change to what fairseq says of gradients that are not finite: it names the parameters.

fairseq repeats the update with a hook on every module. PyTorch's hooks fail, without a message, at modules whose output
is a dictionary without a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq import trainer
from fairseq.nan_detector import NanDetector

from fairseq_syntax.errors import SyntaxDataError


class NamingDetector(NanDetector):
    """fairseq's context for the repeated update; at its end, an error names what is not finite."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model, forward=True, backward=False)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()
        if kind is not None:
            return
        for what, values in (("parameter", lambda p: p), ("gradient of", lambda p: p.grad)):
            names = [name for name, p in self.named_parameters if not _is_finite(values(p))]
            if names:
                more = f" and {len(names) - 1} other parameters" if len(names) > 1 else ""
                raise SyntaxDataError(
                    f"training cannot continue: NaN or infinity in the {what} {names[0]}{more}",
                    hint="a lower --lr, more --warmup-updates or --clip-norm may avoid it; crash.pt in --save-dir has "
                    "the parameters",
                )


def _is_finite(tensor: torch.Tensor | None) -> bool:
    return tensor is None or bool(torch.isfinite(tensor).all())


def install() -> None:
    """Make fairseq's trainer use this context."""
    trainer.NanDetector = NamingDetector
