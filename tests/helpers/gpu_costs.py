"""What a training update costs a GPU, counted on the emulated device: reads, copies, kernels, bytes."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
import ways
from fairseq import options as fairseq_options
from fairseq import tasks, utils
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


def searched(bench: ways.Bench, row: str, more: str = "", templates: Path | None = None) -> Counter[str]:
    """What a step of beam search costs: half the difference of searches of eight steps and of six.

    The model is untrained and all hypotheses are made as long as that.

    Args:
        bench, row, more: as in :func:`trained`
        templates: where to write those of LaSyn's template search, of any tags
    """
    words = ways.training_options(bench, row, more, 1)
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), [str(bench.data), *words])
    task = tasks.setup_task(args)
    torch.manual_seed(1)
    model = task.build_model(args).cuda().eval()
    task.load_dataset("test")
    batches = task.get_batch_iterator(task.dataset("test"), max_tokens=400).next_epoch_itr(shuffle=False)
    sample = utils.move_to_cuda(next(batches))
    found: Counter[str] = Counter()
    for steps, sign in ((6, -1), (8, 1)):
        if templates:
            templates.write_text(f"{'_ ' * steps}\n" * 8, encoding="utf-8")
            task.cfg.tag_templates = str(templates)
        settings = Namespace(beam=2, min_len=steps, max_len_a=0, max_len_b=steps)
        generator = task.build_generator([model], settings)
        with emulated_cuda.counted() as counts:
            task.inference_step(generator, [model], sample)
        found.update({name: sign * getattr(counts, name) / 2 for name in ("reads", "copies", "kernels")})
    return found
