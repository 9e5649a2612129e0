"""Workers on other machines: tasks and commands that Ray places on its cluster, whatever that runs on.

Ray decides where a worker is and says when one is lost; nothing else is left to it. A task whose worker was lost is
given to another, and whatever makes a part writes it whole or not at all (``runtime/jobs.py``): done twice, it is there
once, and with the same bytes. Only this module and :mod:`.ray_node` import Ray, and do so when workers are wanted.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.jobs import Result, Task, Workers, cores
from fairseq_syntax.runtime.ray_node import Actor, run_command

logger = logging.getLogger(__name__)

SECONDS_TO_REACH = 15
LOSSES_OF_A_TASK = 5  # then it is the task that is at fault, and not the machines
LOSSES_AT_THE_START = 5  # workers in a row that were lost before they were ready
AHEAD = 2  # tasks that a worker has: the next one is there when it is done with one
SECONDS_OF_SILENCE = 30.0
_PORT = 6379  # Ray's own
# A cluster's head speaks gRPC: HTTP/2, whose servers answer this greeting by a frame of settings, of type 4.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


# ---------------------------------------------------------------------------------------------- the command line


def add_ray_options(parser: Any, *, gpus: bool = False) -> None:
    """Adds ``--ray`` and, for work that can use a GPU, ``--gpus-per-worker`` to a parser or a group of options."""
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="workers on a Ray cluster: HOST:PORT of its head, or without ADDRESS the one of RAY_ADDRESS, one that "
        "runs here, or one started here for this command (always so: local)",
    )
    if gpus:
        parser.add_argument(
            "--gpus-per-worker",
            type=float,
            metavar="G",
            help="with --ray: GPUs of each worker, such as 1 or 0.5 (default: 1 with --device cuda, else none)",
        )


def chosen_workers(
    args: argparse.Namespace, *, count: int | None, cpus: int = 1, gpus: float = 0.0
) -> AbstractContextManager[Workers | int]:
    """The workers that the options choose: processes of this machine, or with ``--ray`` those of a cluster.

    Args:
        count: of them; None for one process, or for as many as the cluster has room for
        cpus: of each
        gpus: of each, unless ``--gpus-per-worker`` says otherwise

    Raises:
        SyntaxDataError: Ray is not installed or not to be reached, or its options without it
    """
    given = getattr(args, "gpus_per_worker", None)
    if args.ray is None:
        if given is not None:
            raise SyntaxDataError("--gpus-per-worker goes with --ray")
        return nullcontext(count or 1)
    if given is not None and given < 0:
        raise SyntaxDataError("--gpus-per-worker must be 0 or more")
    return RayWorkers.connected(args.ray or None, count=count, cpus=cpus, gpus=gpus if given is None else given)


# -------------------------------------------------------------------------------------------------- the workers


@dataclass
class _Attempt(Generic[Task]):
    """A task on its way, and how many workers were lost over it."""

    number: int
    task: Task
    losses: int = 0


@dataclass(eq=False)
class _Place:
    """A worker, and the attempts that it was given, the one that it works on first."""

    actor: Any
    ready: bool = False
    given: deque[tuple[Any, _Attempt[Any]]] = field(default_factory=deque)  # with Ray's reference to the result


class RayWorkers:
    """Workers of a Ray cluster; made by :meth:`connected`.

    Args:
        address: ``HOST:PORT``; None for a cluster of this process alone
        count: of workers; None for as many as there is room for when the work begins
        cpus, gpus: of each
    """

    def __init__(self, address: str | None, count: int | None, cpus: int, gpus: float) -> None:
        self.address, self.count, self.cpus, self.gpus = address, count, cpus, gpus
        self._ray: Any = None
        self._commands: list[Any] = []  # that are running, by Ray's references
        self._cancelled = False
        self._is_ours = False  # the connection
        self._is_local = False  # the whole cluster

    @classmethod
    @contextmanager
    def connected(
        cls, address: str | None = None, *, count: int | None = None, cpus: int = 1, gpus: float = 0.0
    ) -> Iterator[RayWorkers]:
        """Workers, as long as the block lasts; Ray itself is called when there is something to do.

        Raises:
            SyntaxDataError: Ray is not installed, or nothing answers at the address
        """
        if importlib.util.find_spec("ray") is None:
            raise SyntaxDataError("Ray is not installed", hint="pip install 'fairseq-syntax[ray]'")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = address or os.environ.get("RAY_ADDRESS")
        if address == "local":
            address = None  # Ray's word for one that is started here
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

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Iterable[Task],
        *,
        start: Callable[..., None] | None = None,
        arguments: Sequence[Any] = (),
        ordered: bool = True,
        hint: str = "run the command again: it continues",
    ) -> Iterator[Result]:
        """Does tasks by actors, each of which calls ``start`` once. See :func:`fairseq_syntax.runtime.jobs.in_workers`.

        Raises:
            SyntaxDataError: whatever ``work`` raises; a task that loses every worker; a cluster that has no room
        """
        waiting = _Source(tasks)
        if not waiting.fill(1):
            return
        ray = self._connect()
        begin = ray.cloudpickle.dumps((start, tuple(arguments)))
        crew = _Crew(ray, self._actor_class(), begin, ray.cloudpickle.dumps(work), self._room(), hint)
        try:
            yield from crew.results(waiting, ordered)
        finally:
            for place in crew.places:
                with suppress(ray.exceptions.RayError):
                    ray.kill(place.actor)

    def command(self, arguments: Sequence[str], *, cwd: str, env: Mapping[str, str], log: str) -> int:
        """Runs a command on some node of the cluster, again on another if that one is lost.

        Its output is appended to the file ``log``; it ends when this process does. For several threads at once.

        Returns:
            its exit status

        Raises:
            SyntaxDataError: it lost every node
        """
        ray = self._connect()
        remote = ray.remote(run_command)
        options = remote.options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=LOSSES_OF_A_TASK)
        reference = options.remote(list(arguments), cwd, dict(env), log)
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
        """Ends the commands that are running, in whatever threads."""
        self._cancelled = True
        for reference in list(self._commands):
            self._ray.cancel(reference, force=True)

    def connect(self) -> None:
        """Connects now, where threads are to use it. Raises SyntaxDataError."""
        self._connect()

    def _connect(self) -> Any:
        if self._ray is not None:
            return self._ray
        import ray
        from ray import cloudpickle, exceptions  # noqa: F401  (as attributes)

        if not ray.is_initialized():
            silent: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                if self.address is not None:
                    ray.init(address=self.address, **silent)
                else:
                    self._start_here(ray, silent)
            except Exception as error:
                where = f" at {self.address}" if self.address else ""
                locked = "AuthToken" in f"{error}{error.__cause__}"
                hint = (
                    "RAY_AUTH_MODE=token, with the cluster's RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" if locked else None
                )
                raise SyntaxDataError(f"cannot work with Ray{where}: {_first_line(error)}", hint=hint) from error
            self._is_ours = True
        self._ray = ray
        if self._is_local and self.gpus > ray.cluster_resources().get("GPU", 0):
            raise SyntaxDataError(f"{self.gpus:g} GPUs a worker, but there are none here", hint="--ray ADDRESS")
        return ray

    def _start_here(self, ray: Any, silent: Mapping[str, Any]) -> None:
        ray.init(
            address="local",
            num_cpus=max(cores(), (self.count or 1) * self.cpus),
            include_dashboard=False,
            object_store_memory=256 << 20,  # for texts on their way
            _node_ip_address="127.0.0.1",
            **silent,
        )
        self._is_local = True

    def _actor_class(self) -> Any:
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        return self._ray.remote(Actor).options(max_restarts=0, max_task_retries=0, **options)

    def _room(self) -> int:
        if self.count is not None:
            return self.count
        there = self._ray.cluster_resources()
        places = [int(there.get("CPU", 0) // self.cpus)]
        if self.gpus:
            places.append(int(there.get("GPU", 0) / self.gpus))
        return max(1, min(places))


class _Source(Generic[Task]):
    """Tasks that are to be done: those given back by lost workers, then those of the source, read when needed."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = iter(tasks)
        self._queue: deque[_Attempt[Task]] = deque()
        self.taken = 0

    def fill(self, wanted: int) -> int:
        """Reads the source until so many tasks wait, if it has them; returns how many do."""
        while len(self._queue) < wanted:
            try:
                task = next(self._tasks)
            except StopIteration:
                break
            self._queue.append(_Attempt(self.taken, task))
            self.taken += 1
        return len(self._queue)

    def take(self) -> _Attempt[Task]:
        return self._queue.popleft()

    def give_back(self, attempts: Iterable[_Attempt[Task]]) -> None:
        self._queue.extendleft(reversed(list(attempts)))


