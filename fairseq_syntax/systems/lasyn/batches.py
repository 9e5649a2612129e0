"""K optimizer steps per batch (Algorithm 1 of LaSyn): an epoch in which every group of batches comes K times.

A group is the batches of one update (``--update-freq``). Its K visits are K ordinary updates of fairseq's trainer, each
with its own forward pass, hence its own E-step: the update count, the learning-rate schedule, clipping, gradient
scaling, distributed reduction, checkpoints in the middle of an epoch and logs are the trainer's own. An epoch stays one
pass over the corpus and has K times the updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq.data.iterators import EpochBatchIterator


def repeat_groups(batches: Sequence[Any], repeats: int, group: int, skip_remainder: bool = False) -> list[Any]:
    """Each run of ``group`` batches ``repeats`` times in a row.

    A shorter last run is filled with its own batches over again, so that each of its visits is one update on exactly
    those batches; with ``skip_remainder`` it is left out.
    """
    out: list[Any] = []
    for start in range(0, len(batches), group):
        run = list(batches[start : start + group])
        if len(run) < group:
            if skip_remainder:
                break
            run = [run[i % len(run)] for i in range(group)]
        out += run * repeats
    return out


class RepeatedBatchIterator(EpochBatchIterator):
    """fairseq's epoch iterator, each group of batches K times.

    Args:
        base: the iterator whose batches are repeated
        repeats: K
        groups: batches per update, by epoch; the last value holds for all later epochs
    """

    def __init__(self, base: EpochBatchIterator, repeats: int, groups: Sequence[int]) -> None:
        super().__init__(
            dataset=base.dataset,
            collate_fn=base.collate_fn,
            batch_sampler=base.batch_sampler if callable(base.batch_sampler) else base.frozen_batches,
            seed=base.seed,
            num_shards=base.num_shards,
            shard_id=base.shard_id,
            num_workers=base.num_workers,
            epoch=base.epoch,
            buffer_size=base.buffer_size,
            timeout=base.timeout,
            disable_shuffling=base.disable_shuffling,
            grouped_shuffling=base.grouped_shuffling,
            reuse_dataloader=base.reuse_dataloader,
            persistent_workers=base.persistent_workers,
        )
        self.repeats, self.groups = repeats, list(groups) or [1]
        self.skip_remainder = base.skip_remainder_batch

    def group(self, epoch: int) -> int:
        """Batches per update in an epoch, counted from 1."""
        return self.groups[min(epoch, len(self.groups)) - 1]

    def __len__(self) -> int:
        return len(self._repeat(range(super().__len__()), self.epoch))

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """The epoch's batches of this shard, in the order in which they are trained on."""
        return self._repeat(super().ordered_batches(epoch, fix_batches_to_gpus, shuffle), epoch)

    def _repeat(self, batches: Sequence[Any], epoch: int) -> list[Any]:
        if self.skip_remainder and len(batches) > 1:
            batches = batches[:-1]  # as in fairseq: the last batch of an epoch is usually a small one
        return repeat_groups(batches, self.repeats, self.group(epoch), self.skip_remainder)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch is, and with which K."""
        return {**super().state_dict(), "repeats": self.repeats}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a checkpoint stopped; with another K, at the group of batches where it stopped."""
        before, group = state_dict.get("repeats", 1), self.group(state_dict["epoch"])
        position = state_dict.get("iterations_in_epoch", 0)
        if before != self.repeats:
            position = position // (before * group) * self.repeats * group
        super().load_state_dict({**state_dict, "iterations_in_epoch": position})
