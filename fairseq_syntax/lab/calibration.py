"""Calibration of a parser's probabilities: reliability, expected calibration error, and temperature.

A parser is calibrated if, of all heads that it predicts with probability p, a fraction p is correct. The expected
calibration error (Guo, Pleiss, Sun and Weinberger, ICML 2017, Equation 3) is the mean gap between probability and
accuracy over bins of equal width, each weighted by the number of words in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError

Floats = NDArray[np.float64]
THRESHOLDS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# A floor for the logarithm: a word whose correct arc was not kept adds 20.7 to the log loss.
_LEAST = 1e-9


@dataclass(frozen=True)
class Choices:
    """Categorical distributions and their correct choices: ``n`` distributions with ``A`` choices in total.

    For each choice, ``owner`` [A] int is the index of its distribution, ``p`` [A] its probability, and ``right`` [A]
    bool whether it is the gold choice. If the gold choice was not kept, no choice of the distribution is right.
    """

    n: int
    owner: NDArray[np.int64]
    p: Floats
    right: NDArray[np.bool_]

    @classmethod
    def of(cls, distributions: Sequence[Sequence[tuple[float, bool]]]) -> Choices:
        """Build from each distribution's choices, given as (probability, whether it is the gold one)."""
        choices = [choice for distribution in distributions for choice in distribution]
        p, right = zip(*choices) if choices else ((), ())
        owner = np.repeat(np.arange(len(distributions)), [len(distribution) for distribution in distributions])
        return cls(len(distributions), owner, np.array(p), np.array(right, dtype=bool))

    def at(self, temperature: float) -> Choices:
        """The distributions with the parser's scores divided by ``temperature``: p^(1/T), normalized."""
        scaled = np.exp(np.log(np.maximum(self.p, _LEAST)) / temperature)
        # Normalized to the mass that was kept, so that the mass below the parser's threshold stays missing.
        total = np.bincount(self.owner, scaled, self.n)
        mass = np.bincount(self.owner, self.p, self.n)
        return Choices(self.n, self.owner, scaled * (mass / np.maximum(total, _LEAST))[self.owner], self.right)

    def best(self) -> tuple[Floats, NDArray[np.bool_]]:
        """The largest probability of each distribution [n], and whether its choice is correct [n]."""
        order = np.lexsort((self.p, self.owner))
        # Sorted by owner, then by p: the last entry of each owner has the largest p.
        last = np.flatnonzero(np.diff(self.owner[order], append=-1))
        confidence, correct = np.zeros(self.n), np.zeros(self.n, dtype=bool)
        top = order[last]
        confidence[self.owner[top]], correct[self.owner[top]] = self.p[top], self.right[top]
        return confidence, correct

    def log_loss(self) -> float:
        """The mean −log p of the correct choices."""
        gold_mass = np.bincount(self.owner, self.p * self.right, self.n)
        return float(-np.log(np.maximum(gold_mass, _LEAST)).mean())

    def part(self, which: NDArray[np.bool_]) -> Choices:
        """The distributions selected by a mask [n]."""
        kept = which[self.owner]
        number = np.cumsum(which) - 1  # each distribution's index among the selected ones
        return Choices(int(which.sum()), number[self.owner[kept]], self.p[kept], self.right[kept])


@dataclass(frozen=True)
class Sample:
    """A parse compared with a treebank, word by word.

    ``heads`` are the distributions over heads, ``arcs`` those over heads and labels, ``labels`` those over labels given
    the gold head (for words whose gold head was kept). ``tree_p`` [n] is the probability of the head in the 1-best
    tree, ``tree_right`` [n] whether this head is correct, ``tree_labelled`` [n] whether head and label are correct.
    """

    heads: Choices
    arcs: Choices
    labels: Choices
    tree_p: Floats
    tree_right: NDArray[np.bool_]
    tree_labelled: NDArray[np.bool_]