class _Crew:
    """The workers of one piece of work, those that were lost replaced."""

    def __init__(self, ray: Any, actor_class: Any, begin: bytes, work: bytes, size: int, hint: str) -> None:
        self.ray, self.actor_class, self.begin, self.work = ray, actor_class, begin, work
        self.size, self.hint = size, hint
        self.places: list[_Place] = []
        self._starting: dict[Any, _Place] = {}  # by Ray's reference
        self._losses_at_start = 0

    def results(self, source: _Source[Any], ordered: bool) -> Iterator[Any]:
        done: dict[int, Any] = {}
        at = 0  # the number of results that were yielded
        while True:
            on_their_way = sum(len(place.given) for place in self.places)
            # With results in order, one slow task must not let the others run on for ever.
            room = 2 * self.size + 1 - on_their_way - (len(done) if ordered else 0)
            waiting = source.fill(max(room, 0))
            if not waiting and not on_their_way and not done:
                return
            while len(self.places) < min(self.size, waiting + on_their_way):
                self._hire()
            self._hand_out(source)
            for number, result in self._next_results(source):
                if ordered:
                    done[number] = result
                else:
                    yield result
            while at in done:
                yield done.pop(at)
                at += 1

    def _hire(self) -> None:
        place = _Place(self.actor_class.remote())
        self.places.append(place)
        about = (os.getcwd(), list(sys.path), fairseq_syntax.__version__)
        self._starting[place.actor.begin.remote(*about, self.begin)] = place

    def _hand_out(self, source: _Source[Any]) -> None:
        for level in range(AHEAD):  # first one for each, so that the last tasks are spread
            for place in self.places:
                if place.ready and len(place.given) == level and source.fill(0):
                    attempt = source.take()
                    place.given.append((place.actor.do.remote(self.work, attempt.task), attempt))

    def _next_results(self, source: _Source[Any]) -> Iterator[tuple[int, Any]]:
        """Waits until something has come, and gives the results that did."""
        there = {reference: place for place in self.places for reference, _ in place.given}
        references = [*self._starting, *there]
        ready, _ = self.ray.wait(references, num_returns=1, timeout=SECONDS_OF_SILENCE)
        if not ready and not there:
            logger.warning(
                "waiting for %d workers to start, on a cluster with %s",
                len(self._starting),
                ", ".join(
                    f"{n:g} {name}" for name, n in self.ray.cluster_resources().items() if name in ("CPU", "GPU")
                ),
            )
        for reference in ready:
            place = self._starting.get(reference) or there[reference]
            if place not in self.places:
                continue  # lost, by another of its references
            try:
                result, error, records = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError:
                raise  # a defect, with the traceback of the worker
            except self.ray.exceptions.RayError as lost:
                self._replace(place, source, lost)
                continue
            for name, level, text in records:
                logging.getLogger(name).log(level, "%s", text)
            if error is not None:
                raise error
            if reference in self._starting:
                del self._starting[reference]
                place.ready, self._losses_at_start = True, 0
                continue
            attempt = next(attempt for other, attempt in place.given if other == reference)
            place.given = deque(entry for entry in place.given if entry[1] is not attempt)
            yield attempt.number, result

    def _replace(self, place: _Place, source: _Source[Any], error: Exception) -> None:
        """Gives a lost worker's tasks back; another is hired where there is still work for it."""
        self.places.remove(place)
        self._starting = {reference: other for reference, other in self._starting.items() if other is not place}
        if not place.ready:
            self._losses_at_start += 1
            if self._losses_at_start > LOSSES_AT_THE_START:
                message = f"workers cannot be started on the cluster: {_last_line(error)}"
                hint = "every node needs this package in the same version as here, and Python's, and memory for it"
                raise SyntaxDataError(message, hint=hint) from error
        attempts = [attempt for _, attempt in place.given]
        if attempts:
            attempts[0].losses += 1
            if attempts[0].losses >= LOSSES_OF_A_TASK:
                message = f"{LOSSES_OF_A_TASK} workers were lost over the same part, for want of memory as a rule"
                raise SyntaxDataError(message, hint=self.hint) from error
        logger.warning("a worker was lost; its work is done by another")
        source.give_back(attempts)


# --------------------------------------------------------------------------------------------------- addresses


def _reach(address: str) -> None:
    """Makes sure that a Ray cluster answers at ``HOST:PORT``, which Ray itself would try for minutes.

    Raises:
        SyntaxDataError: it does not, or the address is of another kind
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
        # Ray would go to this machine's own address instead, where a cluster on the loopback interface does not listen.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _running_here() -> str | None:
    """The address of the cluster that was last started on this machine, if it answers: Ray keeps it in a file."""
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray")
    with suppress(OSError, SyntaxDataError):
        address = (folder / "ray_current_cluster").read_text("utf-8").strip()
        _reach(address)
        return address
    return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
