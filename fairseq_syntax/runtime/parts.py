"""Long steps in parts, which processes make in any order: :func:`map_parts`.

The source of a step is divided into *parts*. Each part is made and written atomically, and all parts are merged at the
end. A part records a fingerprint of what it was made from and a digest of its content. A killed run resumes with the
missing parts, and the result has the same bytes as that of an uninterrupted run.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import moved_by_parts, progress
from fairseq_syntax.runtime.digests import fingerprint, sha256
from fairseq_syntax.runtime.files import (
    atomic_open_binary,
    check_shared,
    is_replaced,
    make_folder,
    remove_leftovers,
)
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.workers import Workers, in_workers

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Span = tuple[int, int]  # lines [start, end) of the text
Note = dict[str, Any]  # JSON values
Made = tuple[Note, bytes]  # the content of a part


def map_parts(
    step: RecordedStep,
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
) -> tuple[Note, bool]:
    """Make a step in parts, unless it is done; returns its note, and whether it was already done.

    Args:
        source: the line spans of the parts with their inputs, in the order of the text; read in this process
        make: makes the note and the body of a part, in any process; see :func:`.workers.in_workers`
        merge: writes the step's outputs from the parts, and returns a note for the record
        part_lines: the number of lines per part, which is part of the fingerprint
        total: the number of lines in the text, if known, for the progress bar and to notice if the text changes
        workers, method: as in :func:`.workers.in_workers`
        replace: whether outputs and parts of other steps may be removed
        again: repeat the step even if it is done

    Raises:
        SyntaxDataError: the text does not have ``total`` lines any more
    """
    parts = Parts.of(step, part_lines)
    with step.making(replace=replace) as record:
        if record is not None and not again:
            parts.remove()  # left by a run that was killed after its last commit
            return record["note"], True
        parts.make_folder()
        try:
            if total is not None and isinstance(workers, int):
                workers = min(workers, -(-total // part_lines))
            made = make_parts(parts, source, make, total=total, workers=workers, method=method)
            if total not in (None, made.lines):
                parts.remove()  # they are of two texts
                message = f"the text had {total} lines, and {made.lines} when it was read again"
                raise SyntaxDataError(message, path=parts.output, hint="run the command again")
            step.begin()  # only now, so that the outputs of an earlier run stay valid until here
            note: Note = json.loads(json.dumps(merge(made) or {}))  # as it will be read from the record
            step.finish(note)
            parts.remove(of_all_jobs=replace)
            return note, False
        except BaseException:
            with suppress(OSError):  # it contains parts for the next run
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
) -> MadeParts:
    """Make the missing parts of a source; see :func:`map_parts`."""
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
        """Move the bar to the finished parts plus, in this process, the finished share of the current part."""
        within = int(share * (spans[-1][1] - spans[-1][0])) if spans else 0
        bar.update(max(0, done + within - bar.n))

    with progress(total=total, of=parts.output.name) as bar, moved_by_parts(show):
        work = partial(_make_part, parts, make)
        for start, end in in_workers(work, missing(), workers=workers, method=method):
            done += end - start
            show()
    return MadeParts(parts, spans)


def _make_part(parts: Parts, make: Callable[[Task], Made], job: tuple[Span, Task]) -> Span:
    """Make and commit a part; at module level, so that worker processes can unpickle it."""
    span, task = job
    check_shared(parts.folder)
    note, body = make(task)
    parts.commit(span, json.dumps(note).encode() + b"\n" + body)
    return span


@dataclass(frozen=True)
class Parts:
    """The parts of a file that is being made, in the folder ``NAME.parts`` next to it.

    The name of a part contains its fingerprint, so the folder can contain the parts of several jobs.

    Args:
        output: the file
        fingerprint: the fingerprint of its inputs and of its division into parts
    """

    output: Path
    fingerprint: str

    @classmethod
    def of(cls, step: RecordedStep, part_lines: int) -> Parts:
        """The parts of a step, with the given number of lines each."""
        return cls(step.outputs[0].absolute(), fingerprint(step.made_from, part_lines))

    @property
    def folder(self) -> Path:
        """The folder of the parts until they are merged: next to the file or, for a pipe or a device, in ``/tmp``.

        In ``/tmp``, its name contains the fingerprint, so that a later run of the same job finds it.
        """
        if not is_replaced(self.output):
            return Path(tempfile.gettempdir(), f"fairseq-syntax-{self.fingerprint}.parts")
        return self.output.with_name(self.output.name + ".parts")

    def path(self, span: Span) -> Path:
        """The file of a part, whose name contains its lines [start, end) and the fingerprint."""
        # Twelve digits distinguish jobs; the part's first line contains the whole fingerprint.
        return self.folder / f"{span[0]:012d}-{span[1]:012d}.{self.fingerprint[:12]}.part"

    def make_folder(self, spans: Iterable[Span] | None = None) -> None:
        """Create the folder, and remove incomplete parts of killed runs.

        Args:
            spans: the parts of this run, if other processes make parts in the same folder
        """
        make_folder(self.folder)
        remove_leftovers(self.folder, None if spans is None else {self.path(span).name for span in spans})

    def commit(self, span: Span, body: bytes) -> None:
        """Write a part."""
        with atomic_open_binary(self.path(span), leftovers=False) as file:
            file.write(self._header(span, body) + body)

    def is_whole(self, span: Span) -> bool:
        """Whether the part exists and is intact."""
        if self._intact_body(span) is not None:
            return True
        if self.path(span).exists():
            logger.warning("%s is damaged, and is made again", self.path(span))
        return False

    def body(self, span: Span) -> bytes:
        """The body of an intact part. Raises SyntaxDataError if it has changed."""
        if (body := self._intact_body(span)) is None:
            message = "changed while it was being merged"
            raise SyntaxDataError(message, path=self.path(span), hint="run the command again")
        return body

    def _intact_body(self, span: Span) -> bytes | None:
        try:
            header, end, body = self.path(span).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        return body if header + end == self._header(span, body) else None

    def _header(self, span: Span, body: bytes) -> bytes:
        return f"# part = {span[0]}-{span[1]} {self.fingerprint} {sha256(body)}\n".encode()

    def remove(self, *, of_all_jobs: bool = False) -> None:
        """Remove the parts of this job, or of all jobs, and what killed workers left."""
        remove_leftovers(self.folder)
        for path in self.folder.glob("*.part" if of_all_jobs else f"*.{self.fingerprint[:12]}.part"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # if parts of other jobs are left
            self.folder.rmdir()


@dataclass(frozen=True)
class MadeParts:
    """The finished parts of a text; iterates over their notes and bodies, in the order of the text."""

    parts: Parts
    spans: list[Span]

    def __iter__(self) -> Iterator[Made]:
        for span in self.spans:
            note, _, body = self.parts.body(span).partition(b"\n")
            yield json.loads(note), body

    @property
    def lines(self) -> int:
        """The number of lines in the text."""
        return self.spans[-1][1] if self.spans else 0

    def notes(self) -> list[Note]:
        """The notes of all parts."""
        return [note for note, _ in self]


def part_spans(n_lines: int, part_lines: int) -> list[Span]:
    """The line spans [start, end) of all parts of a text."""
    return [(start, min(start + part_lines, n_lines)) for start in range(0, n_lines, part_lines)]
