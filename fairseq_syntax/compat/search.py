"""Changes to fairseq's searches: diverse beams, translations as long as their source, and repeated n-grams."""

from __future__ import annotations

import functools
from typing import Any

import torch
from fairseq import ngram_repeat_block, search, sequence_generator
from torch import Tensor


class DiverseBeamSearch(search.DiverseBeamSearch):
    """fairseq's search with sentences numbered by their places in the batch.

    fairseq stores their penalties by these places, but looks them up by ``id``: it fails, or takes those of another
    sentence.
    """

    def step(self, step: int, lprobs: Tensor, scores: Any, tokens: Any = None, ids: Any = None) -> Any:
        """See the base class; ``ids`` are those of the sentences that are still searched, int64 [B]."""
        if step == 0:
            self._ids = ids
        places = (ids[:, None] == self._ids).int().argmax(dim=1)
        return super().step(step, lprobs, scores, tokens, places)


class LengthConstrainedBeamSearch(search.LengthConstrainedBeamSearch):
    """The search of ``--match-source-len``: every hypothesis has as many pieces as its source.

    fairseq counts ``</s>`` on one side alone, so translations get a piece more, and lets hypotheses that do not end at
    their limit go on.
    """

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        """See the base class; the lengths [B] include ``</s>``."""
        super().set_src_lengths(src_lengths - 1)

    def step(self, step: int, lprobs: Tensor, scores: Any, tokens: Any = None, ids: Any = None) -> Any:
        """See the base class; ``lprobs``: [B, beam, V]."""
        ends = step >= self.max_len_a * self.src_lengths + self.max_len_b
        at_end = torch.full_like(lprobs, -torch.inf)
        at_end[:, :, self.eos] = lprobs[:, :, self.eos]
        lprobs[step < self.min_len_a * self.src_lengths + self.min_len_b, :, self.eos] = -torch.inf
        return self.beam.step(step, torch.where(ends[:, None, None], at_end, lprobs), scores)


class NGramRepeatBlock(ngram_repeat_block.NGramRepeatBlock):
    """``--no-repeat-ngram-size N``: words that would complete an n-gram of the hypothesis for the second time.

    fairseq compares the end of the whole buffer, which is padding until the last step, so it forbids nothing.
    """

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        """The log-probabilities with those of forbidden words at −∞.

        A row in which nothing would be left keeps its own: a forced prefix or the end may repeat an n-gram.

        Args:
            tokens: [R, T] int64, the hypotheses, of which columns 1 to ``step`` are words
            lprobs: [R, V], of the next word
        """
        n = self.no_repeat_ngram_size
        if step < n:
            return lprobs
        words = tokens[:, 1 : step + 1]
        ngrams = words.unfold(1, n, 1)  # [R, step − n + 1, n]
        is_repeated = (ngrams[..., : n - 1] == words[:, None, step - n + 1 :]).all(dim=-1)
        forbidden = torch.zeros_like(lprobs).scatter_add_(1, ngrams[..., n - 1], is_repeated.to(lprobs)) > 0
        allowed = lprobs.masked_fill(forbidden, -torch.inf)
        return torch.where(allowed.isneginf().all(dim=1, keepdim=True), lprobs, allowed)


def install() -> None:
    """Make fairseq's generators use these, with a beam that the words of the first step can fill.

    A beam that is wider than the vocabulary without padding and ``</s>`` would hold hypotheses that never end, where a
    translation may have one word.
    """
    original = sequence_generator.SequenceGenerator.__init__

    @functools.wraps(original)
    def limited(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.beam_size = min(self.beam_size, self.vocab_size - 2)

    sequence_generator.SequenceGenerator.__init__ = limited
    search.DiverseBeamSearch = DiverseBeamSearch
    search.LengthConstrainedBeamSearch = LengthConstrainedBeamSearch
    sequence_generator.NGramRepeatBlock = NGramRepeatBlock
