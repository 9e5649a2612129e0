"""Every system in every way that fairseq trains and translates: one cell is one command line, run in this process.

``make ways`` runs all cells and writes the page into the docs, ``make ways ROWS=NAME`` those of one system;
``tests/systems/test_ways.py`` runs a part of them: each system once, each way once, and what broke before. Outcomes are
kept in a file as they come, so that a run that was stopped goes on; those of another state of the package do not hold.

A cell *works* if the commands end and translate every sentence; it is *refused* if they end in an error of this package
that says what to do instead. ``fairseq`` marks what fairseq's own model does not do either, on this machine; ``–`` an
option that this family of models does not have. Anything else is a defect.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import re
import sys
import tempfile
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from textwrap import fill
from typing import Any
from unittest import mock

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from option_ledger import without_effect
from toy_data import USER_DIR, fairseq, random_parsed_line, syntax_command, write_raw
from two_processes import Failed, Pair

from fairseq_syntax.corpus.conllu import write_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.decoder import DECODER_SYSTEMS
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.model.heads import HeadSystem
from fairseq_syntax.model.lstm import SyntaxLSTMModel
from fairseq_syntax.model.transformer import PRESETS, criterion_of

TRANSFORMER = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.1"
)
LSTM = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-hidden-size 16 --decoder-hidden-size 16 "
    "--decoder-out-embed-dim 16"
)
# What a criterion is given; others take nothing.
CRITERIA = {
    **dict.fromkeys(("label_smoothed_cross_entropy", "chunked_cross_entropy"), "--label-smoothing 0.1"),
    "lasyn_em": "--latent-values 3 --tag-weight 0",
}
# The rows of systems that have more than one, or more than their name says: what is given before the criterion.
SEVERAL = {
    "pascal": {"pascal": "--pascal-heads 2"},
    "ldd": {"ldd (linear)": "", "ldd (dense)": "--attention-dropout 0.1"},
    "sennrich_haddow": {"sennrich_haddow": "--label-features deprel:4"},
    "gcn_lstm": {"gcn (lstm)": ""},
    "dlaa_lstm": {f"dlaa ({a})": f"--dlaa-alignment {a}" for a in ("interpolate", "hard", "gaussian")},
    "local_attention_lstm": {
        "local-m": "--local-attention monotonic",
        "local-p": "--local-attention predictive",
    },
}


def criterion(name: str) -> str:
    """``--criterion`` with what it is given."""
    return f"--criterion {name} {CRITERIA.get(name, '')}".rstrip()


PLAIN = criterion("label_smoothed_cross_entropy")


def rows_of(system: str, arch: str, trained_by: str) -> dict[str, str]:
    """The rows of a system: what is given, by name."""
    rows = SEVERAL.get(system, {system.removesuffix("_lstm"): ""})
    return {row: " ".join(f"--arch {arch} {more} {trained_by}".split()) for row, more in rows.items()}


def transformers() -> dict[str, str]:
    """The options of fairseq's own Transformer, of every registered system by itself, and of some together."""
    presets = {
        (preset.get("encoder_syntax") or preset.get("decoder_syntax", "")).split(",")[-1]: (arch, preset)
        for arch, preset in PRESETS.items()
    }
    rows = {"transformer": f"--arch transformer {PLAIN}"}
    for side, registered in (("encoder", ENCODER_SYSTEMS), ("decoder", DECODER_SYSTEMS)):
        for name in sorted(registered):  # whichever module was imported first
            if name not in rows:  # a system of both sides has one row
                alone = f"syntax_transformer --{side}-syntax {name}", {f"{side}_syntax": name}
                arch, preset = presets.get(name, alone)
                rows |= rows_of(name, arch, criterion(criterion_of(preset)))
    rows["lasyn (K = 2)"] = f"{rows['lasyn']} --em-steps 2"
    together = "syntax_transformer --encoder-syntax pascal,supervised_heads --decoder-syntax lasyn"
    return rows | rows_of("pascal + supervised_heads + lasyn", together, criterion("lasyn_em"))


def lstms() -> dict[str, str]:
    """The options of fairseq's own LSTM and of every registered one."""
    rows = {"lstm": f"--arch lstm {PLAIN}"}
    for arch, model in sorted(ARCH_MODEL_REGISTRY.items()):
        if issubclass(model, SyntaxLSTMModel):
            rows |= rows_of(arch, arch, criterion(HeadSystem.criterion))
    return rows


# Rows: the options of a system. The first Transformer and the first LSTM are fairseq's own.
TRANSFORMERS, LSTMS = transformers(), lstms()
ROWS = {**TRANSFORMERS, **LSTMS}

ONE_GPU = "--distributed-world-size 1"  # by default fairseq takes all that there are


