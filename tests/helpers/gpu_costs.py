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
from fairseq.optim.adam import Adam
from toy_data import fairseq

import emulated_cuda
from fairseq_syntax.compat.adam import fairseqs_step
from fairseq_syntax.model.decoder import DECODER_SYSTEMS

# The depth of the base Transformer, on which the number of kernels depends; an LSTM has one layer.
DEEP = "--encoder-layers 6 --decoder-layers 6"
# Systems that change the decoder, each after fairseq's own model of its family, with the options of their searches.
SEARCHES = {
    "transformer": ("transformer", ""),
    **{f"lasyn, {mode}": ("lasyn", f"--tag-search {mode}") for mode in ("marginal", "joint", "template")},
    **{row: (row, "") for row in (*DECODER_SYSTEMS, *ways.LSTMS) if row != "lasyn"},
}
# Kernels of an update that a row may have, as multiples of those of fairseq's own model of its family; and, below that,
# of the rows that need fewer, which shall not come to need more.
KERNELS = {"transformer": 0.98, "lstm": 1.0}
FEWER = {
    "transformer": 1.005,  # with the loss in chunks
    "pascal": 0.93,
    "dbsa": 1.0,
    "structural_positions": 1.02,
    **dict.fromkeys(
        ("ldd (linear)", "ldd (dense)", "supervised_heads", "lisa", "sennrich_haddow", "lasyn", "lasyn (K = 2)"), 0.96
    ),
    "relative_depth": 0.98,
}
# The first updates make optimizer states and masks, which later ones have.
WARM_UP = 2


def allowed(row: str) -> float:
    """How many kernels an update may have, as a multiple of the plain model's."""
    return FEWER.get(row, KERNELS[ways.baseline(row)])


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

    result, step, seen = Updates(), Trainer.train_step, [0]

    def counting(trainer, samples, raise_oom=False):
        seen[0] += 1
        if not emulated_cuda.installed() or seen[0] <= WARM_UP:
            logged = step(trainer, samples, raise_oom)
        else:
            with emulated_cuda.counted() as counts:
                logged = step(trainer, samples, raise_oom)
            result.number += 1
            names = ("reads", "copies", "copied_bytes", "blocking_copies", "unpinned_copies", "kernels")
            result.costs.update({name: getattr(counts, name) for name in names})
            result.kernels.update(counts.of_kernels)
            result.reads.update(counts.of_reads)
        if logged is not None:
            result.losses.append(float(logged["loss"]))
        return logged

    with mock.patch.object(Trainer, "train_step", counting):
        yield result


def updated(bench: ways.Bench, row: str, out: Path, updates: int = 6, more: str = "") -> Updates:
    """Updates of a row at the depth of the base models."""
    return trained(bench, row, out, f"{DEEP if row in ways.TRANSFORMERS else ''} {more}", updates)


def trained(bench: ways.Bench, row: str, out: Path, more: str = "", updates: int = 6) -> Updates:
    """fairseq-train of a row on the bench's device, without what has no part in an update, with fairseq's own Adam."""
    options = ways.training_options(bench, row, f"--dropout 0.0 --no-save --disable-validation {more}", updates)
    with mock.patch.object(Adam, "step", fairseqs_step), recorded() as result:
        fairseq("train", bench.data, "--save-dir", out, *options)
    return result


@contextmanager
def in_bfloat16():
    """Train in this block as ``fairseq-hydra-train common.bf16=true`` does; ``--bf16`` is for TPUs."""
    from fairseq_cli import train

    main = train.main

    def changed(cfg):
        cfg.common.bf16 = True
        main(cfg)

    with mock.patch.object(train, "main", changed):
        yield


def searched(bench: ways.Bench, row: str, more: str = "") -> Counter[str]:
    """What a step of beam search costs: half the difference of searches of eight steps and of six.

    The model is untrained and all hypotheses are made as long as that.

    Args:
        bench, row, more: as in :func:`trained`
    """
    words = ways.training_options(bench, row, f"--no-save {more}", 1)
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), [str(bench.data), *words])
    task = tasks.setup_task(args)
    torch.manual_seed(1)
    model = task.build_model(args).cuda().eval()
    task.load_dataset("test")
    batches = task.get_batch_iterator(task.dataset("test"), max_tokens=400).next_epoch_itr(shuffle=False)
    sample = utils.move_to_cuda(next(batches))
    result: Counter[str] = Counter()
    for steps, sign in ((6, -1), (8, 1)):
        if "template" in more:  # of any tags
            templates = bench.work / "tags.txt"
            templates.parent.mkdir(exist_ok=True)
            templates.write_text(f"{'_ ' * steps}\n" * 8, encoding="utf-8")
            task.cfg.tag_templates = str(templates)
        settings = Namespace(beam=2, min_len=steps, max_len_a=0, max_len_b=steps)
        generator = task.build_generator([model], settings)
        with emulated_cuda.counted() as counts:
            task.inference_step(generator, [model], sample)
        result.update({name: sign * getattr(counts, name) / 2 for name in ("reads", "copies", "kernels")})
    return result


def counted(directory: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Costs of an update of every row and of a step of its search where it has one of its own, by row and cost."""
    bench = ways.make(directory)
    bench.device = ways.ONE_GPU
    updates: dict[str, dict[str, float]] = {}
    for row in ways.ROWS:
        costs = updated(bench, row, directory / "trained")
        updates[row] = {name: costs.per_update(name) for name in costs.costs}
    steps = {name: dict(searched(bench, *search)) for name, search in SEARCHES.items()}
    bench.pair.close()
    return {"updates": updates, "steps": steps}
