"""Whether every value that a model computes is finite: no NaN and no +∞; −∞ masks."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SOFTMAX = ("_softmax", "_log_softmax", "softmax")


class Finite(TorchDispatchMode):
    """Raises FloatingPointError at the first operation in this block that makes a NaN or +∞.

    The gradients' operations are not seen, which autograd runs in a thread of the device: look at what they leave.

    Attributes:
        largest: the largest score that any softmax was given, also within fused attention
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in SOFTMAX:
            self.largest = max(self.largest, args[0].nan_to_num(neginf=0.0).abs().max().item())
        if name.startswith("_scaled_dot_product") and not name.endswith("backward"):
            q, k = (x.float() for x in args[:2])
            scores = q @ k.mT * ((kwargs or {}).get("scale") or q.size(-1) ** -0.5)
            self.largest = max(self.largest, scores.abs().max().item())
        out = func(*args, **(kwargs or {}))
        if name.startswith("empty") or name == "new_empty":  # is what was there before
            return out
        tensors = (t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point())
        if any(bool((t.isnan() | t.isposinf()).any()) for t in tensors):
            raise FloatingPointError(f"{func} makes a NaN or an infinity")
        return out