@dataclass
class Bench:
    """The data that all cells use, and a folder for what they write."""

    data: Path
    joined: Path
    work: Path
    device: str = "--cpu"  # or ONE_GPU
    pair: Pair = field(default_factory=Pair)

    @property
    def trained(self) -> Path:
        """Checkpoints of the rows, trained once for the ways that translate."""
        return self.work / "trained"


def make(directory: Path) -> Bench:
    """A small corpus with parses of both sides, with two dictionaries and with one."""
    raw, segmented = directory / "raw", directory / "segmented"
    raw.mkdir(parents=True)
    rng = random.Random(3)
    sizes = {"train": 40, "valid": 8, "test": 8}
    for lang in ("en", "de"):
        lines = {s: [random_parsed_line(rng, i, arcs=lang == "en") for i in range(n)] for s, n in sizes.items()}
        if lang == "en":
            write_raw(raw, lines)
        for split, parses in lines.items():
            with open(raw / f"{split}.{lang}.conllu", "w", encoding="utf-8") as file:
                file.write(f"# lines = {len(parses)}\n")
                for line in parses:
                    write_conllu(file, line)
        inputs = [raw / f"{split}.{lang}.conllu" for split in sizes]
        options = ["--lang", lang, "--input", *inputs, "--output", segmented, "--train", "sentencepiece"]
        if syntax_command("segment", *options, "--vocab-size", 40):
            raise RuntimeError("segment failed")
    for split in sizes:
        pairs = zip(*((segmented / f"{split}.{lang}").read_text("utf-8").splitlines() for lang in ("en", "de")))
        links = (" ".join(f"{i}-{i}" for i in range(min(len(x.split()), len(y.split())))) for x, y in pairs)
        (segmented / f"{split}.align").write_text("".join(f"{line}\n" for line in links), encoding="utf-8")
    for name, more in (("data", []), ("joined", ["--joined-dictionary"])):
        prefixes = [x for split in sizes for x in (f"--{split}pref", segmented / split)]
        options = [
            "--task",
            "syntax_translation",
            "-s",
            "en",
            "-t",
            "de",
            "--destdir",
            directory / name,
            "--workers",
            1,
            "--align-suffix",
            "align",
        ]
        fairseq("preprocess", *options, *prefixes, *more)
    return Bench(directory / "data", directory / "joined", directory / "work")


# ------------------------------------------------------------------------------------------------------------- the ways


def training_options(bench: Bench, row: str, more: str, updates: int, criterion: str | None = None) -> list[str]:
    """What fairseq-train is given, beside the data and where to save; ``criterion`` in place of the row's options."""
    sizes = TRANSFORMER if row in TRANSFORMERS else LSTM
    system = ROWS[row] if criterion is None else f"{ROWS[row].partition(' --criterion ')[0]} {criterion}"
    return (
        f"--task syntax_translation -s en -t de --optimizer adam --lr 0.01 --max-tokens 400 --seed 5 --num-workers 0 "
        f"--log-format none --max-update {updates} {bench.device} --no-epoch-checkpoints {sizes} {system} {more}"
    ).split()


def train(bench: Bench, row: str, out: Path, more: str = "", data: str | Path | None = None, updates: int = 3) -> Path:
    """fairseq-train for a few updates; the last checkpoint."""
    fairseq("train", data or bench.data, "--save-dir", out, *training_options(bench, row, more, updates))
    return out / "checkpoint_last.pt"


@contextmanager
def fairseqs_loss() -> Iterator[None]:
    """Let fairseq compute the loss of ``chunked_cross_entropy`` in this block, in this process."""
    with mock.patch("fairseq_syntax.criterions.chunked_cross_entropy.is_linear", return_value=False):
        yield


def logged(arguments: Sequence[str | Path]) -> list[dict[str, float]]:
    """fairseq-train, and the figures that it logs: of each epoch, in training and in validation."""
    from fairseq_cli import train as command

    result: list[dict[str, float]] = []
    saved = {name: getattr(command, name) for name in ("get_training_stats", "get_valid_stats")}

    def noting(name: str, *args: object) -> dict[str, float]:
        stats = saved[name](*args)
        result.append({key: float(value.avg if hasattr(value, "avg") else value) for key, value in stats.items()})
        return stats

    with mock.patch.multiple(command, **{name: partial(noting, name) for name in saved}):
        fairseq("train", *arguments)
    return result


def _train_in_one_of_two(rank: int, arguments: Sequence[str | Path]) -> list[dict[str, float]]:
    distributed = ["--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-init-method", "env://"]
    said = StringIO()
    try:
        with redirect_stderr(said):
            return logged([*arguments, *distributed, "--distributed-rank", str(rank), "--device-id", str(rank)])
    except SystemExit as stop:
        raise SystemExit(said.getvalue()) from stop  # what the other process can tell why


