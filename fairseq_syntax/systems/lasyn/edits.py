"""Random tag sequences at a given edit distance from another (LaSyn, section 3.3.1)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from fairseq_syntax.systems.lasyn.templates import Template

EDGE = -2  # precedes the first and follows the last tag of a sentence
TRIES = 300  # consecutive failed edits before a variation is given up


def is_within(a: Sequence[int], b: Sequence[int], limit: int) -> bool:
    """Whether at most ``limit`` insertions, deletions and substitutions turn ``a`` into ``b`` (Levenshtein distance).

    Takes time in proportion to ``limit`` and the length, since only prefixes whose lengths differ by at most ``limit``
    are compared.
    """
    if abs(len(a) - len(b)) > limit:
        return False
    far = limit + 1
    row = {j: j for j in range(min(len(b), limit) + 1)}  # the distances of a prefix of `a` from prefixes of `b`
    for i, x in enumerate(a, 1):
        above, row = row, {}
        for j in range(max(0, i - limit), min(len(b), i + limit) + 1):
            substituted = above.get(j - 1, far) + (x != b[j - 1]) if j else far
            row[j] = min(substituted, above.get(j, far) + 1, row.get(j - 1, far) + 1)
        if min(row.values()) > limit:
            return False
    return row[len(b)] <= limit


class TagBigrams:
    """Pairs of adjacent tags seen in training, including sentence edges. A sequence is valid if all its pairs are."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self.pairs = set(pairs)
        self.tags = sorted({t for pair in self.pairs for t in pair} - {EDGE})

    @staticmethod
    def pairs_of_words(tags: np.ndarray, pieces: np.ndarray, lengths: np.ndarray) -> set[tuple[int, int]]:
        """The pairs of neighbouring pieces of sentences.

        Args:
            tags: [W], of all sentences; 0 means no tag and forms no pair
            pieces: [W], the number of pieces of each word, which all have its tag
            lengths: [B], the number of words of each sentence
        """
        lengths = lengths[lengths > 0]
        ends = np.cumsum(lengths)
        # An edge before each sentence's words, and one after the last sentence.
        sequence = np.append(np.insert(tags, ends - lengths, EDGE), EDGE)
        beside = np.stack([sequence[:-1], sequence[1:]], axis=1)
        inside = np.repeat(tags[pieces > 1][:, None], 2, axis=1)  # pieces of one word
        pairs = np.unique(np.concatenate([beside, inside]), axis=0)
        return {(int(a), int(b)) for a, b in pairs if a != 0 and b != 0}


def neighbours(sequence: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of adjacent tags of a sentence, including the edges."""
    return list(pairwise([EDGE, *sequence, EDGE]))


def random_edit(sequence: Template, tags: Sequence[int], rng: random.Random) -> Template:
    """A sequence of at least one tag, after a random insertion, deletion or substitution.

    All places and tags are equally likely.
    """
    kind = rng.randrange(3)
    if kind == 0:
        place = rng.randrange(len(sequence) + 1)
        return [*sequence[:place], rng.choice(tags), *sequence[place:]]
    place = rng.randrange(len(sequence))
    return [*sequence[:place], *([rng.choice(tags)] if kind == 1 else []), *sequence[place + 1 :]]


def random_variation(sequence: Template, distance: int, bigrams: TagBigrams, rng: random.Random) -> Template | None:
    """A random valid sequence whose edit distance from ``sequence`` is exactly ``distance``.

    Edits are drawn one after the other. An edit is rejected if it creates a pair of adjacent tags that occurs neither
    in the training data nor in ``sequence``, or if it does not increase the distance. Returns None after :data:`TRIES`
    rejections in a row.
    """
    allowed = bigrams.pairs.union(neighbours(sequence))
    current, reached, failures = list(sequence), 0, 0
    while reached < distance:
        changed = random_edit(current, bigrams.tags, rng)
        # Never empty: no translation is, and the next edit needs a tag to delete or substitute.
        valid = changed and allowed.issuperset(neighbours(changed))
        # An edit may undo an earlier one, so the distance is not the number of edits.
        if valid and not is_within(sequence, changed, reached):  # a single edit adds at most 1
            current, reached, failures = changed, reached + 1, 0
            continue
        failures += 1
        if failures == TRIES:
            return None
    return current
