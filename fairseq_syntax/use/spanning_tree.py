"""Dependency trees from the attention of a parent head (Wang et al. 2019, section 4.5).

The head gives every word a distribution over parents, a root being its own.  The most probable parents need not form
a tree; the best tree is then found by the algorithm of Chu, Liu and Edmonds, in Stanza's implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_syntax.corpus.parsed_line import is_tree
from fairseq_syntax.errors import SyntaxDataError


@dataclass(frozen=True)
class PredictedTree:
    """The trees of a line.

    Attributes:
        heads: 0-based over the line, a root its own head
        probabilities: `[W, W]`, of each word (row) to have each head (column)
        sentences: word spans `[start, end)`
        repaired: words whose head is not their most probable parent
    """

    heads: list[int]
    probabilities: np.ndarray
    sentences: list[tuple[int, int]]
    repaired: int


def decode_line(scores: np.ndarray, sentences: Sequence[tuple[int, int]] | None = None) -> PredictedTree:
    """The best tree of every sentence of a line.

    Args:
        scores: `[W, W]`, the unnormalised log-probability that word j is the parent of word i; the diagonal says how
            much i is a root
        sentences: word spans `[start, end)`; parents outside a word's sentence are not considered.  None lets the words
            decide how many roots there are: where each root's tree covers words in a row, these are the sentences,
            else the line is one

    Probabilities are a softmax over the words of the sentence.
    """
    n_words = len(scores)
    scores = scores.astype(np.float64)
    if sentences is None:
        forest = _best_tree(_log_softmax(scores), one_root=False) if n_words else np.zeros(0, dtype=np.int64)
        sentences = _consecutive_trees(forest)
    heads = np.zeros(n_words, dtype=np.int64)
    probabilities = np.zeros((n_words, n_words))
    repaired = 0
    for start, end in sentences:
        logprobs = _log_softmax(scores[start:end, start:end])
        tree = _best_tree(logprobs, one_root=True)
        heads[start:end] = tree + start
        probabilities[start:end, start:end] = np.exp(logprobs)
        repaired += int((tree != logprobs.argmax(axis=1)).sum())
    return PredictedTree(heads.tolist(), probabilities, list(sentences), repaired)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def _topmost(heads: np.ndarray) -> np.ndarray:
    """The root above each word; after k rounds a word has climbed 2^k steps."""
    for _ in range(len(heads).bit_length()):
        heads = heads[heads]
    return heads


def _best_tree(logprobs: np.ndarray, *, one_root: bool) -> np.ndarray:
    heads = logprobs.argmax(axis=1)
    if is_tree(heads.tolist(), one_root=one_root):
        return heads
    try:
        from stanza.models.common.chuliu_edmonds import chuliu_edmonds, chuliu_edmonds_one_root
    except ImportError as error:
        raise SyntaxDataError(
            "the predicted parents are not a tree, and Stanza, which repairs them, is not installed",
            hint="pip install stanza",
        ) from error
    n_words = len(logprobs)
    # Stanza's node 0 is an artificial root; its weights for one root hold for scores of at most 0, and finite
    scores = np.full((n_words + 1, n_words + 1), -np.inf)
    scores[1:, 1:] = np.maximum(np.minimum(logprobs, 0.0), -1e6)
    scores[1:, 0] = scores[1:, 1:].diagonal()
    tree = (chuliu_edmonds_one_root if one_root else chuliu_edmonds)(scores)[1:] - 1
    return np.where(tree < 0, np.arange(n_words), tree)


def _consecutive_trees(heads: np.ndarray) -> list[tuple[int, int]]:
    """Spans of the trees of a forest, or the whole line where a tree's words are not in a row."""
    root = _topmost(heads)
    starts = [i for i in range(len(root)) if i == 0 or root[i] != root[i - 1]]
    if len(starts) != len(set(root.tolist())):
        starts = [0]
    return list(zip(starts, [*starts[1:], len(root)]))
