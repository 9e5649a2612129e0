"""Reading an experiment from its YAML file: systems × seeds, the steps of each cell, and what is scored at the end.

.. code-block:: yaml

    name: toy
    workdir: ../../runs/toy       # from this file's folder; commands run in it
    record: results.jsonl         # from this file's folder; default: results.jsonl in the work directory
    table: RESULTS.md             # likewise; default: results.md in the work directory
    env: {OMP_NUM_THREADS: "2"}   # for every command
    vars: {epochs: 5, bin: data-bin}
    seeds: [1, 2, 3]
    systems:                      # the variables of each; they override those above
      transformer: {arch: transformer_iwslt_de_en, options: ""}
      pascal: {arch: pascal_transformer, options: "--pascal-heads 4"}
      pascal.linear: {arch: pascal_transformer, options: "--pascal-heads 4", bin: data-linear}
    prepare:                      # once, before the grid
      - name: binarize
        run: |
          fairseq-preprocess --source-lang en --target-lang de --trainpref {root}/train --destdir {bin}
        inputs: ["{root}/train.en", "{root}/train.de"]    # files or folders that do not come from a step before it
        outputs: ["{bin}/dict.en.txt"]
    steps:                        # for each system and seed
      - name: train
        run: fairseq-train {bin} --arch {arch} {options} --seed {seed} --max-epoch {epochs} --save-dir {dir}/model
        outputs: ["{dir}/model"]            # files or folders
      - name: translate
        run: fairseq-generate {bin} --path {dir}/model/checkpoint_best.pt > {dir}/test.out
        outputs: ["{dir}/test.out"]
        only: [transformer, pascal, pascal.linear]      # default: every system
    results:
      test:                       # the options of ``fairseq-syntax score``
        ref: "{root}/test.de"     # or a list of files
        sys: "{dir}/test.out"
        baseline: transformer
        metrics: [bleu, chrf]     # also src, tokenize, lowercase, resamples, trials, by_length, beer
        parse: "{root}/test.en.conllu"      # of the source, for by: [depth, label=acl], here or in shares
        only: [transformer, pascal, pascal.linear]
    values:                       # other numbers of each cell, out of JSON files that steps wrote
      UAS: {file: "{root}/trees.json", key: "dev.uas", digits: 2}
      BLEU of the paper: {published: {transformer: 30.14}}    # to stand beside
    keep:                         # what stays of a finished cell where the work directory is gone; the record says of
                                  # what it is, so give that a place elsewhere
      folder: kept                # from this file's folder
      files: ["{dir}/test.out"]
    shares:                       # how much of each system's gain is syntax
      page: VERDICT.md            # from this file's folder
      baseline: transformer
      controls:                   # pascal.linear above is pascal, trained and tested on this control
        linear: each word attaches to the one before it
      by: [longest-dependency]    # also in the intervals of these properties of the parse

``extends: OTHER.yaml`` takes over what another file of the same folder says: a key given here replaces the other's, but
``env``, ``vars``, ``keep`` and ``shares`` are merged. Where the other writes (its ``workdir``, ``record`` and
``table``, the ``folder`` of ``keep``, the ``page`` of ``shares``) is not taken over: it is to be given anew.

Texts and numbers are taken as they are written: a system may be called ``no`` or ``1.10``, and ``0.20`` stays that.

``{name}`` stands for a variable; ``{{`` and ``}}`` for braces; ``${NAME}`` is the shell's. Besides ``vars`` there are
``{root}``, the folder of the YAML file as seen from the work directory, and in all but ``prepare``, ``ref`` and ``src``
also ``{system}``, ``{seed}`` and ``{dir}``, the cell's own folder ``SYSTEM/SEED``. Variables may use one another.

Commands run in bash with ``-euo pipefail``, the interpreter's folder first on PATH. A step is done when its command
has succeeded, all its outputs are there, and neither its command, nor ``env``, nor the names of its ``outputs``, nor
the content of its ``inputs``, nor any of that in a step before it has changed since; done steps are skipped. An input
that is gone counts as it was. A step that was done by other code of this package is
skipped too, with a line that says so; ``--check-code`` runs it again. A step that was killed starts over, and
``fairseq-train`` itself goes on from its last checkpoint. Where a step of a cell runs again, those after it do, too.
Before a changed command runs, a step by other code with ``--check-code``, or a step after one that runs again, what
was made in its place is removed where it lies in the work directory: so name the checkpoints' folder as the output of a
training step, lest it go on from a checkpoint of other options. No two cells may make the same output, and no step one
that an earlier step's is in.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.experiments.plan import RESERVED, Experiment, Keep, Shares, Step, Task, Test, Value
from fairseq_syntax.lab.experiments.record import read

_NAME = re.compile(r"[\w][\w.+-]*")
# As YAML has them.
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


def load(path: str | os.PathLike[str], overrides: Mapping[str, str] | None = None) -> Experiment:
    """Read an experiment and check all of it: names, keys, and that every ``{variable}`` is defined.

    Args:
        overrides: values for ``vars``, in every system (``--set``)

    Raises:
        SyntaxDataError: whatever is wrong with the file
    """
    path = Path(path).resolve()
    reader = _Reader(path)
    raw = reader.mapping(_parse(path), "the file", {"name", "systems", "steps"}, {
        "workdir", "record", "table", "env", "vars", "seeds", "prepare", "results", "values", "keep", "shares",
    })  # fmt: skip
    name = reader.name(raw["name"], "name")
    places = _places(raw, path)
    written = {key: places[key] for key in ("record", "table", "shares.page") if key in places} | {
        "the file itself": path
    }
    for one, place in written.items():
        if place.is_dir():
            raise reader.fail(f"{one} is a folder: {place.name}")
        if other := next((other for other in written if other != one and written[other] == place), None):
            raise reader.fail(f"{one} and {other} are one file, {place.name}")
    systems = {
        reader.name(system, "systems"): reader.strings(variables or {}, f"systems.{system}")
        for system, variables in reader.mapping(raw["systems"], "systems").items()
    }
    variables = reader.strings(raw.get("vars") or {}, "vars")
    for key, text in (overrides or {}).items():
        if key not in variables and not any(key in mine for mine in systems.values()):
            raise SyntaxDataError(f"no variable {key} to set", path=path, hint=f"vars has {', '.join(variables)}")
        variables[key] = text
        for mine in systems.values():
            mine.pop(key, None)
    seeds = raw.get("seeds", ["1"])
    if not isinstance(seeds, list) or not seeds or not all(map(_is_whole, seeds)):
        raise SyntaxDataError(f"seeds must be a list of whole numbers, not {seeds!r}", path=path)
    seeds = list(map(int, seeds))
    if len(set(seeds)) < len(seeds):
        raise SyntaxDataError("a seed stands twice in seeds", path=path)
    experiment = Experiment(
        path=path,
        name=name,
        workdir=places["workdir"],
        record=places["record"],
        table=places["table"],
        env=reader.strings(raw.get("env") or {}, "env"),
        vars=variables,
        seeds=seeds,
        systems=systems,
        prepare=reader.steps(raw.get("prepare") or [], "prepare", systems),
        steps=reader.steps(raw["steps"], "steps", systems),
        tests=(tests := reader.tests(raw.get("results") or {}, systems)),
        values=reader.values(raw.get("values") or {}, systems),
        keep=reader.keep(raw.get("keep")),
        shares=reader.shares(raw.get("shares"), systems, tests),
    )
    for entry in read(experiment.record):
        experiment.known |= {name: held for name, held in entry.get("inputs", {}).items() if held != "missing"}
    for system, seed in experiment.cells():
        experiment.cell_tasks(system, seed)
        cell = experiment.variables(system, seed)
        texts = [t.sys for t in experiment.tests] + [v.file for v in experiment.values if not v.published]
        for text in texts:
            experiment.fill(text, cell)
    _check_outputs(experiment, reader)
    made = {
        output.rstrip("/") for cell in experiment.cells() for t in experiment.cell_tasks(*cell) for output in t.outputs
    }
    for file in experiment.keep.files if experiment.keep else ():
        names = [Path(experiment.fill(file, experiment.variables(*cell))) for cell in experiment.cells()]
        if any(name.is_absolute() or ".." in name.parts for name in names):
            raise reader.fail(f"keep.files: {file} is not below the work directory")
        if not any({str(name), *map(str, name.parents)} & made for name in names):
            raise reader.fail(f"keep.files: {file} is no output of a step, and in none")
    asked = {f"results.{test.name}": test.sys for test in experiment.tests}
    asked |= {f"values.{value.name}": value.file for value in experiment.values if not value.published}
    files = experiment.keep.files if experiment.keep else ()
    for system, seed in experiment.cells() if files else ():
        cell = experiment.variables(system, seed)
        kept = {experiment.fill(file, cell) for file in files}
        outputs = [Path(output) for task in experiment.cell_tasks(system, seed) for output in task.outputs]
        for where, file in asked.items():
            name = experiment.fill(file, cell)
            if name not in kept and any(output in (Path(name), *Path(name).parents) for output in outputs):
                raise reader.fail(
                    f"keep.files has no {file}, without which {where} cannot be had of a cell that was kept"
                )
    for test in experiment.tests:
        if test.parse is None and (test.options.get("by") or (experiment.shares and experiment.shares.by)):
            raise reader.fail(f"results.{test.name} has no parse, and is to be told apart by properties of the parse")
        for text in (*test.ref, test.src or "", test.parse or ""):
            experiment.fill(text, experiment.variables())
    return experiment


class _AsWritten(yaml.SafeLoader):
    """YAML whose scalars are texts, as they are written, but for null; a key that stands twice is an error.

    ``no`` is a language, ``1.10`` a name, and of two systems of one name the first would be lost without a word.
    """

    yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]  # PyYAML's is a class variable, too
        first: [(tag, pattern) for tag, pattern in of if tag.endswith((":null", ":merge"))]
        for first, of in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(path: Path, extending: tuple[Path, ...] = ()):
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_AsWritten)
    except (OSError, UnicodeDecodeError) as error:
        raise SyntaxDataError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise SyntaxDataError(f"not YAML: {error.problem}", path=path, line=line) from error
    except yaml.YAMLError as error:
        raise SyntaxDataError(f"not YAML: {' '.join(str(error).split())}", path=path) from error
    if not isinstance(raw, dict) or "extends" not in raw:
        return raw
    base = (path.parent / str(raw.pop("extends"))).resolve()
    if base in (*extending, path):
        raise SyntaxDataError(f"extends {base.name}, which extends it", path=path)
    inherited = _parse(base, (*extending, path))
    if not isinstance(inherited, dict):
        return raw
    for key in ("env", "vars", "keep", "shares"):
        if isinstance(raw.get(key), dict) and isinstance(inherited.get(key), dict):
            raw[key] = {**inherited[key], **raw[key]}
    merged = {**inherited, **raw}
    others = _places(inherited, base)
    for where, place in _places(merged, path).items():
        if others.get(where) == place:
            message = f"{where} is that of {base.name}, whose results would be replaced"
            raise SyntaxDataError(message, path=path, hint=f"give this file a {where} of its own")
    return merged


def _places(raw: Mapping[str, Any], path: Path) -> dict[str, Path]:
    """Where the experiment of a file writes, by the key that says it, also where it is the key's default."""
    given = {key: raw[key] for key in ("workdir", "record", "table") if key in raw}
    for part, key in (("keep", "folder"), ("shares", "page")):
        if isinstance(raw.get(part), dict) and key in raw[part]:
            given[f"{part}.{key}"] = raw[part][key]
    texts = {key: _Reader(path).text(value, key) for key, value in given.items()}
    workdir = texts.get("workdir", f"runs/{raw.get('name')}")
    defaults = {"workdir": workdir, "record": f"{workdir}/results.jsonl", "table": f"{workdir}/results.md"}
    return {key: (path.parent / text).resolve() for key, text in {**defaults, **texts}.items()}


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _is_whole(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value) is not None


