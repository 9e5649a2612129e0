"""An experiment: its cells, their steps and files, and what is scored; :mod:`.plan_file` reads it from YAML."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import file_sha256
from fairseq_syntax.runtime.files import fingerprint as fingerprint_of

_SIGN = re.compile(r"\$\{|\{(\w+)\}|\{\{|\}\}|\}")
_SIGN_WITHIN = re.compile(r"\$\{|\{(\w+)\}|\{\{|\}")  # of the shell's ${…}, where }} ends two of them
RESERVED = ("root", "system", "seed", "dir")  # variables that are always there


@dataclass(frozen=True)
class Step:
    """A command and the files that it makes, both still with their ``{variables}``."""

    name: str
    run: str
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Test:
    """A test set to score: the keys under ``results.NAME``."""

    name: str
    ref: tuple[str, ...]
    sys: str
    src: str | None = None
    parse: str | None = None
    only: tuple[str, ...] | None = None
    baseline: str | None = None
    options: Mapping = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """A number of each cell, found in a JSON file under a dotted key; or a published figure of each system."""

    name: str
    file: str = ""
    key: str = ""
    digits: int = 2
    only: tuple[str, ...] | None = None
    published: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Keep:
    """What stays of a finished cell: files of the work directory, with their ``{variables}``, and where they go."""

    folder: Path
    files: tuple[str, ...]


@dataclass(frozen=True)
class Shares:
    """How much of the gains is syntax: the page to write, the controls, by name, in words, and properties as in
    ``fairseq-syntax score --by``."""

    page: Path
    baseline: str
    controls: Mapping[str, str]
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """One step of one cell, ready to run.

    Attributes:
        cell: ``"SYSTEM/SEED"``, or ``"prepare"``
        fingerprint: of this command, the names of its outputs, its environment, what its inputs hold, and all before it
            in the cell
        inputs: what each input holds, as :meth:`Experiment.content` says it
    """

    cell: str
    step: str
    command: str
    outputs: tuple[str, ...]
    fingerprint: str
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Experiment:
    """A YAML file, read and checked; see the module's text for its keys."""

    path: Path
    name: str
    workdir: Path
    record: Path
    table: Path
    env: dict[str, str]
    vars: dict[str, str]
    seeds: list[int]
    systems: dict[str, dict[str, str]]
    prepare: list[Step]
    steps: list[Step]
    tests: list[Test]
    values: list[Value]
    keep: Keep | None = None
    shares: Shares | None = None
    known: dict[str, str] = field(default_factory=dict)  # what inputs held when the record was written

    def cells(self) -> list[tuple[str, int]]:
        return [(system, seed) for seed in self.seeds for system in self.systems]

    def chosen(self, only: Collection[str] | None) -> list[tuple[str, int]]:
        """The cells of some systems, or some cells, by name (``pascal``, ``pascal/2``); all for None.

        Raises:
            SyntaxDataError: nothing has that name
        """
        names = {(system, seed): {system, f"{system}/{seed}"} for system, seed in self.cells()}
        for name in only or ():
            if not any(name in mine for mine in names.values()):
                raise SyntaxDataError(f"no system or cell is called {name}", path=self.path)
        return [cell for cell, mine in names.items() if not only or not mine.isdisjoint(only)]

    def planned(self) -> dict[str, dict[str, list[int]]]:
        """Of each test set, the systems that it is for, and their seeds."""
        return {t.name: {s: self.seeds for s in self.systems if t.only is None or s in t.only} for t in self.tests}

    def variables(self, system: str | None = None, seed: int | None = None) -> Mapping[str, str]:
        """All variables of a cell (or of ``prepare``), with the variables inside their values filled in."""
        given = {"root": os.path.relpath(self.path.parent, self.workdir)}
        if system is not None:
            given |= {"system": system, "seed": str(seed), "dir": f"{system}/{seed}"}
        return _Variables(self, given, {**self.vars, **(self.systems[system] if system is not None else {})})

    def fill(self, text: str, variables: Mapping[str, str]) -> str:
        """Put the variables into a text.

        Raises:
            SyntaxDataError: a variable that is not there
        """

        parts, end, depth = [], 0, 0  # depth: how many ${ of the shell are open
        while match := (_SIGN_WITHIN if depth else _SIGN).search(text, end):
            parts.append(text[end : match.start()])
            end = match.end()
            if match[1] is not None:
                parts.append(self._value(match[1], variables, text))
            elif match[0] in ("{{", "}}"):
                parts.append(match[0][0])
            else:
                depth = depth + 1 if match[0] == "${" else max(depth - 1, 0)
                parts.append(match[0])
        return "".join([*parts, text[end:]])

    def _value(self, name: str, variables: Mapping[str, str], text: str) -> str:
        if name not in variables:
            raise SyntaxDataError(
                f"no variable {name} in {text.strip()[:80]!r}",
                path=self.path,
                hint=f"there are {', '.join(sorted(variables))}; write {{{{ and }}}} for braces",
            )
        return variables[name]

    def prepare_tasks(self) -> list[Task]:
        return self._tasks("prepare", self.prepare, self.variables(), "")

    def cell_tasks(self, system: str, seed: int) -> list[Task]:
        before = self.prepare_tasks()
        steps = [step for step in self.steps if step.only is None or system in step.only]
        start = before[-1].fingerprint if before else ""
        return self._tasks(f"{system}/{seed}", steps, self.variables(system, seed), start)

    def fingerprint(self, system: str, seed: int) -> str | None:
        """That of a cell's last step, which holds those of all before it; None for a cell without steps."""
        tasks = self.cell_tasks(system, seed)
        return tasks[-1].fingerprint if tasks else None

    def _tasks(self, cell: str, steps: list[Step], variables: Mapping[str, str], fingerprint: str) -> list[Task]:
        tasks = []
        for step in steps:
            command = self.fill(step.run, variables)
            outputs = tuple(self.fill(path, variables) for path in step.outputs)
            parts = [fingerprint, command, *outputs, *(f"{k}={v}" for k, v in sorted(self.env.items()))]
            inputs = {name: self.input(name) for name in (self.fill(path, variables) for path in step.inputs)}
            fingerprint = hashlib.sha256("\0".join([*parts, *inputs.values()]).encode()).hexdigest()
            tasks.append(Task(cell, step.name, command, outputs, fingerprint, inputs))
        return tasks

    def content(self, name: str) -> str:
        """SHA-256 of a file of the work directory, or of all below a folder; "missing" where there is none (yet)."""
        path = Path(os.path.normpath(self.workdir / name))  # the work directory itself may not be there
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            return fingerprint_of(*((os.fspath(file.relative_to(path)), _sha256(file)) for file in files))
        return _sha256(path) if path.is_file() else "missing"

    def input(self, name: str) -> str:
        """The content of an input. Of one that is gone, what was recorded counts: its results are still its results."""
        found = self.content(name)
        return found if found != "missing" else self.known.get(name, found)


def _sha256(path: Path) -> str:
    """SHA-256 of a file, computed once as long as it stays as it is."""
    status = path.stat()
    return _sha256_of(path, status.st_size, status.st_mtime_ns, status.st_ino)


@cache
def _sha256_of(path: Path, *_: int) -> str:
    return file_sha256(path)


class _Variables(Mapping):
    """Variables whose values are filled in when they are asked for: those that a text does not use may lack theirs."""

    def __init__(self, experiment: Experiment, given: dict[str, str], texts: dict[str, str]) -> None:
        self.experiment, self.given, self.texts = experiment, given, texts
        self.open: list[str] = []

    def __getitem__(self, name: str) -> str:
        if name in self.given:
            return self.given[name]
        if name in self.open:
            raise SyntaxDataError(f"variables in a cycle: {' -> '.join([*self.open, name])}", path=self.experiment.path)
        self.open.append(name)
        try:
            return self.experiment.fill(self.texts[name], self)
        finally:
            self.open.pop()

    def __iter__(self):
        return iter({**self.given, **self.texts})

    def __len__(self) -> int:
        return len({**self.given, **self.texts})
