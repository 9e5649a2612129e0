"""The batches of a training epoch, in an order that a resumed run reproduces.

fairseq's iterator has three shortcomings. It forms the batches by the epoch in which a run was started, so a run
resumed in epoch 2 has other batches. It treats an update that ends in a filler as a filler, so the other batches of the
update have no effect. And a resumed run needs the same number of processes and the same ``--update-freq``. Here,
batches are always formed as in epoch 1, fillers come first in their update, and a checkpoint records the meaning of its
position and the sentences that were trained on. If batches are formed differently (``--max-tokens``, ``--batch-size``)
or have another order (``--seed``), a resumed run continues with the remaining sentences.

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
import xxhash
from fairseq.data.iterators import EpochBatchIterator

from fairseq_syntax.errors import SyntaxDataError

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


def _visited(position: int, repeats: int, group: int) -> int:
    """The batches that were trained on ``repeats`` times before a position in an epoch.

    A group in the middle of its visits does not count; a resumed run visits it as often as the others.
    """
    return position if repeats == 1 else position // (repeats * group) * group


class TrainingBatches(EpochBatchIterator):
    """fairseq's epoch iterator, which repeats each group of batches K times.

    Args:
        base: the iterator that provides the batches
        epoch: the first epoch, from 1
        groups: the number of batches per update in each epoch; the last value applies to all later epochs
        repeats: K
    """

    def __init__(self, base: EpochBatchIterator, epoch: int, groups: Sequence[int], repeats: int = 1) -> None:
        super().__init__(
            dataset=base.dataset,
            collate_fn=base.collate_fn,
            batch_sampler=base.batch_sampler if callable(base.batch_sampler) else base.frozen_batches,
            seed=base.seed,
            num_shards=base.num_shards,
            shard_id=base.shard_id,
            num_workers=base.num_workers,
            epoch=epoch,
            buffer_size=base.buffer_size,
            timeout=base.timeout,
            disable_shuffling=base.disable_shuffling,
            grouped_shuffling=base.grouped_shuffling,
            reuse_dataloader=base.reuse_dataloader,
            persistent_workers=base.persistent_workers,
        )
        self.shard_id: int
        self.repeats, self.groups = repeats, list(groups) or [1]
        self.skip_remainder = base.skip_remainder_batch
        self._done: tuple[int, np.ndarray] | None = (
            None  # an epoch, and for each sentence whether it was trained on already
        )

    @property
    def frozen_batches(self) -> tuple[Any, ...]:
        """fairseq's batches; in an epoch resumed with another batch size, without sentences already trained on."""
        batches = super().frozen_batches
        if self._done is None or self._done[0] != self.epoch:
            return batches
        done = self._done[1]
        rest = ([i for i in batch if not done[i]] for batch in batches)
        return tuple(batch for batch in rest if batch)

    def group(self, epoch: int) -> int:
        """The number of batches per update in an epoch (from 1)."""
        return self.groups[min(epoch, len(self.groups)) - 1]

    def __len__(self) -> int:
        return self._length(self.epoch)

    def _length(self, epoch: int) -> int:
        return len(self._by_update([[0]] * super().__len__(), epoch))

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """The batches of this shard in training order."""
        return self._by_update(super().ordered_batches(epoch, fix_batches_to_gpus, shuffle), epoch)

    def _by_update(self, batches: Sequence[Any], epoch: int) -> list[Any]:
        if self.skip_remainder and len(batches) > 1:
            batches = batches[:-1]  # as in fairseq, because the last batch of an epoch is usually small
        return by_update(batches, self.repeats, self.group(epoch), self.skip_remainder)

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, with K, ``--update-freq`` and the number of processes.

        Within an epoch, it also contains ``cutting``, a fingerprint of the batches and their order, and ``done`` [N]
        bool: whether each sentence was trained on in this epoch.
        """
        state = super().state_dict()
        state |= {"repeats": self.repeats, "group": self.group(state["epoch"]), "num_shards": self.num_shards}
        if state["iterations_in_epoch"]:
            done = self._trained_on(state["epoch"], state["iterations_in_epoch"])
            state |= {"cutting": self._cutting(), "done": torch.from_numpy(done)}
        return state

    def _cutting(self) -> str:
        """A fingerprint of the epoch's batches and their order."""
        digest = xxhash.xxh3_64(repr((self.seed, self.disable_shuffling, self.grouped_shuffling)).encode())
        batches = self.frozen_batches
        digest.update(np.array([len(batch) for batch in batches], np.int64).tobytes())
        digest.update(np.fromiter(chain.from_iterable(batches), np.int64).tobytes())
        return digest.hexdigest()

    def _trained_on(self, epoch: int, position: int) -> np.ndarray:
        """[N] bool: the sentences that all processes together have trained on K times before a position."""
        before = self._done is not None and self._done[0] == epoch
        done = self._done[1].copy() if before and self._done else np.zeros(len(self.dataset), bool)
        batches, shard = _visited(position, self.repeats, self.group(epoch)), int(self.shard_id)
        try:
            for number in range(self.num_shards):
                self.shard_id = number
                for batch in super().ordered_batches(epoch, False, self.shuffle)[:batches]:
                    done[batch] = True
        finally:
            self.shard_id = shard
        return done

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at the position of a checkpoint.

        With another K, ``--update-freq`` or number of processes, it resumes at the group of batches where the run
        stopped, so that none is left out; some batches of this group may be repeated. If this is the end of the epoch,
        it resumes at the next one. If the batches differ, it resumes with the sentences not yet trained on.

        Raises:
            SyntaxDataError: the number of sentences differs
        """
        self._done = None
        self.epoch = state_dict["epoch"]
        if "cutting" in state_dict and state_dict["cutting"] != self._cutting():
            state_dict = self._go_on_with_the_rest(state_dict)
        group = self.group(state_dict["epoch"])
        epoch, position = state_dict["epoch"], state_dict.get("iterations_in_epoch", 0)
        repeats, group_before = state_dict.get("repeats", 1), state_dict.get("group", group)
        shards = state_dict.get("num_shards") or self.num_shards
        if (repeats, group_before, shards) != (self.repeats, group, self.num_shards):
            batches = _visited(position, repeats, group_before) * shards // self.num_shards
            position = batches // group * group * self.repeats
            if position >= self._length(epoch):  # --skip-remainder-batch now leaves out another remainder
                epoch, position = epoch + 1, 0
        # fairseq counts iterations_in_epoch in batches of this process.
        super().load_state_dict({**state_dict, "epoch": epoch, "iterations_in_epoch": position})
        if epoch != state_dict["epoch"]:
            self.dataset.set_epoch(epoch)  # fairseq does this only between epochs

    def _go_on_with_the_rest(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Restart the epoch without the sentences that were already trained on."""
        done = state_dict["done"].numpy()
        if len(done) != len(self.dataset):
            raise SyntaxDataError(
                f"the checkpoint is of the middle of an epoch of {len(done)} sentences, and these data have "
                f"{len(self.dataset)}",
                hint="give --reset-dataloader to begin an epoch, or --finetune-from-model to begin a training",
            )
        self._done = self.epoch, done
        if self.frozen_batches:
            return {**state_dict, "iterations_in_epoch": 0}
        self._done = None  # the epoch was finished
        return {**state_dict, "epoch": self.epoch + 1, "iterations_in_epoch": 0}
