"""The Ray task of :mod:`.ray_workers`, which applies a function."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError


class _Records(logging.Handler):
    """Collects log records, to be logged in the process that runs the command."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((record.name, record.levelno, record.getMessage()))


class Job(NamedTuple):
    """A function to apply, and the environment of the process that requests it.

    Attributes:
        key: identifies the job
        cwd, path: the working directory and ``sys.path`` of that process
        version: the version of this package there
        work: the pickled function
    """

    key: str
    cwd: str
    path: list[str]
    version: str
    work: bytes


_loaded: tuple[Any, Callable[[Any], Any]] | None = None  # the current job and GPUs of this process, and its function


def do_task(job: Job, task: Any) -> tuple[Any, SyntaxDataError | None, list[tuple[str, int, str]]]:
    """Run a task in Ray, and return the result or a user error, and the log records.

    The function, which may contain a model, is loaded at a process's first task of a job and kept. Ray may assign
    another GPU to the next task; as PyTorch detects GPUs only once, the process sees all of them and selects one
    itself.
    """
    global _loaded
    import ray
    from ray import cloudpickle

    if fairseq_syntax.__version__ != job.version:
        version = f"version {fairseq_syntax.__version__} of fairseq-syntax"
        message = f"the node {socket.gethostname()} has {version}, and this one {job.version}"
        return None, SyntaxDataError(message, hint="install the same everywhere"), []
    records = _Records()
    logging.getLogger("fairseq_syntax").addHandler(records)
    try:
        gpus = ray.get_gpu_ids()
        if gpus:
            import torch

            torch.cuda.set_device(int(gpus[0]))
        if _loaded is None or _loaded[0] != (job.key, gpus):
            _loaded = None  # freed before the next is loaded, since both may not fit into memory
            # Modules and folders may be relative to the working directory of the command.
            with suppress(OSError):
                os.chdir(job.cwd)
            sys.path += [entry for entry in job.path if entry not in sys.path]
            _loaded = (job.key, gpus), cloudpickle.loads(job.work)
        return _loaded[1](task), None, records.messages
    except SyntaxDataError as error:
        return None, error, records.messages
    finally:
        logging.getLogger("fairseq_syntax").removeHandler(records)
