"""Significance tests against a baseline: a bootstrap over sentences and seeds, and established tests."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_syntax.lab.scoring.metrics import Scorer

SEED = 12345  # for resampling, as in sacrebleu
BLOCK = 500  # draws per block, whose counts of 3,000 sentences take 12 MB
# With fewer sentences, the bootstrap finds differences that do not exist. For equal systems with normally distributed
# scores, its false positive rate at the 5 % level is 100 % with one sentence, 49 % with two, 16 % with five, 10 % with
# ten.
LEAST_SENTENCES = 10
# Scores differ by less than this only by rounding, such as the mean of the same seeds in another order.
ROUNDING = 1e-9
POWER = 2.8015852181129683  # standard deviations: the normal quantiles of 0.975 and 0.8


def randomization_test(
    scorer: Scorer, baseline: Sequence[str], system: Sequence[str], trials: int = 10000
) -> dict[str, Any]:
    """Approximate randomization test (Riezler and Maxwell 2005) of a run against the baseline's.

    The trials are those of sacrebleu. Unlike sacrebleu, it also counts those whose difference equals the observed one:
    if few sentences differ, these are most of the trials, and without them p would be 1 / (trials + 1).

    Returns:
        ``p``, two-sided, and sacrebleu's ``signature``
    """
    theirs, ours = (np.asarray(scorer.statistics(lines), dtype=np.float64) for lines in (baseline, system))
    total = theirs.sum(0) + ours.sum(0)

    def difference(sums: np.ndarray) -> float:
        return abs(scorer.of_sums(sums) - scorer.of_sums(total - sums))

    swapped = np.random.default_rng(SEED).integers(2, size=(trials, len(theirs)), dtype=bool)
    drawn = [
        difference(theirs.sum(0) + sums)
        for start in range(0, trials, BLOCK)
        for sums in swapped[start : start + BLOCK] @ (ours - theirs)
    ]
    signature = scorer.metric.get_signature()
    signature.update("seed", str(SEED))
    signature.update("ar", trials)
    return {"p": _p_value(np.array(drawn), difference(theirs.sum(0))), "signature": str(signature)}


def _p_value(drawn: np.ndarray, observed: float) -> float:
    """The proportion of draws [R] that are at least the observed value, with 1 added to numerator and denominator."""
    return (int((drawn >= observed - ROUNDING).sum()) + 1) / (len(drawn) + 1)


def sentence_tests(baseline: np.ndarray, system: np.ndarray) -> dict[str, float | None]:
    """The LDD paper's two tests over the sentence scores [N] of the same N sentences.

    Returns:
        ``t_test``: p of the paired two-sided t-test; 1 if no sentence differs, None if all differ by the same amount,
        so that their variance is unknown
        ``ks``: p of the two-sample Kolmogorov-Smirnov test
    """
    from scipy import stats  # imported here and below because it takes seconds

    system = np.where(np.abs(system - baseline) < ROUNDING, baseline, system)
    differences = system - baseline
    t_test = None if differences.any() else 1.0
    if np.ptp(differences) > ROUNDING:
        t_test = float(stats.ttest_rel(system, baseline).pvalue)
    return {"t_test": t_test, "ks": float(stats.ks_2samp(system, baseline).pvalue)}


def seed_test(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> float | None:
    """p of Welch's two-sided t-test over the corpus scores of each system's seeds.

    None if either system has fewer than two seeds, or if neither system's seeds differ, so that their variance is
    unknown.
    """
    if min(len(baseline), len(system)) < 2 or max(np.ptp(baseline), np.ptp(system)) < ROUNDING:
        return None
    from scipy import stats

    return float(stats.ttest_ind(system, baseline, equal_var=False).pvalue)


@dataclass(frozen=True)
class Difference:
    """A difference between two systems, with its bootstrap statistics.

    Attributes:
        difference: system minus baseline
        low, high: its 95 % interval, as percentiles of the draws
        p: two-sided; the proportion of draws that are at least as far from the difference as the difference is from 0,
            with 1 added to numerator and denominator, as in sacrebleu's tests. (Sacrebleu measures from the mean of the
            draws. Where a metric has few values, such as the share of exact translations, p would then depend on which
            side of a value this mean happens to be.)
        detectable: the minimal detectable difference, which a test at the 5 % level finds with a probability of 80 %:
            (1.96 + 0.84) standard errors
    """

    difference: float
    low: float
    high: float
    p: float
    detectable: float

    @classmethod
    def of(cls, difference: float, drawn: np.ndarray) -> Difference:
        """Build from the differences in the draws [R]."""
        p = _p_value(np.abs(drawn - difference), abs(difference))
        return cls(difference, *bounds(drawn), p, POWER * float(drawn.std(ddof=1)))

    @property
    def estimate(self) -> list[float]:
        """``[difference, low, high, p, detectable]``, as tables take it (:mod:`.intervals`)."""
        return [self.difference, self.low, self.high, self.p, self.detectable]


def bounds(drawn: np.ndarray) -> tuple[float, float]:
    """The bounds of the middle 95 % of the draws [R], some of which may be infinite."""
    low, high = np.quantile(drawn, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def enough_sentences(lines: Sequence[int], groups: Sequence[Hashable] | None = None) -> bool:
    """Whether there are enough independent sentences, or groups of them, for a test."""
    return len(lines if groups is None else {groups[line] for line in lines}) >= LEAST_SENTENCES


class Resampled:
    """Scores of systems, on the data and in each draw of a bootstrap over sentences and seeds.

    Each draw resamples the sentences with replacement, in the same way for all systems (Koehn 2004), and scores the
    mean over a system's seeds on them. This covers the variation between sentences and the interaction of seeds with
    sentences. The seeds' scores on the whole test set vary for this reason too; any variation beyond it is an effect of
    the seed that does not depend on the sentences. For this effect, a draw adds a sample of the seeds: the mean of
    n - 1 of the n seeds, drawn with replacement, minus the mean of all, scaled down to this part of the variance. (Rao
    and Wu 1988, Resampling Inference With Complex Survey Data; drawing n of n would make the variance of a mean too
    small by a factor of (n - 1) / n.) The total variance is thus that of two crossed random effects, sentences and
    seeds (Searle, Casella and McCulloch 1992, Variance Components). Drawing both sentences and seeds in full would
    count their interaction three times.

    The coverage of the intervals was simulated (``tools/coverage.py``, table in ``examples/evaluation/README.md``): it
    is 95 to 96 % if seeds differ by no more than the sentences explain, and lower if there are few seeds that differ by
    far more.

    Sentences of one document are similar, so drawing them individually underestimates the variance. With ``groups``, a
    draw resamples whole groups (the cluster bootstrap: Davison and Hinkley 1997, Bootstrap Methods and Their
    Application, section 3.8).

    The draws of a system depend on its name but not on the other systems.

    Args:
        runs: for each system, the translations of each seed
        draws: the number of draws; 0 for the scores on the data alone
        seed: the seed of the random numbers
        subset: the 0-based indices of the sentences to score (default: all)
        groups: the group of each sentence, in the subset or not (default: one group per sentence)

    Attributes:
        of_seeds: for each system, the score of each seed, float64 [seeds]
        score: for each system, the mean over its seeds
        scores: for each system, its scores in the draws, float64 [draws]
    """

    def __init__(
        self,
        scorer: Scorer,
        runs: Mapping[str, Sequence[Sequence[str]]],
        draws: int = 1000,
        *,
        seed: int = SEED,
        subset: Sequence[int] | None = None,
        groups: Sequence[Hashable] | None = None,
    ) -> None:
        self.of_seeds = {name: np.array([scorer.corpus(lines, subset) for lines in of]) for name, of in runs.items()}
        self.score = {name: float(whole.mean()) for name, whole in self.of_seeds.items()}
        self.scores: dict[str, np.ndarray] = {}
        for name, whole in self.of_seeds.items() if draws else ():
            drawn = _draws(scorer, runs[name], draws, seed, subset, groups)  # [seeds, draws]
            self.scores[name] = drawn.mean(0) + _effect_of_seeds(whole, drawn, [seed, *name.encode()])

    @classmethod
    def mean(cls, parts: Sequence[Resampled]) -> Resampled:
        """The mean over several test sets, such as translations of one text, of the systems that all parts have.

        If the parts have the same sentences or groups, number of draws and seed, a draw takes the same ones in all.
        ``of_seeds`` has the means over the parts of as many seeds as each part has.
        """
        whole = cls.__new__(cls)
        names = [name for name in parts[0].score if all(name in part.score for part in parts)]
        fewest = {name: min(len(part.of_seeds[name]) for part in parts) for name in names}
        whole.of_seeds = {n: np.mean([part.of_seeds[n][: fewest[n]] for part in parts], axis=0) for n in names}
        whole.score = {name: float(np.mean([part.score[name] for part in parts])) for name in names}
        drawn = [name for name in names if name in parts[0].scores]
        whole.scores = {name: np.mean([part.scores[name] for part in parts], axis=0) for name in drawn}
        return whole

    def difference(self, system: str, other: str) -> Difference:
        """``score(system) - score(other)``."""
        return Difference.of(self.score[system] - self.score[other], self.scores[system] - self.scores[other])


def _effect_of_seeds(whole: np.ndarray, drawn: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """What the seeds add to the draws of a system beyond the sentences (:class:`Resampled`), [draws].

    Args:
        whole: the score of each seed on the data, [seeds]
        drawn: the scores of each seed in the draws, [seeds, draws]
        seed: of the random numbers
    """
    n, draws = drawn.shape
    if n == 1:
        return np.zeros(draws)
    # After subtracting the mean of n seeds, (n - 1) / n of a seed's variance remains.
    of_sentences = float((drawn - drawn.mean(0)).var(axis=1, ddof=1).mean() * n / (n - 1))
    variance = float(whole.var(ddof=1))
    if variance <= of_sentences:
        return np.zeros(draws)
    others = whole[np.random.default_rng(seed).integers(n, size=(n - 1, draws))].mean(0) - whole.mean()
    return math.sqrt(1 - of_sentences / variance) * others


def _draws(
    scorer: Scorer,
    runs: Sequence[Sequence[str]],
    draws: int,
    seed: int,
    subset: Sequence[int] | None,
    groups: Sequence[Hashable] | None,
) -> np.ndarray:
    """Corpus scores [seeds, draws] of the runs on resampled sentences, which depend only on the arguments."""
    statistics = [np.asarray(scorer.statistics(lines), dtype=np.float64) for lines in runs]
    lines = list(range(len(statistics[0])) if subset is None else subset)
    # groups are numbered by first occurrence
    number_of: dict[Hashable, int] = {}
    group_of = [number_of.setdefault(line if groups is None else groups[line], len(number_of)) for line in lines]
    sums = [np.zeros((len(number_of), one.shape[1])) for one in statistics]  # [groups, K]
    for of_groups, one in zip(sums, statistics):
        np.add.at(of_groups, group_of, one[lines])
    blocks = [
        # [draws in the block, groups] @ [groups, K]: the summed statistics of each draw
        [[scorer.of_sums(drawn) for drawn in counts @ one] for one in sums]
        for counts in _counts(len(number_of), draws, seed)
    ]
    return np.concatenate([np.array(block) for block in blocks], axis=1)


def _counts(groups: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the number of times that each draw contains each group, in blocks of float64 [≤ BLOCK, groups]."""
    rng = np.random.default_rng(seed)
    for start in range(0, draws, BLOCK):
        size = min(BLOCK, draws - start)
        yield rng.multinomial(groups, np.full(groups, 1 / groups), size=size).astype(np.float64)


def holm(p: Sequence[float]) -> list[float]:
    """Adjust the p values of several tests to control the family-wise error rate (Holm 1979).

    The k-th smallest of m values is multiplied by (m - k + 1); the results are made non-decreasing and at most 1. NaN
    stays NaN and is not counted.
    """
    order = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    adjusted = [float(value) for value in p]
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p[i]))
        adjusted[i] = least
    return adjusted


def correct(tests: Sequence[dict[str, Any]]) -> None:
    """Add to each test of a family, whose value is ``p``, Holm's ``p_holm``."""
    for test, adjusted in zip(tests, holm([test["p"] for test in tests])):
        test["p_holm"] = adjusted
