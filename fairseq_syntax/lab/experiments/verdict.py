"""The page that says in words how much of each system's gain is syntax, from the record and from nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.experiments.plan import Experiment
from fairseq_syntax.lab.experiments.record import current
from fairseq_syntax.lab.scoring.shares import Estimate, share_table
from fairseq_syntax.lab.scoring.tables import Table

_HOW_TO_READ = """\
**Gain** is a system's score less that of {baseline}. A **control** is the same system, trained and tested on parses
that have the form of the real ones and not their syntax: {controls}. What a system gains with a control, it owes to
something other than the syntax that the control leaves out. **Syntax** is what remains: the score with the parse less
the score with the control. **Kept** is the share of the gain that the control keeps.

Intervals hold 95 % of {draws} bootstrap draws, each of which takes other sentences (the same for all systems) and,
where a system has several seeds, adds what its seeds differ beyond what these sentences make them differ. An interval
from one seed says nothing of how another seed would come out, and those from two or three are too narrow where seeds
differ by far more than sentences. *May be chance* means that the interval has 0 in it: the
figures do not tell, and more seeds or more sentences might. (The p of tables counts draws around their mean, where the
interval lies between two of them, so that close to 5 % the one may say what the other does not.) No correction is made
for the number of comparisons, and all of them share the runs of {baseline}. What holds for this corpus, this parser and
models of this size, trained for this long, need not hold for others."""


def verdict_page(experiment: Experiment, entries: Sequence[Mapping[str, Any]]) -> str:
    """The page as Markdown.

    Args:
        experiment: one that has ``shares``
        entries: its record, as :func:`.record.read` gives it

    Raises:
        SyntaxDataError: the experiment has no ``shares``
    """
    shares = experiment.shares
    if shares is None:
        raise SyntaxDataError("says nothing of shares", path=experiment.path)
    latest = {entry["test"]: entry for entry in current(experiment, entries) if entry["kind"] == "shares"}
    table = os.path.relpath(experiment.table, shares.page.parent)
    parts = [
        f"# {experiment.name}: how much of each gain is syntax",
        "Written by `fairseq-syntax experiment` from its results file; only finished runs count. Scores, and gains by "
        f"properties of the parse, are in [{experiment.table.name}]({table}).",
        _progress(experiment, latest),
    ]
    if not latest:
        return "\n\n".join([*parts, f"Nothing can be said before a run of {shares.baseline} is finished."]) + "\n"
    described = "; ".join(f"*{name}*, {text}" for name, text in shares.controls.items())
    draws = next(iter(latest.values()))["draws"]
    parts += ["## In words", _words(experiment, latest)]
    for name, entry in latest.items():
        parts.append(f"## {name}")
        found = [
            share_table(metric, rows, f"Gains over {shares.baseline} in {metric}")
            for metric, rows in entry["metrics"].items()
            if rows
        ]
        parts += [table.render("markdown") for table in found] or ["No system is finished but the baseline."]
    parts += ["## How to read this", _HOW_TO_READ.format(baseline=shares.baseline, controls=described, draws=draws)]
    parts += _own(latest)
    return "\n\n".join(parts) + "\n"


def _own(latest: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How much seeds differ beyond what the sentences make them differ; nothing where there are no two of a system."""
    found = {
        Measure(metric, test): share
        for test, entry in latest.items()
        for metric, share in entry.get("own", {}).items()
        if share is not None
    }
    if not found:
        return []
    said = enumerated(f"{share:.1f} ({where})" for where, share in found.items())
    return [
        "How well intervals over seeds hold depends on how much of a seed's score is its own, given here as its "
        f"standard deviation over all systems, in those that the sentences give to a seed's score: {said}."
    ]


