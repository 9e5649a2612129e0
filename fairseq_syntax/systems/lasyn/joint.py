"""Beam search for the best pair of words and tags by max over z of P(y, z), the paper's beam cost (section 2.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from fairseq.search import BeamSearch
from torch import Tensor

from fairseq_syntax.model.thresholds import thresholds

PARTS = 8  # the number of lines into which a row is folded


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``x.topk(k)`` for each row [N]: values and indices [B, k], the highest first.

    It is faster on CPUs unless k is small, since PyTorch keeps a heap of k elements there. If a row is folded into
    :data:`PARTS` lines, its k largest elements are in the k columns with the largest maxima, or in the remainder at its
    end. For 50 rows of 40,000, k = 64 and one thread, this takes 3 ms instead of 17.
    """
    rows, n = x.size()
    width = n // PARTS
    if not thresholds(x.device).heap or k * 4 > width:
        return x.topk(k)
    laid_out = x[:, : PARTS * width].view(rows, PARTS, width)
    column = laid_out.amax(dim=1).topk(k, sorted=False).indices  # [B, k]
    index = (column[:, None] + torch.arange(PARTS)[:, None] * width).flatten(1)  # [B, PARTS k]
    index = torch.cat((index, torch.arange(PARTS * width, n).expand(rows, -1)), dim=1)
    values, place = x.gather(1, index).topk(k)
    return values, index.gather(1, place)


class Posterior(Protocol):
    """The ensemble that holds the posterior of the last step.

    Attributes:
        n_values: Z
    """

    n_values: int

    def log_posterior(self, rows: Tensor, words: Tensor) -> Tensor:
        """log P(z | y) [..., Z] of words [...] after rows [...]."""


class JointBeamSearch(BeamSearch):
    """Finds the candidates with the highest P(y, z) without computing it for every word.

    The step receives log marginals. A word's joint score is its marginal plus the log posterior of its most probable
    value, so marginal - log Z <= joint <= marginal. Words are examined by decreasing marginal; a word whose marginal is
    not above the worst candidate's joint score cannot be a candidate. Terms that fairseq has added to the marginals
    (penalties, constraints, a language model) are included in the joint scores.

    If word scores are so flat that many words remain, they are examined in blocks until none can be a candidate, so
    only the marginals and the values of one block are in memory.

    Args:
        tgt_dict: the dictionary
        posterior: the ensemble that computed the marginals

    Attributes:
        ahead: the size of the first block, in multiples of the number of candidates
        block: the maximum size of each further block, in words times values
    """

    ahead, block = 8, 1 << 20

    def __init__(self, tgt_dict: Any, posterior: Posterior) -> None:
        super().__init__(tgt_dict)
        self._posterior = [posterior]  # in a list, so that it is not registered as a submodule

    def step(
        self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None, candidate_multiple: int = 2
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As in fairseq: scores, words and beams [B, K] of the K best candidates in ``lprobs`` [B, beam, V]."""
        n_sentences, beam, n_words = lprobs.size()
        # In the first step, all hypotheses of a sentence are equal.
        bound = lprobs[:, :1] if step == 0 else lprobs + scores[:, :, step - 1, None]
        bound = bound.reshape(n_sentences, -1)  # [B, beam V]
        n_best = min(candidate_multiple * beam, bound.size(1) - 1)  # as in fairseq, which excludes padding
        first_row = torch.arange(n_sentences, device=bound.device)[:, None] * beam

        def joint(marginal: Tensor, index: Tensor) -> Tensor:
            rows, words = first_row + index // n_words, index % n_words
            return marginal + self._posterior[0].log_posterior(rows, words).amax(dim=-1)

        width = min(self.ahead * n_best, bound.size(1))
        marginal, index = largest(bound, width)
        best, place = joint(marginal, index).topk(n_best)
        index = index.gather(1, place)
        if width < bound.size(1) and bool((marginal[:, -1:] > best[:, -1:]).any()):
            best, index = self._all(bound, best, joint)
        return best, index % n_words, index // n_words

    def _all(self, bound: Tensor, best: Tensor, joint: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The best candidates among all whose bound is above the worst candidate so far.

        Args:
            bound: [B, N], upper bounds of the joint scores of each beam's words
            best: [B, K], the joint scores of the candidates so far
            joint: computes joint scores from bounds and indices

        Returns:
            joint scores [B, K] and indices [B, K] into N
        """
        n_sentences, n_best = best.size()
        remaining = max(int((bound > best[:, -1:]).sum(dim=1).max()), n_best)
        marginal, order = bound.topk(remaining)
        best_scores, index = marginal.new_full(best.shape, -math.inf), order[:, :n_best]
        # The number of words per sentence in a block, which has ``block`` elements with one per value.
        step = max(n_best, self.block // (n_sentences * self._posterior[0].n_values))
        for start in range(0, remaining, step):
            block = slice(start, start + step)
            if bool((marginal[:, start] <= best_scores[:, -1]).all()):
                break
            scores = torch.cat([best_scores, joint(marginal[:, block], order[:, block])], dim=1)
            best_scores, place = scores.topk(n_best)
            index = torch.cat([index, order[:, block]], dim=1).gather(1, place)
        return best_scores, index
