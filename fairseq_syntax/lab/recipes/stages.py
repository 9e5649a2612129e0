"""Stages of a recipe: commands, as typed in a shell, with their input and output files.

The fingerprint of a stage consists of the words of its commands and the *content* of its inputs. File names do not
count, nor do words that cannot change a result, such as the number of worker processes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import fairseq_syntax
from fairseq_syntax.errors import KEPT_WITHOUT_MODELS, SyntaxDataError
from fairseq_syntax.plugins import VARIABLE as PLUGINS_VARIABLE
from fairseq_syntax.runtime.digests import file_sha256, fingerprint
from fairseq_syntax.runtime.files import files_below
from fairseq_syntax.runtime.jobs import RecordedStep, read_record
from fairseq_syntax.runtime.recipe_stage import starts_in

_NO_CORPUS = "--data DIR names its folder; --set corpus.download=true fetches it, if its reader can"
# In the order of execution. --to stops after a kind; a recipe's own commands run before the stages of a kind.
Kind = Literal["corpus", "filter", "parse", "pieces", "control", "binarize", "train", "translate", "score", "report"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Out:
    """A file, folder or prefix that a command writes, or whose content does not count."""

    path: Path

    def __str__(self) -> str:
        return shown_path(self.path)


class In(Out):
    """A file or folder that a command reads, whose content counts."""


class Free(str):
    """A word that does not affect the result, such as the number of worker processes."""


Word = str | In | Out
USER_DIR = os.path.dirname(os.path.abspath(fairseq_syntax.__file__))
# As typed in a shell; the place of installation does not affect results and differs between machines.
_USER_DIR = Free("$(fairseq-syntax user-dir)")
PLUGIN: tuple[Word, ...] = (Free("--user-dir"), _USER_DIR, "--task", "syntax_translation")


def options(values: Mapping[str, Any]) -> list[Word]:
    """Options of a command: ``{"lr": 0.1, "amp": True, "betas": [1, 2]}`` becomes ``--lr 0.1 --amp --betas 1 2``.

    A mapping becomes one option per key, ``--test NAME=VALUE``. None, False and empty values omit the option. If the
    values do not affect the result, neither does the option.
    """
    words: list[Word] = []
    for key, value in values.items():
        option = f"--{key.replace('_', '-')}"
        if value is True or value == "true":
            words.append(option)
        elif isinstance(value, Mapping):
            words += [word for name, one in value.items() for word in (option, f"{name}={one}")]
        elif value is not None and value is not False and value not in ("false", [], ()):  # 0 is a value
            many = value if isinstance(value, (list, tuple)) else [value]
            words.append(Free(option) if all(isinstance(one, Free) or type(one) is Out for one in many) else option)
            words += [one if isinstance(one, Word) else str(one) for one in many]
    return words


def shown_path(path: str | os.PathLike[str], folder: str | os.PathLike[str] = os.curdir) -> str:
    """A path as typed in a folder: relative, or absolute if it is far away or shorter so."""
    relative, absolute = os.path.relpath(path, folder), os.path.abspath(path)
    far = relative.startswith(os.path.join("..", "..", "..")) or len(absolute) < len(relative)
    return absolute if far else relative


@dataclass(frozen=True)
class StageCommand:
    """A command line.

    Args:
        words: the program and its arguments
        stdout: a file for standard output, instead of the stage's log
        plugins: folders of plugins, given in the environment, since fairseq's ``--user-dir`` is this package's
    """

    words: Sequence[Word]
    stdout: Path | None = None
    plugins: Sequence[Path] = ()

    def __str__(self) -> str:
        """The command as typed in a shell."""
        texts = [f"{PLUGINS_VARIABLE}={shlex.quote(self._folders(shown_path))}"] if self.plugins else []
        texts += [f'"{word}"' if word is _USER_DIR else shlex.quote(str(word)) for word in self.words]
        return " ".join(texts) + (f" > {shlex.quote(shown_path(self.stdout))}" if self.stdout else "")

    def variables(self) -> dict[str, str]:
        """Its environment variables in addition to those of the recipe."""
        return {PLUGINS_VARIABLE: self._folders(os.path.abspath)} if self.plugins else {}

    def _folders(self, name: Callable[[Path], str]) -> str:
        return os.pathsep.join(map(name, self.plugins))

    def arguments(self) -> list[str]:
        """The command as executed, with this Python regardless of PATH."""
        program, *rest = [USER_DIR if word is _USER_DIR else str(word) for word in self.words]
        if program == "fairseq-syntax":
            return [sys.executable, "-m", "fairseq_syntax", *rest]
        if program.startswith("fairseq-"):
            return [sys.executable, "-m", f"fairseq_cli.{program.removeprefix('fairseq-')}", *rest]
        return [program, *rest]


@dataclass(frozen=True)
class Stage:
    """Commands that make output files from input files.

    Args:
        stamp: a file of the recipe next to which the record of the stage is stored, because commands keep their own
            records and locks next to their outputs
        reads: inputs in addition to those in the commands' words
        listed: folders whose file names and sizes count
        log: a log that a command writes for the report: it does not make the stage another one, but it is recorded
        resumed: patterns of files next to the outputs with which the commands would resume
        run: the system and seed that it belongs to, if any
        about: further values on which it depends
        after: the names of stages that precede it, in addition to those that make its inputs
    """

    kind: Kind
    name: str
    commands: tuple[StageCommand, ...]
    outputs: tuple[Path, ...]
    stamp: Path
    reads: tuple[Path, ...] = ()
    listed: tuple[Path, ...] = ()
    log: Path | None = None
    resumed: tuple[str, ...] = ()
    run: str | None = None
    about: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[Path]:
        """All inputs."""
        words = [word.path for command in self.commands for word in command.words if isinstance(word, In)]
        return list(dict.fromkeys([*words, *self.reads]))

    def missing(self) -> list[Path]:
        """The inputs that do not exist."""
        return [path for path in (*self.inputs, *self.listed) if not path.exists()]

    def step(self) -> RecordedStep:
        """The step of the stage for its current inputs. Raises SyntaxDataError if one is missing."""
        for path in self.missing():
            raise missing_input(self, path)
        words = [word for command in self.commands for word in command.words if type(word) in (str, In)]
        parts = [content(word.path) if isinstance(word, In) else word for word in words]
        parts += [content(path) for path in self.reads] + [_listing(path) for path in self.listed]
        return RecordedStep((self.stamp, *self.outputs), fingerprint(self.kind, parts, self.about))

    def is_done(self) -> bool:
        """Whether all outputs exist and were made from the current inputs."""
        return not self.missing() and self.step().record() is not None

    def log_is_its_own(self) -> bool:
        """Whether its log is the whole one of its commands, as far as is recorded.

        What was put in its place before an interrupted training resumed does not begin at its first update.
        """
        record = read_record(self.stamp) or {}
        digest = (record.get("note") or {}).get("log")
        if self.log is None or digest is None:
            return True
        if not self.log.is_file() or file_sha256(self.log) != digest:
            return False
        starts = starts_in(self.log.read_text(encoding="utf-8", errors="replace"))  # none before version 0.2
        return not starts or (starts[0][1] == 0 and {stage for stage, _ in starts} == {record["made_from"]})

    def is_stale(self) -> bool:
        """Whether its outputs, if any, were made from other inputs than the current ones; False if one is missing."""
        record = read_record(self.stamp)
        if record is None or self.missing():
            return False
        return record.get("outputs") is None or record["made_from"] != self.step().made_from

    def prepare(self, step: RecordedStep) -> list[Path]:
        """Remove files with which the commands would resume although they are not of the interrupted ``step``.

        These are files made from other inputs, and all files of a finished stage of which an output has changed since.

        Returns:
            the outputs that have changed

        Raises:
            SyntaxDataError: there is a model, but no record of what it was trained with
        """
        record = read_record(self.stamp)
        changed = [] if record is None or record["made_from"] != step.made_from else step.changed()
        there = [path for pattern in self.resumed for path in pattern_files(pattern)]
        if record is None and self.kind == "train" and there:
            message = f"exists, but nothing here records that {self.name} made it"
            hint = "remove it to train anew, or give another --output; a copy of the folder needs its hidden files"
            raise SyntaxDataError(message, path=there[0], hint=hint)
        if changed or record is None or record["made_from"] != step.made_from:
            for path in (*changed, *there):
                path.unlink(missing_ok=True)
        return changed


def pattern_files(pattern: str) -> list[Path]:
    """The files that match a pattern in the name, but not in the folder, of a path."""
    folder, _, name = pattern.rpartition("/")
    return sorted(Path(folder).glob(name))


def missing_input(stage: Stage, path: Path) -> SyntaxDataError:
    """The error of an input of a stage that does not exist."""
    hint = _NO_CORPUS if path in stage.listed else KEPT_WITHOUT_MODELS if path.suffix == ".pt" else None
    return SyntaxDataError(f"is needed for {stage.name}, but does not exist", path=path, hint=hint)


def content(path: Path) -> str:
    """A digest of the content of a file or folder, without logs and hidden files."""
    if path.is_dir():
        return fingerprint(*([name, content(file)] for name, file in _files(path) if file.suffix != ".log"))
    # The stages of a recipe need the digests of the same files repeatedly.
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns, status.st_ino)


@cache
def _digest(path: Path, *_: int) -> str:
    return file_sha256(path)


def _listing(folder: Path) -> str:
    """A fingerprint of the names and sizes of files in a folder, which may be too large to read at each start."""
    return fingerprint(*([name, file.stat().st_size] for name, file in _files(folder)))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files in and below a folder, except hidden ones, sorted by their relative paths."""
    for file in sorted(files_below(folder)):
        if not file.name.startswith("."):
            yield os.fspath(file.relative_to(folder)), file


