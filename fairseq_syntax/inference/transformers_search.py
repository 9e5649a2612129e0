"""Beam search by the rules of ``generate`` in Hugging Face's transformers (version 5), for ``--search-rules``.

fairseq ends the search of a sentence when as many translations as the beam is wide have ended. ``generate``, with its
default ``early_stopping=False``, goes on while an unfinished translation, normalized by its present length, is better
than the worst of the finished ones that it keeps. Two more rules differ: ``</s>`` costs nothing at the length limit
(``forced_eos_token_id``), and the language token that a decoder reads after its start counts as a token of the
translation in the normalization by length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_syntax.model.language_tokens import LanguageDecoder


class TransformersGenerator(SequenceGenerator):
    """fairseq's generator with these rules; arguments as there."""

    def __init__(self, models: Sequence[Any], *arguments: Any, **options: Any) -> None:
        super().__init__(models, *arguments, **options)
        # The language token, if there is one, counts in the length.
        self._read = max(int(isinstance(getattr(model, "decoder", None), LanguageDecoder)) for model in models)
        self._strategy_step = self.search.step
        self.search.step = self._step
        self._begin()

    def _begin(self) -> None:
        self._places: dict[int, int] = {}  # of the sentences in the batch, by id
        self._worst: dict[int, float] = {}  # the worst translation of each sentence with a full beam of finished ones
        self._closed: set[int] = set()  # sentences of which no unfinished translation can win any more
        self._at_limit: set[int] = set()  # sentences that can only end in this step

    def generate(self, models: Any, sample: Any, **options: Any) -> Any:
        """See the base class."""
        self._begin()
        return super().generate(models, sample, **options)

    def _normalized(self, score: float, length: int) -> float:
        """A score divided by a length, without the language token, to the power of the length penalty."""
        return score / (length + self._read) ** self.len_penalty if self.normalize_scores else score

    def _step(self, step: int, lprobs: Tensor, scores: Tensor, tokens: Any = None, ids: Any = None, **more: Any) -> Any:
        """``Search.step``, for log-probabilities [B, beam, V] and the sums [B, beam, step] so far."""
        numbers = ids.tolist()
        if step == 0:
            self._places = {number: place for place, number in enumerate(numbers)}
        else:
            best = scores[:, :, step - 1].amax(dim=1).tolist()
            for place, score in zip(map(self._places.__getitem__, numbers), best):
                if place in self._worst and self._normalized(score, step) <= self._worst[place]:
                    self._closed.add(place)
            others = torch.cat([lprobs[..., : self.eos], lprobs[..., self.eos + 1 :]], dim=-1)
            only_end = others.isneginf().all(dim=2)  # [B, beam]
            lprobs[..., self.eos].masked_fill_(only_end & ~lprobs[..., self.eos].isneginf(), 0.0)
            ending = only_end.all(dim=1).tolist()
            self._at_limit = {self._places[number] for number, ends in zip(numbers, ending) if ends}
        return self._strategy_step(step, lprobs, scores, tokens, ids, **more)

    def is_finished(self, *_: Any) -> bool:
        """Never: :meth:`finalize_hypos` decides."""
        return False

    def finalize_hypos(  # type: ignore[override]
        self,
        step: int,
        bbsz_idx: Tensor,
        eos_scores: Tensor,
        tokens: Tensor,
        scores: Tensor,
        finalized: list[list[dict[str, Tensor]]],
        finished: list[bool],
        beam_size: int,
        attn: Tensor | None,
        src_lengths: Tensor,
        max_len: int,
    ) -> list[int]:
        """See the base class; a sentence keeps its best ``beam`` translations, and ends when it is closed."""
        before = [list(kept) for kept in finalized]
        for kept in finalized:
            kept.clear()
        super().finalize_hypos(
            step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, beam_size, attn, src_lengths, max_len
        )
        for place, (kept, earlier) in enumerate(zip(finalized, before)):
            new = [] if place in self._closed else list(kept)
            if self.normalize_scores and self._read:
                for one in new:  # normalized by step + 1 in the base class
                    one["score"] = one["score"] * ((step + 1) / (step + 1 + self._read)) ** self.len_penalty
            kept[:] = sorted(earlier + new, key=lambda one: -float(one["score"]))[:beam_size]
            if len(kept) == beam_size:
                self._worst[place] = float(kept[-1]["score"])
        running = [place for place, done in enumerate(finished) if not done]
        over = self._closed | self._at_limit
        ended = [row for row, place in enumerate(running) if step == max_len or place in over]
        for row in ended:
            finished[running[row]] = True
        return ended
