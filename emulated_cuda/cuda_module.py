"""What ``torch.cuda`` takes from a CUDA build of PyTorch: the names it lacks in one for CPUs."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

import torch

from emulated_cuda.library import Library

NAME = "emulated CUDA device"


def _never(*args: Any, **kwargs: Any) -> None:
    """For what has no effect here."""


def connect(device: Library, count: int) -> None:
    """Let ``torch.cuda`` ask the compiled ``device`` for ``count`` devices."""
    _device_functions(device, count)
    _memory(device)
    _streams(device)
    _tensor_types()
    cuda: Any = torch.cuda
    cuda._initialized = True
    cuda._queued_calls.clear()
    cuda.default_generators = (torch.default_generator,) * count
    os.register_at_fork(after_in_child=_in_fork)


def _in_fork() -> None:
    """A forked process cannot use CUDA: what it does says so."""
    cuda: Any = torch.cuda
    cuda._initialized = False
    cuda._is_in_bad_fork = lambda: True


def _device_functions(device: Library, count: int) -> None:
    properties = types.SimpleNamespace(
        name=NAME, major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132, L2_cache_size=50 * 2**20,
        max_threads_per_multi_processor=2048, warp_size=32, gcnArchName="", is_integrated=False,
    )  # fmt: skip

    def checked(index: int) -> Any:
        if not 0 <= index < count:
            raise AssertionError("Invalid device id")
        return properties

    def set_device(index: int) -> None:
        if index >= count:
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        device.exchange_device(index)

    names: dict[str, Callable[..., Any]] = {
        "getDeviceCount": lambda: count,
        "getDevice": device.get_device,
        "setDevice": set_device,
        "exchangeDevice": device.exchange_device,
        "maybeExchangeDevice": device.exchange_device,
        "init": _never,
        "synchronize": device.synchronize,
        "getArchFlags": lambda: None,
        "canDeviceAccessPeer": lambda one, other: False,
        "set_sync_debug_mode": _never,
        "get_sync_debug_mode": lambda: 0,
        "ipc_collect": _never,
        "isCurrentStreamCapturing": lambda: False,
    }
    for name, function in names.items():
        setattr(torch._C, f"_cuda_{name}", function)
    cuda: Any = torch.cuda
    # Those that torch.cuda bound when it was imported, or takes from NVIDIA's library.
    cuda._exchange_device, cuda._maybe_exchange_device = device.exchange_device, device.exchange_device
    cuda.is_available = lambda: not cuda._is_in_bad_fork()
    cuda.device_count = lambda: count
    cuda.get_device_properties = lambda of=None: checked(torch.cuda._utils._get_device_index(of, optional=True))
    cuda.is_bf16_supported = lambda including_emulation=True: True


def _tensor_types() -> None:
    """``torch.cuda.FloatTensor(3)`` and the like, and ``isinstance`` with them."""

    class TensorType(type):
        dtype: torch.dtype

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype

        def __call__(cls, *args: Any) -> torch.Tensor:
            if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
                return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
            return torch.empty(*args or (0,), dtype=cls.dtype, device="cuda")

    for name, dtype in {
        "Float": torch.float, "Double": torch.double, "Half": torch.half, "BFloat16": torch.bfloat16,
        "Long": torch.long, "Int": torch.int, "Short": torch.short, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items():  # fmt: skip
        setattr(torch.cuda, f"{name}Tensor", TensorType(f"{name}Tensor", (), {"dtype": dtype}))


def _memory(device: Library) -> None:
    c: Any = torch._C

    def stats(index: int) -> dict[str, Any]:
        amounts = {"current": device.live_bytes(index), "peak": device.peak_bytes(index), "allocated": 0, "freed": 0}
        parts = {"all": amounts, "small_pool": amounts, "large_pool": amounts}
        return {
            **{f"{kind}_bytes": parts for kind in ("allocated", "reserved", "active", "requested")},
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def new_storage(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and torch.device(device).type == "cuda":
            return torch.empty(*args, dtype=torch.uint8, device=device).untyped_storage()
        return original(cls, *args, **kwargs) if device is None else original(cls, *args, device=device, **kwargs)

    storages: Any = torch.UntypedStorage
    original = storages.__new__
    storages.__new__ = new_storage  # which a build for CPUs refuses
    c._cuda_memoryStats = stats
    c._cuda_resetPeakMemoryStats = device.reset_peak
    c._cuda_resetAccumulatedMemoryStats = _never
    c._cuda_emptyCache = _never


def _streams(device: Library) -> None:
    cuda: Any = torch.cuda
    c: Any = torch._C

    def index_of(of: Any) -> int:
        return cuda._utils._get_device_index(of, optional=True)

    class Stream:
        """A queue of work on a device."""

        def __init__(self, device_: Any = None, priority: int = 0, **kwargs: Any) -> None:
            self.device_index = kwargs.get("device_index", index_of(kwargs.get("device", device_)))
            self.stream_id = kwargs.get("stream_id")
            if self.stream_id is None:
                self.stream_id = device.new_stream_id(self.device_index)
            self.device = torch.device("cuda", self.device_index)
            self.device_type = 1
            self.cuda_stream = self.stream_id

        def synchronize(self) -> None:
            device.synchronize_stream(self.device_index, self.stream_id)

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            device.stream_waits(event.recorded, self.device_index, self.stream_id)

        def wait_stream(self, other: Any) -> None:
            self.wait_event(other.record_event())

        def query(self) -> bool:
            self.synchronize()  # who is told that work is done may rely on it
            return True

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and vars(self) == vars(other)

        def __hash__(self) -> int:
            return hash((self.device_index, self.stream_id))

    class Event:
        """A place in a stream that others can wait for."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.recorded = device.new_event()

        def __del__(self) -> None:
            device.delete_event(self.recorded)

        def record(self, stream: Any = None) -> None:
            stream = stream or cuda.current_stream()
            device.record_event(self.recorded, stream.device_index, stream.stream_id)

        def wait(self, stream: Any = None) -> None:
            (stream or cuda.current_stream()).wait_event(self)

        def synchronize(self) -> None:
            device.host_waits(self.recorded)

        def query(self) -> bool:
            self.synchronize()
            return True

        def elapsed_time(self, end: Any) -> float:
            """Of no device: 0."""
            return 0.0

    cuda.Stream, cuda.Event = Stream, Event
    cuda.streams.Stream, cuda.streams.Event = Stream, Event
    c._cuda_getCurrentStream = lambda index: (device.get_stream(index), index, 1)
    c._cuda_getDefaultStream = lambda index: (0, index, 1)

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        device.set_device(device_index)
        device.set_stream(device_index, stream_id)

    c._cuda_setStream = set_stream
    c._cuda_getCurrentRawStream = device.get_stream
    tensors: Any = torch.Tensor
    tensors.record_stream = lambda self, stream: None
