"""Worker pools, which apply a function to many tasks in this process, in others, or on a cluster."""

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
from multiprocessing.queues import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import lock_bars_per_process

Task = TypeVar("Task")
Result = TypeVar("Result")

# The hint if a worker is killed: an interrupted step resumes, and fewer workers need less memory.
FEWER_WORKERS = "run the command again with fewer --workers (in parse, or a smaller --batch-size): it continues"


def cores() -> int:
    """The number of cores that this process may use, for example under ``taskset`` or in a Slurm job."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares_of_gpus(count: int, visible: str | None) -> list[str]:
    """The GPUs of each of several programs that run at a time on this machine, as values of CUDA_VISIBLE_DEVICES.

    Programs in excess of the GPUs share them.

    Args:
        count: the number of programs
        visible: the value of CUDA_VISIBLE_DEVICES that applies to all of them; None for all GPUs

    Returns:
        a value for each program; an empty list without GPUs
    """
    if visible is None:
        import torch

        visible = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = [gpu for gpu in visible.split(",") if gpu.strip()]
    return [",".join(gpus[number::count] or [gpus[number % len(gpus)]]) for number in range(count)] if gpus else []


class Pool(NamedTuple):
    """Workers that apply one function.

    ``window``: the maximum number of submitted tasks, which keeps all workers busy without reading far ahead;
    ``submit(task)`` returns a future, from which ``result(future)`` takes the result or raises the error.
    """

    window: int
    submit: Callable[[Any], Future[Any]]
    result: Callable[[Future[Any]], Any] = Future.result


class Workers(Protocol):
    """Workers on other machines: :class:`fairseq_syntax.runtime.ray_workers.RayWorkers`."""

    def pool(self, work: Callable[[Any], Any]) -> AbstractContextManager[Pool]:
        """A pool that applies ``work``. A task whose worker is lost is repeated, so it may run several times."""
        ...


def in_workers(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int | Workers, method: str = "fork"
) -> Iterator[Result]:
    """Apply a function to tasks, and yield the results in the order of completion.

    Only a few tasks are submitted at a time, so their source is not read far ahead. Worker processes end with this one,
    even if it is killed; a worker that is killed is an error.

    Args:
        work: a function, or a picklable callable that loads its resources (such as a model) at the first call; each
            worker has one copy, which it keeps for all its tasks
        tasks: the tasks, read in this process
        workers: the number of processes (1 for this process alone), or a pool of remote workers
        method: the start method of processes; ``spawn`` if threads or devices forbid ``fork``
    """
    if isinstance(workers, int) and workers <= 1:
        yield from map(work, tasks)
        return
    tasks = iter(tasks)
    if not (first := list(islice(tasks, 1))):
        return  # without starting workers
    with _processes(work, workers, method) if isinstance(workers, int) else workers.pool(work) as pool:
        pending: set[Future[Any]] = set()
        for task in chain(first, tasks):
            pending.add(pool.submit(task))
            if len(pending) >= pool.window:
                yield pool.result(_completed(pending))
        while pending:
            yield pool.result(_completed(pending))


def _completed(pending: set[Future[Any]]) -> Future[Any]:
    """Wait for any of the futures, and remove it."""
    future = next(iter(wait(pending, return_when=FIRST_COMPLETED).done))
    pending.remove(future)
    return future


def interruptible(work: Callable[[], Result]) -> Result:
    """Call a function of a C++ library in another thread, so that Ctrl-C does not have to wait for it."""
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
        # If the library calls back into Python, it must not be inside that call when Python exits.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join(0.5)
        raise


@contextmanager
def _processes(work: Callable[[Any], Any], count: int, method: str) -> Iterator[Pool]:
    """A pool of processes that apply ``work``; they end with the block or with this process."""
    context = get_context(method)
    ends, end = context.Pipe(duplex=False)
    numbers = context.SimpleQueue()
    for number in range(count):
        numbers.put(number)
    # Not multiprocessing.Pool, which waits forever for the result of a killed worker.
    executor = ProcessPoolExecutor(count, context, _start_worker, (work, ends, numbers))
    try:
        # one running and one waiting task per worker
        yield Pool(2 * count + 1, lambda task: executor.submit(_do, task))
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the running tasks
        end.send(None)
        raise
    except BrokenProcessPool as error:
        message = "a worker process was killed, usually for want of memory"
        raise SyntaxDataError(message, hint=FEWER_WORKERS) from error
    finally:
        executor.shutdown(cancel_futures=True)


_work: Callable[[Any], Any] | None = None  # the function of this process if it is a worker
_number = 0


def worker_number() -> int:
    """The number of this process among the worker processes of its pool, from 0; 0 if it is none of them."""
    return _number


def _start_worker(work: Callable[[Any], Any], ends: connection.Connection, numbers: SimpleQueue[int]) -> None:
    """Prepare a worker process: store its function, and end the process when its parent ends or requests it."""
    global _work, _number
    _work, _number = work, numbers.get()
    lock_bars_per_process()
    parent = parent_process()
    if parent is not None:
        # A killed parent cannot notify its workers, which would wait for work forever.
        # The message that ends them is not consumed, so that all of them see it.
        watch = threading.Thread(target=lambda: (connection.wait([parent.sentinel, ends]), os._exit(1)), daemon=True)
        watch.start()


def _do(task: Any) -> Any:
    assert _work is not None
    return _work(task)
