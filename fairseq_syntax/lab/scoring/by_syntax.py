"""Scores by a property of the source's parse, to show where a system gains.

Sentences are grouped by intervals of a property (:mod:`fairseq_syntax.lab.scoring.properties`). Each group is scored as
a separate test set, with bootstrap intervals; differences from the baseline are tested with Holm's correction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.properties import Property, interval_label
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES, Resampled, bounds, holm
from fairseq_syntax.lab.scoring.tables import Table, corrected, number, p_value
from fairseq_syntax.runtime.console import progress

logger = logging.getLogger(__name__)


def by_syntax(
    systems: dict[str, list[list[str]]],
    scorers: Sequence[Scorer],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    *,
    baseline: str,
    resamples: int = 1000,
    groups: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Scores in the intervals of each property.

    Args:
        systems: for each system name, its runs (one per seed), over which scores are averaged
        parses: the parses of the N source lines
        baseline: the system with which the others are compared
        resamples: the number of bootstrap samples over sentences and seeds (:class:`.significance.Resampled`). With 0,
            or fewer than :data:`.significance.LEAST_SENTENCES` sentences, there are no confidence intervals and tests.
        groups: the group of each line, if the bootstrap should resample groups

    Returns:
        per property ``{"property", "intervals"}``, and per interval ``{"over", "to", "sentences", "mean", "scores",
        "differences"}``: its lower (exclusive) and upper (inclusive) bound, the mean of the property,
        ``scores[metric][system]`` with ``score``, ``low`` and ``high`` (95 %), and ``differences[metric][system]`` with
        the fields of :class:`Difference` and ``p_holm``. Holm's family is all systems and intervals of one property and
        metric.
    """
    parts = []
    for prop in properties:
        values = prop.values(parses)
        # Any string may be a label or tag, so a misspelt one is not an error but matches no word.
        if "=" in prop.name and not values.any():
            logger.warning("--by %s: no word of these sentences has it", prop.name)
        intervals = []
        for interval in progress(prop.intervals(values), of=f"by {prop.name}", unit="intervals"):
            entry: dict[str, Any] = {
                "over": interval.over,
                "to": interval.to,
                "sentences": len(interval.lines),
                "mean": float(values[interval.lines].mean()),
                "scores": {},
                "differences": {},
            }
            for scorer in scorers:
                scores, differences = _compare(systems, scorer, interval.lines, baseline, resamples, groups)
                entry["scores"][scorer.name], entry["differences"][scorer.name] = scores, differences
            intervals.append(entry)
        for scorer in scorers:
            family = [one for entry in intervals for one in entry["differences"][scorer.name].values() if "p" in one]
            for one, adjusted in zip(family, holm([one["p"] for one in family])):
                one["p_holm"] = adjusted
        parts.append({"property": prop.name, "intervals": intervals})
    return parts


def _compare(
    systems: dict[str, list[list[str]]],
    scorer: Scorer,
    lines: np.ndarray,
    baseline: str,
    resamples: int,
    groups: Sequence[str] | None,
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    chosen = lines.tolist()
    independent = len(chosen) if groups is None else len({groups[line] for line in chosen})
    resampled = None
    if resamples and independent >= LEAST_SENTENCES:
        resampled = Resampled(scorer, systems, resamples, subset=chosen, groups=groups)
    scores: dict[str, dict[str, float]] = {}
    for name, runs in systems.items():
        scores[name] = {"score": float(np.mean([scorer.corpus(run, chosen) for run in runs]))}
        if resampled is not None:
            low, high = bounds(resampled.scores[name])
            scores[name] |= {"low": low, "high": high}
    differences: dict[str, dict[str, float]] = {}
    for name in systems:
        if name != baseline:
            differences[name] = {"difference": scores[name]["score"] - scores[baseline]["score"]}
            if resampled is not None:
                differences[name] = dict(vars(resampled.difference(name, baseline)))
    return scores, differences


def syntax_tables(parts: Sequence[dict[str, Any]], baseline: str) -> list[Table]:
    """For each property and metric, a table of scores and, for several systems, one of differences."""
    tables = []
    for one in parts:
        intervals = one["intervals"]
        for metric in intervals[0]["scores"]:
            names = list(intervals[0]["scores"][metric])
            rows: list[list[str]] = []
            tests: list[list[str]] = []
            tested = sum("p" in one for entry in intervals for one in entry["differences"][metric].values())
            for entry in intervals:
                label = interval_label(one["property"], entry["over"], entry["to"])
                rows.append([label, str(entry["sentences"])])
                for name in names:
                    rows[-1].append(_with_interval(entry["scores"][metric][name], "score", signed=False))
                for name, difference in entry["differences"][metric].items():
                    cells = [_with_interval(difference, "difference", signed=True)]
                    if tested:
                        cells += [number(difference.get("detectable")), p_value(difference.get("p"), star=False)]
                        cells.append(p_value(difference.get("p_holm")))
                    tests.append([label, name, *cells])
            resampled = [entry for entry in intervals if "low" in entry["scores"][metric][names[0]]]
            notes = ["in brackets: 95 % bootstrap intervals"] if resampled else []
            if resampled and len(resampled) < len(intervals):
                notes.append(f"no intervals and tests for fewer than {LEAST_SENTENCES} sentences")
            tables.append(Table(f"{metric} by {one['property']}", [one["property"], "sentences", *names], rows, notes))
            if tests:
                header = [one["property"], "system", "difference"] + (["MDD", "p", "Holm"] if tested else [])
                notes = [
                    "MDD: the minimal detectable difference, found at the 5% level with a probability of 80%",
                    "p of the bootstrap over sentences, and over seeds where there are several; " + corrected(tested),
                ]
                title = f"{metric} by {one['property']}, against {baseline}"
                tables.append(Table(title, header, tests, notes if tested else []))
    return tables


def _with_interval(entry: dict[str, float], key: str, *, signed: bool) -> str:
    sign = "+" if signed else ""
    text = f"{entry[key]:{sign}.2f}"
    return f"{text} [{entry['low']:{sign}.2f}, {entry['high']:{sign}.2f}]" if "low" in entry else text
