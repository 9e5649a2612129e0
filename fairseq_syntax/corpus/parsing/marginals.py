"""Arc marginals of the distribution over trees, by the matrix-tree theorem.

``p(tree) ∝ Π exp(score[dependent, head])`` over all non-projective trees with a single root word, as in Koo, Globerson,
Carreras and Collins, "Structured Prediction Models via the Matrix-Tree Theorem", EMNLP 2007, section 3.2.

Inverting their matrix is fast but involves subtractions, which cancel if words are connected much more strongly to each
other than to the root. Such sentences are detected and computed by :func:`log_partition`, an elimination without
subtractions.
"""

from __future__ import annotations

import torch
from torch import Tensor

# If the sums of marginals by inversion differ from 1 by more than this, the sentence is computed by elimination.
_TOLERANCE = 1e-9


def arc_marginals(scores: Tensor, lengths: Tensor) -> Tensor:
    """p(head of word = h) under the distribution over single-root trees.

    Args:
        scores: [B, N+1, N+1] float, [b, dependent, head], where index 0 is the artificial root; -inf excludes an arc.
            The root's row, the diagonal and everything beyond ``lengths`` are ignored. Each sentence must have a tree
            with a finite score.
        lengths: [B] int64, the number of words in each sentence, 1 to N

    Returns:
        [B, N+1, N+1] float64; the rows of words sum to 1, the column of the root sums to 1, all other elements are 0
    """
    result = _by_inversion(scores, lengths)
    words = torch.arange(1, scores.shape[1], device=scores.device) <= lengths.view(-1, 1)
    rows = (result[:, 1:].sum(dim=2) - words.double()).abs().amax(dim=1)
    roots = (result[:, :, 0].sum(dim=1) - 1.0).abs()
    negative = -result.amin(dim=(1, 2))
    # "not within" instead of "beyond", because a singular matrix gives NaN.
    off = ~((rows < _TOLERANCE) & (roots < _TOLERANCE) & (negative < _TOLERANCE))
    for b in off.nonzero().flatten().tolist():
        n = int(lengths[b]) + 1
        result[b] = 0.0
        result[b, :n, :n] = _by_elimination(scores[b, :n, :n])
    return result.clamp_(0.0, 1.0)


def _by_inversion(scores: Tensor, lengths: Tensor) -> Tensor:
    """Koo et al. 2007: L̂ of Equation 7 (root scores in its first row), and marginals by Equations 9 and 10."""
    size = scores.shape[1] - 1
    real = torch.arange(size, device=scores.device) < lengths.view(-1, 1)  # [B, N]
    eye = torch.eye(size, dtype=torch.bool, device=scores.device)
    rows = scores[:, 1:].double()  # [B, dependent, head], with the root first
    allowed = torch.cat([real.unsqueeze(2), real.unsqueeze(2) & real.unsqueeze(1) & ~eye], dim=2)
    rows = rows.masked_fill(~allowed, -torch.inf)
    # Each word has one arc and each tree one root arc, so rows and the root's column can be scaled arbitrarily.
    rows = rows - rows.amax(dim=2, keepdim=True).masked_fill(~real.unsqueeze(2), 0.0)
    root = torch.exp(rows[:, :, 0] - rows[:, :, 0].amax(dim=1, keepdim=True))  # [B, dependent]
    arcs = torch.exp(rows[:, :, 1:]).transpose(1, 2)  # A [B, head, dependent]
    # Padding becomes an identity block.
    laplacian = torch.diag_embed(arcs.sum(dim=1) + (~real).double()) - arcs
    laplacian = torch.cat([root.unsqueeze(1), laplacian[:, 1:]], dim=1)
    inverse, _ = torch.linalg.inv_ex(laplacian)
    not_first = torch.ones(size, dtype=inverse.dtype, device=inverse.device)
    not_first[0] = 0.0  # the first row of L̂ contains no arcs between words
    by_dependent = (torch.diagonal(inverse, dim1=1, dim2=2) * not_first).unsqueeze(1)  # L̂⁻¹[m, m]
    by_head = inverse.transpose(1, 2) * not_first.unsqueeze(1)  # [B, head, dependent]: L̂⁻¹[m, h]
    result = torch.zeros(scores.shape, dtype=torch.float64, device=scores.device)
    result[:, 1:, 1:] = (arcs * (by_dependent - by_head)).transpose(1, 2)
    result[:, 1:, 0] = root * inverse[:, :, 0]
    return result


def log_partition(scores: Tensor) -> Tensor:
    """log Σ_trees Π exp(score) for one sentence, exact for scores of any size.

    If arcs from words to their heads are the rates of a Markov chain, the trees with root m sum to its unnormalized
    stationary weight (the Markov chain tree theorem). The weights are computed by eliminating one state after the other
    as in Grassmann, Taksar and Heyman (Operations Research 33, 1985), which only adds, multiplies and divides; here on
    logarithms.

    Args:
        scores: [N+1, N+1] float, [dependent, head], index 0 the artificial root; -inf where there is no arc

    Returns:
        float64 scalar, differentiable
    """
    root = scores[1:, 0].double()
    rates = scores[1:, 1:].double()
    size = rates.shape[0]
    outward: list[Tensor] = []  # the log of the total rate out of each eliminated state, last state first
    inward: list[Tensor] = []  # log rates into it from the preceding states
    for k in range(size - 1, 0, -1):
        total = torch.logsumexp(rates[k, :k], dim=0)
        outward.append(total)
        inward.append(rates[:k, k] - total)
        around = inward[-1].unsqueeze(1) + rates[k, :k].unsqueeze(0)
        rates = torch.logaddexp(rates[:k, :k], around)  # the diagonal collects loops, which are never read
    weight = torch.stack(outward).sum().view(1) if outward else root.new_zeros(1)
    for into in reversed(inward):
        weight = torch.cat([weight, torch.logsumexp(weight + into, dim=0).view(1)])
    return torch.logsumexp(weight + root, dim=0)


def _by_elimination(scores: Tensor) -> Tensor:
    """The marginals [N+1, N+1] of one sentence, as the gradient of the log partition function."""
    # -inf has no useful gradient (inf - inf); -1e6 removes the arc just as well.
    finite = scores.detach().double().clamp(min=-1e6)
    with torch.enable_grad():
        finite.requires_grad_(True)
        (marginals,) = torch.autograd.grad(log_partition(finite), finite)
    return marginals
