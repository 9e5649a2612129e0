"""Work that is done once: is it done, which parts of it are, and by how many processes.

A *step* makes some files out of others. When it is done, ``.NAME.made.json`` beside its first output says what it was
made from (a fingerprint of the content of its inputs and of its options) and what it is (the outputs' SHA-256), so that
a step is done only if neither its inputs nor its outputs have changed since.

Long steps are cut into *parts* that are written whole or not at all, in any order, by any number of processes. Each
part carries the fingerprint of what it was made from and a digest of its content. A run that was killed continues with
the parts that are missing; the bytes of the result are those of one uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import (
    atomic_open_binary,
    file_sha256,
    is_replaced,
    locked,
    make_folder,
    open_binary,
    remove_folder,
    remove_leftovers,
    write_json,
)
from fairseq_syntax.runtime.uris import Uri

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")


# --------------------------------------------------------------------------------------------------- done or not


@dataclass(frozen=True)
class Step:
    """Files that are made out of others.

    Args:
        outputs: the files; the record lies beside the first
        made_from: a fingerprint of the content of all inputs and of all options that matter
    """

    outputs: tuple[Path, ...]
    made_from: str

    @property
    def record_path(self) -> Path:
        """Where it is noted that the step is done."""
        return record_path(self.outputs[0])

    def record(self) -> dict[str, Any] | None:
        """What was noted of the step when it was done; None where it is not done.

        That is: it was begun only, made from something else, or an output is missing or has changed.
        """
        found = read_record(self.outputs[0])
        if found is None or found["made_from"] != self.made_from or found.get("outputs") is None:
            return None
        digests = found["outputs"]
        if set(digests) != {path.name for path in self.outputs}:
            return None
        if any(not path.is_file() or file_sha256(path) != digests[path.name] for path in self.outputs):
            return None
        return found

    def begin(self) -> None:
        """Notes that the outputs are this step's from now on, though not whole yet. Raises SyntaxDataError."""
        write_json(self.record_path, {"made_from": self.made_from, "outputs": None})

    def finish(self, note: Mapping[str, Any] | None = None) -> None:
        """Notes that the outputs are whole; ``note`` is kept with that (JSON). Raises SyntaxDataError."""
        outputs = {path.name: file_sha256(path) for path in self.outputs}
        write_json(self.record_path, {"made_from": self.made_from, "outputs": outputs, "note": dict(note or {})})

    @contextmanager
    def making(self) -> Iterator[dict[str, Any] | None]:
        """Holds the step's lock; gives the record if the step is done, by another process in the meantime too."""
        make_folder(self.outputs[0].parent)
        with locked(self.outputs[0]):
            yield self.record()


def record_path(output: str | os.PathLike[str]) -> Path:
    """Where it is noted what a file was made from."""
    path = Path(output)
    return path.with_name(f".{path.name}.made.json")


