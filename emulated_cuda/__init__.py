"""A CUDA device for a CPU build of PyTorch: memory that the host cannot read, kernels that run on the CPU, and counts.

    import emulated_cuda

    emulated_cuda.install()
    import torch  # not before: it asks for devices when it is imported

    x = torch.ones(3, device="cuda")

What it shows and what it does not is said in README.md. For tests; it knows nothing of what is run on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from emulated_cuda.build import Unavailable, load, reason_against
from emulated_cuda.library import Library

__all__ = [
    "Counts",
    "Kernel",
    "Unavailable",
    "counted",
    "environment",
    "install",
    "installed",
    "reason_against",
    "sizes_only",
]

_device: Library | None = None


@dataclass
class Kernel:
    """One launch: the bytes that it reads and writes, and the operations of a matrix product (0 for all else)."""

    name: str
    bytes: int
    operations: int
    half: bool


@dataclass
class Counts:
    """What costs time on a GPU. All are exact, apart from reads within rare operators.

    Attributes:
        reads: times that the host waits for a value or a size that the device computes
        copies: transfers from the host to the device
        copied_bytes: of these
        blocking_copies: of these, those that the host waits for
        unpinned_copies: of these, those from memory that is not pinned
        kernels: operators that ran on the device
        peak: most bytes of all devices' memory in use at once, those in use at the beginning included
        of_kernels: how often each operator ran
        of_reads: how often each operator had the host wait
        trace: every kernel in turn, where it was asked for
    """

    reads: int = 0
    copies: int = 0
    copied_bytes: int = 0
    blocking_copies: int = 0
    unpinned_copies: int = 0
    kernels: int = 0
    peak: int = 0
    of_kernels: dict[str, int] = field(default_factory=dict)
    of_reads: dict[str, int] = field(default_factory=dict)
    trace: list[Kernel] = field(default_factory=list)


def installed() -> bool:
    """Whether this process has emulated devices."""
    return _device is not None


def install(devices: int = 1) -> None:
    """Give this process CUDA devices, before it imports PyTorch. A process that has them keeps those that it has.

    Raises:
        Unavailable: there is no compiler, PyTorch is another than those tried, or it was imported before
    """
    global _device
    if _device is not None:
        return
    if "torch" in sys.modules:
        raise Unavailable("PyTorch was imported before: install the emulated device first")
    device = Library(load())

    from emulated_cuda.cuda_module import connect
    from emulated_cuda.process_group import register

    if device.connect_device(devices):
        raise Unavailable("PyTorch was asked about CUDA before the emulated device was there")
    connect(device, devices)
    register()
    _device = device


def environment() -> dict[str, str]:
    """Variables by which the Pythons that this process starts have its devices, too; none where it has none."""
    if _device is None:
        return {}
    import torch

    startup = str(Path(__file__).parent / "startup")
    path = os.pathsep.join([startup, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"EMULATED_CUDA": str(torch.cuda.device_count()), "PYTHONPATH": path}


def _needed() -> Library:
    if _device is None:
        raise Unavailable("install the emulated device first")
    return _device


@contextmanager
def counted(*, trace: bool = False) -> Iterator[Counts]:
    """Count what the block does on the devices; the figures are there when it ends."""
    import torch

    device = _needed()
    found = Counts()
    before, kernels, reads = device.counts(), device.by_name("kernel_counts"), device.by_name("read_counts")
    devices = range(torch.cuda.device_count())
    for index in devices:
        device.reset_peak(index)
    device.trace(trace)
    try:
        yield found
    finally:
        for name, count in device.counts().items():
            setattr(found, name, count - before[name])
        found.peak = sum(device.peak_bytes(index) for index in devices)
        found.of_kernels = _more(device.by_name("kernel_counts"), kernels)
        found.of_reads = _more(device.by_name("read_counts"), reads)
        for line in device.traced_kernels().decode().splitlines():
            operator, moved, operations, half = line.split(" ")
            found.trace.append(Kernel(operator, int(moved), int(operations), half == "1"))
        device.trace(False)


def _more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    found = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in sorted(found.items(), key=lambda item: -item[1]) if count}


@cache
def _sizes_that_pytorch_does_not_know() -> object:
    """Kernels that compute nothing for operators that have none; they write into arguments."""
    import torch

    kernels = torch.library.Library("aten", "IMPL", "Meta")
    for name in ("_cummax_helper", "_cummin_helper"):
        kernels.impl(name, lambda *args: None)
    return kernels


@contextmanager
def sizes_only() -> Iterator[None]:
    """Compute nothing in the block: outputs have their sizes and take memory that nobody touches.

    So a model of any size can be counted. A question for a value is answered with 1 or True.
    """
    device = _needed()
    _sizes_that_pytorch_does_not_know()
    device.set_sizes_only(True)
    try:
        yield
    finally:
        device.set_sizes_only(False)
