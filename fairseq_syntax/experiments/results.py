"""The results file of an experiment, and the table that is written from it and from nothing else.

``results.jsonl`` has one JSON object a line; of two that say the same thing the later one counts:

- ``{"kind": "environment", …}``: hardware, threads and versions, at each start
- ``{"kind": "step", "cell", "step", "command", "seconds", "attempts", "fingerprint", "code"}``: a step that
  succeeded, and the fingerprint of this package's code; ``"to_keep"`` where its cell's files will be kept
- ``{"kind": "kept", "cell", "fingerprint", "code", "files"}``: that a cell's files are in the folder of those that are
  kept: the fingerprint of its last step, the code that made them, and the SHA-256 of each
- ``{"kind": "value", "cell", "name", "value", "digits", "fingerprint"}``: a number out of a step's JSON file, and the
  fingerprint of the cell's last step
- ``{"kind": "test", "test", "seeds", "fingerprint", "files", "cells", "report"}``: what ``fairseq-syntax score`` says
  of a test set, the SHA-256 of each file that it has read, and the fingerprint of each cell's last step
- ``{"kind": "shares", "test", "seeds", "fingerprint", "files", "cells", "draws", "draws_by", "baseline", "metrics",
  "own", "by"}``:
  what :func:`.shares.measure`, :meth:`.significance.Resampled.own_part` and :func:`.shares.measure_by` say of a test
  set, by metric
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.experiments.plan import Experiment, Shares, Test, Value
from fairseq_syntax.scoring.tables import Table, number
from fairseq_syntax.text.files import make_folder, whole_file

if TYPE_CHECKING:
    from fairseq_syntax.scoring.outputs import Translations
    from fairseq_syntax.text.conllu import ParsedLine

_PACKAGES = ("fairseq-syntax", "fairseq-fixed", "torch", "numpy", "sacrebleu", "nltk", "scipy", "stanza",
             "sentencepiece", "subword-nmt", "pyarrow")  # fmt: skip
DRAWS, DRAWS_BY = 10_000, 1000  # of the bootstrap behind the shares, and behind those by properties of the parse


def append(path: Path, entry: dict) -> None:
    """Add a line, in one write: a program that is killed leaves whole lines, or a last one that :func:`read` drops."""
    make_folder(path.parent)
    data = (json.dumps({**entry, "time": _now()}, ensure_ascii=False) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict]:
    """The lines of a results file; half a line, which a killed program left, is passed over."""
    entries: list[dict] = []
    if not path.exists():
        return entries
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):  # a command may hold U+2028
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "kind" in entry:
            entries.append(entry)
    return entries


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, whenever the program is killed."""
    make_folder(path.parent)
    with whole_file(path) as stream:
        stream.write(text)


