"""Significance tests against a baseline: a bootstrap over sentences and seeds, and established tests."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from sacrebleu.significance import PairedTest

from fairseq_syntax.lab.scoring.metrics import Scorer

SEED = 12345  # of resampling, as sacrebleu's
BLOCK = 500  # draws at a time, whose counts of sentences are in memory: 12 MB for 3,000 sentences
# Of fewer sentences the bootstrap finds differences that are not there. Of systems that are alike, with normal scores:
# in 100 % of trials with one sentence, 46 % with two, 17 % with five, 9 % with ten, at the level of 5 %.
LEAST_SENTENCES = 10
POWER = 2.8015852181129683  # standard deviations: the normal quantiles of 0.975 and 0.8


def randomization_test(
    scorer: Scorer, baseline: Sequence[str], system: Sequence[str], trials: int = 10000
) -> dict[str, Any]:
    """sacrebleu's approximate randomization (Riezler and Maxwell 2005) of one run against the baseline's.

    Returns:
        ``p``, two-sided, and sacrebleu's ``signature``
    """
    runs: list[tuple[str, Sequence[str]]] = [("baseline", tuple(baseline)), ("system", tuple(system))]
    signatures, scores = PairedTest(runs, {scorer.name: scorer.metric}, None, "ar", n_samples=trials)()
    (key,) = signatures
    theirs, ours = (cast(Any, score) for score in scores[key])
    # sacrebleu counts differences strictly greater than the observed; of equal systems, or where both are at 0 in
    # all samples, none is, and p would be 1 / (trials + 1). No difference is at least as great as any other.
    none = scorer.statistics(baseline) == scorer.statistics(system) or theirs.score == ours.score
    return {"p": 1.0 if none else float(ours.p_value), "signature": str(signatures[key])}


def sentence_tests(baseline: np.ndarray, system: np.ndarray) -> dict[str, float | None]:
    """Tests over sentence scores [N] of the same N sentences (the LDD paper's two).

    Returns:
        ``t_test``: p of the paired two-sided t-test (``scipy.stats.ttest_rel``); 1 where no sentence differs, None for
            one sentence that does
        ``ks``: p of the two-sample Kolmogorov-Smirnov test (``scipy.stats.ks_2samp``)
    """
    from scipy import stats  # takes seconds to import, as below

    difference = np.asarray(system) - np.asarray(baseline)
    t_test: float | None = None
    if not difference.any():
        t_test = 1.0
    elif len(difference) > 1:
        with warnings.catch_warnings():  # SciPy's, where all sentences differ by the same: p is 0, or nearly so
            warnings.filterwarnings("ignore", "Precision loss occurred", RuntimeWarning)
            t_test = float(stats.ttest_rel(system, baseline).pvalue)
    return {"t_test": t_test, "ks": float(stats.ks_2samp(system, baseline).pvalue)}


def seed_test(baseline: Sequence[float], system: Sequence[float]) -> float | None:
    """p of Welch's two-sided t-test (``scipy.stats.ttest_ind``) over the corpus scores of each system's seeds.

    None where either has fewer than two seeds, or where the seeds of neither differ: they tell nothing of others.
    """
    if min(len(baseline), len(system)) < 2:
        return None
    if np.ptp(baseline) == 0 and np.ptp(system) == 0:
        return None
    from scipy import stats

    return float(stats.ttest_ind(system, baseline, equal_var=False).pvalue)


@dataclass(frozen=True)
class Difference:
    """A difference between two systems, with its bootstrap statistics.

    Attributes:
        difference: system minus baseline
        low, high: its 95% interval, percentiles of the draws
        p: two-sided: how often a draw is further from the mean of the draws, on either side, than the difference is
            from 0; with 1 added above and below, as in sacrebleu's tests
        detectable: the minimal detectable difference, which a test at the 5% level finds with a probability of 80%:
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
        further = int((np.abs(drawn - drawn.mean()) > abs(difference)).sum())
        # no sentence differs: no draw does either, and none would be counted
        p = 1.0 if not drawn.any() and difference == 0 else (further + 1) / (len(drawn) + 1)
        low, high = bounds(drawn)
        return cls(difference, low, high, p, POWER * float(drawn.std(ddof=1)))


def bounds(drawn: np.ndarray) -> tuple[float, float]:
    """The ends of the middle 95% of the draws [R], of which some may be infinite."""
    low, high = np.quantile(drawn, [0.025, 0.975], method="nearest")
    return float(low), float(high)


class Resampled:
    """Scores of systems, on the data and in each draw of a bootstrap over sentences and seeds.

    A draw takes as many sentences as there are, with replacement, the same for all systems (Koehn 2004), and scores
    the mean over a system's seeds on them. This holds how the score varies with the sentences, and how each seed
    fares with these sentences and not with others. The seeds' scores of the whole set vary by that too; what they vary
    beyond it is how a seed is better than another on any sentences, and a draw adds that of other seeds: the mean
    of n - 1 of n seeds (Rao and Wu 1988, Resampling Inference With Complex Survey Data; n of n would make the variance
    of a mean too small by a factor of (n - 1) / n), less the mean of all, shrunk to that part of the variance. So the
    variance is the one of two crossed random effects, sentences and seeds (Searle, Casella and McCulloch 1992,
    Variance Components): to draw seeds and sentences, both in full, would count their interaction three times.

    How often the intervals hold what they should was simulated (``tools/coverage.py``, table in
    ``examples/evaluation/README.md``): in 95 to 96% where seeds differ by what the sentences make of them, in fewer
    where they are few and differ by far more.

    Sentences of one document are alike, and a draw that takes them one by one finds too little
    variance. With ``groups`` a draw takes as many groups as there are, with replacement, and of
    each all sentences (the cluster bootstrap: Davison and Hinkley 1997, Bootstrap Methods and Their
    Application, section 3.8).

    What is drawn for a system depends on its name and not on the other systems.

    Args:
        scorer: the metric and the references
        runs: of each system its translations by each seed
        draws: of the bootstrap
        seed: of the random numbers
        subset: 0-based numbers of the sentences to look at (default: all)
        groups: of each sentence, the subset or not, the group that it is in (default: each is one of its own)

    Attributes:
        score: of each system, the mean over its seeds
        scores: of each system, [draws] float64
        seeds: of each system, how many there are
        variances: of each system of several seeds, the variance of the seeds' scores, and that part of it which the
            sentences give them
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
        self.score: dict[str, float] = {}
        self.scores: dict[str, np.ndarray] = {}
        self.seeds: dict[str, int] = {}
        self.variances: dict[str, tuple[float, float]] = {}
        for system, translations in runs.items():
            whole = np.array([scorer.corpus(lines, subset) for lines in translations])
            drawn = _draws(scorer, translations, draws, seed, subset, groups)  # [seeds, draws]
            self.score[system], self.scores[system] = float(whole.mean()), drawn.mean(0)
            self.seeds[system] = n = len(whole)
            if n > 1:
                # Less the mean of n seeds, a seed keeps (n - 1) / n of its variance.
                of_sentences = float((drawn - drawn.mean(0)).var(axis=1, ddof=1).mean() * n / (n - 1))
                self.variances[system] = variance, _ = float(whole.var(ddof=1)), of_sentences
                if variance > of_sentences:
                    rng = np.random.default_rng([seed, *system.encode()])
                    others = whole[rng.integers(n, size=(n - 1, draws))].mean(0) - whole.mean()
                    self.scores[system] += math.sqrt(1 - of_sentences / variance) * others

    def seed_spread(self) -> float | None:
        """The standard deviation of seed effects that are independent of the sentences, over all systems.

        It is given in the standard deviation of what the sentences give to a seed's score; None without systems of
        several seeds, or where no two seeds differ.
        """
        weights = {system: self.seeds[system] - 1 for system in self.variances}
        variance = sum(weights[system] * self.variances[system][0] for system in weights)
        of_sentences = sum(weights[system] * self.variances[system][1] for system in weights)
        return math.sqrt(max(0.0, variance / of_sentences - 1)) if of_sentences else None

    def difference(self, system: str, other: str) -> Difference:
        """``score(system) - score(other)``."""
        return Difference.of(self.score[system] - self.score[other], self.scores[system] - self.scores[other])


def _draws(
    scorer: Scorer,
    runs: Sequence[Sequence[str]],
    draws: int,
    seed: int,
    subset: Sequence[int] | None,
    groups: Sequence[Hashable] | None,
) -> np.ndarray:
    """Corpus scores [seeds, draws] of the runs on drawn sentences; equal arguments draw the same sentences."""
    statistics = [np.asarray(scorer.statistics(lines), dtype=np.float64) for lines in runs]
    numbers = list(range(len(statistics[0])) if subset is None else subset)
    group_of = group_numbers(numbers if groups is None else [groups[number] for number in numbers])
    sums = [_sums_by_group(one[numbers], group_of) for one in statistics]
    blocks = [
        # [draws of the block, groups] @ [groups, K]: the summed statistics of each draw
        [[scorer.of_sums(drawn) for drawn in counts @ one] for one in sums]
        for counts in _counts(len(sums[0]), draws, seed)
    ]
    return np.concatenate([np.array(block) for block in blocks], axis=1)


def group_numbers(groups: Sequence[Hashable]) -> np.ndarray:
    """The group number of each line, int64 [N], in order of first occurrence."""
    number_of: dict[Hashable, int] = {}
    return np.array([number_of.setdefault(group, len(number_of)) for group in groups], dtype=np.int64)


def _sums_by_group(statistics: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """Sums of the sentences' statistics [N, K] over each group, float64 [groups, K]."""
    sums = np.zeros((int(group_of.max(initial=-1)) + 1, statistics.shape[1]))
    np.add.at(sums, group_of, statistics)
    return sums


def _counts(groups: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each draw contains each group, in blocks of float64 [at most BLOCK, groups]."""
    rng = np.random.default_rng(seed)
    for start in range(0, draws, BLOCK):
        size = min(BLOCK, draws - start)
        yield rng.multinomial(groups, np.full(groups, 1 / groups), size=size).astype(np.float64)


def holm(p: Sequence[float]) -> list[float]:
    """Adjust the p values of several tests to control the family-wise error rate (Holm 1979).

    The k-th smallest of m becomes (m - k + 1) times itself, at least the one before, at most 1. NaN stays, uncounted.
    """
    order = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    adjusted = [float(value) for value in p]
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p[i]))
        adjusted[i] = least
    return adjusted
