"""Stages of a recipe: commands that a person could type, with the files that they read and make.

What a stage was made from is its commands' words and the *content* of its inputs. Names of files do not count, nor do
words that cannot change a result, such as the number of worker processes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal, get_args

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import file_sha256, fingerprint
from fairseq_syntax.runtime.jobs import Step

_NO_CORPUS = "--data DIR names its folder; --set corpus.download=true fetches it, if its reader can"
# In the order of the work: --to stops after a kind, and a recipe's own command comes before the stages of one.
Kind = Literal["corpus", "filter", "parse", "pieces", "control", "binarize", "train", "translate", "score", "report"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Out:
    """A file, folder or prefix that a command makes, or reads by a name that does not count."""

    path: Path

    def __str__(self) -> str:
        return shown(self.path)


class In(Out):
    """A file or folder that a command reads: its content counts."""


class Free(str):
    """A word that has no part in the result, such as the number of worker processes."""


Word = str | In | Out
USER_DIR = os.path.dirname(os.path.abspath(fairseq_syntax.__file__))
# As it is typed: where this package is installed has no part in a result, and differs between machines.
_USER_DIR = Free("$(fairseq-syntax user-dir)")
PLUGIN: tuple[Word, ...] = (Free("--user-dir"), _USER_DIR, "--task", "syntax_translation")


def options(values: Mapping[str, Any]) -> list[Word]:
    """Options of a command: ``{"lr": 0.1, "amp": True, "betas": [1, 2]}`` is ``--lr 0.1 --amp --betas 1 2``.

    A mapping is an option for each of its keys, ``--test NAME=VALUE``. None, False and what is empty leave an option
    out. Where the values have no part in the result, neither has the option.
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


def shown(path: str | os.PathLike[str], folder: str | os.PathLike[str] = os.curdir) -> str:
    """A path as it is typed in a folder: relative, or absolute where it is far away."""
    relative = os.path.relpath(path, folder)
    return os.path.abspath(path) if relative.startswith(os.path.join("..", "..", "..")) else relative


@dataclass(frozen=True)
class Command:
    """A command line.

    Args:
        words: the first one names the program, or is ``bash`` before a text for the shell
        stdout: where its output goes, in place of the stage's log
    """

    words: Sequence[Word]
    stdout: Path | None = None

    def __str__(self) -> str:
        """As it is typed."""
        texts = [f'"{word}"' if word is _USER_DIR else shlex.quote(str(word)) for word in self.words]
        return " ".join(texts) + (f" > {shlex.quote(shown(self.stdout))}" if self.stdout else "")

    def arguments(self) -> list[str]:
        """As it is run: by this Python, whatever is on PATH."""
        program, *rest = [USER_DIR if word is _USER_DIR else str(word) for word in self.words]
        if program == "fairseq-syntax":
            return [sys.executable, "-m", "fairseq_syntax", *rest]
        if program.startswith("fairseq-"):
            return [sys.executable, "-m", f"fairseq_cli.{program.removeprefix('fairseq-')}", *rest]
        return [program, *rest]


@dataclass(frozen=True)
class Stage:
    """Commands that make some files out of others, once.

    Args:
        kind: one of :data:`KINDS`
        name: of this stage within the recipe, as it is shown
        outputs: files that are there when it is done
        stamp: a file that is the recipe's own, beside which it is noted that the stage is done: commands have such
            notes and locks of their own beside what they make
        reads: more inputs than the commands' words name
        listed: folders of which the names and sizes of files count
        stale: patterns of files beside the outputs that are removed before the stage is made of something else
        run: the system and seed that it belongs to, if any
        about: what else it depends on
        after: names of stages that come before it, beside those that make its inputs
    """

    kind: str
    name: str
    commands: tuple[Command, ...]
    outputs: tuple[Path, ...]
    stamp: Path
    reads: tuple[Path, ...] = ()
    listed: tuple[Path, ...] = ()
    stale: tuple[str, ...] = ()
    run: str | None = None
    about: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[Path]:
        """All that it reads."""
        words = [word.path for command in self.commands for word in command.words if isinstance(word, In)]
        return list(dict.fromkeys([*words, *self.reads]))

    def missing(self) -> list[Path]:
        """Inputs that are not there."""
        return [path for path in (*self.inputs, *self.listed) if not path.exists()]

    def step(self) -> Step:
        """The record of the stage as it stands: its inputs have to be there.

        Raises:
            SyntaxDataError: an input is missing
        """
        for path in self.missing():
            hint = _NO_CORPUS if path in self.listed else None
            raise SyntaxDataError(f"is needed for {self.name}, but does not exist", path=path, hint=hint)
        parts: list[str] = []
        for command in self.commands:
            for word in command.words:
                if isinstance(word, In):
                    parts.append(content(word.path))
                elif type(word) is str:
                    parts.append(word)
        parts += [content(path) for path in self.reads] + [_listing(path) for path in self.listed]
        return Step((self.stamp, *self.outputs), fingerprint(self.kind, parts, self.about))

    def is_done(self) -> bool:
        """Whether all of it is there, made from what it would be made from now."""
        return not self.missing() and self.step().record() is not None

    def remove_stale(self) -> None:
        """Remove what was made of something else, where a command would go on with it."""
        for pattern in self.stale:
            folder, _, name = pattern.rpartition("/")
            for path in Path(folder).glob(name):
                path.unlink(missing_ok=True)


def content(path: Path) -> str:
    """What a file or a folder holds, as a digest; logs and hidden files do not count."""
    if path.is_dir():
        return fingerprint(*([name, content(file)] for name, file in _files(path) if file.suffix != ".log"))
    # All stages of a recipe ask for the same files again and again, within one process.
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns, status.st_ino)


@cache
def _digest(path: Path, *_: int) -> str:
    return file_sha256(path)


def _listing(folder: Path) -> str:
    """The files of a folder that may be too large to be read at each start."""
    return fingerprint(*([name, file.stat().st_size] for name, file in _files(folder)))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder and below, but for hidden ones, sorted: each by its path from there."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            yield os.fspath(file.relative_to(folder)), file


def dependencies(stages: Sequence[Stage]) -> dict[str, set[str]]:
    """The names of the stages that each stage, by name, has to wait for.

    Raises:
        SyntaxDataError: stages wait for one another, as where a command of the recipe reads what comes after it
    """
    makers: dict[Path, str] = {}
    for stage in stages:
        for path in stage.outputs:
            makers[path] = stage.name
            makers.setdefault(path.parent, stage.name)  # a folder that is read as a whole
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
