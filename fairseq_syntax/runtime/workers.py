"""Worker pools: one function applied to many tasks, here, in other processes, or on a cluster."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from multiprocessing import connection, get_context, parent_process
from typing import Any, Protocol, TypeVar

from fairseq_syntax.errors import SyntaxDataError

Task = TypeVar("Task")
Result = TypeVar("Result")


# When a worker is killed: an interrupted step resumes, and fewer workers need less memory.
FEWER_WORKERS = "run the command again with fewer workers: it continues"


def cores() -> int:
    """The cores that this process may use: fewer than the machine has under ``taskset`` or in a Slurm job."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Protocol):
    """Workers that are applying one function.

    Attributes:
        window: tasks submitted at a time: enough to keep all workers busy, so that their source is not read ahead
    """

    window: int

    def submit(self, task: Any) -> Any:
        """Begins a task; returns a handle of its result."""
        ...

    def take(self, pending: list[Any]) -> Any:
        """Waits for one of the handles, removes it, and returns its result or raises what the task raised."""
        ...


class Workers(Protocol):
    """A pool of remote workers, such as :class:`fairseq_syntax.runtime.ray_workers.RayWorkers`."""

    def pool(self, work: Callable[[Any], Any], hint: str) -> AbstractContextManager[Pool]:
        """Workers that apply ``work``. A task whose worker is lost is done again, so maybe more than once."""
        ...


def in_workers(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int | Workers,
    method: str = "fork",
    hint: str = FEWER_WORKERS,
) -> Iterator[Result]:
    """Applies a function to tasks and yields its results as they come, in any order.

    Only a few tasks are under way at a time, so their source is not read ahead. Worker processes end with this one,
    however it ends.

    Args:
        work: a function, or a picklable callable that loads what it needs (a model, say) at its first call: each worker
            gets one copy of it, and keeps that for all its tasks
        tasks: read in this process
        workers: the number of processes, where 1 is this process alone; or a pool of remote workers
        method: how processes are started; ``spawn`` where threads or devices forbid ``fork``
        hint: what to do when a worker is killed

    Raises:
        SyntaxDataError: a worker was killed
        Exception: whatever ``work`` raises
    """
    if isinstance(workers, int) and workers <= 1:
        yield from map(work, tasks)
        return
    tasks = iter(tasks)
    if not (first := list(islice(tasks, 1))):
        return  # and no worker is started
    opened: AbstractContextManager[Pool]
    if isinstance(workers, int):
        opened = _processes(work, workers, method, hint)
    else:
        opened = workers.pool(work, hint)
    with opened as pool:
        pending: list[Any] = []
        for task in chain(first, tasks):
            pending.append(pool.submit(task))
            if len(pending) >= pool.window:
                yield pool.take(pending)
        while pending:
            yield pool.take(pending)


def interruptible(work: Callable[[], Result]) -> Result:
    """Calls a function of a C++ library in another thread, so that Ctrl-C need not wait for its end."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return future.result()
    except KeyboardInterrupt:
        # Where the library has called Python, it must not be within that call when Python ends.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join(0.5)
        raise


class _Processes:
    """A pool of processes of this machine, as a :class:`Pool`."""

    def __init__(self, executor: ProcessPoolExecutor, count: int) -> None:
        self.window = 2 * count + 1  # for each worker one task under way and one that waits
        self._executor = executor

    def submit(self, task: Any) -> Future[Any]:
        return self._executor.submit(_do, task)

    def take(self, pending: list[Future[Any]]) -> Any:
        done = next(iter(wait(pending, return_when=FIRST_COMPLETED).done))
        pending.remove(done)
        return done.result()


@contextmanager
def _processes(work: Callable[[Any], Any], count: int, method: str, hint: str) -> Iterator[Pool]:
    """A pool of processes that apply ``work``; they end with the block, or with this process."""
    context = get_context(method)
    ends, end = context.Pipe(duplex=False)
    # Not multiprocessing.Pool, which waits for ever for the result of a worker that was killed.
    executor = ProcessPoolExecutor(count, context, _start_worker, (work, ends))
    try:
        yield _Processes(executor, count)
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the tasks under way
        end.send(None)
        raise
    except BrokenProcessPool as error:
        message = "a worker process was killed, usually for want of memory"
        raise SyntaxDataError(message, hint=hint) from error
    finally:
        executor.shutdown(cancel_futures=True)


_work: Callable[[Any], Any] | None = None  # of this process, where it is a worker


def _start_worker(work: Callable[[Any], Any], ends: connection.Connection) -> None:
    """Prepare a worker process: keep its function, and end it when its parent ends or says so."""
    global _work
    _work = work
    parent = parent_process()
    if parent is not None:
        # A parent that is killed cannot tell its workers, and they would wait for work for ever.
        # What it sends to end them is not read, so that all of them see it.
        watch = threading.Thread(target=lambda: (connection.wait([parent.sentinel, ends]), os._exit(1)), daemon=True)
        watch.start()


def _do(task: Any) -> Any:
    assert _work is not None
    return _work(task)
