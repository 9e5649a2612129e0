"""The batches of a training epoch, in an order that a resumed run reproduces.

fairseq's iterator has five shortcomings. It forms the batches by the epoch in which a run was started, so a run
resumed in epoch 2 has other batches. It treats an update that ends in a filler as a filler, so the other batches of the
update have no effect. With ``--curriculum``, it never shuffles the batches, unless the run is resumed. With
``--grouped-shuffling``, it drops the last batches, the longest ones, if their number is not a multiple of the number of
processes. And a resumed run needs the same number of processes and the same ``--update-freq``. Here, batches are always
formed as in epoch 1, fillers come first in their update, and a checkpoint records the sentences that were trained on.
If a resumed run has other batches (``--max-tokens``, ``--batch-size``), another order of them (``--seed``) or other
updates (``--update-freq``, K, the number of processes), it continues with the remaining sentences.

For LaSyn, each group of batches is repeated K times (K optimizer steps per batch, Algorithm 1). A group contains the
batches of one update (``--update-freq``). Its K visits are ordinary updates of fairseq's trainer, each with its own
forward pass and therefore its own E-step, so the update count, learning-rate schedule, clipping, gradient scaling,
distributed reduction, checkpoints within an epoch and logs work as usual. An epoch is still one pass over the corpus,
with K times as many updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from fairseq.data.iterators import EpochBatchIterator

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import checksum

# An empty batch: fairseq's trainer runs another batch in its place and multiplies by zero.
FILLER: list[int] = []


def by_update(batches: Sequence[Any], repeats: int, group: int, skip_remainder: bool = False) -> list[Any]:
    """Repeat each run of ``group`` batches ``repeats`` times; within a run, fillers (empty batches) come first.

    With ``skip_remainder``, a shorter last run is left out, as in fairseq. Otherwise, if runs are repeated, it is
    filled up, so that each of its visits is one update on exactly its batches.
    """
    out: list[Any] = []
    for start in range(0, len(batches), group):
        run = list(batches[start : start + group])
        if len(run) < group and skip_remainder:
            break
        if repeats > 1:
            run += [FILLER] * (group - len(run))
        out += sorted(run, key=lambda batch: len(batch) > 0) * repeats
    return out


class TrainingBatches(EpochBatchIterator):
    """fairseq's epoch iterator, which repeats each group of batches K times.

    Args:
        base: the iterator that provides the batches
        epoch: the first epoch, from 1
        groups: the number of batches per update in each epoch; the last value applies to all later epochs
        repeats: K
    """

    def __init__(self, base: EpochBatchIterator, epoch: int, groups: Sequence[int], repeats: int = 1) -> None:
        of_data = ("dataset", "collate_fn", "seed", "num_shards", "shard_id", "num_workers", "buffer_size", "timeout")
        of_order = ("disable_shuffling", "grouped_shuffling", "reuse_dataloader", "persistent_workers")
        options = {name: getattr(base, name) for name in of_data + of_order}
        sampler = base.batch_sampler if callable(base.batch_sampler) else base.frozen_batches
        super().__init__(batch_sampler=sampler, epoch=epoch, **options)
        self.shard_id: int
        self.repeats, self.groups = repeats, list(groups) or [1]
        self.skip_remainder = base.skip_remainder_batch
        self._shuffled = True  # whether the current epoch's batches are
        # An epoch, and for each sentence whether it was trained on already.
        self._done: tuple[int, np.ndarray] | None = None

    @property
    def frozen_batches(self) -> tuple[Any, ...]:
        """fairseq's batches, in an epoch of which only the rest is trained without sentences already trained on.

        ``--grouped-shuffling`` shuffles groups of one batch per process, and would drop the batches of an incomplete
        group, so fillers complete it.
        """
        batches = super().frozen_batches
        if self._done is not None and self._done[0] == self.epoch:
            done = self._done[1]
            rest = ([i for i in batch if not done[i]] for batch in batches)
            batches = tuple(batch for batch in rest if batch)
        if self.grouped_shuffling:
            batches += (FILLER,) * (-len(batches) % self.num_shards)
        return batches

    def group(self, epoch: int) -> int:
        """The number of batches per update in an epoch (from 1)."""
        return self.groups[min(epoch, len(self.groups)) - 1]

    def __len__(self) -> int:
        return len(self._by_update([[0]] * super().__len__(), self.epoch))

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """The batches of this shard in training order."""
        return self._by_update(super().ordered_batches(epoch, fix_batches_to_gpus, shuffle), epoch)

    def _get_iterator_for_epoch(self, epoch: int, shuffle: bool, *args: Any, **kwargs: Any) -> Any:
        """fairseq's; a data loader that is used again would keep the ``shuffle`` of its first epoch."""
        self._shuffled = shuffle
        if self.dataloader is not None:
            self.epoch_batch_sampler.shuffle = shuffle
        return super()._get_iterator_for_epoch(epoch, shuffle, *args, **kwargs)

    def _by_update(self, batches: Sequence[Any], epoch: int) -> list[Any]:
        if self.skip_remainder and len(batches) > 1:
            batches = batches[:-1]  # as in fairseq, because the last batch of an epoch is usually small
        return by_update(batches, self.repeats, self.group(epoch), self.skip_remainder)

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch.

        Within an epoch, it also contains ``cutting``, a fingerprint of the batches and their order, and ``done`` [N]
        bool: whether each sentence was trained on in this epoch.
        """
        state = super().state_dict()
        if state["iterations_in_epoch"]:
            done = self._trained_on(state["epoch"], state["iterations_in_epoch"])
            state |= {"shuffle": self._shuffled, "cutting": self._cutting(), "done": torch.from_numpy(done)}
        return state

    def _cutting(self) -> str:
        """A fingerprint of the epoch's batches, their order, and their division into updates and processes."""
        order = self.seed, self.disable_shuffling, self.grouped_shuffling
        updates = self.repeats, self.group(self.epoch), self.num_shards, self.skip_remainder
        batches = self.frozen_batches
        sizes = np.array([len(batch) for batch in batches], np.int64).tobytes()
        return checksum(
            repr((order, updates)).encode(), sizes, np.fromiter(chain.from_iterable(batches), np.int64).tobytes()
        )

    def _trained_on(self, epoch: int, position: int) -> np.ndarray:
        """[N] bool: the sentences that all processes together have trained on K times before a position.

        A group in the middle of its visits does not count; a resumed run visits it as often as the others.
        """
        before = self._done is not None and self._done[0] == epoch
        done = self._done[1].copy() if before and self._done else np.zeros(len(self.dataset), bool)
        group, shard = self.group(epoch), int(self.shard_id)
        visited = position if self.repeats == 1 else position // (self.repeats * group) * group
        try:
            for number in range(self.num_shards):
                self.shard_id = number
                for batch in super().ordered_batches(epoch, False, self._shuffled)[:visited]:
                    done[batch] = True
        finally:
            self.shard_id = shard
        return done

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at the position of a checkpoint or, if the batches or updates differ, with the sentences not yet done.

        If nothing remains of the epoch, it resumes at the next one.

        Raises:
            SyntaxDataError: the number of sentences differs
        """
        self._done, self.epoch = None, state_dict["epoch"]
        if "done" in state_dict and state_dict["cutting"] != self._cutting():
            done = state_dict["done"].numpy()
            if len(done) != len(self.dataset):
                raise SyntaxDataError(
                    f"the checkpoint is of the middle of an epoch of {len(done)} sentences, and these data have "
                    f"{len(self.dataset)}",
                    hint="give --reset-dataloader to begin an epoch, or --finetune-from-model to begin a training",
                )
            self._done = self.epoch, done
            state_dict = {**state_dict, "iterations_in_epoch": 0}
            if not len(self):
                self._done, state_dict["epoch"] = None, self.epoch + 1
                self.dataset.set_epoch(self.epoch + 1)  # fairseq does this only between epochs
        super().load_state_dict(state_dict)
