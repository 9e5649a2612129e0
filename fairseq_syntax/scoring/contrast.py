"""Contrastive evaluation: how often is the right translation the more probable one?

An item is right where the score of its correct translation is above that of every incorrect one; a tie is wrong, as by
the programs of LingEval97 and ContraPro, or right, as by DistilLingEval's. Accuracies come with Wilson's interval
(Wilson 1927), systems are compared on the same items by McNemar's exact test (McNemar 1947), with Holm's correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from fairseq_syntax.scoring.contrast_sets import LONGEST, ContrastSet
from fairseq_syntax.scoring.significance import holm
from fairseq_syntax.scoring.tables import Table, corrected, p_value

ALL = "all"


def decisions(contrast: ContrastSet, scores: Sequence[float], *, ties_right: bool = False) -> np.ndarray:
    """Which items are right, bool [items].

    Args:
        scores: of the set's rows, higher is better
        ties_right: whether an equal score of a wrong translation is forgiven
    """
    found = []
    for item in contrast.items:
        best = max(scores[row] for row in item.incorrect)
        found.append(scores[item.correct] >= best if ties_right else scores[item.correct] > best)
    return np.array(found, dtype=bool)


def ties(contrast: ContrastSet, scores: Sequence[float]) -> int:
    """The number of items whose best wrong translation has exactly the score of the right one."""
    return sum(scores[item.correct] == max(scores[row] for row in item.incorrect) for item in contrast.items)


def groups(contrast: ContrastSet) -> dict[str, dict[str, np.ndarray]]:
    """The items [n] of ``all``, of each ``category`` and of each ``distance``, in the order of their tables."""
    by_category: dict[str, list[int]] = {}
    by_distance: dict[tuple[str, int], list[int]] = {}
    for number, item in enumerate(contrast.items):
        by_category.setdefault(item.category, []).append(number)
        if item.distance is not None:
            place = item.unit, min(item.distance, LONGEST[item.unit] + 1)
            by_distance.setdefault(place, []).append(number)
    found = {ALL: {ALL: np.arange(len(contrast.items))}}
    if len(by_category) > 1:
        found["category"] = {name: np.array(by_category[name]) for name in sorted(by_category)}
    if by_distance:
        several = len({unit for unit, _ in by_distance}) > 1  # then they are no distances of one kind
        found["distance"] = {}
        for unit, distance in sorted(by_distance, key=lambda place: (place[0] != "words", place[1])):
            label = f"> {LONGEST[unit]}" if distance > LONGEST[unit] else str(distance)
            found["distance"][f"{label} {unit}" if several else label] = np.array(by_distance[unit, distance])
    return found


def accuracy(right: np.ndarray) -> dict[str, Any]:
    """``items``, ``right``, ``accuracy``, and the ends of its 95% interval by Wilson, ``low`` and ``high``."""
    count, total = int(right.sum()), len(right)
    interval = stats.binomtest(count, total).proportion_ci(confidence_level=0.95, method="wilson")
    return {
        "items": total,
        "right": count,
        "accuracy": count / total,
        "low": float(interval.low),
        "high": float(interval.high),
    }


def mcnemar(baseline: np.ndarray, system: np.ndarray) -> dict[str, Any]:
    """The exact test of two systems' decisions [n] on the same items.

    Returns:
        ``gained`` and ``lost`` items, the ``difference`` of the accuracies, and ``p`` of a fair coin's having fallen so
        unevenly, two-sided; 1 where no decision differs
    """
    gained, lost = int((system & ~baseline).sum()), int((baseline & ~system).sum())
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return {"gained": gained, "lost": lost, "difference": (gained - lost) / len(system), "p": p}


def evaluate(contrast: ContrastSet, right: Mapping[str, np.ndarray], *, baseline: str | None = None) -> dict[str, Any]:
    """Accuracies by category and distance, and tests against the baseline (by name, or the first).

    Args:
        right: each system's decisions [items]

    Returns:
        ``{"set", "items", "baseline", "groups"}``; ``groups[kind][group]`` has ``systems[name]`` with the fields of
        :func:`accuracy`, and ``tests[name]`` with those of :func:`mcnemar` and ``p_holm``. Holm's family is all systems
        and groups of a kind.
    """
    base = baseline or next(iter(right))
    found: dict[str, Any] = {"set": contrast.name, "items": len(contrast.items), "baseline": base, "groups": {}}
    for kind, members in groups(contrast).items():
        entries = {
            group: {
                "systems": {name: accuracy(decided[items]) for name, decided in right.items()},
                "tests": {
                    name: mcnemar(right[base][items], decided[items]) for name, decided in right.items() if name != base
                },
            }
            for group, items in members.items()
        }
        family = [test for entry in entries.values() for test in entry["tests"].values()]
        for test, adjusted in zip(family, holm([test["p"] for test in family])):
            test["p_holm"] = adjusted
        found["groups"][kind] = entries
    return found


def tables(report: Mapping[str, Any]) -> list[Table]:
    """The accuracies by category and by distance, and the tests, where there are several systems."""
    found = []
    whole = report["groups"][ALL]
    for kind, entries in report["groups"].items():
        if kind == ALL and "category" in report["groups"]:
            continue
        names = list(whole[ALL]["systems"])
        rows, tests = [], []
        shown = list(entries.items())
        if kind == "category":  # one of them may be called "all", too
            shown.append(("all items" if ALL in entries else ALL, whole[ALL]))
        for group, entry in shown:
            cells = [
                f"{100 * one['accuracy']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"
                for one in entry["systems"].values()
            ]
            rows.append([group, f"{entry['systems'][names[0]]['items']:,}", *cells])
            tests += [
                [
                    group,
                    name,
                    f"{100 * test['difference']:+.1f}",
                    f"{test['gained']:,}",
                    f"{test['lost']:,}",
                    p_value(test["p"], star=False),
                    p_value(test["p_holm"]),
                ]
                for name, test in entry["tests"].items()
            ]
        title = "category" if kind == ALL else kind
        notes = ["in brackets: Wilson's 95% interval"]
        found.append(Table(f"Accuracy in %, by {title}", [title, "items", *names], rows, notes))
        if tests:
            header = [title, "system", "difference", "gained", "lost", "p", "Holm"]
            family = len(entries) * (len(names) - 1)
            notes = ["McNemar's exact test; " + corrected(family)]
            if kind == "category":
                notes.append("the row of all items is a comparison of its own")
            found.append(Table(f"Against {report['baseline']}, by {title}", header, tests, notes))
    return found
