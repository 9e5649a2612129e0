"""RIBES (Isozaki et al. 2010) with nltk's alignment, in time quadratic in the sentence's length.

To find the context that distinguishes the occurrences of a repeated word, nltk counts every longer n-gram, which takes
half a minute for a pair of 800 tokens. Here the lengths of common n-grams are computed once for all contexts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ALPHA, _BETA = 0.25, 0.10  # the exponents of the unigram precision and the brevity penalty


def sentence_ribes(references: Sequence[Sequence[str]], hypothesis: Sequence[str]) -> float:
    """The best RIBES over the references, in [0, 1]; 0 if a side is empty.

    It equals ``nltk.translate.ribes_score.sentence_ribes``: normalized Kendall's tau, times the unigram precision to
    the power of 0.25, times the brevity penalty to the power of 0.10.
    """
    if not references or not hypothesis:
        return 0.0
    best = -1.0
    for reference in references:
        ranks = word_ranks(reference, hypothesis)
        brevity = min(1.0, math.exp(1.0 - len(reference) / len(hypothesis)))
        precision = len(ranks) / len(hypothesis)
        best = max(best, _kendall_tau(ranks) * precision**_ALPHA * brevity**_BETA)
    return best


def word_ranks(reference: Sequence[str], hypothesis: Sequence[str]) -> list[int]:
    """The reference position of each aligned hypothesis word, in hypothesis order.

    A word that occurs once on each side is aligned. Any other word is aligned by its shortest context, to the right or
    else to the left, that occurs once on each side (section 3 of the paper); without such a context, it is left out.
    """
    in_reference, in_hypothesis = Counter(reference), Counter(hypothesis)
    ids = {word: i for i, word in enumerate({*reference, *hypothesis})}
    ref = np.array([ids[word] for word in reference], dtype=np.int64)
    hyp = np.array([ids[word] for word in hypothesis], dtype=np.int64)
    ambiguous = {w for w in in_hypothesis if w in in_reference and not in_hypothesis[w] == in_reference[w] == 1}
    # n-grams that begin with a word are, in reverse, n-grams that end with it.
    right = _contexts(ref[::-1], hyp[::-1])[::-1] if ambiguous else []
    left = _contexts(ref, hyp) if ambiguous else []
    places = {word: i for i, word in enumerate(reference)}
    ranks = []
    for i, word in enumerate(hypothesis):
        if word not in in_reference:
            continue
        if word not in ambiguous:
            ranks.append(places[word])
            continue
        # nltk's exclusive bound of the window
        most = min(max(i, len(hyp) - i + 1), len(ref))
        matches = []
        for order, ((shortest, longest, place), room) in enumerate(((right[i], len(hyp) - 1 - i), (left[i], i))):
            window = max(shortest - 1, 1)  # the number of context words
            if window <= min(longest - 1, room, most - 1):
                matches.append((window, order, len(ref) - 1 - place if order == 0 else place))
        if matches:
            # The shortest context; if both are equal, the one to the right (order 0).
            ranks.append(min(matches)[2])
    return ranks


def _contexts(ref: np.ndarray, hyp: np.ndarray) -> list[tuple[int, int, int]]:
    """For each hypothesis word, the n-grams that end with it and occur exactly once on each side.

    Returns:
        their shortest and longest length (shortest > longest if there are none), and the position of their last word
        in ``ref``
    """
    contexts = []
    # the length of the longest n-gram that ends both at each position and at word i of the hypothesis
    with_ref, with_hyp = np.zeros(len(ref), dtype=np.int64), np.zeros(len(hyp), dtype=np.int64)
    for i, word in enumerate(hyp):
        with_ref = np.where(ref == word, np.concatenate([[0], with_ref[:-1]]) + 1, 0)
        with_hyp = np.where(hyp == word, np.concatenate([[0], with_hyp[:-1]]) + 1, 0)
        place = int(with_ref.argmax())
        longest = int(with_ref[place])
        others = [np.delete(with_ref, place).max(initial=0), np.delete(with_hyp, i).max(initial=0)]
        contexts.append((int(max(others)) + 1, longest, place))
    return contexts


def _kendall_tau(ranks: Sequence[int]) -> float:
    """The share of pairs in ascending order; 0 for fewer than two ranks."""
    if len(ranks) < 2:
        return 0.0
    numbers = np.array(ranks)
    increasing = sum(int((numbers[i + 1 :] > rank).sum()) for i, rank in enumerate(ranks))
    tau = 2 * increasing / math.comb(len(ranks), 2) - 1
    return (tau + 1) / 2
