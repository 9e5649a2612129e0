"""Workers on a Ray cluster: tasks and commands that Ray schedules on its nodes.

Ray repeats a task if its worker or machine is lost. Parts are written atomically (``runtime/parts.py``), so repeating a
task does no harm. Only this module imports Ray, and only when workers are requested.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.commands import run_command
from fairseq_syntax.runtime.digests import sha256
from fairseq_syntax.runtime.workers import FEWER_WORKERS, Pool, Workers, cores

logger = logging.getLogger(__name__)

SECONDS_TO_REACH = 15
SECONDS_TO_START = 10  # after which waiting for a worker is reported; a new worker process takes seconds itself
SECONDS_TO_CANCEL = 10  # after which a task that does not end is given up
ATTEMPTS = 5  # after so many lost workers, the task is at fault rather than the machines
_PORT = 6379  # Ray's default
# A cluster's head speaks gRPC over HTTP/2; servers answer this preface with a SETTINGS frame (type 4).
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


def chosen_workers(
    args: argparse.Namespace, *, count: int | None, cpus: int = 1, gpus: float = 0.0
) -> AbstractContextManager[Workers | int]:
    """The workers selected by the options: processes on this machine or, with ``--ray``, workers on a cluster.

    Args:
        count: the number of workers; None for one process, or as many as fit the cluster
        cpus, gpus: as in :class:`RayWorkers`, unless ``--gpus-per-worker`` is given
    """
    gpus_per_worker = getattr(args, "gpus_per_worker", None)
    if args.ray is not None:
        gpus = gpus if gpus_per_worker is None else gpus_per_worker
        return RayWorkers(args.ray or None, count=count, cpus=cpus, gpus=gpus)
    if gpus_per_worker is not None:
        raise SyntaxDataError("--gpus-per-worker goes with --ray")
    return nullcontext(count or 1)


class RayWorkers(AbstractContextManager["RayWorkers"]):
    """Workers on a Ray cluster, to which this process connects when they are first used, until the block ends.

    Args:
        address: ``HOST:PORT``; ``local`` for a cluster that is started for this process; None for that of
            ``RAY_ADDRESS``, else one that runs here, else as ``local``
        count: the number of workers; None for as many as fit when the work begins
        cpus, gpus: CPUs and GPUs per worker

    Raises:
        SyntaxDataError: Ray is not installed, or the address does not answer
    """

    def __init__(
        self, address: str | None = None, *, count: int | None = None, cpus: int = 1, gpus: float = 0.0
    ) -> None:
        # Not by importing it: it reads the variables that are set below, and by _reach, when it is imported.
        if importlib.util.find_spec("ray") is None:
            raise SyntaxDataError("Ray is not installed", hint="pip install 'fairseq-syntax[ray]'")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_task_oom_retries", str(ATTEMPTS - 1))  # unlimited by default
        address = address or os.environ.get("RAY_ADDRESS") or "auto"
        if address == "auto":
            address = _running_here()
        elif address != "local":
            _reach(address)
        self.address = None if address == "local" else address  # None: a cluster is started here
        if self.address is None:
            _keep_loopback()
        self.count, self.cpus, self.gpus = count, cpus, gpus
        self._ray: Any = None
        self._is_ours = False  # whether this process has opened the connection
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": ATTEMPTS - 1, "num_returns": "streaming"}
        self._commands: list[Any] = []  # Ray's streams of running commands
        self._working: set[Any] = set()  # Ray's streams of tasks that a worker has begun
        self._given_up: set[Any] = set()  # Ray's streams of tasks that were not cancelled in time
        self._told: set[str] = set()  # what is known to wait for a worker
        self._cancelled = False

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._ray.shutdown()

    def connect(self) -> Any:
        """Connect to the cluster unless connected, before threads use it; returns the module ``ray``."""
        if self._ray is not None:
            return self._ray
        import ray
        from ray import cloudpickle, exceptions  # noqa: F401  (as attributes)

        if not ray.is_initialized():
            here = {
                "address": "local",
                "num_cpus": max(cores(), (self.count or 1) * self.cpus),
                "include_dashboard": False,
                "object_store_memory": 256 << 20,  # for texts in transit
                "_node_ip_address": "127.0.0.1",
            }
            where = here if self.address is None else {"address": self.address}
            try:
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                hint = None
                if "AuthToken" in f"{error}{error.__cause__}":
                    hint = "RAY_AUTH_MODE=token, with the cluster's RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
                raise SyntaxDataError(
                    f"cannot work with Ray at {where['address']}: {_first_line(error)}", hint=hint
                ) from error
            self._is_ours = True
        self._ray = ray
        if self._room() < 1:
            message = f"a worker takes {self._resources()}, but no node has them: the cluster has "
            message += self._resources(ray.cluster_resources())
            if self.address is None and self._is_ours:
                raise SyntaxDataError(message, hint="--ray ADDRESS")
            logger.warning("%s: waiting for more", message)
        return ray

    def _room(self) -> int:
        """The number of workers that fit the nodes of the cluster, including workers of others."""
        wanted = {name: number for name, number in (("CPU", self.cpus), ("GPU", self.gpus)) if number}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(int(min(has.get(name, 0) / number for name, number in wanted.items())) for has in nodes)

    def _resources(self, has: Mapping[str, float] | None = None) -> str:
        """Describe the resources of a cluster, by default those of a worker."""
        has = {"CPU": self.cpus, "GPU": self.gpus} if has is None else has
        return f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"

    def _result(self, stream: Any, command: str = "") -> Any:
        """The result of a task, the second item of its stream; the first one comes when a worker begins it.

        Says so once if a command waits for a worker or, for tasks without a name, if none of them is being worked on:
        more of these are submitted than there are workers.
        """
        ray = self._ray
        while not ray.wait([stream], timeout=SECONDS_TO_START)[0]:
            self._check_given_up(stream)
            if command not in self._told and (command or not self._working):
                self._told.add(command)
                what, free = f"{command}: " if command else "", self._resources(ray.available_resources())
                has = self._resources(ray.cluster_resources())
                logger.warning("%swaiting for a worker with %s; %s of %s are free", what, self._resources(), free, has)
        self._told.discard(command)
        self._working.add(stream)
        try:
            # Not by next(stream), which has no time limit: see _cancel.
            while not ray.wait([stream.completed()], timeout=1)[0]:
                self._check_given_up(stream)
            ray.get(next(stream))  # raises the error of a task that was lost before it began
            return ray.get(next(stream))
        finally:
            self._working.discard(stream)

    def _check_given_up(self, stream: Any) -> None:
        if stream in self._given_up:
            raise self._ray.exceptions.RayError("cancelled")

    def _cancel(self, streams: Collection[Any]) -> None:
        """Cancel tasks, again each second, and end the waiting for those that have not ended in time.

        Ray ignores the cancellation of a task that it is just assigning to a worker.
        """
        waiting = {stream.completed(): stream for stream in streams}
        for _ in range(SECONDS_TO_CANCEL):
            if not waiting:
                break
            for stream in waiting.values():
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(stream, force=True)
            for ended in self._ray.wait(list(waiting), num_returns=len(waiting), timeout=1)[0]:
                del waiting[ended]
        self._given_up.update(waiting.values())

    @contextmanager
    def pool(self, work: Callable[[Any], Any]) -> Iterator[Pool]:
        """A pool that applies one function, which each process of the cluster loads once.

        Raises:
            SyntaxDataError: a task lost all its workers, the cluster is unusable, or versions differ
        """
        ray = self.connect()
        pickled = ray.cloudpickle.dumps(work)
        key = sha256(pickled)
        job = ray.put(_Job(key, os.getcwd(), list(sys.path), fairseq_syntax.__version__, pickled))
        options: dict[str, Any] = dict(self._options)
        if self.gpus:  # see _do_task
            options["runtime_env"] = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
        # max_calls: otherwise Ray ends a process after each GPU task, and the model would be reloaded.
        remote = ray.remote(max_calls=0)(_do_task).options(**options)
        running: dict[Future[Any], Any] = {}  # Ray's streams
        # One task per worker, since Ray would run waiting tasks on more workers than requested.
        window = self.count or 2 * max(1, self._room()) + 1
        waiting = ThreadPoolExecutor(window)  # a thread for each task, which waits for its result

        def submit(task: Any) -> Future[Any]:
            stream = remote.remote(job, task)
            future = waiting.submit(self._result, stream)
            running[future] = stream
            return future

        def result(future: Future[Any]) -> Any:
            value, error, records = future.result()
            del running[future]
            for record in records:
                logging.getLogger(record.name).handle(record)
            if error is not None:
                raise error
            return value

        try:
            yield Pool(window, submit, result)
        except ray.exceptions.RayTaskError:
            raise  # a defect; the error contains the worker's traceback
        except ray.exceptions.RayError as error:
            message = f"{ATTEMPTS} workers were lost over the same part, usually for want of memory"
            raise SyntaxDataError(message, hint=FEWER_WORKERS) from error
        finally:
            self._cancel(running.values())
            # A thread that still asked for a result after Ray's shutdown would read freed memory.
            waiting.shutdown()

    def command(self, arguments: list[str], **where: Any) -> int:
        """:func:`.commands.run_command` on a node of the cluster, and on another if the node is lost. Thread-safe.

        The command ends when this process does.
        """
        ray = self.connect()
        stream = ray.remote(_do_command).options(**self._options).remote(arguments, **where)
        self._commands.append(stream)
        if self._cancelled:  # between the caller's last check and this line
            self._cancel([stream])
        try:
            return int(self._result(stream, where["log"]))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SyntaxDataError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            if self._cancelled:
                return -signal.SIGTERM
            message = f"the command was lost with its worker: {_first_line(error)}"
            raise SyntaxDataError(message, path=where.get("log")) from error
        finally:
            self._commands.remove(stream)

    def cancel(self) -> None:
        """End the commands of all threads, also those that start later."""
        self._cancelled = True
        self._cancel(list(self._commands))


# ------------------------------------------------------------------------------------------------ on the cluster


class _Job(NamedTuple):
    """A pickled function to apply, and the version, ``sys.path`` and working directory of the requesting process."""

    key: str
    cwd: str
    path: list[str]
    version: str
    work: bytes


_loaded: tuple[Any, Callable[[Any], Any]] | None = None  # the current job and GPUs of this process, and its function


def _do_command(arguments: list[str], **where: Any) -> Iterator[int | None]:
    """Run a command in Ray, and yield None at the beginning and its exit status at the end."""
    yield None
    yield run_command(arguments, **where)


def _do_task(job: _Job, task: Any) -> Iterator[tuple[Any, SyntaxDataError | None, list[logging.LogRecord]] | None]:
    """Run a task in Ray, and yield None at the beginning, and at the end the result or a user error, and the log.

    The function, which may contain a model, is loaded at a process's first task of a job and kept. Ray may assign
    another GPU to the next task; as PyTorch detects GPUs only once, the process sees all of them and selects one
    itself.
    """
    global _loaded
    yield None
    import ray
    from ray import cloudpickle

    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(records)
    handler.setLevel(logging.WARNING)
    logging.getLogger("fairseq_syntax").addHandler(handler)
    result, user_error = None, None
    try:
        if fairseq_syntax.__version__ != job.version:
            there = f"the node {socket.gethostname()} has version {fairseq_syntax.__version__} of fairseq-syntax"
            raise SyntaxDataError(f"{there}, and this one {job.version}", hint="install the same everywhere")
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
        result = _loaded[1](task)
    except SyntaxDataError as error:
        user_error = error
    finally:
        logging.getLogger("fairseq_syntax").removeHandler(handler)
    yield result, user_error, [records.get() for _ in range(records.qsize())]


# --------------------------------------------------------------------------------------------------- addresses


def _reach(address: str) -> None:
    """Check that a Ray cluster answers at ``HOST:PORT``, since Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or (colon and not port.isdigit()):
        raise SyntaxDataError(
            f"{address} is not the address of a Ray cluster's head",
            hint=f"HOST:PORT, with the port {_PORT} as a rule; run the command on a node of the cluster",
        )
    host, number = (host, int(port)) if colon else (address, _PORT)
    try:
        with socket.create_connection((host, number), timeout=SECONDS_TO_REACH) as connection:
            connection.sendall(_HELLO)
            if connection.recv(9)[3:4] != b"\x04":
                raise OSError(0, "what answers there is not a Ray cluster")
    except OSError as error:
        reason = error.strerror or f"no answer in {SECONDS_TO_REACH} seconds"
        message = f"no Ray cluster is reached at {host}:{number}: {reason}"
        raise SyntaxDataError(message, hint="ray status, on a node of the cluster") from error
    if host in ("localhost", "127.0.0.1"):
        _keep_loopback()


def _keep_loopback() -> None:
    """Keep Ray from replacing a loopback address by this machine's network address, before it is imported.

    A cluster on the loopback interface does not listen at that, and one that is started here would listen at all.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _running_here() -> str | None:
    """The address of the cluster last started on this machine, from Ray's file, if it answers."""
    with suppress(OSError, SyntaxDataError):
        folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray")
        address = (folder / "ray_current_cluster").read_text("utf-8").strip()
        _reach(address)
        return address
    return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
