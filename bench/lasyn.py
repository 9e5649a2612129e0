"""LaSyn against the plain Transformer of the same size, and its output layer against the literal form."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from bench import corpus, training
from bench.harness import compare, device, measure, record
from bench.search import search_as_fairseq
from fairseq_syntax.systems.lasyn.softmax import em_loss

Z, V = 45, 10_000  # tags of the Penn treebank, and the paper's subwords
OURS, PLAIN = "lasyn_transformer --criterion lasyn_em --label-smoothing 0.1", training.PLAIN["transformer"]


def directory() -> str:
    """A random corpus of V words whose models know Z tags."""
    return corpus.corpus(vocabulary=V, tags=Z - 1)  # and </s> has a value of its own


@measure("train/lasyn_transformer@K1", "train/lasyn_transformer@K5")
def train() -> None:
    """Passes over the same batches, with one and with five steps on each."""
    for steps in (1, 5):
        ours, tokens = training.training(OURS, directory(), steps=steps)
        plain, _ = training.training(PLAIN, directory())
        detail = {"target_tokens": tokens, "values": Z, "words": V}
        compare(f"train/lasyn_transformer@K{steps}", ours, plain, pairs=7 if steps == 1 else 5, detail=detail)


@torch.no_grad()
def sharpen(model: Any) -> None:
    """Give a new model the certainty of a trained one, which search depends on: of words, and of a word's tag.

    The words of a tag share a direction, which the tag's embedding points to, so that a word hardly has another tag.
    """
    weight = model.decoder.output_projection.weight
    weight.mul_(4)
    made = torch.Generator().manual_seed(1)
    directions = torch.nn.functional.normalize(torch.randn(Z, weight.size(1), generator=made)).to(weight)
    weight.add_(directions[torch.arange(len(weight)) % Z])
    if hasattr(model.decoder, "tag_embedding"):
        model.decoder.tag_embedding.weight.add_(directions, alpha=8)


def generation(system: str, length: int = 20, by_fairseq: bool = False, **options: Any) -> Callable[[], None]:
    """A function that translates a batch with beam 4, by our search or fairseq's, to translations of one length."""
    task, model, _ = training.build(system, directory())
    for name, value in options.items():
        setattr(task.cfg, name, value)
    (sample,) = training.batches(task, "test", 1, 1000)
    sharpen(model)
    options_of_search = Namespace(beam=4, max_len_b=length, min_len=length)
    model.eval().prepare_for_inference_(Namespace(generation=options_of_search))  # as in translate
    generator = task.build_generator([model], options_of_search)
    if by_fairseq:
        search_as_fairseq(generator, model, task.target_dictionary)

    def run() -> None:
        generator.generate([model], sample)

    return run


MODES = ("marginal", "joint")


@measure(*(f"generate/lasyn_transformer@{mode}{by}" for mode in MODES for by in ("", "-fairseq")))
def generate() -> None:
    """Beam search of the same batch and number of steps; the hypotheses come with their tags.

    The plain model is searched as fairseq does for "-fairseq", and by our search otherwise.
    """
    detail = {"beam": 4, "values": Z, "words": V}
    for by, plain in (("", generation(PLAIN)), ("-fairseq", generation(PLAIN, by_fairseq=True))):
        for mode in MODES:
            ours = generation(OURS, tag_search=mode)
            compare(f"generate/lasyn_transformer@{mode}{by}", ours, plain, pairs=7, detail=detail)


def literal(hidden, weight, embed, log_prior, target) -> torch.Tensor:
    """The loss as Equations 2 and 6 have it: every value's softmax over all words."""
    words = torch.log_softmax((hidden[:, None] + embed) @ weight.t(), dim=2)
    log_word = words.gather(2, target[:, None, None].expand(-1, len(embed), 1)).squeeze(2)
    return -(log_word + log_prior).logsumexp(dim=1).sum()


@measure("layer/lasyn@literal", "layer/lasyn@softmax")
def layer() -> None:
    """The output layer and its loss, forward and backward, against the literal form and against a plain softmax."""
    size, made = 256, torch.Generator().manual_seed(1)

    def tensors(count: int) -> tuple[torch.Tensor, ...]:
        parts = [torch.randn(n, size, generator=made) * size**-0.5 for n in (V, Z, Z)]
        hidden = torch.randn(count, size, generator=made)
        target = torch.randint(4, V, (count,), generator=made).to(device())
        return *(t.to(device()).requires_grad_() for t in (hidden, *parts)), target

    def ours(hidden, weight, embed, projection, target) -> None:
        log_prior = torch.log_softmax(hidden @ projection.t(), dim=1)
        em_loss(hidden, weight, embed, log_prior, target).loss.backward()

    def by_value(hidden, weight, embed, projection, target) -> None:
        literal(hidden, weight, embed, torch.log_softmax(hidden @ projection.t(), dim=1), target).backward()

    def softmax(hidden, weight, _embed, _projection, target) -> None:
        log_words = torch.log_softmax(hidden @ weight.t(), dim=1)
        label_smoothed_nll_loss(log_words, target, 0.1, ignore_index=1)[0].backward()

    few, many = tensors(100), tensors(1000)
    detail = {"values": Z, "words": V, "channels": size}
    compare(
        "layer/lasyn@literal",
        lambda: ours(*few),
        lambda: by_value(*few),
        unit="speed, ours over the literal form",
        detail={**detail, "positions": 100},
    )
    compare(
        "layer/lasyn@softmax",
        lambda: ours(*many),
        lambda: softmax(*many),
        unit="speed, ours over one label-smoothed softmax",
        pairs=9,
        detail={**detail, "positions": 1000},
    )


@measure("memory/lasyn_transformer")
def memory() -> None:
    """Peak memory of training: on a GPU what is allocated, else what the process grows by after its imports."""
    peaks = {name: [_peak(name) for _ in range(3)] for name in ("ours", "plain")}
    record(
        "memory/lasyn_transformer",
        [a / b for a, b in zip(peaks["ours"], peaks["plain"])],
        unit="peak memory, ours over plain",
        detail={"ours_bytes": peaks["ours"], "plain_bytes": peaks["plain"], "values": Z, "words": V},
    )


def _peak(name: str) -> int:
    code = f"from bench import lasyn; lasyn.train_for_memory({name!r})"
    root = Path(__file__).parent.parent
    out = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def train_for_memory(name: str) -> None:
    """Train a little and print the peak in bytes; run in a process of its own."""
    directory()
    before = _status("VmRSS")
    run, _ = training.training(OURS if name == "ours" else PLAIN, directory(), count=2)
    run()
    print(torch.cuda.max_memory_allocated() if device() == "cuda" else _status("VmHWM") - before)


def _status(key: str) -> int:
    """A figure of this process in bytes, from Linux."""
    line = next(r for r in Path("/proc/self/status").read_text().splitlines() if r.startswith(key))
    return int(line.split()[1]) * 1024
