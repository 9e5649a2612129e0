"""Gains of a system with the parse and with control parses, and the share of a gain that a control keeps.

A control parse has the form of a parse but less syntax, or none (:mod:`fairseq_syntax.lab.controls`). For a system S,
the same system S.c trained and tested on the control c, and a baseline B::

    gain             = score(S) − score(B)
    gain with c      = score(S.c) − score(B)
    parse − control  = score(S) − score(S.c)      ``syntax`` in reports
    kept with c      = gain with c / gain

What a system gains with a control can be had without the syntax that the control lacks: by parameters, an additional
objective, or a bias towards neighbours (Pham, Macháček and Bojar 2019, Promoting the Knowledge of Source Syntax in
Transformer NMT Is Not Needed). The difference between parse and control measures the syntax only if the control does no
harm: one that loses against the baseline makes any parse look useful.

Intervals are those of :class:`fairseq_syntax.lab.scoring.significance.Resampled`, over sentences and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.lab.scoring.by_property import Runs, by_property
from fairseq_syntax.lab.scoring.intervals import Estimate, cells, if_enough
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.names import is_too_low, too_low
from fairseq_syntax.lab.scoring.properties import Property, interval_label
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES, Resampled, bounds
from fairseq_syntax.lab.scoring.tables import Table

TOO_FEW = f"none for fewer than {LEAST_SENTENCES} sentences, or groups of them"
INTERVALS = "in brackets: 95 % intervals over {}, and over seeds where there are several"
DRAWS, DRAWS_BY = 10_000, 1000  # bootstrap draws for shares, and for shares by properties of the parse


def measure_shares(resampled: Resampled, baseline: str, controls: Sequence[str]) -> list[dict[str, Any]]:
    """The gain of every system, and the gain that remains with each control.

    Args:
        resampled: the systems' scores in a metric where higher is better; system S trained on control c is called
            ``S.c``
        controls: the names of the controls; those that a system was not trained on are left out

    Returns:
        for each system that is not a control: ``system``, ``seeds``, ``gain``, and ``controls`` by name with ``seeds``,
        ``gain``, ``syntax`` and ``kept`` (None unless the gain's interval is above 0). Gains and ``syntax`` are
        estimates with p (:mod:`.intervals`), ``kept`` is [value, low, high].
    """

    def less(system: str, other: str) -> list[float]:
        return resampled.difference(system, other).estimate

    seeds = {name: len(scores) for name, scores in resampled.of_seeds.items()}
    rows = []
    for system in seeds:
        # also controls of systems that are not finished
        if system == baseline or any(system.endswith(f".{control}") for control in controls):
            continue
        row: dict[str, Any] = {"system": system, "seeds": seeds[system], "gain": less(system, baseline)}
        row["controls"] = {}
        for control in controls:
            twin = f"{system}.{control}"
            if twin in seeds:
                row["controls"][control] = {
                    "seeds": seeds[twin],
                    "gain": less(twin, baseline),
                    "syntax": less(system, twin),
                    "kept": _kept(resampled, twin, system, baseline) if row["gain"][1] > 0 else None,
                }
        rows.append(row)
    return rows


def _kept(resampled: Resampled, twin: str, system: str, baseline: str) -> list[float]:
    """The gain with the control divided by the gain with the parse, with its interval."""
    score, scores = resampled.score, resampled.scores
    gains = scores[system] - scores[baseline]
    # A draw without a gain has no share; it counts as larger than all others.
    drawn = np.divide(scores[twin] - scores[baseline], gains, out=np.full_like(gains, np.inf), where=gains > 0)
    return [(score[twin] - score[baseline]) / (score[system] - score[baseline]), *bounds(drawn)]


def measure_by(
    scorer: Scorer,
    runs: Runs,
    baseline: str,
    controls: Sequence[str],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    *,
    draws: int = DRAWS_BY,
    groups: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """:func:`measure_shares` in the intervals of each property of the source's parse.

    Returns:
        as :func:`.by_property.by_property`, with ``rows`` and, if there are groups, their number in the interval,
        ``groups``
    """

    def rows(lines: list[int]) -> dict[str, Any]:
        number = {} if groups is None else {"groups": len({groups[line] for line in lines})}
        resampled = Resampled(scorer, runs, draws, subset=lines, groups=groups)
        return {**number, "rows": measure_shares(resampled, baseline, controls)}

    return by_property(parses, properties, rows)


def shares(
    scorers: Sequence[Scorer],
    runs: Runs,
    baseline: str,
    controls: Sequence[str],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    groups: Sequence[str] | None = None,
) -> dict[str, Any]:
    """:func:`measure_shares` in all metrics where higher is better.

    Returns:
        ``baseline``, ``controls``, ``draws``; by metric, ``metrics`` (gains and shares) and ``by`` (in intervals)
    """
    metrics, by = {}, {}
    for scorer in scorers:
        if scorer.higher_is_better:
            metrics[scorer.name] = measure_shares(Resampled(scorer, runs, DRAWS, groups=groups), baseline, controls)
            by[scorer.name] = measure_by(scorer, runs, baseline, controls, parses, properties, groups=groups)
    return {"baseline": baseline, "controls": list(controls), "draws": DRAWS, "metrics": metrics, "by": by}


def drawn_from(part: Mapping[str, Any]) -> int:
    """The number of sentences, or groups of them, that the bootstrap of a report or an interval draws from."""
    return part.get("groups", part["sentences"])


def units_drawn(report: Mapping[str, Any]) -> str:
    """What the bootstrap of a report draws: ``sentences``, or ``groups`` of them."""
    return "groups" if "groups" in report else "sentences"


def shares_tables(report: Mapping[str, Any], of: str) -> tuple[list[Table], list[Table]]:
    """The tables of a report's ``shares`` by metric, whose titles end in ``of``, and by metric and property."""
    found, count, over = report["shares"], drawn_from(report), units_drawn(report)
    seeds = {one["name"]: len(one["runs"]) for one in report["systems"] if one["name"] == found["baseline"]}
    low = {metric for metric in found["metrics"] if is_too_low(report, metric)}
    gains = [
        share_table(metric, rows, f"{metric}, {of}", count, over, seeds, metric in low)
        for metric, rows in found["metrics"].items()
        if rows
    ]
    by = [by_table(metric, part, over) for metric, parts in found["by"].items() for part in parts if metric not in low]
    return gains, [table for table in by if table is not None]


def share_table(
    metric: str,
    rows: Sequence[Mapping[str, Any]],
    title: str,
    count: int,
    over: str = "sentences",
    baseline: Mapping[str, int] | None = None,
    is_low: bool = False,
) -> Table:
    """The result of :func:`measure_shares` as a table with one row per system and control.

    Args:
        count: the number of sentences, or groups of them
        over: what the bootstrap draws (:func:`units_drawn`)
        baseline: the number of the baseline's seeds, by its name
        is_low: whether the scores are too low to compare systems; the table then has neither intervals nor shares
    """
    least = math.inf if is_low else LEAST_SENTENCES

    def shown(estimate: Estimate) -> Estimate:
        return estimate[:1] if count < least else estimate

    body: list[list[str | Estimate]] = []
    seeds = {**(baseline or {}), **{row["system"]: row["seeds"] for row in rows}}
    without: set[str] = set()  # the kinds of gains that have no share
    harmful: list[str] = []  # controls that lose
    for row in rows:
        first: list[str | Estimate] = [row["system"], shown(row["gain"])]
        if not row["controls"]:
            body.append([*first, "", "", "", ""])
        for control, share in row["controls"].items():
            value, low, high = (f"{100 * figure:.0f}" for figure in share["kept"] or [0, 0, 0])
            kept = f"{value} % ({low} to {high})" if share["kept"] and count >= least else ""
            body.append([*first, control, shown(share["gain"]), shown(share["syntax"]), kept])
            first = ["", ""]
            twin = f"{row['system']}.{control}"
            seeds[twin] = share["seeds"]
            if share["gain"][2] < 0:
                harmful.append(twin)
            if not kept:
                without.add("loss" if row["gain"][2] < 0 else "gain that may be 0")
    header = ["system", f"gain, {metric}", "control", "gain with it", "parse − control", "kept with it"]
    notes = [too_low(metric) if is_low else INTERVALS.format(over)]
    if count < LEAST_SENTENCES:
        notes += [] if is_low else [TOO_FEW]
    elif not is_low:
        notes += [f"no share is given of a {kind}" for kind in sorted(without)]
    if harmful and count >= least:
        harm = "worse than the baseline, so that the parse − control does not measure syntax alone"
        notes.append(f"{harm}: {', '.join(harmful)}")
    if not is_low and (lone := [name for name, count in seeds.items() if count == 1]):
        notes.append(f"one seed of {', '.join(lone)}: the intervals say nothing of other seeds")
    texts, marked = cells(body)
    return Table(title, header, texts, [*marked, *notes])


def by_table(metric: str, part: Mapping[str, Any], over: str = "sentences") -> Table | None:
    """One property of :func:`measure_by` as a table of gains and of parse minus control; None without rows.

    Args:
        over: what the bootstrap draws (:func:`units_drawn`)
    """
    intervals = part["intervals"]
    counts = list(map(drawn_from, intervals))
    header = ["", *(interval_label(part["property"], interval["over"], interval["to"]) for interval in intervals)]
    rows: list[list[str | Estimate]] = [["sentences", *(str(interval["sentences"]) for interval in intervals)]]

    def add(name: str, estimates: Sequence[Estimate]) -> None:
        rows.append([name, *map(if_enough, estimates, counts)])

    for of_system in zip(*(interval["rows"] for interval in intervals)):
        name = of_system[0]["system"]
        add(f"{name}, gain", [row["gain"] for row in of_system])
        for control in of_system[0]["controls"]:
            add(f"{name}.{control}, gain", [row["controls"][control]["gain"] for row in of_system])
            add(f"{name} − {name}.{control}", [row["controls"][control]["syntax"] for row in of_system])
    if len(rows) == 1:
        return None
    texts, marked = cells(rows)
    notes = [*marked, INTERVALS.format(over)]
    if min(counts) < LEAST_SENTENCES:
        notes.append(TOO_FEW)
    return Table(f"{metric} by {part['property']}", header, texts, notes)