def read_record(output: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What is noted of a file: ``made_from``, ``outputs`` (null while it is being made) and ``note``; None: nothing."""
    try:
        found = json.loads(record_path(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("made_from"), str) else None


# --------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True)
class Parts:
    """The parts of a file that is being made: a folder of them beside it, ``NAME.parts``.

    Args:
        output: the file
        fingerprint: of all that it is made from, and of how it is cut
        ending: of the parts' names
    """

    output: Path | Uri
    fingerprint: str
    ending: str

    @property
    def folder(self) -> Path | Uri:
        """Where the parts lie until they are merged: beside the file, or aside where it is a FIFO or a device."""
        if not is_replaced(self.output):
            return Path(tempfile.gettempdir(), f"fairseq-syntax-{self.fingerprint}.parts")
        return self.output.with_name(self.output.name + ".parts")

    def path(self, span: tuple[int, int]) -> Path | Uri:
        """The file of a part, which is named by its lines [start, end)."""
        return self.folder / f"{span[0]:012d}-{span[1]:012d}{self.ending}"

    def is_whole(self, span: tuple[int, int]) -> bool:
        """Whether the part is made; a damaged one is to be made again.

        Raises:
            SyntaxDataError: it belongs to another job
        """
        path = self.path(span)
        try:
            header, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SyntaxDataError(f"cannot be read: {error.strerror}", path=path) from error
        if header + b"\n" == self._header(span, body):
            return True
        if _fingerprint_in(header) not in (None, self.fingerprint):
            raise self._of_another_job(path)
        logger.warning("%s is damaged, and is made again", path)
        return False

    def check_others(self, hint: str = "") -> None:
        """Makes sure, before hours of work, that the folder does not hold the parts of another job.

        Args:
            hint: what helps beside removing the folder

        Raises:
            SyntaxDataError: it does, or a part cannot be read
        """
        if (path := self._another()) is not None:
            raise self._of_another_job(path, hint)

    def clear_others(self) -> None:
        """Removes the folder where it holds the parts of another job. For steps that may be made over."""
        if self._another() is not None:
            remove_folder(self.folder)

    def remove_own(self) -> None:
        """Removes the parts, unless they are those of another job, which may be at work."""
        if self._another() is None:
            self.remove()

    def _another(self) -> Path | Uri | None:
        """A part, where the folder holds those of another job. They are of one job, so the first whole one tells."""
        for path in self.folder.glob(f"*{self.ending}"):
            try:
                with open_binary(path) as file:
                    found = _fingerprint_in(file.readline(200))
            except FileNotFoundError:
                continue  # merged by another process in this moment
            except OSError as error:
                raise SyntaxDataError(f"cannot be read: {error.strerror}", path=path) from error
            if found is not None:
                return path if found != self.fingerprint else None
        return None

    def _of_another_job(self, path: Path | Uri, hint: str = "") -> SyntaxDataError:
        message = "was made from another text, with other options or by another model"
        return SyntaxDataError(message, path=path, hint=f"remove {self.folder}" + (f", or {hint}" if hint else ""))

    @contextmanager
    def being_made(self) -> Iterator[None]:
        """The folder of the parts; after an error it stays if there are parts in it, for the next run."""
        self.clear_others()
        self.make_folder()
        try:
            yield
        except BaseException:
            if isinstance(self.folder, Path):
                with suppress(OSError):
                    self.folder.rmdir()
            raise
        self.remove()

    def make_folder(self, spans: Iterable[tuple[int, int]] | None = None) -> None:
        """Makes the folder, and removes what killed runs left of parts there.

        Args:
            spans: of the parts that this run makes, where others are being made beside it

        Raises:
            SyntaxDataError: it cannot be made
        """
        make_folder(self.folder)
        if isinstance(self.folder, Path):
            remove_leftovers(self.folder, None if spans is None else {self.path(span).name for span in spans})

    def check_folder(self) -> None:
        """Makes sure, where parts are about to be made, that it is where they belong.

        Raises:
            SyntaxDataError: the folder is not there, as on a machine that does not share its disks
        """
        if isinstance(self.folder, Path) and not self.folder.is_dir():
            raise SyntaxDataError(
                f"is not there on {socket.gethostname()}",
                path=self.folder,
                hint="write to a file system that all machines share, or to an s3:// URI",
            )

    def commit(self, span: tuple[int, int], body: bytes) -> None:
        """Writes a part. Raises SyntaxDataError where that fails."""
        with atomic_open_binary(self.path(span), leftovers=False) as file:
            file.write(self._header(span, body) + body)

    def body(self, span: tuple[int, int]) -> bytes:
        """The content of a part that is whole. Raises SyntaxDataError if it has changed since."""
        try:
            header, _, body = self.path(span).read_bytes().partition(b"\n")
        except OSError:
            header, body = b"", b""
        if header + b"\n" != self._header(span, body):
            raise SyntaxDataError(
                "changed while it was being merged", path=self.path(span), hint="run the command again"
            )
        return body

    def remove(self) -> None:
        """Removes the parts."""
        remove_folder(self.folder)

    def _header(self, span: tuple[int, int], body: bytes) -> bytes:
        digest = hashlib.sha256(body).hexdigest()
        return f"# part = {span[0]}-{span[1]} {self.fingerprint} {digest}\n".encode()


def _fingerprint_in(header: bytes) -> str | None:
    """The fingerprint by the first line of a part; None where it is none, as in a damaged part."""
    words = header.decode("ascii", "replace").split()
    return words[4] if words[:3] == ["#", "part", "="] and len(words) == 6 else None


def part_spans(n_lines: int, part_lines: int) -> list[tuple[int, int]]:
    """The line spans [start, end) of all parts of a text."""
    return [(start, min(start + part_lines, n_lines)) for start in range(0, n_lines, part_lines)]


# ------------------------------------------------------------------------------------------------------- workers


def cores() -> int:
    """The cores that this process may use: fewer than the machine has under ``taskset``, or in a job of Slurm."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers(Protocol):
    """Others who do tasks: processes somewhere, placed by whatever schedules them."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Iterable[Task],
        *,
        start: Callable[..., None] | None,
        arguments: Sequence[Any],
        ordered: bool,
        hint: str,
    ) -> Iterator[Result]:
        """As :func:`in_workers`. A task whose worker is lost is done again, so that it may be done more than once."""
        ...


def in_workers(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int | Workers,
    start: Callable[..., None] | None = None,
    arguments: Sequence[Any] = (),
    method: str = "fork",
    ordered: bool = True,
    hint: str = "run the command again with fewer workers: it continues",
) -> Iterator[Result]:
    """Does tasks in this process, or in several others, and yields their results.

    A few tasks are on their way at a time, so that their source is not read ahead. Workers end with this process,
    however it ends.

    Args:
        work: a function of a module, applied to each task
        tasks: read in this process
        workers: processes; with 1 everything happens here; or others, such as those of ``runtime/ray_workers.py``
        start: called in each process, with ``arguments``, before its first task
        method: how processes of this machine are started; ``spawn`` where threads or devices forbid ``fork``
        ordered: results in the order of the tasks, or as they come
        hint: what to do when a worker is killed

    Raises:
        SyntaxDataError: a worker was killed; or whatever ``start`` and ``work`` raise
    """
    if not isinstance(workers, int):
        yield from workers.run(work, tasks, start=start, arguments=arguments, ordered=ordered, hint=hint)
        return
    if workers <= 1:
        if start is not None:
            start(*arguments)
        yield from map(work, tasks)
        return
    pool = ProcessPoolExecutor(workers, get_context(method), _start_worker, (start, tuple(arguments)))
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(_do, work, task))
            if len(waiting) >= 2 * workers + 1:
                yield _next(waiting, ordered)
        while waiting:
            yield _next(waiting, ordered)
    except BrokenProcessPool as error:
        raise SyntaxDataError("a worker process was killed, for want of memory as a rule", hint=hint) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _next(waiting: deque[Future[Result]], ordered: bool) -> Result:
    if ordered:
        return waiting.popleft().result()
    done = next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
    waiting.remove(done)
    return done.result()


_failed_start: BaseException | None = None  # of this process, where it is a worker


def _start_worker(start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    global _failed_start
    parent = parent_process()
    if parent is not None:
        # A parent that is killed cannot tell its workers, and they would wait for work for ever.
        threading.Thread(target=lambda: (connection.wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    if start is not None:
        try:
            start(*arguments)
        except BaseException as error:  # which would end the worker, and look like a kill
            _failed_start = error


def _do(work: Callable[[Task], Result], task: Task) -> Result:
    if _failed_start is not None:
        raise _failed_start
    return work(task)
