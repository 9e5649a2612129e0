"""Contrastive evaluation: how often a model prefers the correct translation.

An item is right if its correct translation has a higher score than its incorrect one. Ties count as wrong, as in
LingEval97's program, or as right, as in DistilLingEval's.

Items of one source are not independent: they share its difficulty, and often the score of one correct translation. The
source is therefore the sampling unit. Accuracies have Wilson's interval (Wilson 1927) for the effective number of items
(Korn and Graubard 1998). Systems are compared on the same sources by an exact sign-flip test, with Holm's correction.
If each source has one item, these are Wilson's interval and McNemar's exact test (McNemar 1947).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from fairseq_syntax.lab.scoring.contrast_sets import LONGEST, ContrastSet
from fairseq_syntax.lab.scoring.significance import correct
from fairseq_syntax.lab.scoring.tables import Table, corrected, p_value

ALL = "all"


def decisions(contrast: ContrastSet, scores: Sequence[float], *, ties_right: bool = False) -> np.ndarray:
    """Which items are decided correctly, bool [items], by the scores of the set's rows, where higher is better."""
    better = operator.ge if ties_right else operator.gt
    return np.array([better(scores[item.correct], scores[item.incorrect]) for item in contrast.items], dtype=bool)


def ties(contrast: ContrastSet, scores: Sequence[float]) -> int:
    """The number of items whose translations have equal scores."""
    return sum(scores[item.correct] == scores[item.incorrect] for item in contrast.items)


def groups(contrast: ContrastSet) -> dict[str, dict[str, np.ndarray]]:
    """The item indices [n] of ``all``, of each ``category`` and of each ``distance``, in the order of the tables."""
    members: dict[str, dict[Any, list[int]]] = {"category": {}, "distance": {}}
    for number, item in enumerate(contrast.items):
        members["category"].setdefault(item.category, []).append(number)
        if item.distance is not None:
            members["distance"].setdefault(min(item.distance, LONGEST + 1), []).append(number)
    indices = {ALL: {ALL: np.arange(len(contrast.items))}}
    for kind, of in members.items():
        if len(of) > (1 if kind == "category" else 0):  # a single category is all items
            labels = {key: f"> {LONGEST}" if key == LONGEST + 1 else str(key) for key in sorted(of)}
            indices[kind] = {label: np.array(of[key]) for key, label in labels.items()}
    return indices


def sources_of(contrast: ContrastSet) -> np.ndarray:
    """A number for each item's source, int [items]; equal texts have equal numbers, even in different sets."""
    texts = [contrast.sources[contrast.rows[item.correct][0]] for item in contrast.items]
    return np.unique(texts, return_inverse=True)[1]


def accuracy(right: np.ndarray, sources: np.ndarray) -> dict[str, Any]:
    """``items``, ``right``, ``accuracy``, and the bounds of its 95 % Wilson interval, ``low`` and ``high``.

    The interval uses the ``effective`` sample size (:func:`effective`). ``right`` is bool, ``sources`` int [items].
    """
    count, total = int(right.sum()), len(right)
    share, n = count / total, effective(right, sources)
    # the p from which the share is z standard errors away: (share - p)^2 n = z^2 p (1 - p)
    square = stats.norm.ppf(0.975) ** 2
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = math.sqrt(square * (share * (1 - share) / n + square / (4 * n * n))) / (1 + square / n)
    return {
        "items": total,
        "right": count,
        "accuracy": share,
        # If none or all are right, one bound is 0 or 1, up to rounding.
        "low": float(max(0.0, centre - half)) if count else 0.0,
        "high": float(min(1.0, centre + half)) if count < total else 1.0,
        "sources": len(np.unique(sources)),
        "effective": n,
    }


