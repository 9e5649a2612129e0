"""The functions of the compiled device, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_INT, _LONG, _TEXT, _PLACE = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
# Name: what it takes, what it gives. A function that gives no text where it could fail gives why it has.
_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "connect_device": ([_INT], _INT),
    "get_device": ([], _INT),
    "set_device": ([_INT], None),
    "synchronize": ([], _TEXT),
    "new_stream_id": ([_INT], _LONG),
    "get_stream": ([_INT], _LONG),
    "set_stream": ([_INT, _LONG], None),
    "synchronize_stream": ([_INT, _LONG], _TEXT),
    "new_event": ([], _PLACE),
    "delete_event": ([_PLACE], None),
    "record_event": ([_PLACE, _INT, _LONG], None),
    "stream_waits": ([_PLACE, _INT, _LONG], None),
    "host_waits": ([_PLACE], _TEXT),
    "get_counts": ([ctypes.POINTER(_LONG)], None),
    "live_bytes": ([_INT], _LONG),
    "peak_bytes": ([_INT], _LONG),
    "reset_peak": ([_INT], None),
    "kernel_counts": ([], _TEXT),
    "read_counts": ([], _TEXT),
    "trace": ([_INT], None),
    "traced_kernels": ([], _TEXT),
    "set_sizes_only": ([_INT], None),
}
_CAN_FAIL = {"synchronize", "synchronize_stream", "host_waits"}
COUNTS = ("reads", "copies", "copied_bytes", "blocking_copies", "unpinned_copies", "kernels")


class Library:
    """The compiled device."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        for name, (takes, gives) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = takes, gives
            setattr(self, name, (_raising if name in _CAN_FAIL else _plain)(function))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)

    def exchange_device(self, index: int) -> int:
        """Make another device the current one, none where it is negative; the one before."""
        before = self.get_device()
        if index >= 0:
            self.set_device(index)
        return before

    def counts(self) -> dict[str, int]:
        """What has been counted since the process began, by the names of :data:`COUNTS`."""
        numbers = (_LONG * len(COUNTS))()
        self.get_counts(numbers)
        return dict(zip(COUNTS, numbers, strict=True))

    def by_name(self, what: str) -> dict[str, int]:
        """How often each operator ran (``kernel_counts``) or had the host wait (``read_counts``)."""
        lines = getattr(self, what)().decode().splitlines()
        return {name: int(number) for name, number in (line.rsplit(" ", 1) for line in lines)}


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a function of Python: PyTorch puts some of them into dictionaries, which those of ctypes cannot be."""
    return lambda *args: function(*args)


def _raising(function: Callable[..., Any]) -> Callable[..., None]:
    def called(*args: Any) -> None:
        why = function(*args)
        if why is not None:
            raise RuntimeError(why.decode())

    return called