def compare(gold: Iterable[ParsedLine], parsed: Iterable[ParsedLine]) -> Sample:
    """Compare a parse that has distributions with a gold parse, line by line.

    Raises:
        SyntaxDataError: the lines or words differ, or a line has no distributions
    """
    heads: list[list[tuple[float, bool]]] = []
    arcs: list[list[tuple[float, bool]]] = []
    labels: list[list[tuple[float, bool]]] = []
    tree: list[tuple[float, bool, bool]] = []
    for truth, guess in zip(gold, parsed, strict=True):
        if truth.words != guess.words:
            raise SyntaxDataError(
                f"line {truth.line_number + 1} has different words in the treebank and in the parse",
                hint="parse the treebank's own words",
            )
        if truth.words and guess.arcs is None:
            raise SyntaxDataError(
                f"line {truth.line_number + 1} of the parse has no distributions", hint="parse with --distributions"
            )
        mass_of_words: list[dict[int, dict[str, float]]] = [{} for _ in truth.words]
        for dependent, head, label, p in guess.arcs or ():
            by_label = mass_of_words[dependent].setdefault(head, {})
            by_label[label] = by_label.get(label, 0.0) + p
        for word, by_head in enumerate(mass_of_words):
            head, label = truth.heads[word], truth.deprels[word]
            mass = {candidate: sum(by_label.values()) for candidate, by_label in by_head.items()}
            heads.append([(p, candidate == head) for candidate, p in mass.items()])
            arcs.append(
                [
                    (p, candidate == head and name == label)
                    for candidate, by_label in by_head.items()
                    for name, p in by_label.items()
                ]
            )
            if mass.get(head, 0.0) > 0.0:
                labels.append([(p / mass[head], name == label) for name, p in by_head[head].items()])
            right = guess.heads[word] == head
            tree.append((mass.get(guess.heads[word], 0.0), right, right and guess.deprels[word] == label))
    if not tree:
        raise SyntaxDataError("there are no words to compare")
    return Sample(Choices.of(heads), Choices.of(arcs), Choices.of(labels), *map(np.array, zip(*tree)))


def reliability(confidence: Floats, correct: NDArray[np.bool_], bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean probability, accuracy, count) of each non-empty bin of equal width; the arguments are [n]."""
    # A probability of 1 belongs to the last bin rather than to another one.
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        (float(confidence[index == b].mean()), float(correct[index == b].mean()), int((index == b).sum()))
        for b in range(bins)
        if (index == b).any()
    ]


def calibration_error(confidence: Floats, correct: NDArray[np.bool_], bins: int = 10) -> float:
    """The expected calibration error of [n] probabilities and outcomes."""
    bin_rows = reliability(confidence, correct, bins)
    return sum(count * abs(p - accuracy) for p, accuracy, count in bin_rows) / len(confidence)


def fit_temperature(choices: Choices) -> float:
    """The temperature with the lowest log loss; the parser's scores are divided by it."""
    # The log loss is convex in 1/T, so a local minimum is the global one.
    optimum = minimize_scalar(lambda beta: choices.at(1.0 / beta).log_loss(), bounds=(0.1, 10.0), method="bounded")
    return float(1.0 / optimum.x)


def held_out_error(choices: Choices, bins: int = 10) -> float:
    """The calibration error with a temperature fitted on even and measured on odd distributions, and vice versa."""
    even = np.arange(choices.n) % 2 == 0
    confidence, correct = np.zeros(choices.n), np.zeros(choices.n, dtype=bool)
    for half in (even, ~even):
        if half.any() and not half.all():
            confidence[~half], correct[~half] = choices.part(~half).at(fit_temperature(choices.part(half))).best()
    return calibration_error(confidence, correct, bins)


def kept_mass(choices: Choices, thresholds: Sequence[float] = THRESHOLDS) -> list[tuple[float, float, float]]:
    """For each threshold, (threshold, choices per distribution, mass per distribution) that it would keep."""
    return [
        (
            threshold,
            float((choices.p >= threshold).sum() / choices.n),
            float(choices.p[choices.p >= threshold].sum() / choices.n),
        )
        for threshold in thresholds
    ]
