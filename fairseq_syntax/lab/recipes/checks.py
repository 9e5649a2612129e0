"""What the stages of a recipe would refuse at their start, told before the first of them runs.

A stage's commands are checked by the same functions that they call first themselves: subcommands of ``fairseq-syntax``
by their ``check(args)``, fairseq's by its own parsers and by a :mod:`.rehearsal` of the training and the search.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import Any

from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import SEARCH, Plan
from fairseq_syntax.lab.recipes.reading import Document, read_document
from fairseq_syntax.lab.recipes.rehearsal import Refused, Rehearsal, blamed
from fairseq_syntax.lab.recipes.stages import Stage, missing_input, options, shown_path
from fairseq_syntax.plugins import name_hint
from fairseq_syntax.runtime.bounds import check_device

LARGEST = 30_000_000  # parameters of a model that makes an update and a search, which takes a second
_OF_BATCHES = ("batch-size", "max-tokens", "fp16")  # how translations are made, not which
_OF_TRAINING = ("size", "train", "options")  # sections of a system; later ones override earlier ones
_KEYS = {"model-dir": "models"}  # options of subcommands whose key has another name


def problems(
    plan: Plan, stages: Sequence[Stage], check_line: Callable[[list[str]], None], *, here: bool = True
) -> Iterator[SyntaxDataError]:
    """What some stages of a plan would refuse at their start.

    Args:
        check_line: raises SyntaxDataError for arguments of ``fairseq-syntax`` that it would refuse
        here: the stages run on this machine, whose GPU counts
    """
    named = {stage.run for stage in stages if stage.kind in ("train", "translate")}
    first: dict[str, Run] = {}  # by system, since its seeds differ in nothing else
    for run in plan.runs:
        if str(run) in named:
            first.setdefault(run.system, run)
    folder = _folder_problem(plan)
    if folder is not None:
        yield folder
    if here and {"parse", "train", "translate"} & {stage.kind for stage in stages}:
        yield from _no_device(plan)
    yield from _missing_inputs(stages, plan)
    yield from _of_commands(stages, plan, check_line)
    if first and folder is None:
        trained = Counter(stage.run.partition("/")[0] for stage in stages if stage.kind == "train" and stage.run)
        yield from _Runs(plan).problems([*first.values()], trained)


def _folder_problem(plan: Plan) -> SyntaxDataError | None:
    """Why the result folder cannot be used: fairseq would read its name as several names, or it is not writable."""
    if re.search("[:,]", shown_path(plan.folder)):  # data and checkpoints are split at colons, prefixes at commas
        message = "fairseq takes a colon or a comma in a name for the end of it"
        return SyntaxDataError(message, path=plan.folder, option="--output", hint="name another folder")
    there = next(path for path in (plan.folder, *plan.folder.parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return None
    message = "not writable" if there.is_dir() else "not a folder"
    return SyntaxDataError(message, path=there, option="--output", hint="name another folder")


def _no_device(plan: Plan) -> Iterator[SyntaxDataError]:
    """Why a recipe's device cannot be used: without a GPU, fairseq would train on the CPU without a word."""
    try:
        check_device(plan.recipe.device)
    except SyntaxDataError as error:
        where, line = read_document(plan.path).place(("device",), plan.path)
        hint = "run it on a machine with a GPU; `device: cpu` or --set device=cpu takes the CPU"
        yield SyntaxDataError(f"device: {error.message}", path=where, line=line, hint=hint)


def _missing_inputs(stages: Sequence[Stage], plan: Plan) -> Iterator[SyntaxDataError]:
    """Files that stages read, none makes, and that do not exist."""
    made = {path for stage in stages for path in stage.outputs}
    made |= {path for run in plan.runs for path in plan.outputs(run).values()}  # only those of finished runs are scored
    made |= {parent for path in made for parent in path.parents}  # folders that are inputs as a whole
    for stage in stages:
        for path in stage.missing():
            if path not in made:
                made.add(path)  # told once
                yield missing_input(stage, path)


def _of_commands(
    stages: Sequence[Stage], plan: Plan, check_line: Callable[[list[str]], None]
) -> Iterator[SyntaxDataError]:
    """What subcommands of ``fairseq-syntax`` refuse."""
    document = read_document(plan.path)
    told: set[str] = set()
    for stage in stages:
        for command in stage.commands:
            program, *arguments = map(str, command.words)
            if program != "fairseq-syntax":
                continue
            try:
                check_line(arguments)
            except SyntaxDataError as error:
                if error.message not in told:  # one parser parses several splits
                    told.add(error.message)
                    yield _at_option(error, stage, plan, document)


