"""Training steps of every system, with the loss in chunks, against fairseq's own model, criterion and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.adam import Adam
from fairseq.utils import move_to_cuda

from bench import corpus
from bench.harness import compare, device, measure
from fairseq_syntax.compat.adam import fairseqs_step

TRANSFORMER = (
    "--encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 --encoder-layers 3 --encoder-attention-heads 4 "
    "--decoder-layers 3 --decoder-attention-heads 4"
)
LSTM = "--encoder-bidirectional --encoder-hidden-size 256"  # else fairseq's own sizes, 512 everywhere
FAIRSEQS = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
OURS = "--criterion chunked_cross_entropy --label-smoothing 0.1"
PLAIN = {"transformer": f"transformer {FAIRSEQS}", "lstm": f"lstm {FAIRSEQS}"}
# An architecture and its options, by the name of the measure.
TRAINED = {
    "transformer": f"transformer {OURS}",
    "lstm": f"lstm {OURS}",
    "pascal_transformer": f"pascal_transformer --pascal-heads 2 {OURS}",
    "ldd_transformer": f"ldd_transformer {OURS}",
    "gcn_transformer": f"gcn_transformer {OURS}",
    "relative_positions_transformer": f"relative_positions_transformer {OURS}",
    "sennrich_haddow_transformer": f"sennrich_haddow_transformer --label-features deprel:16 {OURS}",
    "relative_depth_transformer": f"relative_depth_transformer {OURS}",
    "structural_positions_transformer": f"structural_positions_transformer {OURS}",
    "supervised_head_transformer": f"supervised_head_transformer {OURS}",
    "lisa_transformer": f"lisa_transformer {OURS}",
    "parser_free_pascal_transformer": f"parser_free_pascal_transformer {OURS}",
    "parser_free_ldd_transformer": f"parser_free_ldd_transformer {OURS}",
    "dbsa_transformer": f"dbsa_transformer {OURS}",
    **{
        f"{name}_lstm": f"{name}_lstm {OURS}"
        for name in ("dlaa", "local_attention", "sdrnmt1", "sdrnmt2", "senmt", "tree2seq", "gcn")
    },
}


def build(system: str, directory: str | None = None) -> tuple[Any, Any, Any]:
    """The task on a corpus, the random one unless named, and a model on the device with its criterion.

    Args:
        system: an architecture and its options
    """
    arch, *options = system.split()
    task = corpus.task(directory)
    sizes = LSTM if arch.endswith("lstm") else TRANSFORMER
    model, args = corpus.model(task, arch, *sizes.split(), *options)
    return task, model.to(device()), task.build_criterion(convert_namespace_to_omegaconf(args).criterion)


def batches(task: Any, split: str, count: int, max_tokens: int) -> list[dict]:
    """The first batches of a split, shuffled, on the device; the same for every model."""
    task.load_dataset(split)
    iterator = task.get_batch_iterator(task.dataset(split), max_tokens=max_tokens, seed=1).next_epoch_itr()
    samples = [next(iterator) for _ in range(min(count, len(iterator)))]
    return [move_to_cuda(s) for s in samples] if device() == "cuda" else samples


def training(
    system: str, directory: str | None = None, *, count: int = 3, steps: int = 1
) -> tuple[Callable[[], None], int]:
    """A function that trains on a few batches, and the number of target tokens in them.

    Args:
        system, directory: as in :func:`build`
        count: batches
        steps: of the optimizer on each
    """
    task, model, criterion = build(system, directory)
    samples = batches(task, "train", count, 2000)
    optimizer = Adam(model.parameters(), lr=1e-4)
    update = partial(fairseqs_step, optimizer) if FAIRSEQS in system else optimizer.step

    def run() -> None:
        model.train()
        for sample in samples:
            for _ in range(steps):
                optimizer.zero_grad()
                loss, size, _ = criterion(model, sample)
                (loss / size).backward()
                update()

    return run, sum(s["ntokens"] for s in samples)


def train(name: str) -> None:
    """Training steps of the same batches."""
    family = "lstm" if name.endswith("lstm") else "transformer"
    directory = corpus.corpus(sentences=1500, vocabulary=10000) if family == "lstm" else None
    ours, tokens = training(TRAINED[name], directory)
    plain, _ = training(PLAIN[family], directory)
    compare(f"train/{name}", ours, plain, pairs=7, detail={"target_tokens": tokens})


for name in TRAINED:
    measure(f"train/{name}")(partial(train, name))


@measure("train/ldd_transformer_dropout")
def train_with_dropout() -> None:
    """LDD's dense form, which attention dropout needs."""
    ours, tokens = training(f"{TRAINED['ldd_transformer']} --attention-dropout 0.1")
    plain, _ = training(f"{PLAIN['transformer']} --attention-dropout 0.1")
    detail = {"target_tokens": tokens, "form": "dense"}
    compare("train/ldd_transformer_dropout", ours, plain, pairs=7, detail=detail)