def checkpoint(bench: Bench, row: str) -> Path:
    """The row's checkpoint, trained when it is first asked for."""
    out = bench.trained / row.replace(" ", "_")
    path = out / "checkpoint_last.pt"
    return path if path.exists() else train(bench, row, out)


def translate(bench: Bench, *paths: Path, more: str = "", data: Path | None = None) -> None:
    """fairseq-generate over the test set: every sentence has a translation."""
    options = (
        "--task syntax_translation -s en -t de --beam 2 --max-len-b 12 --max-tokens 400 --num-workers 0 "
        f"{bench.device} {more}"
    )
    printed = fairseq("generate", data or bench.data, "--path", ":".join(map(str, paths)), *options.split())
    actual = {line.split("\t")[0] for line in printed.splitlines() if line.startswith("H-")}
    if len(actual) != 8:
        raise AssertionError(f"{len(actual)} of 8 sentences were translated")


def training(more: str, bench: Bench, row: str, out: Path) -> None:
    """Train with more options, then translate."""
    translate(bench, train(bench, row, out, more))


def only_training(more: str, bench: Bench, row: str, out: Path) -> None:
    """Train with options that no translation can tell from others."""
    if not train(bench, row, out, more).exists():
        raise AssertionError("no checkpoint was written")


def joined(bench: Bench, row: str, out: Path) -> None:
    translate(bench, train(bench, row, out, "--share-all-embeddings", bench.joined), data=bench.joined)


def adaptive(bench: Bench, row: str, out: Path) -> None:
    """With fairseq's own criterion for it, in place of the row's."""
    criterion = "--criterion adaptive_loss --ddp-backend legacy_ddp --adaptive-softmax-cutoff 10,20"
    fairseq("train", bench.data, "--save-dir", out, *training_options(bench, row, "", 2, criterion))
    translate(bench, out / "checkpoint_last.pt")


def twice(bench: Bench, row: str, out: Path) -> None:
    """With fairseq's R-Drop, whose batches come twice in one, in place of the row's criterion."""
    criterion = "--criterion label_smoothed_cross_entropy_with_rdrop --label-smoothing 0.1 --rdrop-alpha 5"
    fairseq("train", bench.data, "--save-dir", out, *training_options(bench, row, "", 2, criterion))
    translate(bench, out / "checkpoint_last.pt")


def aligned(bench: Bench, row: str, out: Path) -> None:
    """With fairseq's criterion that learns given alignments, in place of the row's."""
    criterion = "--criterion label_smoothed_cross_entropy_with_alignment --label-smoothing 0.1 --load-alignments"
    fairseq("train", bench.data, "--save-dir", out, *training_options(bench, row, "", 2, criterion))
    translate(bench, out / "checkpoint_last.pt")


def two_processes(more: str, bench: Bench, row: str, out: Path) -> None:
    """Two processes train together, and the model translates."""
    bench.pair.run(_train_in_one_of_two, [bench.data, "--save-dir", out, *training_options(bench, row, more, 3)])
    translate(bench, out / "checkpoint_last.pt")


def one_of_four(bench: Bench, row: str, out: Path, more: str = "", rounding: float = 1) -> None:
    """Two processes of two batches an update: the parameters and figures of one process that has all in a batch.

    An update has three batches, two for one process and one for the other. ``more`` options may round as many times as
    much as float32 as ``rounding`` says.
    """
    steps = "--optimizer sgd --lr 0.5 --dropout 0 --attention-dropout 0 --required-batch-size-multiple 1 --max-epoch 2 "
    steps += f"--max-tokens 4000 {more} "
    if row in LSTMS:
        steps = steps.replace("--attention-dropout 0", "")
    many = [bench.data, "--save-dir", out, *training_options(bench, row, steps + "--batch-size 15 --update-freq 2", 99)]
    figures = bench.pair.run(_train_in_one_of_two, many)[0]
    whole = [bench.data, "--save-dir", out / "one", *training_options(bench, row, steps + "--batch-size 40", 99)]
    expected = logged(whole)
    names, limit = {"loss", "nll_loss", "translation_loss", "ppl", "num_updates"}, 2e-3 if rounding == 1 else 0.03
    for one, other in zip(expected, figures, strict=True):
        for name, value in one.items():
            if (name in names or name.endswith(("_loss", "_uas", "_accuracy"))) and abs(other[name] - value) > limit:
                raise AssertionError(f"{name}: {other[name]}, and {value} in one process")
    one, two = (torch.load(d / "checkpoint_last.pt", weights_only=True)["model"] for d in (out / "one", out))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=2e-5 * rounding, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def started(bench: Bench, row: str, out: Path) -> None:
    """fairseq-train starts two processes itself."""
    train(bench, row, out, "--distributed-world-size 2")
    translate(bench, out / "checkpoint_last.pt")


