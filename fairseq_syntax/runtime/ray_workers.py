"""Workers on a Ray cluster: tasks and commands that Ray schedules on its nodes.

Ray repeats a task if its worker or machine is lost. Parts are written atomically (``runtime/parts.py``), so repeating a
task does no harm. Only this module and :mod:`.ray_node` import Ray, and only when workers are requested.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.commands import run_command
from fairseq_syntax.runtime.ray_node import Job, do_task
from fairseq_syntax.runtime.workers import Pool, Workers, cores

logger = logging.getLogger(__name__)

SECONDS_TO_REACH = 15
ATTEMPTS = 5  # after so many lost workers, the task is at fault rather than the machines
SECONDS_OF_SILENCE = 30.0
_PORT = 6379  # Ray's default
# A cluster's head speaks gRPC over HTTP/2; servers answer this preface with a SETTINGS frame (type 4).
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


# ---------------------------------------------------------------------------------------------- the command line


def chosen_workers(
    args: argparse.Namespace, *, count: int | None, cpus: int = 1, gpus: float = 0.0
) -> AbstractContextManager[Workers | int]:
    """The workers selected by the options: processes on this machine or, with ``--ray``, workers on a cluster.

    Args:
        count: the number of workers; None for one process, or as many as fit the cluster
        cpus: CPUs per worker
        gpus: GPUs per worker, unless ``--gpus-per-worker`` is given

    Raises:
        SyntaxDataError: Ray is not installed or cannot be reached, or its options are given without ``--ray``
    """
    gpus_per_worker = getattr(args, "gpus_per_worker", None)
    if args.ray is None:
        if gpus_per_worker is not None:
            raise SyntaxDataError("--gpus-per-worker goes with --ray")
        return nullcontext(count or 1)
    gpus = gpus if gpus_per_worker is None else gpus_per_worker
    return RayWorkers.connected(args.ray or None, count=count, cpus=cpus, gpus=gpus)


# -------------------------------------------------------------------------------------------------- the workers


class RayWorkers:
    """Workers on a Ray cluster; use :meth:`connected`.

    Args:
        address: ``HOST:PORT``; None to start a cluster for this process
        count: the number of workers; None for as many as fit when the work begins
        cpus, gpus: CPUs and GPUs per worker
    """

    def __init__(self, address: str | None, count: int | None, cpus: int, gpus: float) -> None:
        self.address, self.count, self.cpus, self.gpus = address, count, cpus, gpus
        self._ray: Any = None
        self._commands: list[Any] = []  # Ray's references of running commands
        self._cancelled = False
        self._is_ours = False  # whether this process has opened the connection

    @classmethod
    @contextmanager
    def connected(
        cls, address: str | None = None, *, count: int | None = None, cpus: int = 1, gpus: float = 0.0
    ) -> Iterator[RayWorkers]:
        """A context that yields workers; Ray is connected when they are first used.

        Raises:
            SyntaxDataError: Ray is not installed, or the address does not answer
        """
        if importlib.util.find_spec("ray") is None:
            raise SyntaxDataError("Ray is not installed", hint="pip install 'fairseq-syntax[ray]'")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_task_oom_retries", str(ATTEMPTS - 1))  # unlimited by default
        address = address or os.environ.get("RAY_ADDRESS")
        if address == "local":
            address = None  # Ray's name for a cluster that is started here
        elif address and address != "auto":
            _reach(address)
        else:
            address = _running_here()
        workers = cls(address, count, cpus, gpus)
        try:
            yield workers
        finally:
            if workers._is_ours:
                workers._ray.shutdown()

    @contextmanager
    def pool(self, work: Callable[[Any], Any], hint: str) -> Iterator[Pool]:
        """A pool that applies one function; see :func:`fairseq_syntax.runtime.workers.in_workers`.

        Raises:
            SyntaxDataError: a task lost all its workers, the cluster is unusable, or versions differ
        """
        pool = _RayPool(self.connect(), work, self)
        try:
            yield pool
        except pool.ray.exceptions.RayTaskError:
            raise  # a defect; the error contains the worker's traceback
        except pool.ray.exceptions.RayError as error:
            message = f"{ATTEMPTS} workers were lost over the same part, usually for want of memory"
            raise SyntaxDataError(message, hint=hint) from error
        finally:
            pool.cancel()

    def command(
        self, arguments: Sequence[str], *, cwd: str, env: Mapping[str, str], log: str, output: str | None = None
    ) -> int:
        """Run a command on a node of the cluster, and again on another if the node is lost. Thread-safe.

        The arguments are those of :func:`.commands.run_command`. The command ends when this process does.

        Returns:
            the exit status

        Raises:
            SyntaxDataError: all attempts lost their nodes
        """
        ray = self.connect()
        remote = ray.remote(run_command)
        options = remote.options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=ATTEMPTS - 1)
        reference = options.remote(list(arguments), cwd, dict(env), log, output)
        self._commands.append(reference)
        try:
            return int(ray.get(reference))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SyntaxDataError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            if self._cancelled:
                return -signal.SIGTERM
            raise SyntaxDataError(f"the command was lost with its worker: {_first_line(error)}", path=log) from error
        finally:
            self._commands.remove(reference)

    def cancel(self) -> None:
        """End the running commands of all threads."""
        self._cancelled = True
        for reference in list(self._commands):
            self._ray.cancel(reference, force=True)

    def connect(self) -> Any:
        """Connect to the cluster, unless already connected; call this before threads use it. Raises SyntaxDataError.

        Returns:
            the module ``ray``
        """
        if self._ray is not None:
            return self._ray
        import ray
        from ray import cloudpickle, exceptions  # noqa: F401  (as attributes)

        if not ray.is_initialized():
            silent: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init(**(self._here() if self.address is None else {"address": self.address}), **silent)
            except Exception as error:
                where = f" at {self.address}" if self.address else ""
                locked = "AuthToken" in f"{error}{error.__cause__}"
                hint = (
                    "RAY_AUTH_MODE=token, with the cluster's RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" if locked else None
                )
                raise SyntaxDataError(f"cannot work with Ray{where}: {_first_line(error)}", hint=hint) from error
            self._is_ours = True
        self._ray = ray
        if self.address is None and self._is_ours and self.gpus > ray.cluster_resources().get("GPU", 0):
            raise SyntaxDataError(f"{self.gpus:g} GPUs a worker, but there are none here", hint="--ray ADDRESS")
        return ray

    def _here(self) -> dict[str, Any]:
        """Ray's options for a cluster that is started here."""
        return {
            "address": "local",
            "num_cpus": max(cores(), (self.count or 1) * self.cpus),
            "include_dashboard": False,
            "object_store_memory": 256 << 20,  # for texts in transit
            "_node_ip_address": "127.0.0.1",
        }

    def room(self) -> int:
        """The number of workers that currently fit the cluster."""
        resources = self._ray.cluster_resources()
        places = [int(resources.get("CPU", 0) // self.cpus)]
        if self.gpus:
            places.append(int(resources.get("GPU", 0) / self.gpus))
        return max(1, min(places))


class _RayPool:
    """Ray tasks that apply one function, which each process of the cluster loads once."""

    def __init__(self, ray: Any, work: Callable[[Any], Any], workers: RayWorkers) -> None:
        self.ray = ray
        # One task per worker, since Ray would run waiting tasks on more workers than requested.
        self.window = workers.count or 2 * workers.room() + 1
        self._wanted = f"{workers.cpus} CPU" + (f" and {workers.gpus:g} GPU" if workers.gpus else "")
        self._pending: set[Any] = set()
        self._silent = True
        pickled = ray.cloudpickle.dumps(work)
        key = hashlib.sha256(pickled).hexdigest()
        job = Job(key, os.getcwd(), list(sys.path), fairseq_syntax.__version__, pickled)
        self._job = ray.put(job)
        options: dict[str, Any] = {"num_cpus": workers.cpus, "num_gpus": workers.gpus, "max_retries": ATTEMPTS - 1}
        if workers.gpus:  # see do_task
            options["runtime_env"] = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
        # max_calls: otherwise Ray ends a process after each GPU task, and the model would be reloaded.
        self._task = ray.remote(max_calls=0)(do_task).options(**options)

    def submit(self, task: Any) -> Any:
        reference = self._task.remote(self._job, task)
        self._pending.add(reference)
        return reference

    def take(self, pending: list[Any]) -> Any:
        ready: list[Any] = []
        while not ready:
            ready, _ = self.ray.wait(pending, num_returns=1, timeout=SECONDS_OF_SILENCE)
            if not ready and self._silent:
                resources = self.ray.cluster_resources()
                resources_now = ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
                logger.warning("no result yet; a worker takes %s, and the cluster has %s", self._wanted, resources_now)
        self._silent = False
        pending.remove(ready[0])
        self._pending.discard(ready[0])
        result, error, records = self.ray.get(ready[0])
        for name, level, text in records:
            logging.getLogger(name).log(level, "%s", text)
        if error is not None:
            raise error
        return result

    def cancel(self) -> None:
        """Cancel the running tasks."""
        for reference in self._pending:
            with suppress(self.ray.exceptions.RayError):
                self.ray.cancel(reference, force=True)


# --------------------------------------------------------------------------------------------------- addresses


def _reach(address: str) -> None:
    """Check that a Ray cluster answers at ``HOST:PORT``, since Ray itself would try for minutes.

    Raises:
        SyntaxDataError: it does not answer, or the address is invalid
    """
    host, colon, port = address.rpartition(":")
    if "://" in address or (colon and not port.isdigit()):
        raise SyntaxDataError(
            f"{address} is no address of a Ray cluster's head",
            hint=f"HOST:PORT, with the port {_PORT} as a rule; run the command on a node of the cluster",
        )
    host, number = (host, int(port)) if colon else (address, _PORT)
    try:
        with socket.create_connection((host, number), timeout=SECONDS_TO_REACH) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(9)
        reason = "" if answer[3:4] == b"\x04" else "what answers there is no Ray cluster"
    except OSError as error:
        reason = error.strerror or f"no answer in {SECONDS_TO_REACH} seconds"
    if reason:
        raise SyntaxDataError(
            f"no Ray cluster is reached at {host}:{number}: {reason}", hint="ray status, on a node of the cluster"
        )
    if host in ("localhost", "127.0.0.1"):
        # Ray would use this machine's network address, where a cluster on the loopback interface does not listen.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _running_here() -> str | None:
    """The address of the cluster last started on this machine, from Ray's file, if it answers."""
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray")
    with suppress(OSError, SyntaxDataError):
        address = (folder / "ray_current_cluster").read_text("utf-8").strip()
        _reach(address)
        return address
    return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
