"""Is the difference from the baseline more than chance? Paired tests over sentences, and a test over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_syntax.scoring.metrics import Scorer

SEED = 12345  # of resampling, as sacrebleu's
# Of fewer sentences the bootstrap finds differences that are not there. Of systems that are alike, with normal scores:
# in 100 % of trials with one sentence, 46 % with two, 17 % with five, 9 % with ten, at the level of 5 %.
LEAST_SENTENCES = 10
POWER = float(stats.norm.ppf(0.975) + stats.norm.ppf(0.8))


def paired_tests(
    scorer: Scorer,
    baseline: Sequence[str],
    system: Sequence[str],
    *,
    resamples: int = 1000,
    trials: int = 10000,
) -> dict[str, dict]:
    """sacrebleu's two paired tests of one run against the baseline's.

    Args:
        resamples: bootstrap resamples (Koehn 2004); 0 leaves the test out
        trials: trials of approximate randomization (Riezler and Maxwell 2005); 0 leaves the test out

    Returns:
        ``{"bootstrap": {"p", "mean", "ci", "baseline_mean", "baseline_ci", "signature"}, "randomization": {"p",
        "signature"}}``; mean and ci are the bootstrap's mean score and the half width of its 95% interval. The
        bootstrap's p is one-sided: it counts resamples on the side of the difference. p is 1 where the scores of the
        corpus do not differ.
    """
    equal = scorer.statistics(baseline) == scorer.statistics(system)
    found: dict[str, dict] = {}
    for name, kind, samples in (("bootstrap", "bs", resamples), ("randomization", "ar", trials)):
        if samples <= 0:
            continue
        runs: list[tuple[str, Sequence[str]]] = [("baseline", tuple(baseline)), ("system", tuple(system))]
        signatures, scores = PairedTest(runs, {scorer.name: scorer.metric}, None, kind, n_samples=samples)()
        (key,) = signatures
        theirs, ours = (cast(Any, score) for score in scores[key])
        # sacrebleu counts differences strictly greater than the observed; of equal systems, or where both are at 0 in
        # all samples, none is, and p would be 1 / (samples + 1). No difference is at least as great as any other.
        none = equal or theirs.score == ours.score
        found[name] = {"p": 1.0 if none else float(ours.p_value), "signature": str(signatures[key])}
        if kind == "bs":
            found[name] |= {"mean": float(ours.mean), "ci": float(ours.ci)}
            found[name] |= {"baseline_mean": float(theirs.mean), "baseline_ci": float(theirs.ci)}
    return found


def sentence_tests(baseline: np.ndarray, system: np.ndarray) -> dict[str, float | None]:
    """Tests over sentence scores [N] of the same N sentences (the LDD paper's two).

    Returns:
        ``t_test``: p of the paired two-sided t-test (``scipy.stats.ttest_rel``); 1 where no sentence differs, None for
            one sentence that does
        ``ks``: p of the two-sample Kolmogorov-Smirnov test (``scipy.stats.ks_2samp``)
    """
    difference = np.asarray(system) - np.asarray(baseline)
    t_test: float | None = None
    if not difference.any():
        t_test = 1.0
    elif len(difference) > 1:
        t_test = float(stats.ttest_rel(system, baseline).pvalue)
    return {"t_test": t_test, "ks": float(stats.ks_2samp(system, baseline).pvalue)}


def seed_test(baseline: Sequence[float], system: Sequence[float]) -> float | None:
    """p of Welch's two-sided t-test (``scipy.stats.ttest_ind``) over the corpus scores of each system's seeds.

    None where either has fewer than two seeds.
    """
    if min(len(baseline), len(system)) < 2:
        return None
    if np.ptp(baseline) == 0 and np.ptp(system) == 0:
        return 1.0 if baseline[0] == system[0] else 0.0
    return float(stats.ttest_ind(system, baseline, equal_var=False).pvalue)


def resample(
    scorer: Scorer, runs: Sequence[Sequence[str]], chosen: Sequence[int], resamples: int, seed: int = SEED
) -> np.ndarray:
    """Corpus scores of bootstrap resamples, the mean over the runs of a system (its seeds).

    Equal arguments draw the same sentences, so that the differences of two systems' results are paired (Koehn 2004).

    Args:
        runs: the translations of the whole test set, one list per seed
        chosen: 0-based numbers of the n sentences to draw from; n are drawn, with replacement
        resamples: how many times

    Returns:
        float64 [resamples]
    """
    rng = np.random.default_rng(seed)
    n = len(chosen)
    statistics = [np.array(scorer.statistics(run), dtype=np.float64)[list(chosen)] for run in runs]
    found = []
    for _ in range(resamples):
        drawn = rng.multinomial(n, np.full(n, 1.0 / n)).astype(np.float64)
        found.append(np.mean([scorer.of_sums(drawn @ one) for one in statistics]))
    return np.array(found)


@dataclass(frozen=True)
class Difference:
    """A difference of two systems, and what its bootstrap resamples say of it.

    Attributes:
        difference: system minus baseline
        low, high: its 95% interval, percentiles of the resamples
        p: of the paired bootstrap, two-sided: how often a resample is further from the mean of the resamples, on either
            side, than the difference is from 0 (sacrebleu counts one side); with 1 added above and below, as there
        detectable: the minimal detectable difference, which a test at the 5% level finds with a probability of 80%:
            (1.96 + 0.84) standard errors
    """

    difference: float
    low: float
    high: float
    p: float
    detectable: float

    @classmethod
    def of(cls, difference: float, resampled: np.ndarray) -> Difference:
        """From the resampled differences [R]."""
        further = int((np.abs(resampled - resampled.mean()) > abs(difference)).sum())
        # no sentence differs: no resample does either, and none would be counted
        p = 1.0 if not resampled.any() and difference == 0 else (further + 1) / (len(resampled) + 1)
        low, high = np.quantile(resampled, [0.025, 0.975])
        return cls(difference, float(low), float(high), p, POWER * float(resampled.std(ddof=1)))


def holm(p: Sequence[float]) -> list[float]:
    """p values of several tests, adjusted so that the chance of any false one stays at the level (Holm 1979).

    The k-th smallest of m becomes (m - k + 1) times itself, at least the one before, at most 1. NaN stays, uncounted.
    """
    order = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    adjusted = [float(value) for value in p]
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p[i]))
        adjusted[i] = least
    return adjusted