def _at_option(error: SyntaxDataError, stage: Stage, plan: Plan, document: Document) -> SyntaxDataError:
    """An error of a subcommand, with the line of the recipe that has the option."""
    name = (error.option or next(iter(re.findall(r"--([\w-]+)", error.message)), "")).lstrip("-")
    key = _KEYS.get(name, name).replace("-", "_")
    section: tuple[str, ...] = ("corpus", "filter") if stage.kind == "filter" else (stage.kind,)
    if stage.kind == "parse":
        section = ("parse", "source" if stage.name.endswith(f".{plan.langs[0]}") else "target")
    elif stage.kind == "control":
        section = ("parse", "controls", stage.name.removeprefix("control "))
    below = [place for place in document.places if place[: len(section)] == section and place[-1] == key]
    where, line = document.place((below or [section])[0], plan.path)
    about = "" if error.path is None else f"{error.path}: "
    option = "" if error.option is None else f"{key}: "
    return SyntaxDataError(f"{stage.name}: {option}{about}{error.message}", path=where, line=line, hint=error.hint)


class _Runs:
    """What fairseq and the systems refuse of the runs of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.document = plan, read_document(plan.path)
        self._told: set[tuple[str, str]] = set()  # program and message, which several systems may share
        self._updated: set[tuple[Any, ...]] = set()  # the arguments of runs that have made an update and a search
        self._bytes: dict[str, int] = {}  # of a checkpoint of a system
        self._known: dict[str, set[str]] = {"train": set(), "translate": set()}  # all options of the runs' programs

    def problems(self, runs: Sequence[Run], trained: Mapping[str, int]) -> Iterator[SyntaxDataError]:
        """What is refused of some runs, options that none of them has, and too little space for their checkpoints.

        Args:
            trained: how many models of a system are to be trained
        """
        with closing(Rehearsal(self.plan)) as rehearsal:
            for run in runs:
                yield from self._of_run(run, rehearsal)
        yield from self._unknown_null()
        yield from self._space(trained)

    def _of_run(self, run: Run, rehearsal: Rehearsal) -> Iterator[SyntaxDataError]:
        if self.plan.recipe.systems[run.system].checkpoint is not None:  # nothing is trained
            yield from self._without_parse(run)
            return
        training, variants = self._values(run), self.plan.variants(run.system).values()
        searching = {key: value for one in variants for key, value in self.plan.search_options(run, one).items()}
        train = partial(rehearsal.train, run)
        rehearsed, problem = self._tried(train, "fairseq-train", run, training)
        yield from problem
        search = partial(rehearsal.translate, run, rehearsed)
        known, problem = self._tried(search, "fairseq-generate", run, searching)
        yield from problem
        self._known["translate"] |= set(known or ())
        yield from self._without_parse(run)
        if rehearsed is None:
            return
        self._known["train"] |= set(rehearsed.known)
        self._bytes[run.system] = rehearsed.checkpoint_bytes
        if run.system in self.plan.recipe.score.trees:
            from fairseq_syntax.use.parent_head import parent_head  # here, as it imports fairseq

            try:
                parent_head(rehearsed.model)
            except SyntaxDataError as error:
                where, line = self.document.place(("score", "trees"), self.plan.path)
                message = f"score.trees, {run.system}: {error.message}"
                yield SyntaxDataError(message, path=where, line=line, hint=error.hint)
        both = tuple(rehearsal.arguments(stage) for stage in self.plan.of_run(run)[:2])
        has_data = self.plan.recipe.systems[run.system].data is None
        if not self._told and rehearsed.parameters <= LARGEST and has_data and both not in self._updated:
            self._updated.add(both)
            update = partial(rehearsal.first_update, run)
            updated, problem = self._tried(update, "fairseq-train, first update", run, training)
            yield from problem
            if updated is not None:
                first_search = partial(rehearsal.first_search, run, updated)
                yield from self._tried(first_search, "fairseq-generate", run, searching)[1]

    def _tried(
        self, attempt: Callable[..., Any], program: str, run: Run, values: Mapping[str, Any]
    ) -> tuple[Any, list[SyntaxDataError]]:
        """The result of an attempt, None if it fails, and the error if it has not been told yet."""
        try:
            return attempt(), []
        except Exception as error:  # fairseq raises anything: assertions, syntax errors of values that it evaluates
            return None, [*self._located(error, program, run, values, attempt)]

    def _values(self, run: Run) -> dict[str, Any]:
        """The options of a run's training, with the values that count."""
        recipe, system = self.plan.recipe, self.plan.recipe.systems[run.system]
        return {**recipe.size, **system.size, **recipe.train, **system.train, **system.options}

    def _place(self, run: Run, name: str) -> tuple[Path, int | None]:
        """The place of an option of a run where its value counts; otherwise that of the system."""
        sections: list[tuple[str, ...]] = [("size",), ("train",), ("translate",)]
        sections += [place[:-1] for place in self.document.places if place[:2] == ("translate", "variants")]
        sections += [("systems", run.system), *(("systems", run.system, part) for part in (*_OF_TRAINING, "translate"))]
        places = [self.document.places.get((*section, name)) for section in sections]
        return [self.document.place(("systems", run.system), self.plan.path), *filter(None, places)][-1]

    def _located(
        self, error: Exception, program: str, run: Run, values: Mapping[str, Any], attempt: Callable[..., Any]
    ) -> Iterator[SyntaxDataError]:
        """The error of a training or search, with the line of the recipe that has the option to blame; once."""
        name, hint = "", None
        if isinstance(error, Refused):
            # argparse prints: usage, then "PROGRAM: error: argument --arch: invalid choice: 'x' (choose from …)".
            why, _, choices = error.message.strip().rpartition("error: ")[2].partition(" (choose from ")
            for name in re.findall(r"--([\w-]+)", why):
                wrong, right = name, error.known
                if choices:
                    wrong, right = why.split("'")[-2], re.findall(r"[\w.+-]+", choices)
                of_plugins = choices and name in ("arch", "criterion", "task")
                hint = hint if wrong in right else (name_hint if of_plugins else meant)(wrong, right)
        elif isinstance(error, SyntaxDataError):
            path = "" if error.path is None else os.fspath(error.path)
            name, hint = (error.option or "").removeprefix("--"), error.hint
            name = name or next((key for key, value in values.items() if path and str(value) == path), "")
            about = "" if not path else f"{path if os.path.exists(path) else os.path.basename(path)}: "
            why = f"--{name}: {about}{error.message}" if name else f"{about}{error.message}"
        else:
            why = str(error).strip().replace("\n", " ") or type(error).__name__
            hint = None
        if (program, why) in self._told:
            return
        self._told.add((program, why))
        if not isinstance(error, (Refused, SyntaxDataError)):
            name = blamed(error, attempt, values) or ""
            value = f" {values[name]}" if values.get(name) is not None else ""
            if required := re.search(r"override \w+\.(\w+)=null", why):
                why = f"it needs --{required[1].replace('_', '-')}"
            elif isinstance(error, SyntaxError):
                why, hint = "Python cannot read this value", "decimals have a point" if "," in value else None
            why = f"--{name}{value}: {why}" if name else why
        where, line = self._place(run, name)
        yield SyntaxDataError(f"{program}, {run.system}: {why}", path=where, line=line, hint=hint)

    def _unknown_null(self) -> Iterator[SyntaxDataError]:
        """Options without a value, which are left out of the commands, that no run has."""
        recipe = self.plan.recipe
        sections: dict[tuple[str, ...], Mapping[str, Any]] = {("size",): recipe.size, ("train",): recipe.train}
        sections[("translate",)] = recipe.translate.options
        for name, system in recipe.systems.items():
            sections |= {("systems", name, part): getattr(system, part) for part in (*_OF_TRAINING, "translate")}
        for place, values in sections.items():
            known = self._known["translate" if place[-1] == "translate" else "train"]
            for key, value in values.items():
                if known and not options({key: value}) and key not in known:
                    where, line = self.document.place((*place, key), self.plan.path)
                    hint = "decimals have a point" if key.isdecimal() else meant(key, known)
                    message = f"{'.'.join(place)}: {key} is not an option of fairseq"
                    yield SyntaxDataError(message, path=where, line=line, hint=hint)

    def _space(self, trained: Mapping[str, int]) -> Iterator[SyntaxDataError]:
        """Too little space for the best and the last checkpoint of each model."""
        there = next(path for path in (self.plan.folder, *self.plan.folder.parents) if path.exists())
        needed, free = (
            sum(2 * self._bytes.get(one, 0) * count for one, count in trained.items()),
            disk_usage(there).free,
        )
        if needed > free:
            message = f"the checkpoints of {sum(trained.values())} models need {needed / 1e9:.1f} GB, and "
            message += f"{free / 1e9:.1f} GB are free"
            yield SyntaxDataError(message, path=there, option="--output", hint="name a folder on another disk")

    def _without_parse(self, run: Run) -> Iterator[SyntaxDataError]:
        """Options that a translation without a parse would leave out, and so differ in."""
        for name, variant in self.plan.variants(run.system).items():
            values = self.plan.search_options(run, variant) if variant.without_parse else {}
            for key, value in values.items():
                if options({key: value}) and key not in (*SEARCH, *_OF_BATCHES):
                    message = f"translate.variants.{name}: {key} does not apply without a parse"
                    hint = f"of the options, {', '.join(SEARCH)} do; `{key}: null` in the variant's leaves it out"
                    where, line = self.document.place(("translate", "variants", name), self.plan.path)
                    yield SyntaxDataError(message, path=where, line=line, hint=hint)
