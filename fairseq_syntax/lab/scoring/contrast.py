"""Contrastive evaluation: how often the correct translation is the more probable one.

An item is right where the score of its correct translation is above that of its incorrect one; a tie is wrong, as by
LingEval97's program, or right, as by DistilLingEval's.

Items of one source are not independent: they share its difficulty, and often the score of one right translation. So
sources are what is drawn at random. Accuracies come with Wilson's interval (Wilson 1927) for the effective number of
items (Korn and Graubard 1998), systems are compared on the same sources by an exact test of random signs, with Holm's
correction. Where each source has one item these are Wilson's interval and McNemar's exact test (McNemar 1947).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from fairseq_syntax.lab.scoring.contrast_sets import LONGEST, ContrastSet
from fairseq_syntax.lab.scoring.significance import holm
from fairseq_syntax.lab.scoring.tables import Table, corrected, p_value

ALL = "all"


def decisions(contrast: ContrastSet, scores: Sequence[float], *, ties_right: bool = False) -> np.ndarray:
    """Which items are decided correctly, bool [items].

    Args:
        scores: of the set's rows, higher is better
        ties_right: whether an equal score of a wrong translation is forgiven
    """
    right = []
    for item in contrast.items:
        wrong = scores[item.incorrect]
        right.append(scores[item.correct] >= wrong if ties_right else scores[item.correct] > wrong)
    return np.array(right, dtype=bool)


def ties(contrast: ContrastSet, scores: Sequence[float]) -> int:
    """The number of items whose wrong translation has exactly the score of the right one."""
    return sum(scores[item.correct] == scores[item.incorrect] for item in contrast.items)


def groups(contrast: ContrastSet) -> dict[str, dict[str, np.ndarray]]:
    """The items [n] of ``all``, of each ``category`` and of each ``distance``, in the order of their tables."""
    by_category: dict[str, list[int]] = {}
    by_distance: dict[int, list[int]] = {}
    for number, item in enumerate(contrast.items):
        by_category.setdefault(item.category, []).append(number)
        if item.distance is not None:
            by_distance.setdefault(min(item.distance, LONGEST + 1), []).append(number)
    indices = {ALL: {ALL: np.arange(len(contrast.items))}}
    if len(by_category) > 1:
        indices["category"] = {name: np.array(by_category[name]) for name in sorted(by_category)}
    if by_distance:
        labels = {distance: f"> {LONGEST}" if distance > LONGEST else str(distance) for distance in by_distance}
        indices["distance"] = {labels[distance]: np.array(by_distance[distance]) for distance in sorted(by_distance)}
    return indices


def sources_of(contrast: ContrastSet) -> np.ndarray:
    """The source of each item, int [items]: equal for equal texts, even from different sets or lines."""
    texts = [contrast.sources[contrast.rows[item.correct][0]] for item in contrast.items]
    return np.unique(texts, return_inverse=True)[1]


def accuracy(right: np.ndarray, sources: np.ndarray) -> dict[str, Any]:
    """``items``, ``right``, ``accuracy``, and the ends of its 95% interval by Wilson, ``low`` and ``high``.

    The interval is that of ``effective`` items in place of so many items, see :func:`effective`.

    Args:
        right: the decisions, bool [items]
        sources: of the items, int [items]
    """
    count, total = int(right.sum()), len(right)
    share, n = count / total, effective(right, sources)
    # the p for which the share is z standard errors away: (share - p)^2 n = z^2 p (1 - p)
    square = stats.norm.ppf(0.975) ** 2
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = math.sqrt(square * (share * (1 - share) / n + square / (4 * n * n))) / (1 + square / n)
    return {
        "items": total,
        "right": count,
        "accuracy": share,
        # Where none or all are right, one end is 0 or 1, but for rounding.
        "low": float(max(0.0, centre - half)) if count else 0.0,
        "high": float(min(1.0, centre + half)) if count < total else 1.0,
        "sources": len(np.unique(sources)),
        "effective": n,
    }


def effective(right: np.ndarray, sources: np.ndarray) -> float:
    """The effective sample size: the number of independent items of equal information, n / deff.

    deff, at least 1, is the accuracy's variance over the sources (of a ratio of two sums, linearized) over the one it
    would have if items were independent; then few sources, whose variance is uncertain, count for less, by the squares
    of two quantiles of Student's t (Korn and Graubard 1998, Confidence Intervals for Proportions with Small Expected
    Number of Positive Counts). Where that variance says nothing, as all items are right, or all wrong, or of one
    source, a source is taken to be right in all or none of its items: deff is its mean size as an item sees it.
    """
    total = len(right)
    sizes = np.bincount(sources)
    places = sizes > 0
    rights, sizes = np.bincount(sources, weights=right)[places], sizes[places].astype(float)
    many, share = len(sizes), float(right.mean())
    if many == total:
        return float(total)
    if share in (0.0, 1.0) or many == 1:
        return float(total**2 / (sizes**2).sum())
    over_sources = many / (many - 1) * float(((rights - share * sizes) ** 2).sum())
    deff = max(1.0, over_sources / (total / (total - 1) * total * share * (1 - share)))
    return float(total / deff * (stats.t.ppf(0.975, total - 1) / stats.t.ppf(0.975, many - 1)) ** 2)


def compare(baseline: np.ndarray, system: np.ndarray, sources: np.ndarray) -> dict[str, Any]:
    """The exact test of two systems' decisions [n] on the same items of ``sources`` [n].

    Returns:
        ``gained`` and ``lost`` items, the ``difference`` of the accuracies, and ``p``: of two systems that are alike,
        each source's difference, right items less right items, is as likely with the other sign, and p is the
        probability that all of them add up to at least so much, on either side; 1 where no source differs
    """
    gained, lost = int((system & ~baseline).sum()), int((baseline & ~system).sum())
    by_source = np.rint(np.bincount(sources, weights=system.astype(float) - baseline)).astype(int)
    p = sign_flips(by_source)
    return {"gained": gained, "lost": lost, "difference": (gained - lost) / len(system), "p": p}


def sign_flips(differences: np.ndarray) -> float:
    """The two-sided p of a sum of integers [sources] under random signs."""
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)
    # chance[t]: that those with a plus add up to t; then the sum is 2 t - largest
    chance = np.ones(1)
    for size, count in zip(sizes, counts):
        spread = np.zeros(size * count + 1)
        spread[::size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chance = np.convolve(chance, spread)
    sums = 2 * np.arange(len(chance)) - (len(chance) - 1)
    return min(1.0, float(chance[np.abs(sums) >= abs(int(differences.sum()))].sum()))


def evaluate(contrast: ContrastSet, right: Mapping[str, np.ndarray], *, baseline: str | None = None) -> dict[str, Any]:
    """Accuracies by category and distance, and tests against the baseline (by name, or the first).

    Args:
        right: each system's decisions [items]

    Returns:
        ``{"set", "items", "baseline", "groups"}``; ``groups[kind][group]`` has ``systems[name]`` with the fields of
        :func:`accuracy`, and ``tests[name]`` with those of :func:`compare` and ``p_holm``. Holm's family is all systems
        and groups of a kind.
    """
    base = baseline or next(iter(right))
    report: dict[str, Any] = {"set": contrast.name, "items": len(contrast.items), "baseline": base, "groups": {}}
    sources = sources_of(contrast)
    for kind, members in groups(contrast).items():
        entries = {
            group: {
                "systems": {name: accuracy(decided[items], sources[items]) for name, decided in right.items()},
                "tests": {
                    name: compare(right[base][items], decided[items], sources[items])
                    for name, decided in right.items()
                    if name != base
                },
            }
            for group, items in members.items()
        }
        family = [test for entry in entries.values() for test in entry["tests"].values()]
        for test, adjusted in zip(family, holm([test["p"] for test in family])):
            test["p_holm"] = adjusted
        report["groups"][kind] = entries
    return report


def tables(report: Mapping[str, Any]) -> list[Table]:
    """The accuracies by category and by distance, and the tests, where there are several systems."""
    result = []
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
        one_each = all(one["sources"] == one["items"] for _, entry in shown for one in entry["systems"].values())
        notes = ["in brackets: Wilson's 95% interval"]
        if not one_each:
            notes[0] += ", for the effective number of items, as some share a source"
        result.append(Table(f"Accuracy in %, by {title}", [title, "items", *names], rows, notes))
        if tests:
            header = [title, "system", "difference", "gained", "lost", "p", "Holm"]
            family = len(entries) * (len(names) - 1)
            test = "McNemar's exact test" if one_each else "exact test of random signs over sources"
            notes = [f"{test}; {corrected(family)}"]
            if kind == "category":
                notes.append("the row of all items is a comparison of its own")
            result.append(Table(f"Against {report['baseline']}, by {title}", header, tests, notes))
    return result