def dependencies(stages: Sequence[Stage]) -> dict[str, set[str]]:
    """For each stage name, the names of the stages on which it depends.

    Raises:
        SyntaxDataError: the dependencies are cyclic, for example if a command reads the output of a later stage
    """
    makers: dict[Path, str] = {}
    for stage in stages:
        for path in stage.outputs:
            makers[path] = stage.name
            makers.setdefault(path.parent, stage.name)  # for stages that read the whole folder
    needs: dict[str, set[str]] = {}
    for stage in stages:
        before = {makers[path] for path in stage.inputs if path in makers}
        needs[stage.name] = (before | set(stage.after)) - {stage.name}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        hint = "a command runs before what it reads is made: give it a later `before`"
        raise SyntaxDataError(f"stages wait for one another: {' → '.join(error.args[1])}", hint=hint) from None
    return needs


def states(stages: Sequence[Stage]) -> dict[str, str]:
    """The state of each stage by name: ``done``, ``to do``, or ``pending`` if one on which it depends is to do.

    A pending stage is done with its current inputs, and has to run again only if these change.
    """
    needs = dependencies(stages)
    states = {stage.name: "done" if stage.is_done() else "to do" for stage in stages}
    for name in TopologicalSorter(needs).static_order():
        if states[name] == "done" and any(states[before] != "done" for before in needs[name]):
            states[name] = "pending"
    return states


def training_limits(stage: Stage) -> dict[str, float]:
    """The last --max-update and --max-epoch of a stage that trains; those that it does not have are missing."""
    limits: dict[str, float] = {}
    for option, value in pairwise(map(str, stage.commands[0].words)):
        if option in ("--max-update", "--max-epoch"):
            with suppress(ValueError):
                limits[option] = float(value)
    return limits
