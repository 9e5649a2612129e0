"""Beam search for the best pair of words and tags, max over z of P(y, z): the paper's beam cost (section 2.2)."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from fairseq.search import BeamSearch
from torch import Tensor


class Posterior(Protocol):
    """What the search has to know of the last step."""

    def log_posterior(self, rows: Tensor, words: Tensor) -> Tensor:
        """log P(z | y) [..., Z] of words [...] at the ends of rows [...]."""


class JointBeamSearch(BeamSearch):
    """The candidates of the highest P(y, z), found without computing it for every word.

    The step gets the log marginals. A word's joint score is its marginal plus the log posterior of its most probable
    value, so that marginal - log Z <= joint <= marginal. The words of the highest marginals are taken first; no word
    whose marginal is not above the last candidate's joint score can be a candidate. Whatever fairseq has added to the
    marginals (penalties, constraints, a language model) is in the joint scores too.

    Args:
        tgt_dict: the dictionary
        posterior: the ensemble that made the marginals
    """

    def __init__(self, tgt_dict: Any, posterior: Posterior) -> None:
        super().__init__(tgt_dict)
        self._posterior = [posterior]  # in a list, so that it is no submodule of the search too

    def step(
        self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None, candidate_multiple: int = 2
    ) -> tuple[Tensor, Tensor, Tensor]:
        """fairseq's: scores, words and beams [B, K] of the K best candidates of ``lprobs`` [B, beam, V]."""
        n_sentences, beam, n_words = lprobs.size()
        # At the first step all hypotheses of a sentence are the same.
        bound = lprobs[:, :1] if step == 0 else lprobs + scores[:, :, step - 1, None]
        bound = bound.reshape(n_sentences, -1)
        n_best = min(candidate_multiple * beam, bound.size(1) - 1)
        first_row = torch.arange(n_sentences, device=bound.device)[:, None] * beam

        def best_of(width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            marginal, index = bound.topk(width)
            beams, words = index // n_words, index % n_words
            joint = marginal + self._posterior[0].log_posterior(first_row + beams, words).amax(dim=-1)
            best, place = joint.topk(n_best)
            return best, words.gather(1, place), beams.gather(1, place), marginal[:, -1:]

        width = min(8 * n_best, bound.size(1))
        *found, next_marginal = best_of(width)
        worst = found[0][:, -1:]
        if width < bound.size(1) and not bool((next_marginal <= worst).all()):
            # All that can still be a candidate.
            *found, _ = best_of(max(int((bound > worst).sum(dim=1).max()), n_best))
        return found[0], found[1], found[2]
