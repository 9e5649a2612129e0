"""What is global in a process and a test could leave changed for those after it."""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

OURS = ("fairseq", "fairseq_cli", "fairseq_syntax")  # packages whose functions tests replace
# What PyTorch, joblib, Ray and this package change where they are first used, for good.
AT_FIRST_USE = {
    f"signal {signal.SIGCHLD.value}",  # by which PyTorch sees that a worker ended
    "variable KMP_DUPLICATE_LIB_OK",
    "variable PYTHONWARNINGS",
    "variable RAY_task_oom_retries",
    f"signal {signal.SIGTERM.value}",  # Ray's
    f"signal {signal.SIGALRM.value}",  # the time limit of a test
    "exception hook",
    "variable TORCHINDUCTOR_CACHE_DIR",
    *(f"module fairseq.optim.{name}.step" for name in ("adam.Adam", "adamax.Adamax", "nag.NAG")),
    "module fairseq_cli.train.should_stop_early",
    "module fairseq_cli.preprocess.main",
    "module fairseq_cli.interactive.buffered_read",
    "module fairseq_cli.interactive.make_batches",
}


def start_from_one_seed() -> None:
    """Random numbers do not depend on what ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def global_state() -> dict[str, Any]:
    """Names and values, to be compared by :func:`changes`."""
    return dict(_process()) | dict(_logging()) | dict(_modules())


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not as it was. That imports bring modules, and register what they have, is no change."""
    names = (before.keys() | after.keys()) - AT_FIRST_USE
    return [
        f"{name}: was {before.get(name)!r}, is {after.get(name)!r}"
        for name in sorted(names)
        if after.get(name) != before.get(name) and not _is_usual(name, before, after)
    ]


def _is_usual(name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    if name in before:
        return name.startswith("process ")
    if name.startswith("registered "):
        return str(after[name]).partition(".")[0] in OURS
    return name.startswith("module ") or (name.startswith("logger ") and not after[name][0])


def _process() -> Iterator[tuple[str, Any]]:
    yield "folder", os.getcwd()
    for name, value in os.environ.items():
        if not name.startswith("PYTEST_"):
            yield f"variable {name}", value
    yield "arguments", list(sys.argv)
    for folder in sys.path:
        yield f"module path {folder}", True
    for number in sorted(signal.valid_signals()):
        yield f"signal {number}", signal.getsignal(number)
    umask = os.umask(0)
    os.umask(umask)
    yield "umask", umask
    for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS"):
        yield name, resource.getrlimit(getattr(resource, name))
    yield "locale", locale.setlocale(locale.LC_ALL)
    yield "socket timeout", socket.getdefaulttimeout()
    yield "exception hook", sys.excepthook
    if multiprocessing.active_children():
        gc.collect()  # a loader of batches ends its workers when it goes; one that was not told looks every 5 seconds
        for child in multiprocessing.active_children():
            child.join(20)
    for child in multiprocessing.active_children():
        if child.is_alive():
            yield f"process {child.pid}", child
    yield "recursion limit", sys.getrecursionlimit()
    yield "default dtype", torch.get_default_dtype()
    yield "threads of PyTorch", torch.get_num_threads()
    yield "deterministic", torch.are_deterministic_algorithms_enabled()
    yield "gradients", torch.is_grad_enabled()
    yield "anomalies", torch.is_anomaly_enabled()
    yield "distributed", torch.distributed.is_initialized()
    yield "NumPy's errors", np.geterr()


def _logging() -> Iterator[tuple[str, Any]]:
    yield "logging disabled", logging.root.manager.disable
    for name, logger in [("root", logging.root), *logging.root.manager.loggerDict.items()]:
        # Other packages give their loggers handlers when they are imported.
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in ("root", *OURS):
            handlers = [h for h in logger.handlers if "pytest" not in type(h).__module__]
            yield f"logger {name}", (handlers, logger.level, logger.propagate, logger.disabled)


def _modules() -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OURS and isinstance(module, ModuleType):
            yield f"module {name}", id(module)
            for attribute, value in list(vars(module).items()):
                if isinstance(value, (FunctionType, type)):
                    yield f"module {name}.{attribute}", id(value)
                if isinstance(value, type) and value.__module__ == name:
                    for method, function in list(vars(value).items()):
                        if isinstance(function, (FunctionType, classmethod, staticmethod, property)):
                            yield f"module {name}.{attribute}.{method}", id(function)
                if isinstance(value, dict) and attribute.endswith(("_REGISTRY", "_SYSTEMS")):
                    for key, registered in value.items():
                        yield f"registered {name}.{attribute}[{key}]", getattr(registered, "__module__", None)
