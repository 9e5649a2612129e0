"""Changes to fairseq's searches: less work in each step, diverse beams, lengths of the source, and repeated n-grams."""

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
    their limit go on. One piece is the least, since a search that may only end at once would wait for a beam of others.
    """

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        """See the base class; the lengths [B] include ``</s>``."""
        super().set_src_lengths((src_lengths - 1).clamp(min=1))

    def step(self, step: int, lprobs: Tensor, scores: Any, tokens: Any = None, ids: Any = None) -> Any:
        """See the base class; ``lprobs``: [B, beam, V]."""
        ends = step >= self.max_len_a * self.src_lengths + self.max_len_b
        at_end = torch.full_like(lprobs, -torch.inf)
        end = lprobs[:, :, self.eos]
        at_end[:, :, self.eos] = end.masked_fill(end.isneginf(), 0.0)  # forbidden below --min-len
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


class EnsembleModel(sequence_generator.EnsembleModel):
    """The models of a search, which does only what a step changes.

    fairseq reorders the encoder's output in every step, looks through all modules of a decoder for those that keep a
    state, and copies the attention of all steps to the hypotheses that go on.

    Attributes:
        keeps_attention: whether hypotheses have their ``attention``, which only alignments by a search read
    """

    def __init__(self, models: list[Any]) -> None:
        super().__init__(models)
        self.keeps_attention = True
        self._rows = 0
        self._with_state: list[list[Any]] = []

    def forward_encoder(self, net_input: dict[str, Any]) -> list[Any]:
        """Encode a batch, and start its search."""
        self._rows = 0
        decoders = [model.decoder for model in self.models] if self.has_incremental_states() else []
        named = "reorder_incremental_state"
        self._with_state = [[module for module in of.modules() if hasattr(module, named)] for of in decoders]
        return super().forward_encoder(net_input)

    def reorder_encoder_out(self, encoder_outs: list[Any], new_order: Tensor) -> list[Any]:
        """See the base class.

        The hypotheses of a sentence share its source, so if the number of rows and thus their sentences have not
        changed, nothing needs to be reordered.
        """
        rows, self._rows = self._rows, len(new_order)
        return encoder_outs if rows == self._rows else super().reorder_encoder_out(encoder_outs, new_order)

    def reorder_incremental_state(self, incremental_states: list[Any], new_order: Tensor) -> None:
        """See the base class."""
        for state, modules in zip(incremental_states, self._with_state):
            for module in modules:
                module.reorder_incremental_state(state, new_order)

    def forward_decoder(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """The log-probabilities of the next word [R, V], and the average attention [R, S] if it is kept."""
        log_probs, attention = super().forward_decoder(*args, **kwargs)
        return log_probs, attention if self.keeps_attention else None


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
    sequence_generator.EnsembleModel = EnsembleModel
    search.DiverseBeamSearch = DiverseBeamSearch
    search.LengthConstrainedBeamSearch = LengthConstrainedBeamSearch
    sequence_generator.NGramRepeatBlock = NGramRepeatBlock
