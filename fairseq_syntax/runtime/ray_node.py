"""The Ray task of :mod:`.ray_workers`: applying a function."""

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
    """Collects log records, to be logged where the command was given."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((record.name, record.levelno, record.getMessage()))


class Job(NamedTuple):
    """A function to be applied, and the environment of the process that asks for it.

    Attributes:
        key: tells one job from another
        cwd, path: folder and ``sys.path`` of that process
        version: of this package there
        work: the function, pickled
    """

    key: str
    cwd: str
    path: list[str]
    version: str
    work: bytes


_loaded: tuple[Any, Callable[[Any], Any]] | None = None  # the job and the GPUs of this process, and its function


def do_task(job: Job, task: Any) -> tuple[Any, SyntaxDataError | None, list[tuple[str, int, str]]]:
    """Runs a task in Ray; returns the result, or a user error, and the log records.

    The function is loaded at a process's first task of a job, and kept: it may hold a model. A process may be given
    another GPU for its next task, so it sees all of them (PyTorch looks for them only once) and chooses by itself.
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
            _loaded = None  # before the next is loaded, as both may not fit
            # A parser's module and a folder may be named relative to where the command was given.
            with suppress(OSError):
                os.chdir(job.cwd)
            sys.path += [entry for entry in job.path if entry not in sys.path]
            _loaded = (job.key, gpus), cloudpickle.loads(job.work)
        return _loaded[1](task), None, records.messages
    except SyntaxDataError as error:
        return None, error, records.messages
    finally:
        logging.getLogger("fairseq_syntax").removeHandler(records)
