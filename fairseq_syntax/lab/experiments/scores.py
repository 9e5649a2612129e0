"""Scoring of an experiment's test sets: what is complete is scored, measured and recorded, once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.experiments.plan import Experiment, Shares, Test, Value
from fairseq_syntax.lab.experiments.record import append, current, read

if TYPE_CHECKING:
    from fairseq_syntax.corpus.conllu import ParsedLine
    from fairseq_syntax.lab.scoring.outputs import Translations

DRAWS, DRAWS_BY = 10_000, 1000  # of the bootstrap behind the shares, and behind those by properties of the parse


def collect(experiment: Experiment, complete: list[tuple[str, int]]) -> list[SyntaxDataError]:
    """Score the test sets and read the values of the cells that are complete, and record what is new.

    Returns:
        what is wrong with values and test sets that could not be had; the others are recorded all the same
    """
    entries, problems = read(experiment.record), []
    for value in experiment.values:
        for system, seed in complete:
            if value.only is None or system in value.only:
                try:
                    entry = _value(experiment, value, system, seed)
                except SyntaxDataError as error:
                    problems.append(error)
                    continue
                before = [e for e in entries if (e.get("cell"), e.get("name")) == (entry["cell"], entry["name"])]
                if not before or {k: v for k, v in before[-1].items() if k != "time"} != entry:  # the last one holds
                    append(experiment.record, entry)
    last = {(entry["kind"], entry["test"]): entry for entry in current(experiment, entries) if "test" in entry}
    for test in experiment.tests:
        seeds = {
            system: [seed for name, seed in complete if name == system]
            for system in experiment.systems
            if test.only is None or system in test.only
        }
        seeds = {system: mine for system, mine in seeds.items() if mine}
        if not seeds:
            continue
        try:
            _collect_test(experiment, test, seeds, last)
        except SyntaxDataError as error:
            problems.append(error)
    return problems


def _collect_test(
    experiment: Experiment, test: Test, seeds: dict[str, list[int]], last: Mapping[tuple[str, str], Mapping[str, Any]]
) -> None:
    """Score a test set, and measure its shares, unless the last records of it are of these files and commands.

    Raises:
        SyntaxDataError: a file cannot be read, or is not as long as another
    """
    fingerprint, files = _fingerprint(experiment, test, seeds), _files(experiment, test, seeds)
    cells = {f"{s}/{seed}": experiment.fingerprint(s, seed) for s, mine in seeds.items() for seed in mine}
    entry: dict[str, Any] = {"test": test.name, "seeds": seeds, "files": files, "cells": cells}
    if not _is_scored(last.get(("test", test.name), {}), fingerprint, files):
        report = _report(experiment, test, seeds)
        append(experiment.record, {"kind": "test", **entry, "fingerprint": fingerprint, "report": report})
    shares = experiment.shares
    if shares is not None and shares.baseline in seeds:
        asked = f"{fingerprint}{DRAWS},{DRAWS_BY}{shares.baseline}{list(shares.controls)}{shares.by}"
        fingerprint = hashlib.sha256(asked.encode()).hexdigest()
        if not _is_scored(last.get(("shares", test.name), {}), fingerprint, files):
            entry |= {
                "fingerprint": fingerprint,
                "draws": DRAWS,
                "draws_by": DRAWS_BY,
                "baseline": shares.baseline,
            }
            append(experiment.record, {"kind": "shares", **entry, **_shares(experiment, shares, test, seeds)})


def _value(experiment: Experiment, value: Value, system: str, seed: int) -> dict:
    if value.published is not None:
        found = float(value.published[system])
    else:
        found = _measured(experiment, value, system, seed)
    entry = {"kind": "value", "cell": f"{system}/{seed}", "name": value.name, "value": found, "digits": value.digits}
    return {**entry, "fingerprint": experiment.fingerprint(system, seed)}


def _measured(experiment: Experiment, value: Value, system: str, seed: int) -> float:
    path = experiment.workdir / experiment.fill(value.file, experiment.variables(system, seed))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in value.key.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return float(found)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise SyntaxDataError(
            f"no number {value.key} for the value {value.name} ({type(error).__name__}: {error})", path=path
        ) from error


def _fingerprint(experiment: Experiment, test: Test, seeds: dict[str, list[int]]) -> str:
    """Of what the test's scores depend on besides its files: the commands behind them, and how they are scored."""
    from fairseq_syntax.lab.scoring.report import FORMAT

    parts = [repr(test), str(FORMAT)]
    for system, mine in seeds.items():
        for seed in mine:
            parts += [f"{system}/{seed}", *(task.fingerprint for task in experiment.cell_tasks(system, seed))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _files(experiment: Experiment, test: Test, seeds: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """SHA-256 of each file that is read to score a test, by its name in the work directory."""
    shared = [text for text in (*test.ref, test.src, test.parse) if text is not None]
    names = [experiment.fill(text, experiment.variables()) for text in shared]
    for system, mine in seeds.items():
        names += [experiment.fill(test.sys, experiment.variables(system, seed)) for seed in mine]
    return {name: experiment.content(name) for name in names}


def _is_scored(last: Mapping[str, Any], fingerprint: str, files: Mapping[str, str]) -> bool:
    """Whether a record is of this fingerprint and these files. Of a file that is gone, what was recorded counts."""
    known = last.get("files", {})
    same = all(sha256 in ("missing", known.get(name)) for name, sha256 in files.items())
    return last.get("fingerprint") == fingerprint and same


def _texts(experiment: Experiment, files: Sequence[str]) -> list[list[str]]:
    """The lines of files that all cells share."""
    from fairseq_syntax.lab.scoring.outputs import read_text

    shared = experiment.variables()
    return [read_text(experiment.workdir / experiment.fill(file, shared)) for file in files]


def _translations(experiment: Experiment, test: Test, seeds: dict[str, list[int]]) -> dict[str, list[Translations]]:
    from fairseq_syntax.lab.scoring.outputs import read_translations

    found: dict[str, list[Translations]] = {}
    for system, mine in seeds.items():
        found[system] = []
        for seed in mine:
            name = experiment.fill(test.sys, experiment.variables(system, seed))
            found[system].append(read_translations(experiment.workdir / name))
            found[system][-1].path = name
    return found


def _parses(experiment: Experiment, test: Test, sentences: int) -> list[ParsedLine]:
    from fairseq_syntax.lab.scoring.report import read_parses

    assert test.parse is not None  # checked when the file was read
    sources = _texts(experiment, [test.src])[0] if test.src else None
    return read_parses(experiment.workdir / experiment.fill(test.parse, experiment.variables()), sentences, sources)


def _shares(experiment: Experiment, shares: Shares, test: Test, seeds: dict[str, list[int]]) -> dict[str, Any]:
    """What the record has, by metric: ``metrics``, gains and shares; ``own``, the seeds' part; ``by``, in intervals."""
    from fairseq_syntax.lab.scoring.metrics import Scorer
    from fairseq_syntax.lab.scoring.names import METRICS
    from fairseq_syntax.lab.scoring.properties import Property
    from fairseq_syntax.lab.scoring.report import Options
    from fairseq_syntax.lab.scoring.shares import measure, measure_by
    from fairseq_syntax.lab.scoring.significance import Resampled

    options = Options(**test.options)
    references = _texts(experiment, test.ref)
    runs = {s: [run.lines for run in found] for s, found in _translations(experiment, test, seeds).items()}
    properties = [Property.of(text) for text in shares.by]
    parses = _parses(experiment, test, len(references[0])) if properties else []
    controls = list(shares.controls)
    found: dict[str, Any] = {"metrics": {}, "own": {}, "by": {}}
    for key in options.metrics:
        if key in METRICS:
            scorer = Scorer(key, references, options.tokenize, options.lowercase)
            if scorer.higher_is_better:
                resampled = Resampled(scorer, runs, DRAWS)
                found["metrics"][scorer.name] = measure(resampled, shares.baseline, controls)
                found["own"][scorer.name] = resampled.own_part()
                arguments = scorer, runs, shares.baseline, controls, parses, properties
                found["by"][scorer.name] = measure_by(*arguments, draws=DRAWS_BY)
    return found


def _report(experiment: Experiment, test: Test, seeds: dict[str, list[int]]) -> dict:
    from fairseq_syntax.lab.scoring.properties import Property
    from fairseq_syntax.lab.scoring.report import Options, System, evaluate

    references = _texts(experiment, test.ref)
    sources = _texts(experiment, [test.src])[0] if test.src else None
    systems = [System(name, runs) for name, runs in _translations(experiment, test, seeds).items()]
    baseline = test.baseline if test.baseline in seeds else None
    options = Options(**test.options)
    options.by = [Property.of(cast(str, text)) for text in options.by]
    if test.baseline is not None and baseline is None:
        # not finished: no test against it, and none against another
        options.resamples = options.trials = 0
        options.by = []
        report = evaluate(systems, references, options, sources=sources)
        report.pop("baseline", None)
        for entry in report["systems"]:
            entry.pop("tests", None)
        return report
    parses = _parses(experiment, test, len(references[0])) if options.by else None
    return evaluate(systems, references, options, baseline=baseline, sources=sources, parses=parses)
