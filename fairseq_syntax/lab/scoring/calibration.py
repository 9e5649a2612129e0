"""Calibration of a parser's probabilities: reliability, expected calibration error, and temperature.

A parser is calibrated if, of all heads that it predicts with probability p, a fraction p is correct. The expected
calibration error (Guo, Pleiss, Sun and Weinberger, ICML 2017, Equation 3) is the mean gap between probability and
accuracy over bins of equal width, each weighted by the number of words in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.tables import Table, number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
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
    right: Bools

    @classmethod
    def of(cls, distributions: Sequence[Sequence[tuple[float, bool]]]) -> Choices:
        """Build from each distribution's choices, given as (probability, whether it is the gold one)."""
        choices = np.array([choice for distribution in distributions for choice in distribution]).reshape(-1, 2)
        owner = np.repeat(np.arange(len(distributions)), [len(distribution) for distribution in distributions])
        return cls(len(distributions), owner, choices[:, 0], choices[:, 1].astype(bool))

    def at(self, temperature: float) -> Choices:
        """The distributions with the parser's scores divided by ``temperature``: p^(1/T), normalized."""
        scaled = np.exp(np.log(np.maximum(self.p, _LEAST)) / temperature)
        # Normalized to the mass that was kept, so that the mass below the parser's threshold stays missing.
        total = np.bincount(self.owner, scaled, self.n)
        mass = np.bincount(self.owner, self.p, self.n)
        return Choices(self.n, self.owner, scaled * (mass[self.owner] / total[self.owner]), self.right)

    def best(self) -> tuple[Floats, Bools]:
        """The largest probability of each distribution [n], and whether its choice is correct [n]."""
        order = np.lexsort((self.p, self.owner))
        # Sorted by owner, then by p: the last entry of each owner has the largest p.
        top = order[np.flatnonzero(np.diff(self.owner[order], append=-1))]
        confidence, correct = np.zeros(self.n), np.zeros(self.n, dtype=bool)
        confidence[self.owner[top]], correct[self.owner[top]] = self.p[top], self.right[top]
        return confidence, correct

    def log_loss(self) -> float:
        """The mean −log p of the correct choices."""
        gold_mass = np.bincount(self.owner, self.p * self.right, self.n)
        return float(-np.log(np.maximum(gold_mass, _LEAST)).mean())

    def part(self, which: Bools) -> Choices:
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
    Labels include their subtypes (``nmod:poss``), unlike those of :mod:`fairseq_syntax.lab.scoring.attachment`.
    """

    heads: Choices
    arcs: Choices
    labels: Choices
    tree_p: Floats
    tree_right: Bools
    tree_labelled: Bools


def parsed_sentences(line: ParsedLine) -> Iterator[ParsedLine]:
    """The words, heads and labels of each sentence of a line."""
    for start, end in line.sentences:
        heads = [head - start for head in line.heads[start:end]]
        words, deprels = line.words[start:end], line.deprels[start:end]
        yield ParsedLine(words, heads, deprels, line_number=line.line_number)


def compare_parses(gold: Iterable[ParsedLine], parsed: Iterable[ParsedLine]) -> Sample:
    """Compare a parse that has distributions with a gold parse, line by line.

    Raises:
        SyntaxDataError: the lines or words differ, or a line has no distributions
    """
    heads: list[list[tuple[float, bool]]] = []
    arcs: list[list[tuple[float, bool]]] = []
    labels: list[list[tuple[float, bool]]] = []
    tree: list[tuple[float, bool, bool]] = []
    for truth, guess in zip(gold, parsed, strict=True):
        _check_words(truth, guess)
        if truth.words and guess.arcs is None:
            line = f"line {truth.line_number + 1}"
            raise SyntaxDataError(f"{line} of the parse has no distributions", hint="parse with --distributions")
        arcs_of: list[dict[tuple[int, str], float]] = [defaultdict(float) for _ in truth.words]
        for dependent, head, label, p in guess.arcs or ():
            arcs_of[dependent][head, label] += p
        golds, guesses = zip(truth.heads, truth.deprels), zip(guess.heads, guess.deprels)
        for of_arc, gold_arc, guessed in zip(arcs_of, golds, guesses):
            of_head: dict[int, float] = defaultdict(float)
            for (head, _), p in of_arc.items():
                of_head[head] += p
            right, mass = gold_arc[0], of_head.get(gold_arc[0], 0.0)
            heads.append([(p, head == right) for head, p in of_head.items()])
            arcs.append([(p, arc == gold_arc) for arc, p in of_arc.items()])
            if mass > 0.0:
                labels.append([(p / mass, arc == gold_arc) for arc, p in of_arc.items() if arc[0] == right])
            tree.append((of_head.get(guessed[0], 0.0), guessed[0] == right, guessed == gold_arc))
    if not tree:
        raise SyntaxDataError("there are no words to compare")
    return Sample(Choices.of(heads), Choices.of(arcs), Choices.of(labels), *map(np.array, zip(*tree)))


def attachment(gold: Iterable[ParsedLine], parsed: Iterable[ParsedLine]) -> dict[str, Any]:
    """The ``words``, ``uas`` and ``las`` of a parse, with or without distributions, with labels as in :class:`Sample`.

    Raises:
        SyntaxDataError: the words differ
    """
    right, labelled = [], []
    for truth, guess in zip(gold, parsed, strict=True):
        _check_words(truth, guess)
        right += [a == b for a, b in zip(truth.heads, guess.heads)]
        labelled += [a == b for a, b in zip(truth.deprels, guess.deprels)]
    words = max(1, len(right))
    return {"words": len(right), "uas": sum(right) / words, "las": sum(map(min, right, labelled)) / words}


def foreign_labels(gold: Iterable[ParsedLine], parsed: Iterable[ParsedLine]) -> tuple[float, list[str]]:
    """Labels of a parse that a treebank does not have: the share of words with one, and the labels, frequent first.

    ``dep`` is in all schemes.
    """
    known = {label for line in gold for label in line.deprels} | {"dep"}
    counts = Counter(label for line in parsed for label in line.deprels)
    foreign = [label for label, _ in counts.most_common() if label not in known]
    return sum(counts[label] for label in foreign) / max(1, counts.total()), foreign


def _check_words(truth: ParsedLine, guess: ParsedLine) -> None:
    if truth.words != guess.words:
        message = f"line {truth.line_number + 1} has different words in the treebank and in the parse"
        raise SyntaxDataError(message, hint="parse the treebank's own words")


def reliability(confidence: Floats, correct: Bools, bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean probability, accuracy, count) of each non-empty bin of equal width; the arguments are [n]."""
    # Rounded, since 0.7 + 0.1 is less than 0.8. A probability of 1 belongs to the last bin rather than to another one.
    index = np.minimum(np.round(confidence * bins, 9).astype(int), bins - 1)
    members = [index == number for number in np.unique(index)]
    return [(float(confidence[of].mean()), float(correct[of].mean()), int(of.sum())) for of in members]


