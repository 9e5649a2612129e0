"""Control of a running beam search: a length limit for each sentence, and a callback before every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Called before each step of a search; gives the numbers of sentences that need not be translated any more. What it
# raises ends the search.
OnStep = Callable[[], Iterable[int]]


class SearchControl:
    """Controls every step of a generator's searches, through its search strategy.

    fairseq has one limit for all translations of a batch, which comes from the longest source, and no way to end a
    search before that. Here each sentence has a limit of its own: from that step on, its hypotheses can only end, as
    fairseq does it at the limit of the batch, so that they leave the batch.

    Args:
        generator: fairseq's ``SequenceGenerator``, whose strategy's ``step`` is replaced
    """

    def __init__(self, generator: Any) -> None:
        self._eos = int(generator.eos)
        self._strategy_step = generator.search.step
        generator.search.step = self._step
        self._limits: dict[int, int] = {}
        self._on_step: OnStep | None = None

    @contextmanager
    def search(self, limits: Mapping[int, int], on_step: OnStep | None = None) -> Iterator[None]:
        """A context for the search of one batch.

        Args:
            limits: by the ``id`` of each sentence in its batch, the most pieces of its translation, without ``</s>``
            on_step: gives ids of sentences whose hypotheses are to end in this step (from the second step on: in the
                first, all hypotheses of a sentence are one)
        """
        self._limits, self._on_step = dict(limits), on_step
        try:
            yield
        finally:
            self._limits, self._on_step = {}, None

    def _step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """fairseq's ``Search.step``; where a limit is reached, log-probabilities [B, beam, V] allow only ``</s>``."""
        if self._on_step is not None:
            for number in self._on_step():
                self._limits[number] = 1
        if self._limits and step >= min(self._limits.values()) and step > 0:
            assert original_batch_idxs is not None
            ended = [k for k, number in enumerate(original_batch_idxs.tolist()) if step >= self._limits[number]]
            if ended:
                rows = torch.tensor(ended, device=lprobs.device)
                end = lprobs[rows, :, self._eos]
                lprobs[rows] = -torch.inf
                # Where the shortest translation is not reached, </s> was forbidden: nothing could be chosen.
                lprobs[rows, :, self._eos] = end.masked_fill(end.isneginf(), 0.0)
        return self._strategy_step(step, lprobs, scores, prev_output_tokens, original_batch_idxs, **more)