def _progress(experiment: Experiment, latest: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for system in experiment.systems:
        done = {seed for entry in latest.values() for seed in entry["seeds"].get(system, ())}
        columns = ([str(seed) for seed in experiment.seeds if (seed in done) is finished] for finished in (True, False))
        rows.append([system, *(", ".join(seeds) or "none" for seeds in columns)])
    return Table("Runs", ["system", "seeds finished", "seeds not finished"], rows).render("markdown")


def _words(experiment: Experiment, latest: Mapping[str, Mapping[str, Any]]) -> str:
    """One paragraph a system: does it gain, what of the gain does each control keep, and is any of it syntax?"""
    shares = experiment.shares
    assert shares is not None
    found: dict[str, list[tuple[Measure, Mapping[str, Any]]]] = {}
    for test, entry in latest.items():
        for metric, rows in entry["metrics"].items():
            for row in rows:
                found.setdefault(row["system"], []).append((Measure(metric, test), row))
    paragraphs = []
    for system in [name for name in experiment.systems if name in found]:
        rows_of = found[system]
        gains = {where: Estimate(*row["gain"]) for where, row in rows_of}
        lines = [f"**{system}** against {shares.baseline}: {_told(gains)}."]
        of_syntax: dict[str, dict[Measure, Estimate]] = {}
        for control in shares.controls:
            with_it = [(where, row["controls"][control]) for where, row in rows_of if control in row["controls"]]
            if with_it:
                of_syntax[control] = {where: Estimate(*row["syntax"]) for where, row in with_it}
                lines.append(_control_in_words(control, of_syntax[control], [row["kept"] for _, row in with_it]))
        planned = [control for control in shares.controls if f"{system}.{control}" in experiment.systems]
        unfinished = [control for control in planned if len(of_syntax.get(control, ())) < len(gains)]
        lines.append(_conclusion(gains, of_syntax, unfinished))
        seeds = {shares.baseline: [len(entry["seeds"][shares.baseline]) for entry in latest.values()]}
        seeds[system] = [row["seeds"] for _, row in rows_of]
        for _, row in rows_of:
            for control, one in row["controls"].items():
                seeds.setdefault(f"{system}.{control}", []).append(one["seeds"])
        lone = [name for name, counts in seeds.items() if min(counts) == 1]
        if lone:
            lines.append(
                f"One seed of {enumerated(lone)}: this is said of these runs, and not of how others would come out."
            )
        paragraphs.append(" ".join(lines))
    if not paragraphs:
        paragraphs.append(f"{shares.baseline} is finished, and no other system is.")
    return "\n\n".join(paragraphs)


class Measure(NamedTuple):
    """What a figure was measured in."""

    metric: str
    test: str

    def __str__(self) -> str:
        return f"{self.metric} on {self.test}"


def _told(figures: Mapping[Measure, Estimate]) -> str:
    """The figures, and of which of them their intervals say that they are no chance."""
    tests: dict[str, list[str]] = {}
    for where, figure in figures.items():
        tests.setdefault(where.test, []).append(f"{figure.value:+.2f} {where.metric}")
    values = "; ".join(f"{enumerated(of_test)} on {test}" for test, of_test in tests.items())
    above = [str(where) for where, figure in figures.items() if figure.above_zero]
    below = [str(where) for where, figure in figures.items() if figure.high < 0]
    if len(above) == len(figures):
        return f"{values}: more than chance"
    if len(below) == len(figures):
        return f"{values}: a loss that is more than chance"
    if not above and not below:
        return f"{values}: may be chance"
    said = [f"more than chance in {enumerated(above)}"] if above else []
    said += [f"a loss that is more than chance in {enumerated(below)}"] if below else []
    rest = "" if len(above) + len(below) == len(figures) else "; the rest may be chance"
    return f"{values}: {', '.join(said)}{rest}"


def _control_in_words(
    control: str, of_syntax: Mapping[Measure, Estimate], kept: Sequence[Sequence[float] | None]
) -> str:
    shares = sorted(round(100 * share[0]) for share in kept if share is not None)
    text = f"The parse against the control *{control}*: {_told(of_syntax)}"
    if shares:
        between = f"{shares[0]} %" if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]} %"
        text += f"; with *{control}* it keeps {between} of its gain"
    return text + "."


def _conclusion(
    gains: Mapping[Measure, Estimate], of_syntax: Mapping[str, Mapping[Measure, Estimate]], unfinished: Sequence[str]
) -> str:
    """What the intervals say of the question itself: how much of a gain is syntax."""
    gained = [where for where, gain in gains.items() if gain.above_zero]
    lines = [] if gained else ["No gain is shown, of which a part could be syntax."]
    if gained and not of_syntax and not unfinished:
        lines.append("No control is planned for it: what of its gain is syntax is open.")
    for control, found in of_syntax.items() if gained else ():
        measures = [str(where) for where in gained if where in found and found[where].above_zero]
        if measures:
            lines.append(f"Part of the gain is syntax that *{control}* parses lack, in {enumerated(measures)}.")
        else:
            lines.append(f"No part of the gain is shown to need more than what *{control}* parses have.")
    lines += [f"The control *{control}* is not finished." for control in unfinished]
    return " ".join(lines)


def enumerated(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
