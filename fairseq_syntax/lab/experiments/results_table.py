"""An experiment's table, written from its results file and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_syntax.lab.experiments.plan import Experiment
from fairseq_syntax.lab.experiments.record import current
from fairseq_syntax.lab.scoring.tables import Table, number


def results_table(experiment: Experiment, entries: list[dict]) -> str:
    """The results of an experiment as Markdown: scores and tests, values, times, commands, environments.

    Args:
        entries: its record, as :func:`.record.read` gives it
    """
    from fairseq_syntax.lab.scoring.report import tables
    from fairseq_syntax.lab.scoring.shares import by_table

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


def _unfinished(seeds: Mapping[str, Sequence[int]], planned: Mapping[str, Sequence[int]]) -> str:
    """A sentence about the cells that a test set has no scores of; empty where there are none."""
    missing = {name: [str(s) for s in mine if s not in seeds.get(name, ())] for name, mine in planned.items()}
    cells = "; ".join(f"{name} {', '.join(mine)}" for name, mine in missing.items() if mine)
    return f" Not finished: {cells}." if cells else ""
