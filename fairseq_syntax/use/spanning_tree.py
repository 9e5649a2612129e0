"""Dependency trees from the attention of a parent head (Wang et al. 2019, section 4.5).

The head gives every word a distribution over parents, a root being its own.  The most probable parents need not form
a tree; the best tree is then found by the algorithm of Chu, Liu and Edmonds, in Stanza's implementation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_syntax.corpus.parsed_line import is_tree
from fairseq_syntax.errors import SyntaxDataError


def decode_line(scores: np.ndarray, sentences: Sequence[tuple[int, int]]) -> tuple[list[int], np.ndarray]:
    """The best tree of every sentence of a line.

    Args:
        scores: `[W, W]`, the unnormalised log-probability that word j is the parent of word i; the diagonal says how
            much i is a root
        sentences: word spans `[start, end)`; parents outside a word's sentence are not considered

    Returns:
        the heads, 0-based over the line, a root its own head; and `[W, W]` the probability of each word (row) to have
        each head (column), a softmax over the words of the sentence
    """
    heads: list[int] = []
    probabilities = np.zeros((len(scores), len(scores)))
    for start, end in sentences:
        logprobs = scores[start:end, start:end].astype(np.float64)
        logprobs -= np.logaddexp.reduce(logprobs, axis=1, keepdims=True)
        heads += [head + start for head in _best_tree(logprobs)]
        probabilities[start:end, start:end] = np.exp(logprobs)
    return heads, probabilities


def _best_tree(logprobs: np.ndarray) -> list[int]:
    heads: list[int] = logprobs.argmax(axis=1).tolist()
    if is_tree(heads):
        return heads
    try:
        from stanza.models.common.chuliu_edmonds import chuliu_edmonds_one_root
    except ImportError as error:
        raise SyntaxDataError(
            "the predicted parents are not a tree, and Stanza, which repairs them, is not installed",
            hint="pip install stanza",
        ) from error
    n_words = len(logprobs)
    # Stanza's node 0 is an artificial root; its weights for one root hold for scores of at most 0, and finite
    scores = np.full((n_words + 1, n_words + 1), -np.inf)  # [dependent, head]
    scores[1:, 1:] = np.maximum(np.minimum(logprobs, 0.0), -1e6)
    scores[1:, 0] = scores[1:, 1:].diagonal()  # Stanza clears the diagonal itself
    tree = chuliu_edmonds_one_root(scores)[1:] - 1
    return np.where(tree < 0, np.arange(n_words), tree).tolist()
