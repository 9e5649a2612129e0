"""The atlas: measures of word order, by hand and against scipy's Kendall's tau."""

import itertools
import random
import sys
from pathlib import Path

import pytest
from scipy.stats import kendalltau

from fairseq_syntax.corpus.conllu import ParsedLine

ATLAS = Path(__file__).resolve().parents[2] / "examples" / "atlas"
sys.path.insert(0, str(ATLAS))
try:
    import word_order
finally:
    sys.path.remove(str(ATLAS))


def by_loops(links):
    """Crossing pairs, and pairs of different words and pieces."""
    pairs = [(a, b) for a, b in itertools.combinations(set(links), 2) if a[0] != b[0] and a[1] != b[1]]
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs), len(pairs)


def test_crossings_of_a_permutation_are_kendalls_distance():
    rng = random.Random(1)
    for n in range(2, 12):
        order = rng.sample(range(n), n)
        crossing, pairs = word_order.crossings(list(enumerate(order)))
        assert pairs == n * (n - 1) // 2
        assert crossing / pairs == pytest.approx((1 - kendalltau(range(n), order).statistic) / 2)


def test_crossings_by_loops():
    rng = random.Random(2)
    for _ in range(100):
        links = [(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randrange(9))]
        assert word_order.crossings(links) == by_loops(links)


def test_crossings_within_sentences_and_of_neighbours():
    # two sentences: the first reversed, with a word of two pieces; the second in order, moved before the first
    words = [f"w{number}" for number in range(6)]
    parse = ParsedLine(words, [0] * 6, ["d"] * 6, words, words, [], None, [(0, 3), (3, 6)], 0)
    links = [(0, 6), (0, 7), (1, 5), (2, 4), (3, 0), (5, 2)]
    assert word_order.of_sentences(links, parse.sentences) == [[(0, 6), (0, 7), (1, 5), (2, 4)], [(3, 0), (5, 2)]]
    found = word_order.measure([parse], [links])
    assert found == {"crossing": 5 / 6, "neighbours": 3 / 4, "aligned": 5 / 6, "lines": 1}