def hydra(bench: Bench, row: str, out: Path) -> None:
    """fairseq-hydra-train, twice in one go; the options in YAML."""
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq_cli import hydra_train

    words = f"{TRANSFORMER if row in TRANSFORMERS else LSTM} {ROWS[row]}".split()
    values = {k.removeprefix("--").replace("-", "_"): v for k, v in zip(words[::2], words[1::2], strict=True)}
    parts = {"model": {"_name": values.pop("arch")}, "criterion": {"_name": values.pop("criterion")}}
    fields = CRITERION_DATACLASS_REGISTRY[parts["criterion"]["_name"]].__dataclass_fields__
    for name, value in values.items():
        parts["criterion" if name in fields else "model"][name] = value
    config = f"""
        # @package _group_
        common: {{user_dir: {USER_DIR}, cpu: true, seed: 5, log_format: none}}
        task: {{_name: syntax_translation, data: {bench.data}, source_lang: en, target_lang: de}}
        optimizer: {{_name: adam}}
        lr_scheduler: {{_name: fixed}}
        dataset: {{max_tokens: 400, num_workers: 0}}
        optimization: {{lr: [0.01], max_update: 3}}
        checkpoint: {{save_dir: "{out}/0", no_epoch_checkpoints: true}}
    """
    lines = [f"{part}: {{{', '.join(f'{k}: {v}' for k, v in values.items())}}}" for part, values in parts.items()]
    out.mkdir(parents=True)
    (out / "some.yaml").write_text("\n".join([textwrap.dedent(config).strip(), *lines]), encoding="utf-8")
    options = ["--multirun", "--config-dir", str(out), "--config-name", "some"]
    changed = [f"hydra.sweep.dir={out}/sweep", "optimization.max_update=2,3"]
    argv = ["fairseq-hydra-train", *options, *changed, f"checkpoint.save_dir={out}/${{hydra:job.num}}"]
    whole = mock.patch.dict(os.environ, HYDRA_FULL_ERROR="1")  # else Hydra prints an error, and exits
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level  # Hydra sets up its own
    try:
        with whole, mock.patch.object(sys, "argv", argv), redirect_stdout(StringIO()):
            hydra_train.cli_main()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    for number in range(2):
        translate(bench, out / str(number) / "checkpoint_last.pt")


def sharded(bench: Bench, row: str, out: Path) -> None:
    train(bench, row, out, "--max-epoch 3", f"{bench.data}:{bench.data}", updates=9)


def finetuned(bench: Bench, row: str, out: Path) -> None:
    train(bench, row, out, f"--finetune-from-model {checkpoint(bench, row)}")


def resumed(bench: Bench, row: str, out: Path, more: str = "") -> None:
    """Stopped and taken up again, with an optimizer that starts anew."""
    train(bench, row, out, more)
    reset = "--reset-optimizer --reset-lr-scheduler --reset-meters --reset-dataloader"
    train(bench, row, out, f"{reset} {more}", updates=5)


def generating(more: str, bench: Bench, row: str, out: Path) -> None:
    """Translate with more options, by a model that was trained once."""
    translate(bench, checkpoint(bench, row), more=more)


def ensemble(others: Sequence[str], bench: Bench, row: str, out: Path) -> None:
    translate(bench, checkpoint(bench, row), *(checkpoint(bench, other) for other in others))


def constrained(bench: Bench, row: str, out: Path) -> None:
    """``--constraints`` comes with the input of fairseq-interactive; each translation has the word that is wanted."""
    pieces = (bench.data.parent / "segmented" / "train.de").read_text(encoding="utf-8").split()
    word = max((piece[1:] for piece in pieces if piece[0] == "▁"), key=len)
    printed = interact(bench, row, "--constraints --max-len-b 60", f"\t{word}")
    if missing := [line for line in printed.splitlines() if line.startswith("D-") and word not in line]:
        raise AssertionError(f"{word} is not in {missing[0]}")


def interact(bench: Bench, row: str, more: str = "", constraint: str = "") -> str:
    """Translate some sentences; what fairseq-interactive prints."""
    blocks = (bench.data.parent / "raw" / "test.en.conllu").read_text(encoding="utf-8").split("\n\n")
    sentences = ["\n".join(l for l in b.splitlines() if not l.startswith("#")) for b in blocks]
    lines = ["\\n".join(s.splitlines()).replace("\t", "\\t") + constraint for s in sentences if s.strip()][:5]
    options = "--task syntax_translation -s en -t de --beam 2 --max-len-b 12 --buffer-size 3 "
    options += f"--max-tokens 400 {bench.device} {more}"
    saved, sys.stdin = sys.stdin, TextIOWrapper(BytesIO("".join(line + "\n" for line in lines).encode()), "utf-8")
    try:
        printed = fairseq("interactive", bench.data, "--path", checkpoint(bench, row), *options.split())
    finally:
        sys.stdin = saved
    if len({line.split("\t")[0] for line in printed.splitlines() if line.startswith("H-")}) != len(lines):
        raise AssertionError("not every line was translated")
    return printed


