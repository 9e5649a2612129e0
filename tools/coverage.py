"""How often does the bootstrap's 95 % interval hold the truth? Simulated, as a table for examples/evaluation/README.md.

Two systems that are alike are trained and scored, trial by trial: a sentence's score is the sum of what the sentence
gives to both, of how good the seed is on any sentence, and of how well it suits this one, all normal. How good a seed
is has a standard deviation that is given in the one that 100 sentences leave of the last.

    python tools/coverage.py --trials 1000
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from fairseq_syntax.lab.scoring.significance import Resampled
from fairseq_syntax.lab.scoring.tables import Table

SENTENCES, SEEDS = 100, (1, 2, 3, 5)
OWN = {"none": 0.0, "half": 0.5, "as much": 1.0, "thrice": 3.0}


class Mean:
    """A metric that is the mean of sentence scores; a run is a list of numbers."""

    name = "mean"

    def statistics(self, run):
        return [(score, 1.0) for score in run]

    def of_sums(self, sums):
        return sums[0] / sums[1]

    def corpus(self, run, subset=None):
        return float(np.mean(run if subset is None else [run[i] for i in subset]))


def alike(rng: np.random.Generator, seeds: int, own: float) -> dict[str, list[list[float]]]:
    """The sentence scores of each seed of two systems that are alike, of a new trial."""
    easy = rng.normal(size=SENTENCES)
    own /= math.sqrt(SENTENCES)
    return {
        name: (easy + own * rng.normal(size=(seeds, 1)) + rng.normal(size=(seeds, SENTENCES))).tolist()
        for name in ("a", "b")
    }


def trial(rng: np.random.Generator, seeds: int, own: float) -> bool:
    """Whether the interval of the difference of two systems that are alike has 0 in it."""
    runs = alike(rng, seeds, own)
    found = Resampled(Mean(), runs, seed=int(rng.integers(2**31))).difference("b", "a")  # type: ignore[arg-type]
    return found.low <= 0 <= found.high


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Simulate the coverage of the bootstrap over sentences and seeds.")
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="of each cell (default: 1000)")
    trials = parser.parse_args().trials
    rng = np.random.default_rng(1)
    rows = []
    for seeds in SEEDS:
        held = [np.mean([trial(rng, seeds, own) for _ in range(trials)]) for own in OWN.values()]
        rows.append([str(seeds), *(f"{100 * share:.0f} %" for share in held)])
    print(Table("Coverage of the 95 % interval", ["seeds of each", *OWN], rows).render("markdown"))


if __name__ == "__main__":
    main()
