"""Is the difference from the baseline more than chance? Paired tests over sentences, and a test over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_syntax.scoring.metrics import Scorer


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
        "signature"}}``; mean and ci are the bootstrap's mean score and the half width of its 95% interval; p is 1
        where no sentence's statistics differ
    """
    equal = scorer.statistics(baseline) == scorer.statistics(system)
    found: dict[str, dict] = {}
    for name, kind, samples in (("bootstrap", "bs", resamples), ("randomization", "ar", trials)):
        if samples <= 0:
            continue
        runs = [("baseline", tuple(baseline)), ("system", tuple(system))]
        signatures, scores = PairedTest(runs, {scorer.name: scorer.metric}, None, kind, n_samples=samples)()
        (key,) = signatures
        theirs, ours = scores[key]
        # sacrebleu counts differences strictly greater than the observed: 0 of them, p = 1 / (samples + 1), for equals
        found[name] = {"p": 1.0 if equal else float(ours.p_value), "signature": str(signatures[key])}
        if kind == "bs":
            found[name] |= {"mean": float(ours.mean), "ci": float(ours.ci)}
            found[name] |= {"baseline_mean": float(theirs.mean), "baseline_ci": float(theirs.ci)}
    return found


def sentence_tests(baseline: np.ndarray, system: np.ndarray) -> dict[str, float]:
    """Tests over sentence scores [N] of the same N sentences (the LDD paper's two).

    Returns:
        ``t_test``: p of the paired two-sided t-test (``scipy.stats.ttest_rel``); 1 where no sentence differs
        ``ks``: p of the two-sample Kolmogorov-Smirnov test (``scipy.stats.ks_2samp``)
    """
    difference = np.asarray(system) - np.asarray(baseline)
    if not difference.any():
        t_test = 1.0
    elif len(difference) < 2:
        t_test = float("nan")
    else:
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
