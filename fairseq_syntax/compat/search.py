"""A change to fairseq's diverse beam search: each sentence has its own penalties."""

from __future__ import annotations

from typing import Any

from fairseq import search
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


def install() -> None:
    """Make fairseq's generators use this search."""
    search.DiverseBeamSearch = DiverseBeamSearch