def environment() -> dict:
    """Hardware, threads and versions of this process; nothing that names the machine or its user."""
    found: dict[str, Any] = {"kind": "environment", "python": platform.python_version(), "system": platform.system()}
    found |= {"machine": platform.machine(), "cpu": _cpu(), "cpus": len(os.sched_getaffinity(0))}
    found["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    found["versions"] = {}
    for package in _PACKAGES:
        try:
            found["versions"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    try:
        import torch
    except ImportError:
        return found
    found["threads"] = torch.get_num_threads()
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def record_environment(path: Path) -> None:
    """Record the environment, unless it is the one recorded last."""
    now = environment()
    before = [entry for entry in read(path) if entry["kind"] == "environment"]
    if not before or {key: item for key, item in before[-1].items() if key != "time"} != now:
        append(path, now)


def collect(experiment: Experiment, complete: list[tuple[str, int]]) -> None:
    """Score the test sets and read the values of the cells that are complete, and record what is new."""
    entries = read(experiment.record)
    for value in experiment.values:
        for system, seed in complete:
            if value.only is None or system in value.only:
                entry = _value(experiment, value, system, seed)
                before = [e for e in entries if (e.get("cell"), e.get("name")) == (entry["cell"], entry["name"])]
                if not before or {k: v for k, v in before[-1].items() if k != "time"} != entry:  # the last one holds
                    append(experiment.record, entry)
    last = {(entry["kind"], entry["test"]): entry for entry in entries if "test" in entry}
    for test in experiment.tests:
        seeds = {
            system: [seed for name, seed in complete if name == system]
            for system in experiment.systems
            if test.only is None or system in test.only
        }
        seeds = {system: mine for system, mine in seeds.items() if mine}
        if seeds:
            fingerprint, files = _fingerprint(experiment, test, seeds), _files(experiment, test, seeds)
            cells = {f"{s}/{seed}": _of_cell(experiment, s, seed) for s, mine in seeds.items() for seed in mine}
            entry = {"test": test.name, "seeds": seeds, "files": files, "cells": cells}
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
    return {**entry, "fingerprint": _of_cell(experiment, system, seed)}


def _of_cell(experiment: Experiment, system: str, seed: int) -> str | None:
    """The fingerprint of a cell's last step, which holds those of all before it."""
    tasks = experiment.cell_tasks(system, seed)
    return tasks[-1].fingerprint if tasks else None


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
    from fairseq_syntax.scoring.report import FORMAT

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
    from fairseq_syntax.scoring.outputs import read_text

    shared = experiment.variables()
    return [read_text(experiment.workdir / experiment.fill(file, shared)) for file in files]


def _translations(experiment: Experiment, test: Test, seeds: dict[str, list[int]]) -> dict[str, list[Translations]]:
    from fairseq_syntax.scoring.outputs import read_translations

    found: dict[str, list[Translations]] = {}
    for system, mine in seeds.items():
        found[system] = []
        for seed in mine:
            name = experiment.fill(test.sys, experiment.variables(system, seed))
            found[system].append(read_translations(experiment.workdir / name))
            found[system][-1].path = name
    return found


def _parses(experiment: Experiment, test: Test, sentences: int) -> list[ParsedLine]:
    from fairseq_syntax.scoring.report import read_parses

    assert test.parse is not None  # checked when the file was read
    return read_parses(experiment.workdir / experiment.fill(test.parse, experiment.variables()), sentences)


def _shares(experiment: Experiment, shares: Shares, test: Test, seeds: dict[str, list[int]]) -> dict[str, Any]:
    """What the record has, by metric: ``metrics``, gains and shares; ``own``, the seeds' part; ``by``, in intervals."""
    from fairseq_syntax.experiments.shares import measure, measure_by
    from fairseq_syntax.scoring.metrics import METRICS, Scorer
    from fairseq_syntax.scoring.properties import Property
    from fairseq_syntax.scoring.report import Options
    from fairseq_syntax.scoring.significance import Resampled

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
    from fairseq_syntax.scoring.properties import Property
    from fairseq_syntax.scoring.report import Options, System, evaluate

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


def _unfinished(seeds: Mapping[str, Sequence[int]], planned: Mapping[str, Sequence[int]]) -> str:
    """A sentence about the cells that a test set has no scores of; empty where there are none."""
    missing = {name: [str(s) for s in mine if s not in seeds.get(name, ())] for name, mine in planned.items()}
    cells = "; ".join(f"{name} {', '.join(mine)}" for name, mine in missing.items() if mine)
    return f" Not finished: {cells}." if cells else ""


def current(experiment: Experiment, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of what a record says, the latest of each kind that holds of the experiment as it is now.

    What is left out: systems, seeds, steps, tests and values that it had once, what other commands gave in the place
    of those that it has now, and gains over another baseline.
    """
    latest: dict[tuple, Mapping[str, Any]] = {}
    for entry in entries:
        latest[tuple(entry.get(key) for key in ("kind", "cell", "step", "test", "name"))] = entry
    tasks = [
        *experiment.prepare_tasks(),
        *(task for cell in experiment.cells() for task in experiment.cell_tasks(*cell)),
    ]
    commands = {(task.cell, task.step): task.fingerprint for task in tasks}
    cells = {f"{system}/{seed}": _of_cell(experiment, system, seed) for system, seed in experiment.cells()}
    tests, values = [test.name for test in experiment.tests], [value.name for value in experiment.values]
    baseline = experiment.shares.baseline if experiment.shares is not None else None

    def replaced(entry: Mapping[str, Any]) -> bool:
        """Whether a cell that was scored has other commands now; records of earlier versions do not tell."""
        return any(cells.get(cell, known) != known for cell, known in entry.get("cells", {}).items())

    def holds(entry: Mapping[str, Any]) -> bool:
        if entry["kind"] == "step":
            return commands.get((entry["cell"], entry["step"])) == entry.get("fingerprint")
        if entry["kind"] == "value":
            if entry["cell"] not in cells or entry["name"] not in values:
                return False
            fingerprint = cells[entry["cell"]]
            return entry.get("fingerprint", fingerprint) == fingerprint  # records of earlier versions have none
        if entry["kind"] in ("test", "shares") and replaced(entry):
            return False
        if entry["kind"] == "shares":
            return baseline is not None and entry["test"] in tests and entry.get("baseline", baseline) == baseline
        return entry["kind"] != "test" or entry["test"] in tests

    return [entry for entry in latest.values() if holds(entry)]


def results_table(experiment: Experiment, entries: list[dict]) -> str:
    """The results of an experiment as Markdown: scores and tests, values, times, commands, environments.

    Args:
        entries: its record, as :func:`read` gives it
    """
    from fairseq_syntax.experiments.shares import by_table
    from fairseq_syntax.scoring.report import tables

    found_now, planned = current(experiment, entries), experiment.planned()
    parts = [f"# {experiment.name}", "Written by `fairseq-syntax experiment` from its results file."]
    for entry in found_now:
        if entry["kind"] == "test":
            seeds = "; ".join(f"{name} {', '.join(map(str, mine))}" for name, mine in entry["seeds"].items())
            parts += [f"## {entry['test']}", *(table.render("markdown") for table in tables(entry["report"]))]
            parts.append(f"Seeds: {seeds}." + _unfinished(entry["seeds"], planned[entry["test"]]))
        if entry["kind"] == "shares":
            found = [by_table(metric, one) for metric, of in entry["by"].items() for one in of]
            shown = [table.render("markdown") for table in found if table is not None]
            parts += (
                [f"## {entry['test']}: gains over the baseline by properties of the parse", *shown] if shown else []
            )
    order = ["prepare", *experiment.systems]
    known = [entry for entry in found_now if entry["kind"] in ("step", "value")]
    known.sort(key=lambda entry: order.index(_system(entry)))
    steps = [entry for entry in known if entry["kind"] == "step"]
    values = [entry for entry in known if entry["kind"] == "value"]
    if values:
        digits = {entry["name"]: entry["digits"] for entry in values}
        cells = {(entry["cell"], entry["name"]): entry["value"] for entry in values}
        published = {value.name for value in experiment.values if value.published is not None}
        said = {(_system(entry), entry["name"]): entry["cell"] for entry in reversed(values)}
        for cell, name in list(cells):  # a figure of a paper is no measurement of each seed, and has no deviation
            if name in published and said[cell.split("/")[0], name] != cell:
                del cells[cell, name]
        parts += ["## Values", _by_system("Values", cells, digits, "mean ± standard deviation over the seeds")]
    if steps:
        cells = {(entry["cell"], entry["step"]): entry["seconds"] for entry in steps}
        note = "the time of a step that was stopped and started again is that of its last attempt"
        notes = "mean over the seeds" + (f"; {note}" if any(entry["attempts"] > 1 for entry in steps) else "")
        parts += ["## Wall time", _by_system("Seconds", cells, dict.fromkeys((step for _, step in cells), 1), notes)]
        parts += ["## Commands", _commands(steps)]
    environments = dict.fromkeys(_environment(entry) for entry in entries if entry["kind"] == "environment")
    parts += ["## Environment" + ("s, in the order of their use" if len(environments) > 1 else ""), *environments]
    return "\n\n".join(parts) + "\n"


def _system(entry: Mapping[str, Any]) -> str:
    return entry["cell"].split("/")[0]


def _by_system(title: str, cells: dict[tuple[str, str], float], digits: dict[str, int], note: str) -> str:
    columns = list(digits)
    rows: dict[str, dict[str, list[float]]] = {}
    for (cell, column), value in cells.items():
        rows.setdefault(cell.split("/")[0], {}).setdefault(column, []).append(value)
    body = []
    for name, found in rows.items():
        texts = []
        for column in columns:
            values = found.get(column, [])
            text = number(statistics.fmean(values) if values else None, digits[column])
            if len(values) > 1:
                text += f" ± {number(statistics.stdev(values), digits[column])}"
            texts.append(text)
        body.append([name, *texts])
    return Table(title, ["system", *columns], body, [note]).render("markdown")


def _commands(steps: Sequence[Mapping[str, Any]]) -> str:
    """Every command of ``prepare`` and of the first seed of each system; the other seeds differ in the seed."""
    lines: list[str] = []
    first: dict[str, Any] = {}
    for entry in steps:
        if first.setdefault(_system(entry), entry["cell"]) == entry["cell"]:
            lines.append(f"# {entry['cell']} {entry['step']}\n{entry['command']}")
    return "```bash\n" + "\n\n".join(lines) + "\n```"


def _environment(entry: dict) -> str:
    gpus = ", ".join(entry.get("gpus") or []) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    return (
        f"- CPU: {entry['cpu']}, {entry['cpus']} CPUs, {entry.get('threads', '?')} threads by default, "
        f"{entry['memory_gib']} GiB of memory\n- GPUs: {gpus}\n"
        f"- {entry['system']} {entry['machine']}, Python {entry['python']}\n- {versions}"
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.processor() or "unknown"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
