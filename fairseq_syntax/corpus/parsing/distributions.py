"""Sparse labelled arcs from a parser's scores: p(head, label | word) = p(head | word) p(label | arc)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_syntax.corpus.parsing.marginals import arc_marginals
from fairseq_syntax.corpus.parsing.parser import ParserOptions

Arc = tuple[int, int, str, float]


def arcs_of_scores(
    heads: Tensor, label_scores: Tensor, lengths: Tensor, labels: Sequence[str], options: ParserOptions
) -> list[list[Arc]]:
    """The arcs of each sentence with p(head, label | word) >= ``options.min_prob``.

    Label softmaxes are computed only if p(head | word) reaches the minimum, since otherwise no label can.

    Args:
        heads: [B, N+1, N+1] float, scores [b, dependent, head], where index 0 is the artificial root
        label_scores: [B, N+1, N+1, L] float, [b, dependent, head, label]
        lengths: [B] int64, the number of words in each sentence without the root, 1 to N
        labels: the L names

    Returns:
        for each sentence, (dependent, head, label, p) with ids from 1 (0 for the root), sorted by dependent and then by
        decreasing probability
    """
    p_head = head_probabilities(heads, lengths, temperature=options.temperature, structured=options.structured)
    sentence, dependent, head = (p_head >= options.min_prob).nonzero(as_tuple=True)
    label_given_arc = torch.softmax(label_scores[sentence, dependent, head] / options.label_temperature, dim=-1)
    joint = p_head[sentence, dependent, head].unsqueeze(1) * label_given_arc
    arc, label = (joint >= options.min_prob).nonzero(as_tuple=True)
    p = joint[arc, label]
    # Stable sorts, last key first: by probability, then by word; ties stay in the order of heads.
    order = torch.argsort(p, descending=True, stable=True)
    word = sentence[arc] * heads.shape[1] + dependent[arc]
    order = order[torch.argsort(word[order], stable=True)]
    columns = (sentence[arc], dependent[arc], head[arc], label, p)
    result: list[list[Arc]] = [[] for _ in range(heads.shape[0])]
    for b, d, h, l, value in zip(*(column[order].tolist() for column in columns)):
        result[b].append((d, h, labels[l], value))
    return result


def head_probabilities(
    scores: Tensor, lengths: Tensor, *, temperature: float = 1.0, structured: bool = False
) -> Tensor:
    """p(head | word) for a batch of sentences.

    Args:
        scores, lengths: as ``heads`` and ``lengths`` in :func:`arcs_of_scores`; scores beyond ``lengths`` are ignored
        temperature: divides the scores
        structured: use marginals of the distribution over trees instead of a softmax per word

    Returns:
        [B, N+1, N+1]; the rows of words sum to 1; the root's row, the diagonal, and padding are 0
    """
    batch, size, _ = scores.shape
    index = torch.arange(size, device=scores.device)
    real = index <= lengths.view(batch, 1)  # True for the root and the words
    dependent = real & (index > 0)
    allowed = dependent.unsqueeze(2) & real.unsqueeze(1) & ~torch.eye(size, dtype=torch.bool, device=scores.device)
    masked = (scores / temperature).masked_fill(~allowed, -torch.inf)
    if structured:
        return arc_marginals(masked, lengths).to(scores.dtype)
    return torch.softmax(masked, dim=2).masked_fill(~allowed, 0.0)
