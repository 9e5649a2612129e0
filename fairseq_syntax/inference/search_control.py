"""Control of a running beam search: a length limit for each sentence, and a callback before every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.search import Sampling
from torch import Tensor

# Called before each step of a search; returns the numbers of sentences whose translation is no longer needed. An
# exception ends the search.
OnStep = Callable[[], Iterable[int]]


class SearchControl:
    """Controls every step of a generator's searches, through its search strategy.

    fairseq has one length limit for a batch, computed from the longest source, and cannot end a search earlier. Here
    each sentence has its own limit. From that step on, its hypotheses can only end, as in fairseq at the limit of the
    batch, and so the sentence leaves the batch.

    Args:
        generator: fairseq's ``SequenceGenerator``, whose strategy's ``step`` is replaced
    """

    def __init__(self, generator: Any) -> None:
        self._eos = int(generator.eos)
        # Sampling draws from probabilities in float32, among which exp(-104) would be none.
        self._least = -80.0 if isinstance(generator.search, Sampling) else -torch.inf
        self._strategy_step = generator.search.step
        generator.search.step = self._step
        self._limits: dict[int, int] = {}
        self._on_step: OnStep | None = None

    @contextmanager
    def search(self, limits: Mapping[int, int], on_step: OnStep | None = None) -> Iterator[None]:
        """A context for the search of one batch.

        Args:
            limits: the maximum number of pieces of a translation, without ``</s>``, by the sentence's ``id``
            on_step: returns the ids of sentences whose hypotheses must end in this step (from the second step on, since
                in the first step all hypotheses of a sentence are the same)
        """
        self._limits, self._on_step = dict(limits), on_step
        try:
            yield
        finally:
            self._limits, self._on_step = {}, None

    def _step(self, step: int, lprobs: Tensor, scores: Any, tokens: Any = None, ids: Any = None, **more: Any) -> Any:
        """fairseq's ``Search.step``; at its limit, a sentence's log-probabilities [beam, V] allow only ``</s>``."""
        if self._on_step is not None:
            for number in self._on_step():
                self._limits[number] = 1
        if self._limits and step >= min(self._limits.values()) and step > 0:
            ended = [k for k, number in enumerate(ids.tolist()) if step >= self._limits[number]]
            if ended:
                rows = torch.tensor(ended, device=lprobs.device)
                end = lprobs[rows, :, self._eos]
                lprobs[rows] = -torch.inf
                # Below the minimum length, </s> is forbidden, and nothing could be chosen.
                lprobs[rows, :, self._eos] = end.masked_fill(end.isneginf(), 0.0).clamp(min=self._least)
        return self._strategy_step(step, lprobs, scores, tokens, ids, **more)
