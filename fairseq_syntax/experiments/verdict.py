"""The page that says in words how much of each system's gain is syntax, from the record and from nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.experiments.plan import Experiment
from fairseq_syntax.experiments.shares import Estimate, percent, share_table
from fairseq_syntax.scoring.tables import Table

_HOW_TO_READ = """\
**Gain** is a system's score less that of {baseline}. A **control** is the same system, trained and tested on parses
that have the form of the real ones and not their syntax: {controls}. What a system gains with a control, it owes to
something other than the syntax that the control leaves out. **Syntax** is what remains: the score with the parse less
the score with the control. **Kept** is the share of the gain that the control keeps.

Intervals hold 95 % of {draws} bootstrap draws, each of which takes other sentences (the same for all systems) and,
where a system has several seeds, other seeds. An interval from one seed says nothing of how another seed would come
out. *May be chance* means that the interval has 0 in it: the figures do not tell, and more seeds or more sentences
might. No correction is made for the number of comparisons, and all of them share the runs of {baseline}. What holds
for this corpus, this parser and models of this size need not hold for others."""


def verdict_page(experiment: Experiment, entries: Sequence[Mapping[str, Any]]) -> str:
    """The page as Markdown.

    Args:
        experiment: one that has ``shares``
        entries: its record, as :func:`.results.read` gives it

    Raises:
        SyntaxDataError: the experiment has no ``shares``
    """
    shares = experiment.shares
    if shares is None:
        raise SyntaxDataError("says nothing of shares", path=experiment.path)
    latest = {entry["test"]: entry for entry in entries if entry["kind"] == "shares"}
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
    return "\n\n".join(parts) + "\n"


def _progress(experiment: Experiment, latest: Mapping[str, Mapping[str, Any]]) -> str:
    done = next(iter(latest.values()))["seeds"] if latest else {}
    rows = []
    for system in experiment.systems:
        missing = [str(seed) for seed in experiment.seeds if seed not in done.get(system, ())]
        rows.append([system, ", ".join(map(str, done.get(system, ()))) or "none", ", ".join(missing) or "none"])
    return Table("Runs", ["system", "seeds finished", "seeds not finished"], rows).render("markdown")


def _words(experiment: Experiment, latest: Mapping[str, Mapping[str, Any]]) -> str:
    """One paragraph a system: does it gain, and what of the gain each control keeps, in each test and metric."""
    shares = experiment.shares
    assert shares is not None
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for test, entry in latest.items():
        for metric, rows in entry["metrics"].items():
            for row in rows:
                found.setdefault(row["system"], []).append((f"{metric} on {test}", row))
    paragraphs = []
    for system in [name for name in experiment.systems if name in found]:
        rows_of = found[system]
        lines = [_gain_in_words(system, shares.baseline, [(where, row["gain"]) for where, row in rows_of])]
        for control in shares.controls:
            with_it = [(where, row["controls"][control]) for where, row in rows_of if control in row["controls"]]
            if with_it:
                lines.append(_control_in_words(control, with_it))
            elif f"{system}.{control}" in experiment.systems:
                lines.append(f"The control *{control}* is not finished: what of this is syntax is open.")
        if not any(f"{system}.{control}" in experiment.systems for control in shares.controls):
            lines.append("No control is planned for it.")
        seeds = min(row["seeds"] for _, row in rows_of)
        if seeds == 1:
            lines.append("One seed: this is said of these runs, and not of how others would come out.")
        paragraphs.append(" ".join(lines))
    if not paragraphs:
        paragraphs.append(f"{shares.baseline} is finished, and no other system is.")
    return "\n\n".join(paragraphs)


def _gain_in_words(system: str, baseline: str, gains: Sequence[tuple[str, Sequence[float]]]) -> str:
    return (
        f"**{system}** against {baseline}: "
        + "; ".join(
            f"{Estimate(*figures)} {where}, {_sign(Estimate(*figures), 'a gain', 'a loss')}" for where, figures in gains
        )
        + "."
    )


def _control_in_words(control: str, found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    told = []
    for where, row in found:
        syntax = Estimate(*row["syntax"])
        text = f"{syntax} {where}, {_sign(syntax, 'the syntax helps', 'the control does better')}"
        if row["kept"] is not None:
            text += f", and the control keeps {percent(row['kept'])} of the gain"
        told.append(text)
    return f"The parse against the control *{control}*: " + "; ".join(told) + "."


def _sign(estimate: Estimate, above: str, below: str) -> str:
    """What an interval says: that the figure is above 0, below it, or neither."""
    return above if estimate.low > 0 else below if estimate.high < 0 else "which may be chance"
