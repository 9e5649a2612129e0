"""Dependency trees from the attention of a parent head (Wang et al. 2019, section 4.5).

The head gives every word a distribution over parents; a root is its own parent. The most probable parents need not form
a tree, so the best tree is found by the Chu-Liu/Edmonds algorithm, in Stanza's implementation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_syntax.corpus.parsed_line import is_tree
from fairseq_syntax.errors import SyntaxDataError


def decode_line(scores: np.ndarray, sentences: Sequence[tuple[int, int]]) -> tuple[list[int], np.ndarray]:
    """Find the best tree of each sentence in a line.

    Args:
        scores: ``[W, W]``, the unnormalized log-probability that word j (column) is the parent of word i (row); the
            diagonal scores i as a root
        sentences: word spans ``[start, end)``; a parent is in the same sentence

    Returns:
        the heads, 0-based in the line (a root is its own head); and the probability ``[W, W]`` of each head (column)
        for each word (row), a softmax over the words of the sentence
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
    # Stanza's node 0 is an artificial root. Its single-root constraint assumes finite scores of at most 0.
    scores = np.full((n_words + 1, n_words + 1), -np.inf)  # [dependent, head]
    scores[1:, 1:] = np.maximum(np.minimum(logprobs, 0.0), -1e6)
    scores[1:, 0] = scores[1:, 1:].diagonal()  # Stanza clears the diagonal itself
    tree = chuliu_edmonds_one_root(scores)[1:] - 1
    return np.where(tree < 0, np.arange(n_words), tree).tolist()
