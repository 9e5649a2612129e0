"""Resumable steps: output files with a record of what made them.

A :class:`Step` makes output files from inputs. When it is done, ``.NAME.made.json`` beside its first output records
what it was made from (a fingerprint of the inputs' content and of the options that matter) and the SHA-256 of each
output, so a step is done only as long as neither its inputs nor its outputs have changed. The short way to run one::

    step = Step.of("train", [folder / "model.pt"], [data, config], epochs=10, seed=1)
    with step.making() as record:      # holds the step's lock; None: it is not done
        if record is None:
            step.begin()               # from now on the outputs are this step's, though incomplete
            ...                        # write them, by files.atomic_open
            step.finish({"BLEU": 31.2})
    step.record()["note"]              # {"BLEU": 31.2}

What does not change the outputs (threads, workers, the names of files) stays out of the fingerprint. A program that
starts others ends them in :func:`fairseq_syntax.runtime.commands.on_termination`. Steps that take long are made in
parts: :mod:`fairseq_syntax.runtime.parts`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import file_sha256, fingerprint, is_replaced, make_folder, read_json, write_json
from fairseq_syntax.runtime.locks import locked


@dataclass(frozen=True)
class Step:
    """Output files that are made from inputs, with a record of whether they are complete.

    A step that writes to a pipe or a device, such as ``/dev/stdout``, has no record and is never done.

    Args:
        outputs: the files; the record lies beside the first
        made_from: a fingerprint of the content of all inputs and of all options that matter
    """

    outputs: tuple[Path, ...]
    made_from: str

    @classmethod
    def of(
        cls,
        name: str,
        outputs: Sequence[str | os.PathLike[str]],
        inputs: Sequence[str | os.PathLike[str]] = (),
        **options: object,
    ) -> Step:
        """A step by its name, the files that it reads, and its options (JSON values; paths count by their names).

        Raises:
            SyntaxDataError: an input cannot be read
        """
        content = [file_sha256(path) for path in inputs]
        return cls(tuple(map(Path, outputs)), fingerprint(name, content, options))

    @property
    def record_path(self) -> Path:
        """The path of the record that the step is done."""
        return record_path(self.outputs[0])

    @property
    def _has_record(self) -> bool:
        return all(map(is_replaced, self.outputs))

    def record(self) -> dict[str, Any] | None:
        """The record of the step: ``made_from``, ``outputs`` (digests by name) and ``note``; None where it is not done.

        That is: it was only begun, was made from something else, or an output is missing or has changed.
        """
        record = read_record(self.outputs[0])
        if record is None or record["made_from"] != self.made_from or record.get("outputs") is None:
            return None
        files = {self._name(path): path for path in self.outputs}
        digests = record["outputs"]
        if set(digests) != set(files) or not all(path.is_file() for path in files.values()):
            return None
        same = all(file_sha256(path) == digests[name] for name, path in files.items())
        return record if same else None

    def _name(self, output: Path) -> str:
        return os.path.relpath(output, self.outputs[0].parent)

    def begin(self) -> None:
        """Record that the outputs belong to this step but are incomplete. Raises SyntaxDataError."""
        if self._has_record:
            write_json(self.record_path, {"made_from": self.made_from, "outputs": None})

    def finish(self, note: Mapping[str, Any] | None = None) -> None:
        """Records that the outputs are complete; ``note`` is kept with that (JSON). Raises SyntaxDataError."""
        if self._has_record:
            outputs = {self._name(path): file_sha256(path) for path in self.outputs}
            record = {"made_from": self.made_from, "outputs": outputs, "note": dict(note or {})}
            write_json(self.record_path, record)

    @contextmanager
    def making(self, *, replace: bool = True) -> Iterator[dict[str, Any] | None]:
        """Holds the step's lock; gives the record if the step is done, maybe by another process in the meantime.

        Args:
            replace: False: what is under the outputs' names and was not made by this step is not to be replaced

        Raises:
            SyntaxDataError: the folder cannot be written to, or there is something that is not to be replaced
        """
        make_folder(self.outputs[0].parent)
        with locked(self.outputs[0]):
            record = self.record()
            if record is None and not replace:
                self.check_replaceable()
            yield record

    def check_replaceable(self) -> None:
        """Raises SyntaxDataError where an output exists that this step did not make, or that has changed since."""
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


def record_path(output: str | os.PathLike[str]) -> Path:
    """The path of the record of what a file was made from."""
    path = Path(output)
    return path.with_name(f".{path.name}.made.json")


def read_record(output: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The record of a file: ``made_from``, ``outputs`` (null while it is being made) and ``note``; None without one."""
    record = read_json(record_path(output))
    return record if isinstance(record.get("made_from"), str) else None