def _check_outputs(experiment: Experiment, reader: _Reader) -> None:
    """Refuse outputs that are, or hold, those of another cell, or of an earlier step, and inputs that steps make.

    A step's outputs are removed before it runs with another command, and say that it is done: those of two cells, under
    one name, would be what either made. The content of an input is part of what a step is: were it made on the way,
    the step would be another one after each run.

    Raises:
        SyntaxDataError: such an output or input, or a cell's whole folder, where the program keeps its marks and logs
    """
    chains = [experiment.prepare_tasks(), *(experiment.cell_tasks(*cell) for cell in experiment.cells())]
    owners: dict[Path, tuple[Task, str]] = {}
    for task in (task for chain in chains for task in chain):
        for text in task.outputs:
            path = Path(os.path.normpath(experiment.workdir / text))
            if path in (experiment.workdir / task.cell, *(experiment.workdir / task.cell).parents):
                raise reader.fail(
                    f"{task.step}: the output {text} is the folder of {task.cell}, or above it",
                    "name what the step makes in it: {dir}/model",
                )
            if path in owners and owners[path][0] != task:
                first = owners[path][0]
                both = f"{first.cell} {first.step} and {task.cell} {task.step}"
                raise reader.fail(f"{both} both make {text}", "a name with {dir} is a cell's own")
            owners[path] = (task, text)
    order = {path: number for number, path in enumerate(owners)}
    for path, (task, text) in owners.items():
        for folder in path.parents:
            if folder not in owners or owners[folder][0] is task:
                continue
            holder, outer = owners[folder]
            earlier = holder.cell in ("prepare", task.cell) and order[folder] < order[path]
            if not earlier:
                both = f"{outer} of {holder.cell} {holder.step} holds {text} of {task.cell} {task.step}"
                raise reader.fail(
                    f"the output {both}",
                    "a step's outputs are removed when it is to run again: name what it makes itself",
                )
    given = [(step, experiment.variables()) for step in experiment.prepare]
    for system, seed in experiment.cells():
        own = experiment.variables(system, seed)
        given += [(step, own) for step in experiment.steps if step.only is None or system in step.only]
    for step, variables in given:
        for text in step.inputs:
            path = Path(os.path.normpath(experiment.workdir / experiment.fill(text, variables)))
            if any(made == path or made in path.parents or path in made.parents for made in owners):
                raise reader.fail(
                    f"{step.name}: the input {text} is made by a step",
                    "inputs are what comes from elsewhere; a step runs again where one before it does",
                )


