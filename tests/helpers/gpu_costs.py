"""What a training update costs a GPU, counted on the emulated device: reads, copies, kernels, bytes."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import ways
from toy_data import fairseq

import emulated_cuda

# The first updates make optimizer states and masks, which later ones have.
WARM_UP = 2


@dataclass
class Updates:
    """A training on the device: the loss of each update, and what those after the first cost, added up."""

    losses: list[float] = field(default_factory=list)
    number: int = 0
    costs: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)

    def per_update(self, what: str) -> float:
        return self.costs[what] / self.number


@contextmanager
def recorded():
    """Note every update of a training in this block."""
    from fairseq.trainer import Trainer

    found, step, seen = Updates(), Trainer.train_step, [0]

    def counting(trainer, samples, raise_oom=False):
        seen[0] += 1
        if not emulated_cuda.installed() or seen[0] <= WARM_UP:
            logged = step(trainer, samples, raise_oom)
        else:
            with emulated_cuda.counted() as counts:
                logged = step(trainer, samples, raise_oom)
            found.number += 1
            names = ("reads", "copies", "copied_bytes", "blocking_copies", "unpinned_copies", "kernels")
            found.costs.update({name: getattr(counts, name) for name in names})
            found.kernels.update(counts.of_kernels)
            found.reads.update(counts.of_reads)
        if logged is not None:
            found.losses.append(float(logged["loss"]))
        return logged

    with mock.patch.object(Trainer, "train_step", counting):
        yield found


def trained(bench: ways.Bench, row: str, out: Path, more: str = "", updates: int = 6) -> Updates:
    """fairseq-train of a row on the bench's device, without what has no part in an update."""
    options = ways.training_options(bench, row, f"--dropout 0.0 --no-save --disable-validation {more}", updates)
    with recorded() as found:
        fairseq("train", bench.data, "--save-dir", out, *options)
    return found