def interactive(bench: Bench, row: str, out: Path) -> None:
    interact(bench, row)


def validated(bench: Bench, row: str, out: Path, more: str = "") -> None:
    options = "--task syntax_translation --valid-subset test --max-tokens 400 --num-workers 0 --log-format none "
    options += f"{bench.device} {more}"
    fairseq("validate", bench.data, "--path", checkpoint(bench, row), *options.split())


def averaged(bench: Bench, row: str, out: Path) -> None:
    """The mean of two checkpoints, as fairseq's script makes it."""
    paths = [train(bench, row, out / str(n), updates=n) for n in (2, 3)]
    states = [torch.load(path, weights_only=True) for path in paths]
    for name, value in states[0]["model"].items():
        if value.is_floating_point():
            value.add_(states[1]["model"][name]).div_(2)
    torch.save(states[0], out / "mean.pt")
    translate(bench, out / "mean.pt")


def half(dtype: torch.dtype, bench: Bench, row: str, out: Path) -> None:
    """A model in half precision encodes, decodes and searches."""
    from fairseq import checkpoint_utils
    from fairseq.sequence_generator import SequenceGenerator

    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint(bench, row))])
    model = models[0].to(dtype).eval()
    task.load_dataset("test")
    iterator = task.get_batch_iterator(task.dataset("test"), max_sentences=8).next_epoch_itr(shuffle=False)
    generator = task.build_generator([model], argparse.Namespace(beam=2, max_len_a=0, max_len_b=8))
    if not isinstance(generator, SequenceGenerator):
        raise AssertionError(f"{type(generator)} is no search")
    for sample in iterator:
        if len(task.inference_step(generator, [model], sample)) != len(sample["id"]):
            raise AssertionError("not every sentence was translated")


Way = Callable[[Bench, str, Path], None]


def trained_with(*options: str, then: Callable[..., None] = training) -> dict[str, Way]:
    return {f"`{option}`": partial(then, option) for option in options}


def generated_with(*options: str) -> dict[str, Way]:
    return {f"fairseq-generate `{option}`": partial(generating, option) for option in options}


WAYS: dict[str, Way] = {
    "default": partial(training, ""),
    **trained_with(
        "--encoder-layerdrop 0.5",
        "--decoder-layerdrop 0.5",
        "--checkpoint-activations",
        "--offload-activations",
        "--quant-noise-pq 0.1",
        "--share-decoder-input-output-embed",
    ),
    "`--share-all-embeddings`": joined,
    **trained_with(
        "--adaptive-softmax-cutoff 10,20",
    ),
    "`--adaptive-softmax-cutoff 10,20 --criterion adaptive_loss`": adaptive,
    "`--rdrop-alpha 5 --criterion label_smoothed_cross_entropy_with_rdrop`": twice,
    "`--load-alignments --criterion label_smoothed_cross_entropy_with_alignment`": aligned,
    **trained_with(
        "--encoder-normalize-before --decoder-normalize-before",
        "--no-cross-attention --cross-self-attention",
        "--layernorm-embedding",
        "--activation-fn gelu --activation-dropout 0.1 --no-scale-embedding --no-decoder-final-norm",
        "--no-token-positional-embeddings",
        "--encoder-learned-pos --decoder-learned-pos",
        "--amp",
        "--fp16",
        "--memory-efficient-fp16",
        "--left-pad-source",  # which says that it is not: the default is that it is
        "--num-batch-buckets 2",
        "--eval-bleu --eval-bleu-args {}",
        "--bf16",
        "--encoder-layers-to-keep 0",
    ),
    **trained_with(
        "--max-source-positions 12 --skip-invalid-size-inputs-valid-test",
        "--truncate-source --max-source-positions 12",
        "--update-freq 2",
        "--num-workers 2",
        "--batch-size 4",
        "--required-batch-size-multiple 1",
        "--valid-subset valid,test",
        "--patience 1 --max-epoch 2",
        "--keep-last-epochs 1 --keep-best-checkpoints 1",
        "--sentence-avg",
        "--curriculum 1 --grouped-shuffling --data-buffer-size 2 --update-ordered-indices-seed --skip-remainder-batch",
        "--combine-valid-subsets --valid-subset valid --max-tokens-valid 200",
        "--save-interval-updates 1 --keep-interval-updates 1",
        "--dataset-impl mmap",
        "--store-ema",
        then=only_training,
    ),
    "sharded data": sharded,
    "`--finetune-from-model`": finetuned,
    "resumed, `--reset-*`": resumed,
    "average of checkpoints": averaged,
    **{
        f"two processes, `{options}`": partial(two_processes, options)
        for options in (
            "--ddp-backend pytorch_ddp",
            "--ddp-backend pytorch_ddp --find-unused-parameters",
            "--ddp-backend pytorch_ddp --update-freq 2",
            "--ddp-backend pytorch_ddp --checkpoint-activations",
            "--ddp-backend legacy_ddp",
            "--ddp-backend legacy_ddp --find-unused-parameters",
        )
    },
    "two processes with two batches per update equal one process": one_of_four,
    **trained_with("--ddp-backend fully_sharded"),
    "fairseq-hydra-train `--multirun`": hydra,
    **generated_with(
        "--nbest 2",
        "--sampling --sampling-topk 3 --nbest 2",
        "--diverse-beam-groups 2",
        "--prefix-size 1",
        "--score-reference",
        "--print-alignment",
        "--no-repeat-ngram-size 2",
        "--unnormalized --temperature 0.9 --min-len 2",
        "--lenpen 0.6 --diversity-rate 0.5 --max-len-a 0.5",
        "--retain-dropout --match-source-len --unkpen 1",
        "--fp16",
    ),
    "fairseq-interactive `--constraints`": constrained,
    "ensemble of itself": lambda bench, row, out: ensemble([row], bench, row, out),
    "ensemble with plain": lambda bench, row, out: ensemble(
        ["transformer" if row in TRANSFORMERS else "lstm"], bench, row, out
    ),
    "ensemble with pascal": partial(ensemble, ["pascal"]),
    "ensemble with dlaa": partial(ensemble, ["dlaa (interpolate)"]),
    "fairseq-interactive": interactive,
    "fairseq-validate": validated,
    "float16 model": partial(half, torch.float16),
    "bfloat16 model": partial(half, torch.bfloat16),
}


