"""Long steps in parts, which any process makes in any order: :func:`map_parts`.

The source of a step is cut into *parts*, each made by itself and written atomically, and all of them merged at the end.
Each part has the fingerprint of what it was made from, and a digest of its content. A run that was killed resumes with
the parts that are missing, and the bytes of the result are those of one uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import moved_by_parts, progress
from fairseq_syntax.runtime.files import atomic_open_binary, fingerprint, is_replaced, make_folder, remove_leftovers
from fairseq_syntax.runtime.jobs import Step
from fairseq_syntax.runtime.workers import FEWER_WORKERS, Workers, in_workers

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Span = tuple[int, int]  # lines [start, end) of the text
Note = dict[str, Any]  # JSON
Made = tuple[Note, bytes]  # what a part holds


class Outcome(NamedTuple):
    """The result of :func:`map_parts`: the step's note, and whether the step had been done before."""

    note: Note
    was_done: bool


def map_parts(
    step: Step,
    source: Iterable[tuple[Span, Task]],
    make: Callable[[Task], Made],
    merge: Callable[[MadeParts], Note | None],
    *,
    part_lines: int,
    total: int | None = None,
    workers: int | Workers = 1,
    method: str = "fork",
    replace: bool = True,
    again: bool = False,
    hint: str = FEWER_WORKERS,
) -> Outcome:
    """Makes a step in parts, unless it is done.

    Args:
        source: the parts' spans of lines and what each is made from, in the order of the text; read in this process
        make: makes the note and the body of a part, in any process; see :func:`.workers.in_workers`
        merge: writes the step's outputs from the parts, and returns a note for its record
        part_lines: lines of a part, which its fingerprint holds
        total: lines of the text, for the progress bar, where they are known
        workers, method, hint: as of :func:`.workers.in_workers`
        replace: False: neither outputs nor parts of another step are to be removed
        again: make it though it is done

    Raises:
        SyntaxDataError: bad input, a worker was killed, something cannot be written or is not to be replaced
    """
    parts = Parts.of(step, part_lines)
    with step.making(replace=replace) as record:
        if record is not None and not again:
            parts.remove()  # which a run that was killed after its last commit left
            return Outcome(record["note"], True)
        parts.make_folder()
        try:
            if total is not None and isinstance(workers, int):
                workers = min(workers, -(-total // part_lines))
            made = make_parts(parts, source, make, total=total, workers=workers, method=method, hint=hint)
            step.begin()  # only now: until here the outputs of an earlier run stay valid
            note: Note = json.loads(json.dumps(merge(made) or {}))  # as the record will give it
            step.finish(note)
            parts.remove(of_all_jobs=replace)
            return Outcome(note, False)
        except BaseException:
            with suppress(OSError):  # it has parts for the next run
                parts.folder.rmdir()
            raise


def make_parts(
    parts: Parts,
    source: Iterable[tuple[Span, Task]],
    make: Callable[[Task], Made],
    *,
    total: int | None = None,
    workers: int | Workers = 1,
    method: str = "fork",
    hint: str = FEWER_WORKERS,
) -> MadeParts:
    """Makes the parts of a source that are missing; see :func:`map_parts`."""
    spans: list[Span] = []
    done = 0

    def missing() -> Iterator[tuple[Span, Task]]:
        nonlocal done
        for span, task in source:
            spans.append(span)
            if parts.is_whole(span):
                done += span[1] - span[0]
                show()
            else:
                yield span, task

    def show(share: float = 0.0) -> None:
        """Moves the bar to what is done, and, in this process, to a share of the part that is being made."""
        within = int(share * (spans[-1][1] - spans[-1][0])) if spans else 0
        bar.update(max(0, done + within - bar.n))

    with progress(total=total, of=parts.output.name) as bar, moved_by_parts(show):
        work = partial(_make_part, parts, make)
        for start, end in in_workers(work, missing(), workers=workers, method=method, hint=hint):
            done += end - start
            show()
    return MadeParts(parts, spans)


def _make_part(parts: Parts, make: Callable[[Task], Made], job: tuple[Span, Task]) -> Span:
    """Makes and commits a part; a function of the module, so that worker processes can unpickle it."""
    span, task = job
    parts.check_folder()
    note, body = make(task)
    parts.commit(span, json.dumps(note).encode() + b"\n" + body)
    return span


@dataclass(frozen=True)
class Parts:
    """The parts of a file that is being made: a folder of them beside it, ``NAME.parts``.

    A part has its fingerprint in its name, so that those of several jobs lie beside each other.

    Args:
        output: the file
        fingerprint: of all that it is made from, and of how it is cut
    """

    output: Path
    fingerprint: str

    @classmethod
    def of(cls, step: Step, part_lines: int) -> Parts:
        """The parts that a step is made in, of so many lines each."""
        return cls(step.outputs[0].absolute(), fingerprint(step.made_from, part_lines))

    @property
    def folder(self) -> Path:
        """The folder of the parts until they are merged: next to the file, or, for a pipe or a device, in ``/tmp``.

        There it is named by the fingerprint, so that a later run of the same job finds it.
        """
        if not is_replaced(self.output):
            return Path(tempfile.gettempdir(), f"fairseq-syntax-{self.fingerprint}.parts")
        return self.output.with_name(self.output.name + ".parts")

    def path(self, span: Span) -> Path:
        """The file of a part, which is named by its lines [start, end) and what it is made from."""
        # Twelve digits tell jobs apart; the part's first line has the whole fingerprint.
        return self.folder / f"{span[0]:012d}-{span[1]:012d}.{self.fingerprint[:12]}.part"

    def is_whole(self, span: Span) -> bool:
        """Whether the part exists and is intact; a damaged one is to be made again."""
        header, body = self._read(span)
        if header == self._header(span, body):
            return True
        if self.path(span).exists():
            logger.warning("%s is damaged, and is made again", self.path(span))
        return False

    def make_folder(self, spans: Iterable[Span] | None = None) -> None:
        """Makes the folder, and removes what killed runs left of parts there.

        Args:
            spans: of the parts that this run makes, where others are being made beside it

        Raises:
            SyntaxDataError: it cannot be made
        """
        make_folder(self.folder)
        remove_leftovers(self.folder, None if spans is None else {self.path(span).name for span in spans})

    def check_folder(self) -> None:
        """Checks, before a part is made, that its folder is there.

        Raises:
            SyntaxDataError: it is not, as on a machine that does not share its disks
        """
        if not self.folder.is_dir():
            raise SyntaxDataError(
                f"is not there on {socket.gethostname()}",
                path=self.folder,
                hint="write to a file system that all machines share",
            )

    def commit(self, span: Span, body: bytes) -> None:
        """Writes a part. Raises SyntaxDataError where that fails."""
        with atomic_open_binary(self.path(span), leftovers=False) as file:
            file.write(self._header(span, body) + body)

    def body(self, span: Span) -> bytes:
        """The content of a part that is whole. Raises SyntaxDataError if it has changed since."""
        header, body = self._read(span)
        if header != self._header(span, body):
            message = "changed while it was being merged"
            raise SyntaxDataError(message, path=self.path(span), hint="run the command again")
        return body

    def _read(self, span: Span) -> tuple[bytes, bytes]:
        """The first line of a part and the rest; nothing where there is none."""
        try:
            header, end, body = self.path(span).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return b"", b""
        except OSError as error:
            raise SyntaxDataError(f"cannot be read: {error.strerror}", path=self.path(span)) from error
        return header + end, body

    def remove(self, *, of_all_jobs: bool = False) -> None:
        """Removes the parts of this job, or those of all jobs."""
        for path in self.folder.glob("*.part" if of_all_jobs else f"*.{self.fingerprint[:12]}.part"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # where others are left
            self.folder.rmdir()

    def _header(self, span: Span, body: bytes) -> bytes:
        digest = hashlib.sha256(body).hexdigest()
        return f"# part = {span[0]}-{span[1]} {self.fingerprint} {digest}\n".encode()


@dataclass(frozen=True)
class MadeParts:
    """The parts of a text, all of them made: iteration gives each one's note and body, in the order of the text."""

    parts: Parts
    spans: list[Span]

    def __iter__(self) -> Iterator[Made]:
        for span in self.spans:
            note, _, body = self.parts.body(span).partition(b"\n")
            yield json.loads(note), body

    @property
    def lines(self) -> int:
        """The lines of the text."""
        return self.spans[-1][1] if self.spans else 0

    def notes(self) -> list[Note]:
        """The notes of all parts."""
        return [note for note, _ in self]


def part_spans(n_lines: int, part_lines: int) -> list[Span]:
    """The line spans [start, end) of all parts of a text."""
    return [(start, min(start + part_lines, n_lines)) for start in range(0, n_lines, part_lines)]