def calibration_error(confidence: Floats, correct: Bools, bins: int = 10) -> float:
    """The expected calibration error of [n] probabilities and outcomes."""
    bin_rows = reliability(confidence, correct, bins)
    return sum(count * abs(p - accuracy) for p, accuracy, count in bin_rows) / len(confidence)


def fit_temperature(choices: Choices) -> float | None:
    """The temperature with the lowest log loss; the parser's scores are divided by it. None without a gold choice."""
    if not choices.right.any():
        return None
    # The log loss is convex in 1/T, so a local minimum is the global one.
    optimum = minimize_scalar(lambda beta: choices.at(1.0 / beta).log_loss(), bounds=(0.1, 10.0), method="bounded")
    return float(1.0 / optimum.x)


def held_out_error(choices: Choices, bins: int = 10) -> float:
    """The calibration error with a temperature fitted on even and measured on odd distributions, and vice versa."""
    even = np.arange(choices.n) % 2 == 0
    confidence, correct = np.zeros(choices.n), np.zeros(choices.n, dtype=bool)
    for half in (even, ~even):
        if half.any() and not half.all():
            temperature = fit_temperature(choices.part(half)) or 1.0
            confidence[~half], correct[~half] = choices.part(~half).at(temperature).best()
    return calibration_error(confidence, correct, bins)


