"""Random tag sequences at a given edit distance from another (LaSyn, section 3.3.1)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from fairseq_syntax.systems.lasyn.templates import Template

EDGE = -2  # stands before the first and after the last tag of a sentence
TRIES = 300  # of a random edit, in a row, before a variation is given up


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions that make `b` out of `a`."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(diagonal + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


class TagBigrams:
    """Pairs of adjacent tags seen in training, sentence edges included: a sequence is valid if all its pairs are.

    Attributes:
        pairs: of a tag and the next
        tags: all of them
    """

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self.pairs = set(pairs)
        self.tags = sorted({t for pair in self.pairs for t in pair} - {EDGE})

    @staticmethod
    def pairs_of_words(tags: np.ndarray, pieces: np.ndarray, lengths: np.ndarray) -> set[tuple[int, int]]:
        """The pairs of neighbouring pieces of sentences.

        Args:
            tags: [W] the tags of the words of all sentences in turn; 0 is no tag, and no pair has one
            pieces: [W] how many pieces each word has; all of them have its tag
            lengths: [B] how many words each sentence has
        """
        lengths = lengths[lengths > 0]
        ends = np.cumsum(lengths)
        # Every sentence's words with an edge before, and one edge after the last sentence.
        sequence = np.append(np.insert(tags, ends - lengths, EDGE), EDGE)
        beside = np.stack([sequence[:-1], sequence[1:]], axis=1)
        inside = np.repeat(tags[pieces > 1][:, None], 2, axis=1)  # pieces of one word
        pairs = np.unique(np.concatenate([beside, inside]), axis=0)
        return {(int(a), int(b)) for a, b in pairs if a != 0 and b != 0}


def neighbours(sequence: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of neighbouring tags of a sentence, the edges included."""
    return list(pairwise([EDGE, *sequence, EDGE]))


def random_edit(sequence: Template, tags: Sequence[int], rng: random.Random) -> Template:
    """The sequence, of one tag or more, with one put in, taken out or replaced.

    Each place and tag is as likely as another.
    """
    kind = rng.randrange(3)
    if kind == 0:
        place = rng.randrange(len(sequence) + 1)
        return [*sequence[:place], rng.choice(tags), *sequence[place:]]
    place = rng.randrange(len(sequence))
    return [*sequence[:place], *([rng.choice(tags)] if kind == 1 else []), *sequence[place + 1 :]]


def random_variation(
    sequence: Template,
    distance: int,
    bigrams: TagBigrams,
    rng: random.Random,
) -> Template | None:
    """A random valid sequence whose edit distance from `sequence` is exactly `distance`.

    Edits are drawn one after the other; one that makes a pair of neighbours that neither the training data nor
    `sequence` has, or that leads no farther away, is drawn again. None where that fails
    :data:`TRIES` times in a row.
    """
    allowed = bigrams.pairs.union(neighbours(sequence))
    current, reached, failures = list(sequence), 0, 0
    while reached < distance:
        changed = random_edit(current, bigrams.tags, rng)
        # Never empty: no translation is, and the next edit needs a tag to take out or replace.
        valid = changed and allowed.issuperset(neighbours(changed))
        # An edit may undo an earlier one, so that the distance is not the number of edits.
        if valid and edit_distance(sequence, changed) == reached + 1:
            current, reached, failures = changed, reached + 1, 0
            continue
        failures += 1
        if failures == TRIES:
            return None
    return current
