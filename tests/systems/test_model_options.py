"""What each option of a model, a criterion and the printed log changes, or that it changes nothing."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import option_ledger
import pytest
import sacrebleu
import torch
import toy_data
from composed import composed_quickly
from fairseq import options, tasks
from fairseq.data import indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import OPTIMIZER_REGISTRY, build_optimizer
from torch import nn

SIZES = {
    "transformer": "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 --dropout 0 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2",
    "lstm": "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 --dropout 0 "
    "--encoder-hidden-size 16 --decoder-hidden-size 16 --decoder-out-embed-dim 16",
}
PLAIN = "--criterion cross_entropy"
SMOOTHED = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
RDROP = "--criterion label_smoothed_cross_entropy_with_rdrop --label-smoothing 0.1 --dropout 0.2 --rdrop-alpha"
ADAPTIVE = "--adaptive-softmax-cutoff 10,20 --criterion adaptive_loss --ddp-backend legacy_ddp"

# What is given, its own option first, and what it is compared with where that is not the default.
TRANSFORMER = {
    **dict.fromkeys((f"--{side}-layers 1" for side in ("encoder", "decoder")), ""),
    **dict.fromkeys((f"--{side}-embed-dim 8" for side in ("encoder", "decoder")), ""),
    **dict.fromkeys((f"--{side}-ffn-embed-dim 8" for side in ("encoder", "decoder")), ""),
    **dict.fromkeys((f"--{side}-attention-heads 4" for side in ("encoder", "decoder")), ""),
    **dict.fromkeys((f"--{side}-learned-pos" for side in ("encoder", "decoder")), ""),
    **dict.fromkeys((f"--{side}-normalize-before" for side in ("encoder", "decoder")), ""),
    **dict.fromkeys((f"--{side}-layerdrop 0.9" for side in ("encoder", "decoder")), ""),
    "--no-decoder-final-norm --decoder-normalize-before": "--decoder-normalize-before",
    "--layernorm-embedding": "",
    "--no-scale-embedding": "",
    "--no-token-positional-embeddings": "",
    "--activation-fn gelu": "",
    "--dropout 0.3": "",
    "--attention-dropout 0.3": "",
    "--activation-dropout 0.3": "",
    "--relu-dropout 0.3": "",
    "--share-decoder-input-output-embed": "",
    "--no-cross-attention": "",
    "--cross-self-attention --no-cross-attention": "--no-cross-attention",
    "--decoder-output-dim 8": "",
    "--quant-noise-pq 0.5": "",
    "--quant-noise-pq-block-size 4 --quant-noise-pq 0.5": "--quant-noise-pq 0.5",
    "--quant-noise-scalar 0.5": "",
    SMOOTHED: "",
    "--label-smoothing 0.3 --criterion label_smoothed_cross_entropy": SMOOTHED,
    f"--ignore-prefix-size 1 {SMOOTHED}": SMOOTHED,
    f"--rdrop-alpha 2 {RDROP} 2": f"{RDROP} 5",
    ADAPTIVE: "",
    f"--adaptive-softmax-factor 2 {ADAPTIVE}": ADAPTIVE,
    f"--adaptive-softmax-dropout 0.5 {ADAPTIVE}": ADAPTIVE,
}
LSTM = {
    **dict.fromkeys((f"--{side}-hidden-size 8" for side in ("encoder", "decoder")), ""),
    "--encoder-dropout-in 0.3": "",
    "--decoder-dropout-in 0.3": "",
    "--encoder-dropout-out 0.3 --encoder-layers 2 --decoder-layers 2": "--encoder-layers 2 --decoder-layers 2",
    "--decoder-dropout-out 0.3": "",
    "--encoder-bidirectional": "",
    "--decoder-out-embed-dim 8": "",
    "--decoder-attention 0": "",
}
# These compute the same: what is kept for the gradient, how long a sentence may be, and what these models do not read.
THE_SAME = "--checkpoint-activations", "--offload-activations", "--max-source-positions 99", "--max-target-positions 99"
UNREAD = "--adaptive-input", "--char-inputs", "--export"


class Computed(NamedTuple):
    """What a model with random parameters computes of a batch in training, and what it consists of."""

    shapes: dict[str, tuple[int, ...]]
    loss: float
    gradients: float


def built(data: Path, arch: str, line: str):
    sizes = SIZES.get(arch, SIZES["transformer"])
    given = f"{data} --task syntax_translation -s en -t de --arch {arch} {sizes} {line}".split()
    args = options.parse_args_and_arch(options.get_training_parser(), given)
    task = tasks.setup_task(args)
    torch.manual_seed(1)
    with composed_quickly():
        return args, task, task.build_model(args), task.build_criterion(args)


def batch_of(task) -> dict:
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    return dataset.collater([dataset[i] for i in range(len(dataset)) if i != 5])  # 5 is empty


def computed(data: Path, arch: str, line: str) -> Computed:
    _, task, model, criterion = built(data, arch, line)
    batch = batch_of(task)
    torch.manual_seed(2)
    loss, _, _ = criterion(model.train(), batch)
    loss.backward()
    gradients = sum(p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None)
    return Computed({n: tuple(p.shape) for n, p in model.named_parameters()}, loss.item(), gradients)


@pytest.fixture(scope="module")
def compute(toy):
    return cache(partial(computed, toy.data))


@pytest.mark.parametrize("arch, changes", [("transformer", TRANSFORMER), ("lstm", LSTM)], ids=["transformer", "lstm"])
def test_an_option_of_the_model_changes_what_it_computes(compute, arch, changes):
    for given, than in changes.items():
        actual, base = compute(arch, given), compute(arch, than)
        changed = abs(actual.loss - base.loss) > 1e-5 * base.loss or abs(actual.gradients / base.gradients - 1) > 1e-4
        assert actual.shapes != base.shapes or changed, given


def test_options_of_memory_compute_the_same(compute, toy, monkeypatch):
    base = compute("transformer", "")
    for line in (*THE_SAME, *UNREAD):
        actual = compute("transformer", line)
        assert actual.shapes == base.shapes and actual.loss == base.loss, line
        assert actual.gradients == pytest.approx(base.gradients, rel=1e-5), line
    # Layers are computed once more for the gradient, with checkpoints.
    calls: list[int] = []
    forward = nn.ReLU.forward, nn.functional.relu
    monkeypatch.setattr(nn.functional, "relu", lambda *args, **more: calls.append(1) or forward[1](*args, **more))
    counts = []
    for line in ("--seed 1", "--seed 1 --checkpoint-activations", "--seed 1 --offload-activations"):
        calls.clear()
        compute("transformer", line)
        counts.append(len(calls))
    assert counts == [4, 8, 8]
    assert [built(toy.data, "transformer", line)[2].max_positions() for line in ("", " ".join(THE_SAME[2:]))] == [
        (1024, 1024),
        (99, 99),
    ]


def test_padding_is_on_the_side_that_is_asked_for(toy):
    def pads(arch: str, line: str) -> list[bool]:
        _, task, _, _ = built(toy.data, arch, line)
        task.load_dataset("valid")
        batch = task.dataset("valid").collater([task.dataset("valid")[i] for i in range(4)])
        tokens = (batch["net_input"]["src_tokens"], batch["target"])
        return [bool(column[:, 0].eq(task.source_dictionary.pad()).any()) for column in tokens]

    assert pads("transformer", "") == [True, False] and pads("transformer", "--left-pad-source") == [False, False]
    assert pads("transformer", "--left-pad-target") == [True, True]


def test_sources_are_cut_where_a_model_reads_no_parse(toy):
    lengths = []
    for line in ("", "--truncate-source --max-source-positions 6"):
        _, task, _, _ = built(toy.data, "transformer", line)
        lengths.append(batch_of(task)["net_input"]["src_lengths"].max().item())
    assert lengths[0] > 6 == lengths[1]


def test_alignments_are_learned_by_their_weight(toy, compute, tmp_path):
    """``--load-alignments`` with the criterion that reads them, and ``--alignment-lambda``."""
    for path in toy.data.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    builder = indexed_dataset.make_builder(str(tmp_path / "valid.align.en-de.bin"), impl="mmap")
    for _ in toy.lines["valid"]:
        builder.add_item(torch.IntTensor([0, 0]))  # the first piece with the first one
    builder.finalize(str(tmp_path / "valid.align.en-de.idx"))
    losses = []
    for line in ("", "--load-alignments", "--load-alignments --alignment-lambda 0.5"):
        criterion = "--criterion label_smoothed_cross_entropy_with_alignment --label-smoothing 0.1 --alignment-layer 1"
        losses.append(computed(tmp_path, "transformer_align", f"{criterion} {line}").loss)
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize(
    "line, tokenizer, samples, text",
    [
        ("", "13a", False, True),
        ("--eval-tokenized-bleu", "none", False, True),
        ("--eval-bleu-print-samples", "13a", True, True),
        ("--eval-bleu-detok moses", "13a", False, False),
        ("--eval-bleu-detok moses --eval-bleu-remove-bpe sentencepiece", "13a", False, True),
    ],
)
def test_what_bleu_is_computed_of(toy, monkeypatch, line, tokenizer, samples, text):
    """``--eval-bleu`` and what goes with it; ``--eval-bleu-detok-args`` are the tokenizer's, ``-args`` the search's."""
    if "moses" in line:
        pytest.importorskip("sacremoses")
    scored: list[tuple] = []
    bleu = sacrebleu.corpus_bleu
    monkeypatch.setattr(sacrebleu, "corpus_bleu", lambda *a, **more: scored.append((*a, more)) or bleu(*a, **more))
    search = '{"max_len_b":3,"beam":2}'
    _, task, model, criterion = built(toy.data, "transformer", f"--eval-bleu --eval-bleu-args {search} {line}")
    with toy_data.logged("fairseq.tasks.translation") as said:
        task.valid_step(batch_of(task), model, criterion)
    ((translations, (references,), more),) = scored
    assert more.get("tokenize", "13a") == tokenizer and ("example hypothesis" in said.getvalue()) == samples
    assert text != any("▁" in reference for reference in references)
    assert task.sequence_generator.beam_size == 2 and all(len(t.replace(" ", "▁").split("▁")) < 9 for t in translations)


OPTIMIZERS = {
    "adam": ("--adam-betas (0.5,0.6)", "--adam-eps 1e-3", "--weight-decay 0.1"),
    "nag": ("--momentum 0.5", "--weight-decay 0.1"),
    "sgd": ("--momentum 0.5", "--weight-decay 0.1"),
    "adagrad": ("--weight-decay 0.1",),
    "adadelta": ("--adadelta-rho 0.5", "--adadelta-eps 1e-3", "--weight-decay 0.1"),
    "adamax": ("--adamax-betas (0.5,0.6)", "--adamax-eps 1e-1", "--weight-decay 0.1"),
}


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_option_of_an_optimizer_changes_the_update(toy, name):
    """``--optimizer`` itself, too."""

    def updated(line: str) -> list[float]:
        args, _, model, _ = built(toy.data, "transformer", f"--lr 0.1 {line}")
        parameter = next(model.parameters())
        with composed_quickly():
            optimizer = build_optimizer(convert_namespace_to_omegaconf(args).optimizer, [parameter])
        for sign in (1, 2, -1):
            parameter.grad = parameter.detach() * sign
            optimizer.step()
        return parameter.detach().flatten().tolist()

    assert name in OPTIMIZER_REGISTRY
    plain = updated(f"--optimizer {name}")
    assert name == "adam" or plain != updated("--optimizer adam")
    for line in OPTIMIZERS[name]:
        assert updated(f"--optimizer {name} {line}") != plain, line


def test_what_the_log_prints(toy, tmp_path):
    """``--log-interval``, ``--log-format``, ``--no-progress-bar``, ``--log-file``."""

    folders = (tmp_path / name for name in "abc")

    def lines(*more, log_format: str | None = "json") -> list[str]:
        path = next(folders)
        changed = {"encoder_layers": 1, "max_epoch": 1, "max_tokens": 60, "log_format": log_format}
        toy_data.train(toy.data, tmp_path / f"{path}.model", "--log-file", path, *more, **changed)
        return path.read_text("utf-8").splitlines()

    each, second = lines("--log-interval", 1), lines("--log-interval", 2)
    figures = [json.loads(line) for line in each if line.startswith('{"epoch"')]
    assert len(figures) > 4 and len(each) > len(second) > 1
    assert any("|" in line for line in lines("--no-progress-bar", "--log-interval", 1, log_format=None))


def test_every_option_of_training_has_its_effect_asserted():
    """Here or by a test that the ledger names; the others are said to have none, or to need what is not here."""
    import test_training_options as training

    said = option_ledger.ledger()
    known = {name for name, where in said.items() if where.startswith("tests")}
    known |= {word for line in (*TRANSFORMER, *LSTM, *THE_SAME, *UNREAD) for word in line.split()[:1]}
    told = " ".join((*training.EFFECTS.values(), training.ELSEWHERE, training.NOTHING)).split()
    known |= {"--" + name.replace("_", "-") for name in told}
    known |= {name for name, where in said.items() if where.startswith(("without effect", "own", "not here"))}
    missing = sorted(option_ledger.of_training() - known)
    assert not missing, f"assert what it changes, and name the test in the ledger: {' '.join(missing)}"