def effective(right: np.ndarray, sources: np.ndarray) -> float:
    """The effective sample size n / deff: the number of independent items with the same information.

    The design effect deff (at least 1) is the variance of the accuracy between sources (a linearized ratio estimator)
    divided by its variance if items were independent. With few sources this variance is uncertain, so the sample size
    is reduced by the squared ratio of two quantiles of Student's t (Korn and Graubard 1998, Confidence Intervals for
    Proportions with Small Expected Number of Positive Counts). If the variance is not informative, because all items
    are right, all are wrong, or there is one source, the items of a source are assumed to be all right or all wrong;
    deff is then the mean size of an item's source.
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


def compare_decisions(baseline: np.ndarray, system: np.ndarray, sources: np.ndarray) -> dict[str, Any]:
    """An exact test of two systems' decisions [n] on the same items, whose sources are ``sources`` [n].

    Returns:
        the number of ``gained`` and ``lost`` items, the ``difference`` of the accuracies, and ``p``. Under the null
        hypothesis, each source's difference in right items is equally likely with either sign; p is the probability
        that their sum is at least as far from 0 as observed, 1 if no source differs.
    """
    gained, lost = int((system & ~baseline).sum()), int((baseline & ~system).sum())
    by_source = np.rint(np.bincount(sources, weights=system.astype(float) - baseline)).astype(int)
    p = sign_flips(by_source)
    return {"gained": gained, "lost": lost, "difference": (gained - lost) / len(system), "p": p}


def sign_flips(differences: np.ndarray) -> float:
    """The two-sided p value of a sum of integers [sources] under random signs."""
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)
    # chance[t]: the probability that the positive ones add up to t; the sum is then 2 t - largest
    chance = np.ones(1)
    for size, count in zip(sizes, counts):
        spread = np.zeros(size * count + 1)
        spread[::size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chance = np.convolve(chance, spread)
    sums = 2 * np.arange(len(chance)) - (len(chance) - 1)
    return min(1.0, float(chance[np.abs(sums) >= abs(int(differences.sum()))].sum()))


def evaluate_contrast(
    contrast: ContrastSet, right: Mapping[str, np.ndarray], *, baseline: str | None = None
) -> dict[str, Any]:
    """Accuracies by category and distance, and tests against the baseline (default: the first system).

    Args:
        right: the decisions [items] of each system

    Returns:
        ``{"set", "items", "baseline", "groups"}``; ``groups[kind][group]`` has ``systems[name]`` with the fields of
        :func:`accuracy`, and ``tests[name]`` with those of :func:`compare_decisions` and ``p_holm``. Holm's family is
        all systems and groups of a kind.
    """
    base = baseline or next(iter(right))
    report: dict[str, Any] = {"set": contrast.name, "items": len(contrast.items), "baseline": base, "groups": {}}
    sources = sources_of(contrast)
    for kind, members in groups(contrast).items():
        report["groups"][kind] = entries = {}
        for group, items in members.items():
            of, decided = sources[items], {name: each[items] for name, each in right.items()}
            accuracies = {name: accuracy(each, of) for name, each in decided.items()}
            tests = {name: compare_decisions(decided[base], each, of) for name, each in decided.items() if name != base}
            entries[group] = {"systems": accuracies, "tests": tests}
        correct([test for entry in entries.values() for test in entry["tests"].values()])
    return report


def contrast_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Tables of accuracies by category and distance and, for several systems, of tests."""
    whole = report["groups"][ALL][ALL]
    names = list(whole["systems"])
    for kind, entries in report["groups"].items():
        if kind == ALL and "category" in report["groups"]:
            continue
        title = "category" if kind == ALL else kind
        shown = list(entries.items())
        if kind == "category":  # a category may be called "all" too
            shown.append(("all items" if ALL in entries else ALL, whole))
        rows, tests = [], []
        for group, entry in shown:
            accuracies = list(entry["systems"].values())
            shares = [[f"{100 * one[key]:.1f}" for key in ("accuracy", "low", "high")] for one in accuracies]
            cells = [f"{share} [{low}, {high}]" for share, low, high in shares]
            rows.append([group, f"{accuracies[0]['items']:,}", *cells])
            for name, one in entry["tests"].items():
                counts = [f"{100 * one['difference']:+.1f}", f"{one['gained']:,}", f"{one['lost']:,}"]
                tests.append([group, name, *counts, p_value(one["p"], star=False), p_value(one["p_holm"])])
        one_each = all(one["sources"] == one["items"] for _, entry in shown for one in entry["systems"].values())
        more = "" if one_each else ", for the effective number of items, as some share a source"
        notes = [f"in brackets: Wilson's 95% interval{more}"]
        yield Table(f"Accuracy in %, by {title}", [title, "items", *names], rows, notes)
        if tests:
            header = [title, "system", "difference", "gained", "lost", "p", "Holm"]
            test = "McNemar's exact test" if one_each else "exact test of random signs over sources"
            notes = [f"{test}; {corrected(len(entries) * (len(names) - 1))}"]
            notes += ["the row of all items is a comparison of its own"] if kind == "category" else []
            yield Table(f"Against {report['baseline']}, by {title}", header, tests, notes)
