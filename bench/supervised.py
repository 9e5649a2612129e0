"""Supervised heads and LISA against the plain Transformer: whole training steps with their criteria, and generation."""

from __future__ import annotations

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import move_to_cuda

from bench import corpus
from bench.harness import compare, device, measure
from bench.pascal import SIZE
from fairseq_syntax.criterions.supervised_head import LisaCriterion, SupervisedHeadCriterion


def batches(task, split: str, count: int, max_tokens: int) -> list[dict]:
    """The first batches of a split, the same for every model."""
    task.load_dataset(split)
    iterator = task.get_batch_iterator(task.dataset(split), max_tokens=max_tokens, seed=1).next_epoch_itr(shuffle=False)
    samples = [next(iterator) for _ in range(min(count, len(iterator)))]
    return [move_to_cuda(s) for s in samples] if device() == "cuda" else samples


def training_steps(arch: str, criterion_class, count: int = 12):
    """A function that takes optimizer steps on the same batches with the model's own criterion."""
    task = corpus.task()
    model, _ = corpus.model(task, arch, *SIZE)
    model = model.to(device()).train()
    criterion = criterion_class(task, sentence_avg=False, label_smoothing=0.1)
    samples = batches(task, "train", count, max_tokens=3000)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def run() -> None:
        for sample in samples:
            optimizer.zero_grad()
            loss, size, _ = criterion(model, sample)
            (loss / size).backward()
            optimizer.step()

    return run, sum(s["ntokens"] for s in samples)


@measure("train/supervised_head_transformer")
def train_supervised_heads() -> None:
    """Both heads supervised, against label-smoothed cross entropy."""
    ours, tokens = training_steps("supervised_head_transformer", SupervisedHeadCriterion)
    plain, _ = training_steps("transformer", LabelSmoothedCrossEntropyCriterion)
    compare("train/supervised_head_transformer", ours, plain, pairs=9, detail={"target_tokens": tokens})


@measure("train/lisa_transformer")
def train_lisa() -> None:
    """The bi-affine head and its loss, against label-smoothed cross entropy."""
    ours, tokens = training_steps("lisa_transformer", LisaCriterion)
    plain, _ = training_steps("transformer", LabelSmoothedCrossEntropyCriterion)
    compare("train/lisa_transformer", ours, plain, pairs=9, detail={"target_tokens": tokens})


@measure("train/dbsa_transformer")
def train_dbsa() -> None:
    """A bi-affine head on either side and their losses, against label-smoothed cross entropy."""
    ours, tokens = training_steps("dbsa_transformer", SupervisedHeadCriterion, count=2)
    plain, _ = training_steps("transformer", LabelSmoothedCrossEntropyCriterion, count=2)
    compare("train/dbsa_transformer", ours, plain, pairs=7, detail={"target_tokens": tokens})


@measure("generate/supervised_head_transformer")
def generate() -> None:
    """Beam search with the same weights in both models."""
    runs = []
    weights = None
    for arch in ("supervised_head_transformer", "transformer"):
        task = corpus.task()
        model, _ = corpus.model(task, arch, *SIZE)
        model = model.to(device()).eval()
        weights = weights or model.state_dict()
        model.load_state_dict(weights)
        generator = SequenceGenerator([model], task.target_dictionary, beam_size=4, max_len_a=0, max_len_b=20)
        samples = batches(task, "test", 4, max_tokens=2000)
        for sample in samples:
            sample["net_input"].pop("src_syntax", None)  # neither model needs it here

        def run(generator=generator, samples=samples) -> None:
            for sample in samples:
                generator.generate([], sample)

        runs.append(run)
    compare("generate/supervised_head_transformer", *runs, pairs=9, detail={"beam": 4})