class _Reader:
    """Checks of the parts, each with the key's name in its error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, message: str, hint: str | None = None) -> SyntaxDataError:
        return SyntaxDataError(message, path=self.path, hint=hint)

    def mapping(self, value, where: str, needed: set[str] | None = None, allowed: set[str] | None = None) -> dict:
        if not isinstance(value, dict) or (needed is None and not value):
            raise self.fail(f"{where} must be a mapping that is not empty")
        if needed is not None:
            for key in needed - set(value):
                raise self.fail(f"{where} has no {key}")
            for key in set(value) - needed - (allowed or set()):
                raise self.fail(f"{where} has an unknown key {key}", ", ".join(sorted(needed | (allowed or set()))))
        return value

    def name(self, value, where: str) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value) or value == "prepare":
            raise self.fail(f"{where}: {value!r} cannot be a name", "letters, digits and _ . + -; it names a folder")
        return value

    def text(self, value, where: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.fail(f"{where} must be a text that is not empty, not {value!r}")
        return value

    def whole(self, value, where: str, least: int = 0) -> int:
        if not _is_whole(value) or int(value) < least:
            raise self.fail(f"{where} must be a whole number from {least} on, not {value!r}")
        return int(value)

    def strings(self, value, where: str) -> dict[str, str]:
        if not isinstance(value, dict):
            raise self.fail(f"{where} must be a mapping")
        for key, item in value.items():
            if isinstance(item, (dict, list)) or item is None:
                raise self.fail(f"{where}.{key} must be a text or a number, not {item!r}")
            if key in RESERVED:
                raise self.fail(f"{where}.{key}: this name is taken", f"{', '.join(RESERVED)} are set by the program")
        if None in value:
            raise self.fail(f"{where} has a key without a name")
        return dict(value)

    def texts(self, value, where: str) -> tuple[str, ...]:
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise self.fail(f"{where} must be a text or a list of texts")
        return tuple(items)

    def only(self, value, where: str, systems) -> tuple[str, ...] | None:
        if value is None:
            return None
        for system in self.texts(value, where):
            if system not in systems:
                raise self.fail(f"{where}: no system is called {system}", ", ".join(systems))
        return self.texts(value, where)

    def steps(self, value, where: str, systems) -> list[Step]:
        steps: list[Step] = []
        if not isinstance(value, list):
            raise self.fail(f"{where} must be a list")
        for i, raw in enumerate(value):
            raw = self.mapping(raw, f"{where}[{i}]", {"name", "run"}, {"outputs", "inputs", "only"})
            name = self.name(raw["name"], f"{where}[{i}].name")
            if name in [step.name for step in steps]:
                raise self.fail(f"two steps of {where} are called {name}")
            outputs = self.texts(raw.get("outputs", []), f"{where}.{name}.outputs")
            only = self.only(raw.get("only"), f"{where}.{name}.only", systems)
            inputs = self.texts(raw.get("inputs", []), f"{where}.{name}.inputs")
            steps.append(Step(name, self.text(raw["run"], f"{where}.{name}.run"), outputs, inputs, only))
        return steps

    def tests(self, value, systems) -> list[Test]:
        from fairseq_syntax.lab.scoring.report import Options

        options = {f.name for f in fields(Options)}
        tests = []
        for name, raw in (self.mapping(value, "results") if value else {}).items():
            where = f"results.{name}"
            raw = self.mapping(raw, where, {"ref", "sys"}, {"src", "parse", "baseline", "only"} | options)
            only = self.only(raw.get("only"), f"{where}.only", systems)
            baseline = raw.get("baseline")
            if baseline is not None and baseline not in (only or systems):
                raise self.fail(f"{where}.baseline: no system is called {baseline}", ", ".join(only or systems))
            chosen = {key: item for key, item in raw.items() if key in options}
            for key in ("resamples", "trials", "by_length"):
                if chosen.get(key) is not None:
                    chosen[key] = self.whole(chosen[key], f"{where}.{key}", least=int(key == "by_length"))
            if "lowercase" in chosen:
                chosen["lowercase"] = _BOOLEANS.get(str(chosen["lowercase"]).lower(), chosen["lowercase"])
            if "by" in chosen:
                chosen["by"] = self.properties(chosen["by"], f"{where}.by")
            try:
                Options(**chosen)
            except SyntaxDataError as error:
                raise self.fail(f"{where}.{error.message}", error.hint) from None
            ref = self.texts(raw["ref"], f"{where}.ref")
            if not ref:
                raise self.fail(f"{where}.ref is empty")
            sys = self.text(raw["sys"], f"{where}.sys")
            src, parse = (
                None if raw.get(key) is None else self.text(raw[key], f"{where}.{key}") for key in ("src", "parse")
            )
            tests.append(Test(str(name), ref, sys, src, parse, only, baseline, chosen))
        return tests

    def values(self, value, systems) -> list[Value]:
        found = []
        for name, raw in (self.mapping(value, "values") if value else {}).items():
            where = f"values.{name}"
            if isinstance(raw, dict) and "published" in raw:
                raw = self.mapping(raw, where, {"published"}, {"digits"})
                figures = self.mapping(raw["published"], f"{where}.published")
                strange = [s for s in figures if s not in systems] or [
                    s for s, v in figures.items() if not _is_number(v)
                ]
                if strange:
                    raise self.fail(f"{where}.published.{strange[0]}: no such system, or not a number")
                digits = self.whole(raw.get("digits", "2"), f"{where}.digits")
                figures = {system: float(figure) for system, figure in figures.items()}
                found.append(Value(str(name), digits=digits, only=tuple(figures), published=figures))
                continue
            raw = self.mapping(raw, where, {"file", "key"}, {"digits", "only"})
            only = self.only(raw.get("only"), f"values.{name}.only", systems)
            file, key = (self.text(raw[part], f"{where}.{part}") for part in ("file", "key"))
            found.append(Value(str(name), file, key, self.whole(raw.get("digits", "2"), f"{where}.digits"), only))
        return found

    def keep(self, value) -> Keep | None:
        if value is None:
            return None
        raw = self.mapping(value, "keep", {"folder", "files"})
        files = self.texts(raw["files"], "keep.files")
        if not files:
            raise self.fail("keep.files is empty")
        return Keep(self.path.parent / raw["folder"], files)

    def shares(self, value, systems, tests: list[Test]) -> Shares | None:
        from fairseq_syntax.lab.scoring.names import MORE_IS_BETTER

        if value is None:
            return None
        scores = [key for test in tests for key in test.options.get("metrics", MORE_IS_BETTER)]
        if not set(scores) & set(MORE_IS_BETTER):
            raise self.fail("shares: no test has a score of which more is better", ", ".join(MORE_IS_BETTER))
        raw = self.mapping(value, "shares", {"page", "baseline", "controls"}, {"by"})
        if raw["baseline"] not in systems:
            raise self.fail(f"shares.baseline: no system is called {raw['baseline']}", ", ".join(systems))
        controls = self.strings(raw["controls"], "shares.controls")
        for system in systems:
            original, dot, control = system.rpartition(".")
            if dot and control in controls and original not in systems:
                raise self.fail(f"{system} is a twin of {original}, which is not there")
        for control in controls:
            if not any(system.endswith(f".{control}") for system in systems):
                raise self.fail(f"shares.controls: no system is called SYSTEM.{control}", ", ".join(systems))
        by = self.properties(raw.get("by", []), "shares.by")
        return Shares(self.path.parent / raw["page"], raw["baseline"], controls, by)

    def properties(self, value, where: str) -> tuple[str, ...]:
        from fairseq_syntax.lab.scoring.properties import Property

        texts = self.texts(value, where)
        for text in texts:
            try:
                Property.of(text)
            except SyntaxDataError as error:
                raise self.fail(f"{where}: {error.message}", error.hint) from None
        return texts