@dataclass
class Outcome:
    """What became of a cell: ``works``, ``refused``, ``–`` or ``fails``, and why."""

    kind: str
    why: str = ""


def run(bench: Bench, row: str, way: str, number: int = 0) -> Outcome:
    """Run one cell."""
    out = bench.work / f"{number}-{abs(hash((row, way)))}"
    said = StringIO()
    try:
        with redirect_stderr(said):
            WAYS[way](bench, row, out)
    except SyntaxDataError as error:
        return Outcome("refused", str(error).replace(str(bench.data.parent), "…"))
    except Failed as error:
        if error.name == "SystemExit":
            return _stopped(row, error.message)
        kind = "refused" if error.name == "SyntaxDataError" else "fails"
        return Outcome(kind, error.message if kind == "refused" else f"{error} {error.trace[-600:]}")
    except SystemExit:
        return _stopped(row, said.getvalue())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("fails", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    return Outcome("works")


def _stopped(row: str, said: str) -> Outcome:
    """What became of a command that read its options and ended: "–" where its family has no such option."""
    text = said.strip().splitlines()
    _, unknown, words = (text[-1] if text else "").partition("unrecognized arguments: ")
    names = {word for word in words.split() if word.startswith("--")}
    if unknown and not names & set(ROWS[row].split()):
        return Outcome("–", words)
    return Outcome("fails", f"the command ended: {text[-1] if text else ''}")


def baseline(row: str) -> str:
    """fairseq's own model of the row's family."""
    return "transformer" if row in TRANSFORMERS else "lstm"


def state_of_the_package() -> str:
    """A checksum of the package's modules."""
    digest = hashlib.sha256()
    for path in sorted(Path(USER_DIR).rglob("*.py")):
        digest.update(f"{path.relative_to(USER_DIR)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Kept:
    """Outcomes in a file, a line each; a later line of a cell holds, and a cell whose options changed is another.

    So is one of another state of the package.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state_of_the_package()
        self._found: dict[tuple[str, str, str], Outcome] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row, options, way, kind, why, *state = json.loads(line)
                if state == [self._state]:
                    self._found[row, options, way] = Outcome(kind, why)

    def known(self, row: str, way: str) -> Outcome | None:
        """What became of a cell, failures too."""
        return self._found.get((row, ROWS[row], way))

    def get(self, row: str, way: str) -> Outcome | None:
        """What became of a cell; None if it is not known, or if it failed and is to be tried again."""
        outcome = self.known(row, way)
        return None if outcome is None or outcome.kind in ("fails", "fairseq", "gpu") else outcome

    def add(self, row: str, way: str, outcome: Outcome) -> None:
        """Keep an outcome. Several processes may write: a line is one write."""
        self._found[row, ROWS[row], way] = outcome
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps([row, ROWS[row], way, outcome.kind, outcome.why, self._state]) + "\n")


def run_all(
    bench: Bench, rows: Sequence[str], ways: Sequence[str], kept: Kept, done: Callable[[str, str, Outcome], None]
) -> None:
    """Run the cells whose outcome is not kept; what fails in fairseq's own model, too, is not a defect of a row."""
    for way in ways:
        for row in rows:
            actual = kept.get(row, way)
            if actual is None:
                actual = run(bench, row, way)
                if actual.kind == "fails":
                    plain = actual if row == baseline(row) else run(bench, baseline(row), way)
                    actual = of_fairseq(plain.why) if plain.kind == "fails" else actual
                kept.add(row, way, actual)
            done(row, way, actual)


def table(actual: dict[tuple[str, str], Outcome], rows: Sequence[str], ways: Sequence[str]) -> str:
    """The outcomes of a family as Markdown: what works with all of its systems; what does not with some, and why."""
    plain = [way for way in ways if all(actual[row, way].kind == "works" for row in rows)]
    absent = [way for way in ways if all(actual[row, way].kind == "–" for row in rows)]
    of_gpus = [way for way in ways if all(actual[row, way].kind == "gpu" for row in rows)]
    text = f"{_WORK}\n\n"
    for title, names in grouped(plain).items():
        text += fill(f"- {title}: {'; '.join(names)}.", 120, subsequent_indent="  ", **WHOLE) + "\n"
    if absent:
        text += "\n" + fill(f"{_ABSENT}{'; '.join(absent)}.", 120, **WHOLE) + "\n"
    if of_gpus:
        text += "\n" + fill(f"{_OF_GPUS}{'; '.join(of_gpus)}.", 120, **WHOLE) + "\n"
    text += f"\n{_DO_NOT}\n\n"
    for way in ways:
        if way in plain or way in absent or way in of_gpus:
            continue
        reasons: dict[str, list[str]] = {}
        for row in rows:
            if actual[row, way].kind != "works":
                reasons.setdefault(reason(actual[row, way]), []).append(row)
        text += f"- {way}\n"
        for why, names in reasons.items():
            who = "all" if len(names) == len(rows) else ", ".join(names)
            line = f"  - *{who}*: {why}"
            text += fill(line, 120, subsequent_indent="    ", **WHOLE) + "\n"
    return text


WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def grouped(ways: Sequence[str]) -> dict[str, list[str]]:
    """Ways by the command that they belong to."""
    translating = ("fairseq-generate", "fairseq-interactive", "fairseq-validate", "ensemble", "float16", "bfloat16")
    groups: dict[str, list[str]] = {"training": [], "training in several processes": [], "translating": []}
    groups["training, with no effect without a GPU"] = []
    nothing = without_effect("in training")
    for way in ways:
        if way.strip("`") in nothing:
            groups["training, with no effect without a GPU"].append(way)
        elif way.startswith("two processes"):
            groups["training in several processes"].append(way.removeprefix("two processes, "))
        elif way.startswith(translating):
            groups["translating"].append(way)
        elif way != "default":
            groups["training"].append(way)
    return {title: names for title, names in groups.items() if names}


_SAID = {
    "fairseq": "fairseq's own model fails as well: ",
    "–": "fairseq has no such option: ",
    "fails": "**fails**: ",
}


def of_fairseq(why: str) -> Outcome:
    """The outcome where fairseq's own model fails: for lack of a GPU, or with it as well."""
    return Outcome("gpu") if re.search("on a GPU|on a TPU", why) else Outcome("fairseq", why)


def reason(outcome: Outcome) -> str:
    """Why something does not work, as Markdown; losses are not named, so that it is the same of all systems."""
    why = re.sub(r"(omits losses of the model): [\w, ]+(?= \()", r"\1", " ".join(outcome.why.split()))
    why = re.sub(r"\(([\w.]+\.py:\d+)\)$", r"(`\1`)", why)
    return _SAID.get(outcome.kind, "") + re.sub(r"(?<![`\w-])(--[a-z][\w-]*)", r"`\1`", why)


def outcome_of(why: str) -> Outcome:
    """The outcome that :func:`reason` tells."""
    why = re.sub(r"`(--[a-z][\w-]*|[\w.]+\.py:\d+)`", r"\1", " ".join(why.split()))
    kind = next((kind for kind, said in _SAID.items() if why.startswith(said)), "refused")
    return Outcome(kind, why.removeprefix(_SAID.get(kind, "")))


def _run_rows(rows: Sequence[str], ways: Sequence[str], outcomes: Path) -> dict[tuple[str, str], Outcome]:
    """The cells of some rows, in a folder of their own; what is not plain is printed as it comes."""
    result: dict[tuple[str, str], Outcome] = {}

    def done(row: str, way: str, outcome: Outcome) -> None:
        result[row, way] = outcome
        if outcome.kind not in ("works", "–"):
            print(f"{way} · {row}: {outcome.kind}: {outcome.why}", flush=True)

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        if rows:
            bench = make(Path(directory))
            try:
                run_all(bench, rows, ways, Kept(outcomes), done)
            finally:
                bench.pair.close()
    return result


HEAD = """# Which options of fairseq work with which system

Nearly all fairseq options work with all systems; the others end in an error. `make ways` wrote this page:
it trains a tiny model of each system with each option on a CPU and translates with it. An option works if all commands
succeed and every sentence is translated. Tests check the effect of each option of training and generation.
"""


FAMILIES = {"Transformers": TRANSFORMERS, "LSTMs": LSTMS}
Cells = dict[tuple[str, str], Outcome]
_WORK, _DO_NOT = "These options work with all of these systems:", "These options do not work with the systems named:"
_ABSENT = "fairseq has these options only for Transformers: "
_OF_GPUS = "These options need a GPU or TPU, and were not tried: "


def page(actual: Cells) -> str:
    """The page of the rows and ways that were run; the inverse of :func:`outcomes_of`."""
    text = HEAD
    for command, where in (
        ("fairseq-generate also takes these options, which have no effect on translations here", "in translations"),
        ("fairseq-train takes these, which have no effect in one process without a GPU", "in training"),
    ):
        nothing = ", ".join(f"`{name}`" for name in without_effect(where))
        text += f"\n{fill(f'{command}: {nothing}.', 120, **WHOLE)}\n"
    missing: list[str] = []
    for title, family in FAMILIES.items():
        rows = [row for row in family if any(known == row for known, _ in actual)]
        ways = [way for way in WAYS if rows and all((row, way) in actual for row in rows)]
        missing += [way for way in WAYS if rows and way not in (*ways, *missing)]
        if rows:
            text += f"\n## {title}\n\nSystems: {', '.join(rows)}.\n\n{table(actual, rows, ways)}"
    if missing:
        text += "\nNot run in all rows yet: " + ", ".join(missing) + ".\n"
    return text


def outcomes_of(text: str) -> Cells:
    """The outcomes that a page tells, so that one row can be run and the others stay."""
    actual: Cells = {}
    for title, family in FAMILIES.items():
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0].partition("\nNot run in all rows")[0]
        if not section:
            continue
        working, _, failing = re.sub(r"\n +(?! |- )", " ", section).partition(_DO_NOT)  # an item on a line
        systems, _, working = working.partition(_WORK)
        rows = [row for row in systems.strip().removeprefix("Systems: ").removesuffix(".").split(", ") if row in family]
        working, _, of_gpus = working.partition(_OF_GPUS)
        working, _, absent = working.partition(_ABSENT)
        items = [item for line in working.splitlines() for item in line.partition(": ")[2].rstrip(".").split("; ")]
        plain = ["default", *(item if item in WAYS else f"two processes, {item}" for item in items if item)]
        actual |= {(row, way): Outcome("works") for row in rows for way in plain}
        for way in " ".join(absent.split()).rstrip(".").split("; ") if absent else ():
            actual |= {(row, way): Outcome("–") for row in rows}
        for way in " ".join(of_gpus.split()).rstrip(".").split("; ") if of_gpus else ():
            actual |= {(row, way): Outcome("gpu") for row in rows}
        for block in failing.split("\n- ")[1:]:
            way, *reasons = block.strip().split("\n  - ")
            actual |= {(row, way.strip()): Outcome("works") for row in rows}
            for line in reasons:
                names, _, why = line.removeprefix("*").partition("*: ")
                who = rows if names == "all" else names.split(", ")
                actual |= {(row, way.strip()): outcome_of(why) for row in who}
    return {(row, way): outcome for (row, way), outcome in actual.items() if way in WAYS and row in ROWS}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run systems in the ways of fairseq, and write the page.")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="with a name, all of its rows")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--page", type=Path, metavar="FILE", help="rows and ways that are not run are taken from it")
    parser.add_argument("--outcomes", type=Path, metavar="FILE", default=Path("runs/ways.jsonl"))
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--again", action="store_true", help="forget the outcomes of earlier runs")
    args = parser.parse_args()
    rows = [row for row in ROWS if {row, row.partition(" (")[0]} & {*args.rows}]
    if not rows:
        parser.error(f"--rows: there are {', '.join(ROWS)}")
    args.outcomes.parent.mkdir(parents=True, exist_ok=True)
    if args.again:
        args.outcomes.unlink(missing_ok=True)
    actual = outcomes_of(args.page.read_text(encoding="utf-8")) if args.page and args.page.exists() else {}
    # of one row, each process runs a part of the ways
    shares = [(rows[i :: args.workers], args.ways) for i in range(args.workers)]
    if len(rows) < args.workers:
        shares = [(rows, args.ways[i :: args.workers]) for i in range(args.workers)]
    ran: Cells = {}
    with ProcessPoolExecutor(args.workers) as pool:
        for part in pool.map(_run_rows, *zip(*shares), [args.outcomes] * args.workers):
            ran |= part
    text = page(actual | ran)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    else:
        print(text)
    counts = Counter(outcome.kind for outcome in ran.values())
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return int(counts["fails"] > 0)


if __name__ == "__main__":
    sys.exit(main())
