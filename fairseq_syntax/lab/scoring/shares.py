"""The share of a system's gain that is due to syntax, from its gains with the parse and with control parses.

A control parse has the form of a parse but less syntax, or none (:mod:`fairseq_syntax.lab.controls`). A gain over the
baseline with a control parse is not due to the missing syntax, but to parameters, to an additional objective, or to a
bias towards neighbours. For a system S, the same system S.c trained and tested on the control c, and a baseline B::

    gain          = score(S) − score(B)
    gain with c   = score(S.c) − score(B)
    syntax        = score(S) − score(S.c)
    kept with c   = gain with c / gain       the share of the gain that does not need syntax

Intervals are those of :class:`fairseq_syntax.lab.scoring.significance.Resampled`, over sentences and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.lab.scoring.metrics import METRICS, Scorer
from fairseq_syntax.lab.scoring.properties import Property, interval_label
from fairseq_syntax.lab.scoring.report import Options
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES, Difference, Resampled, bounds
from fairseq_syntax.lab.scoring.tables import Table, number

INTERVALS = "in brackets: 95 % intervals over sentences, and over seeds where there are several"
DRAWS, DRAWS_BY = 10_000, 1000  # bootstrap draws for shares, and for shares by properties of the parse


def signed(figures: Sequence[float]) -> str:
    """A signed value with its 95 % interval: ``+1.26 (+0.60 to +1.92)``."""
    value, low, high = figures
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def _kept(resampled: Resampled, twin: str, system: str, baseline: str) -> list[float] | None:
    """The gain with the control divided by the gain with the parse; None if the latter's interval contains 0."""
    if resampled.difference(system, baseline).low <= 0:
        return None
    score, scores = resampled.score, resampled.scores
    gains = scores[system] - scores[baseline]
    # A draw without a gain has no share; it counts as larger than all others.
    drawn = np.divide(scores[twin] - scores[baseline], gains, out=np.full_like(gains, np.inf), where=gains > 0)
    return [(score[twin] - score[baseline]) / (score[system] - score[baseline]), *bounds(drawn)]


def _figures(difference: Difference) -> list[float]:
    return [difference.difference, difference.low, difference.high]


def measure(resampled: Resampled, baseline: str, controls: Sequence[str]) -> list[dict[str, Any]]:
    """The gain of every system, and the gain that remains with each control.

    Args:
        resampled: the systems' scores in a metric where higher is better; system S trained on control c is called
            ``S.c``
        baseline: the name of the baseline
        controls: the names of the controls; those that a system was not trained on are left out

    Returns:
        for each system that is not a control: ``system``, ``seeds``, ``gain``, and ``controls`` by name with ``seeds``,
        ``gain``, ``syntax`` and ``kept`` (None if the gain's interval contains 0). Values are [value, low, high].
    """
    runs = resampled.seeds
    # also controls of systems that are not finished
    twins = {name for name in runs if any(name.endswith(f".{control}") for control in controls)}
    rows = []
    for system in runs:
        if system == baseline or system in twins:
            continue
        row: dict[str, Any] = {"system": system, "seeds": runs[system]}
        row["gain"] = _figures(resampled.difference(system, baseline))
        row["controls"] = {}
        for control in controls:
            twin = f"{system}.{control}"
            if twin in runs:
                row["controls"][control] = {
                    "seeds": runs[twin],
                    "gain": _figures(resampled.difference(twin, baseline)),
                    "syntax": _figures(resampled.difference(system, twin)),
                    "kept": _kept(resampled, twin, system, baseline),
                }
        rows.append(row)
    return rows


