"""Selection of the attention head that aligns words best, with or without gold links.

All heads of all layers are scored by F1 against gold links, or by the mutual information of the words that they link
(:func:`mutual_information`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from fairseq_syntax.inference.alignment import Gold, WordAlignment, agreement
from fairseq_syntax.inference.alignment_head import AlignmentHead


def candidate_heads(layers: Sequence[Tensor], of_lstm: bool) -> list[AlignmentHead]:
    """All heads of :func:`.source_attention` and the mean of each layer, each with both values of ``shift``."""
    if of_lstm:
        return [AlignmentHead(shift=shift) for shift in (0, 1)]
    return [
        AlignmentHead(layer, head, shift=shift)
        for layer, weights in enumerate(layers)
        for head in (None, *range(weights.size(1)))
        for shift in (0, 1)
    ]


def mutual_information(pairs: Sequence[tuple[Sequence[str], Sequence[str], Sequence[tuple[int, int]]]]) -> float:
    """Mutual information of linked words, in bits per target word.

    It is the mean of ``log2 p(t | s) / p(t)`` by two-fold cross-validation: probabilities are estimated on one half of
    the pairs and evaluated on the other. ``p(t | s) = (count(s, t) + p(t)) / (count(s) + 1)``. Good links are
    informative in any language; degenerate links (always to the full stop, or to the same position) are not.

    Args:
        pairs: for each pair, its source words, target words and links
    """
    bits, count = 0.0, 0
    for fold in (0, 1):
        together: Counter[tuple[str, str]] = Counter()
        sources: Counter[str] = Counter()
        targets: Counter[str] = Counter()
        for source, target, links in pairs[fold::2]:
            targets.update(target)
            for s, t in links:
                together[source[s], target[t]] += 1
                sources[source[s]] += 1
        # One type more than was counted, for all words that occur only in the other half.
        total, kinds = targets.total(), len(targets) + 1
        for source, target, links in pairs[1 - fold :: 2]:
            # Divide by all target words: a head must not win by linking only a few.
            count += len(target)
            for s, t in links:
                p_t = (targets[target[t]] + 1) / (total + kinds)
                p_t_s = (together[source[s], target[t]] + p_t) / (sources[source[s]] + 1)
                bits += math.log2(p_t_s / p_t)
    return bits / max(count, 1)


class Ranked(NamedTuple):
    """A candidate head with its score: bits per word, or F1 if there are gold links."""

    head: AlignmentHead
    score: float


def choose(
    alignments: Sequence[Mapping[AlignmentHead, WordAlignment]], gold: Sequence[Gold] | None = None
) -> list[Ranked]:
    """Rank all candidates, best first; ties are kept in the order of layers and heads.

    Args:
        alignments: for each sentence pair, its alignments by the same candidates
        gold: the gold links of each pair, to score by F1; if None, score by :func:`mutual_information`
    """
    words = []
    for pair in alignments:
        one = next(iter(pair.values()))  # the words are the same for all candidates
        source = [one.source_text[a:b].casefold() for a, b in one.source_words]
        words.append((source, [one.target_text[a:b].casefold() for a, b in one.target_words]))
    ranked = []
    for head in alignments[0] if alignments else ():
        links = [pair[head].links for pair in alignments]
        if gold is not None:
            score = agreement(links, gold).f1
        else:
            score = mutual_information([(*of_pair, linked) for of_pair, linked in zip(words, links)])
        ranked.append(Ranked(head, score))
    return sorted(ranked, key=lambda r: -r.score)
