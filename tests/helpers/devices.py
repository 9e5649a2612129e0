"""Who makes tensors where, and where the host waits for a device: a recorder of every operation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fairseq
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import emulated_cuda
import fairseq_syntax

OURS, FAIRSEQ = (str(Path(p.__file__).parent) + "/" for p in (fairseq_syntax, fairseq))
# Operations whose result has a size, or is a value, that the host does not know before the device has come so far.
WAITS = {
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
    "bincount",
}
# Those that never reach the dispatcher on a CPU, and are a copy from a GPU.
PYTHON_WAITS = ("tolist", "numpy", "cpu")


@contextmanager
def on(device: str) -> Iterator[None]:
    """What the block does is computed on that device, ``cpu`` or ``cuda``; known of an emulated one."""
    if not emulated_cuda.installed():
        yield
        return
    with emulated_cuda.counted() as counts:
        yield
    assert bool(counts.kernels) == (device == "cuda"), counts


def place() -> str:
    """The innermost function of this package on the stack, as FILE:FUNCTION; ``fairseq`` where fairseq is inside it."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            name = frame.f_code.co_name
            return f"{file.removeprefix(OURS)}:{name}"
        if file.startswith(FAIRSEQ):
            return "fairseq"
        frame = frame.f_back
    return "test"


def _tensors(value: Any):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class Recorder(TorchDispatchMode):
    """Notes, by :func:`place`, operations that wait and tensors that are not on the device.

    On ``meta`` a question for a value is answered with 1 or True.

    Attributes:
        waits: how often each place waits
        strays: places that make a tensor of at least one dimension elsewhere, and the operation
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.waits: Counter[str] = Counter()
        self.strays: set[tuple[str, str]] = set()
        self._saved: dict[str, Any] = {}

    def __enter__(self):
        for name in PYTHON_WAITS:
            original = self._saved[name] = getattr(torch.Tensor, name)

            def noting(tensor, *args, _original=original, **kwargs):
                if tensor.device.type == self.device:
                    self.waits[place()] += 1
                    if self.device == "meta":
                        return torch.ones(tensor.shape, dtype=tensor.dtype)
                return _original(tensor, *args, **kwargs)

            setattr(torch.Tensor, name, noting)
        return super().__enter__()

    def __exit__(self, *error):
        for name, original in self._saved.items():
            setattr(torch.Tensor, name, original)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        first = next(_tensors(args), None)
        here = first is not None and first.device.type == self.device
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            x.dtype in (torch.bool, torch.uint8) for x in _tensors(args[1])
        )
        unknown_size = name == "repeat_interleave" and kwargs.get("output_size") is None
        if here and (name in WAITS or by_mask or unknown_size):
            self.waits[place()] += 1
            if self.device == "meta" and name == "_local_scalar_dense":
                return first.dtype == torch.bool or 1
            if self.device == "meta" and name == "equal":
                return False
        out = func(*args, **kwargs)
        for tensor in _tensors(out):
            if tensor.dim() and tensor.device.type != self.device:
                self.strays.add((place(), name))
        return out