def measure_by(
    scorer: Scorer,
    runs: Mapping[str, Sequence[Sequence[str]]],
    baseline: str,
    controls: Sequence[str],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    *,
    draws: int = 1000,
    groups: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """:func:`measure` in the intervals of each property of the source's parse.

    Args:
        scorer, runs, draws, groups: as in :class:`.significance.Resampled`
        parses: the parses of the source lines

    Returns:
        for each property ``{"property", "intervals"}``, and for each interval ``{"over", "to", "sentences", "rows"}``
    """
    by_property = []
    for prop in properties:
        intervals = []
        for interval in prop.intervals(prop.values(parses)):
            chosen = interval.lines.tolist()
            resampled = Resampled(scorer, runs, draws, subset=chosen, groups=groups)
            rows = measure(resampled, baseline, controls)
            intervals.append({"over": interval.over, "to": interval.to, "sentences": len(chosen), "rows": rows})
        by_property.append({"property": prop.name, "intervals": intervals})
    return by_property


def shares(
    runs: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[Sequence[str]],
    options: Options,
    baseline: str,
    controls: Sequence[str],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    groups: Sequence[str] | None = None,
) -> dict[str, Any]:
    """:func:`measure` in all metrics where higher is better.

    Returns:
        ``baseline``, ``controls``, ``draws``; by metric, ``metrics`` (gains and shares), ``own`` (the variation between
        seeds that sentences do not explain, :meth:`.significance.Resampled.seed_spread`) and ``by`` (in intervals)
    """
    report: dict[str, Any] = {"baseline": baseline, "controls": list(controls), "draws": DRAWS}
    report |= {"metrics": {}, "own": {}, "by": {}}
    for key in options.metrics:
        if key in METRICS:
            scorer = Scorer(key, references, options.tokenize, options.lowercase)
            if scorer.higher_is_better:
                resampled = Resampled(scorer, runs, DRAWS, groups=groups)
                report["metrics"][scorer.name] = measure(resampled, baseline, controls)
                report["own"][scorer.name] = resampled.seed_spread()
                report["by"][scorer.name] = measure_by(
                    scorer, runs, baseline, controls, parses, properties, draws=DRAWS_BY, groups=groups
                )
    return report


def share_table(metric: str, rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The result of :func:`measure` as a table with one row per system and control."""
    body = []
    for row in rows:
        first = [row["system"], signed(row["gain"])]
        if not row["controls"]:
            body.append([*first, "", "", "", ""])
        for control, share in row["controls"].items():
            kept = "" if share["kept"] is None else percent(share["kept"])
            body.append([*first, control, *(signed(share[what]) for what in ("gain", "syntax")), kept])
            first = ["", ""]
    header = ["system", f"gain, {metric}", "control", "gain with it", "syntax", "kept with it"]
    notes = [INTERVALS]
    if any(share["kept"] is None for row in rows for share in row["controls"].values()):
        notes.append("no share is given of a gain that may be 0")
    seeds = {row["system"]: row["seeds"] for row in rows}
    seeds |= {f"{row['system']}.{name}": one["seeds"] for row in rows for name, one in row["controls"].items()}
    if lone := [name for name, count in seeds.items() if count == 1]:
        notes.append(f"one seed of {', '.join(lone)}: the intervals say nothing of other seeds")
    return Table(title, header, body, notes)


def by_table(metric: str, part: Mapping[str, Any]) -> Table | None:
    """One property of :func:`measure_by` as a table of gains and of parse minus control; None without rows."""

    def shown(figures: Sequence[float], sentences: int) -> str:
        return signed(figures) if sentences >= LEAST_SENTENCES else f"{figures[0]:+.2f}"

    intervals = part["intervals"]
    counts = [interval["sentences"] for interval in intervals]
    header = ["", *(interval_label(part["property"], interval["over"], interval["to"]) for interval in intervals)]
    rows = [["sentences", *map(str, counts)]]
    for of_system in zip(*(interval["rows"] for interval in intervals)):
        name = of_system[0]["system"]
        rows.append([f"{name}, gain", *map(shown, (row["gain"] for row in of_system), counts)])
        for control in of_system[0]["controls"]:
            syntax = (row["controls"][control]["syntax"] for row in of_system)
            rows.append([f"{name}, syntax against {control}", *map(shown, syntax, counts)])
    if len(rows) == 1:
        return None
    notes = [INTERVALS]
    if min(counts) < LEAST_SENTENCES:
        notes.append(f"none for fewer than {LEAST_SENTENCES} sentences")
    return Table(f"{metric} by {part['property']}", header, rows, notes)


def percent(figures: Sequence[float]) -> str:
    """A share with its interval, in percent."""
    value, low, high = (number(100 * figure, 0) for figure in figures)
    return f"{value} % ({low} to {high})"
