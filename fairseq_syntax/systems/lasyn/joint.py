"""Beam search for the best pair of words and tags by max over z of P(y, z), the paper's beam cost (section 2.2)."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.search import BeamSearch
from torch import Tensor

from fairseq_syntax.compat.search import largest


class JointBeamSearch(BeamSearch):
    """Finds the candidates with the highest P(y, z) without computing it for every word.

    The step receives log marginals. A word's joint score is its marginal plus the log posterior of its most probable
    value, so marginal - log Z <= joint <= marginal. Words are examined by decreasing marginal, more and more of them
    until the next word's marginal is not above the worst candidate's joint score. Terms that fairseq has added to the
    marginals (penalties, constraints, a language model) are included in the joint scores.

    Args:
        tgt_dict: the dictionary
        ensemble: the :class:`.generator.LatentEnsemble` that computed the marginals

    Attributes:
        ahead: the number of words examined first, in multiples of the number of candidates
        block: the size of the values in memory at a time, in words times values; at least the words examined first
    """

    ahead, block = 8, 1 << 20

    def __init__(self, tgt_dict: Any, ensemble: Any) -> None:
        super().__init__(tgt_dict)
        self._ensemble = [ensemble]  # in a list, so that it is not registered as a submodule

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
            return marginal + self._ensemble[0].log_posterior(rows, words).amax(dim=-1)

        width = min(self.ahead * n_best, bound.size(1))
        part = max(width, self.block // (n_sentences * self._ensemble[0].n_values))
        while True:
            marginal, index = largest(bound, width)
            parts = zip(marginal.split(part, dim=1), index.split(part, dim=1))
            best, place = torch.cat([joint(*each) for each in parts], dim=1).topk(n_best)
            if width == bound.size(1) or not bool((marginal[:, -1:] > best[:, -1:]).any()):
                index = index.gather(1, place)
                return best, index % n_words, index // n_words
            width = min(4 * width, bound.size(1))
