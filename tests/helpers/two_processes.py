"""Two processes that train together, one command after the other: starting them costs more than a tiny training."""

from __future__ import annotations

import logging
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.connection import Connection, wait
from typing import Any


class Failed(RuntimeError):
    """What one of the two raised, with its traceback, or that one waits for ever for the other."""


def _serve(rank: int, port: int, jobs: Connection, backend: str, size: int) -> None:
    os.environ.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    import torch

    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend, f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    logging.disable(logging.WARNING)
    while True:
        try:
            work, args = jobs.recv()
        except EOFError:
            return
        try:
            jobs.send((True, work(rank, *args)))
        except BaseException as error:
            jobs.send((False, (type(error).__name__, str(error), traceback.format_exc())))


class Pair:
    """Two processes of a group. A function that fails ends them; the next one has others.

    Args:
        backend: ``gloo``, or ``nccl``, with a device for each
        patience: seconds that one may go on after the other has ended, and both may take
        size: another number of processes
    """

    def __init__(self, patience: tuple[float, float] = (60, 240), backend: str = "gloo", size: int = 2) -> None:
        self.patience, self.backend, self.size = patience, backend, size
        self._processes: list[Any] = []
        self._jobs: list[Connection] = []

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Forks of a process that has imported fairseq; devices are to be set up in each process by itself.
        set_forkserver_preload(["fairseq_syntax.tasks", "fairseq_cli.train"])
        context = get_context("forkserver" if self.backend == "gloo" else "spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, port, theirs, self.backend, self.size), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._jobs.append(ours)

    def close(self) -> None:
        """End both."""
        for job in self._jobs:
            job.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._jobs = [], []

    def run(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """``work(rank, *args)`` in both, a function of a module; what they return.

        Raises:
            Failed: one of them raised an error, or went on without the other
        """
        if not self._processes:
            self._start()
        for job in self._jobs:
            job.send((work, args))
        actual: dict[int, tuple[bool, Any]] = {}
        while len(actual) < self.size:
            rest = [job for rank, job in enumerate(self._jobs) if rank not in actual]
            ready = wait(rest, self.patience[0] if actual else self.patience[1])
            if not ready:
                break
            for job in ready:
                try:
                    actual[self._jobs.index(job)] = job.recv()
                except EOFError:
                    actual[self._jobs.index(job)] = (False, ("EOFError", "the process ended", ""))
        errors = [value for fine, value in actual.values() if not fine]
        if errors or len(actual) < self.size:
            self.close()
            name, message, trace = errors[0] if errors else ("Timeout", "one of two processes waits for the other", "")
            failure = Failed(f"{name}: {message}")
            failure.name, failure.message, failure.trace = name, message, trace
            raise failure
        return [actual[rank][1] for rank in range(self.size)]