def kept_mass(choices: Choices, thresholds: Sequence[float] = THRESHOLDS) -> list[tuple[float, float, float]]:
    """For each threshold, (threshold, choices per distribution, mass per distribution) that it would keep."""
    kept = [choices.p[choices.p >= threshold] for threshold in thresholds]
    return [(threshold, len(p) / choices.n, float(p.sum() / choices.n)) for threshold, p in zip(thresholds, kept)]


def calibration_report(sample: Sample, bins: int, temperatures: tuple[float, float] | None) -> dict[str, Any]:
    """All measures of a sample, and its reliability ``curves``.

    Args:
        temperatures: the temperatures by which scores of heads and labels were divided, if known; others are then
            fitted
    """
    about: dict[str, Any] = {"words": sample.heads.n, "curves": {}}
    about |= {"uas": float(sample.tree_right.mean()), "las": float(sample.tree_labelled.mean())}
    for name, curve, choices in (("head", "heads", sample.heads), ("arc", "heads and labels", sample.arcs)):
        confidence, correct = choices.best()
        about["curves"][curve] = reliability(confidence, correct, bins)
        about[name] = {
            "accuracy": float(correct.mean()),
            "confidence": float(confidence.mean()),
            "ece": calibration_error(confidence, correct, bins),
            "log_loss": choices.log_loss(),
        }
    by_confidence = reliability(sample.tree_p, sample.tree_right, bins)
    about["uas_by_confidence"] = [dict(zip(("confidence", "uas", "words"), row)) for row in by_confidence]
    about["kept"] = [dict(zip(("min_prob", "arcs_per_word", "mass"), row)) for row in kept_mass(sample.arcs)]
    if temperatures is not None:
        # The fitted temperatures are relative to those by which the scores were already divided.
        more, label = fit_temperature(sample.heads), fit_temperature(sample.labels)
        about["temperature"] = {"head": None, "label": label and label * temperatures[1]}
        if more is not None:
            fitted = sample.heads.at(more)
            about["temperature"] |= {
                "head": more * temperatures[0],
                "held_out_ece": held_out_error(sample.heads, bins),
                "log_loss": fitted.log_loss(),
            }
            about["curves"][f"heads, T = {more * temperatures[0]:.2f}"] = reliability(*fitted.best(), bins)
    return about


def calibration_tables(about: Mapping[str, Any]) -> Iterator[Table]:
    """The tables of a :func:`calibration_report`, or of :func:`attachment` alone."""
    if "head" not in about:
        rows = [["accuracy", number(100 * about["uas"]), number(100 * about["las"])]]
        note = "This parser has no probabilities of arcs, so there is nothing to calibrate."
        yield Table(f"{about['words']} words", ["", "UAS", "LAS"], rows, [note])
        return
    rows = []
    for name, title in (("head", "best head"), ("arc", "best head and label")):
        shares = [number(100 * about[name][key]) for key in ("accuracy", "confidence", "ece")]
        rows.append([title, *shares, number(about[name]["log_loss"], 4)])
    notes = []
    if fit := about.get("temperature"):
        if fit["head"] is not None:
            label = "" if fit["label"] is None else f" --label-temperature {fit['label']:.3f}"
            notes.append(
                f"best fit: --temperature {fit['head']:.3f}{label}; heads then have an ECE of "
                f"{100 * fit['held_out_ece']:.2f} (held out) and a log loss of {fit['log_loss']:.4f}"
            )
        for option, key in (("--temperature", "head"), ("--label-temperature", "label")):
            if fit[key] is None:
                notes.append(f"no {option} can be fitted: the parser gave no gold {key} a probability")
    title = f"{about['words']} words: UAS {100 * about['uas']:.2f}, LAS {100 * about['las']:.2f}"
    yield Table(title, ["", "accuracy", "confidence", "ECE", "log loss"], rows, notes)
    rows = [[f"{r['confidence']:.3f}", str(r["words"]), number(100 * r["uas"])] for r in about["uas_by_confidence"]]
    yield Table("Confidence of the tree's head", ["confidence", "words", "UAS"], rows)
    rows = [[f"{r['min_prob']:g}", number(r["arcs_per_word"]), number(r["mass"], 4)] for r in about["kept"]]
    yield Table("What is kept of the distributions", ["--min-prob", "arcs per word", "mass"], rows)
