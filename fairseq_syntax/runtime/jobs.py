"""Resumable steps: output files with a record of how they were made.

A :class:`RecordedStep` makes output files from inputs. When it is done, ``.NAME.made.json`` next to its first output
records a fingerprint of the inputs' content and the relevant options, and the SHA-256 of each output. The step counts
as done as long as neither inputs nor outputs change. The usual way to run one::

    step = RecordedStep.of("train", [folder / "model.pt"], [data, config], epochs=10, seed=1)
    with step.making() as record:      # holds the step's lock; None if it is not done
        if record is None:
            step.begin()               # marks the outputs as incomplete
            ...                        # write them, by files.atomic_open
            step.finish({"BLEU": 31.2})
    step.record()["note"]              # {"BLEU": 31.2}

The fingerprint must not contain what does not change the outputs (threads, workers, file names). A program that starts
others ends them in :func:`fairseq_syntax.runtime.commands.on_termination`. Long steps are made in parts:
:mod:`fairseq_syntax.runtime.parts`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import file_sha256, fingerprint
from fairseq_syntax.runtime.files import (
    StrPath,
    is_replaced,
    make_folder,
    read_json,
    write_json,
)
from fairseq_syntax.runtime.locks import locked


@dataclass(frozen=True)
class RecordedStep:
    """Output files made from inputs, with a record of whether they are complete.

    A step that writes to a pipe or a device, such as ``/dev/stdout``, has no record and is never done.

    Args:
        outputs: the files; the record is next to the first one
        made_from: a fingerprint of the content of all inputs and of all relevant options
    """

    outputs: tuple[Path, ...]
    made_from: str

    @classmethod
    def of(
        cls, name: str, outputs: Sequence[StrPath], inputs: Sequence[StrPath] = (), **options: object
    ) -> RecordedStep:
        """A step given by its name, its inputs, and its options (JSON values; paths are represented by their names)."""
        content = [file_sha256(path) for path in inputs]
        return cls(tuple(map(Path, outputs)), fingerprint(name, content, options))

    def record(self) -> dict[str, Any] | None:
        """The record of the step: ``made_from``, ``outputs`` (digests by name) and ``note``; None if it is not done.

        A step is not done if it was only begun, was made from something else, or an output is missing or has changed;
        nor if its outputs have changed their names among themselves, since names are not in the fingerprint.
        """
        record = read_record(self.outputs[0])
        if record is None or record["made_from"] != self.made_from or record.get("outputs") is None:
            return None
        # In order: files that have swapped their names have the same digests by name, but are to be swapped.
        is_done = all(map(Path.is_file, self.outputs)) and [*record["outputs"].items()] == [*self._digests().items()]
        return record if is_done else None

    def changed(self) -> list[Path]:
        """The outputs that are missing or not those of the step's record; empty if they were not finished."""
        recorded = (read_record(self.outputs[0]) or {}).get("outputs") or {}
        digests = {path: recorded.get(os.path.relpath(path, self.outputs[0].parent)) for path in self.outputs}
        return [p for p, digest in digests.items() if digest and not (p.is_file() and file_sha256(p) == digest)]

    def begin(self) -> None:
        """Record that the outputs belong to this step but are incomplete."""
        self._write({"outputs": None})

    def finish(self, note: Mapping[str, Any] | None = None) -> None:
        """Record that the outputs are complete, with ``note`` (JSON)."""
        if self._has_record:
            self._write({"outputs": self._digests(), "note": dict(note or {})})

    @property
    def _has_record(self) -> bool:
        return all(map(is_replaced, self.outputs))

    def _digests(self) -> dict[str, str]:
        return {os.path.relpath(path, self.outputs[0].parent): file_sha256(path) for path in self.outputs}

    def _write(self, state: Mapping[str, Any]) -> None:
        if self._has_record:
            write_json(record_path(self.outputs[0]), {"made_from": self.made_from, **state})

    @contextmanager
    def making(
        self, *, replace: bool = True, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[dict[str, Any] | None]:
        """A context that holds the step's lock; yields the record if the step is done, maybe by another process.

        Args:
            replace: whether existing outputs that this step did not make may be replaced
            stopped: as in :func:`.locks.locked`
        """
        for output in self.outputs:
            make_folder(output.parent)
        with locked(self.outputs[0], stopped):
            record = self.record()
            if record is None and not replace:
                self.check_replaceable()
            yield record

    def check_replaceable(self) -> None:
        """Raise SyntaxDataError if an output exists that this step did not make, or that has changed since."""
        record = read_record(self.outputs[0]) or {}
        is_ours = record.get("made_from") == self.made_from
        if is_ours and record.get("outputs") is None:
            return  # a run of this step was killed
        for path in self.outputs:
            if path.is_file():
                reason = "has changed since it was made by this command"
                if not is_ours:
                    reason = "exists, and was made from another input, with other options or by another model"
                raise SyntaxDataError(reason, path=path, hint="give another --output, or --overwrite")


def record_path(output: StrPath) -> Path:
    """The path of a file's record."""
    path = Path(output)
    return path.with_name(f".{path.name}.made.json")


def read_record(output: StrPath) -> dict[str, Any] | None:
    """Read a file's record: ``made_from``, ``outputs`` (None while they are made) and ``note``; None if missing."""
    record = read_json(record_path(output))
    return record if isinstance(record.get("made_from"), str) else None
