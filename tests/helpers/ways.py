"""Every system in every way that fairseq trains and translates: one cell is one command line, run in this process.

``make ways`` runs all cells and writes the table into the docs; ``tests/systems/test_ways.py`` runs a part of them:
each system once, each way once, and what broke before.

A cell *works* if the commands end and translate every sentence; it is *refused* if they end in an error of this package
that says what to do instead. ``fairseq`` marks what fairseq's own model does not do either, on this machine; ``–`` an
option that this family of models does not have. Anything else is a defect.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

import torch
from toy_data import fairseq, random_parsed_line, syntax_command, write_raw

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.text.conllu import write_conllu

TRANSFORMER = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.1"
)
LSTM = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-hidden-size 16 --decoder-hidden-size 16 "
    "--decoder-out-embed-dim 16"
)
HEADS = "--criterion supervised_head"
LASYN = "--criterion lasyn_em --latent-values 3 --tag-weight 0"
PLAIN = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"

# Rows: the options of a system. The first Transformer and the first LSTM are fairseq's own.
TRANSFORMERS = {
    "transformer": f"--arch transformer {PLAIN}",
    "pascal": f"--arch pascal_transformer --pascal-heads 2 {PLAIN}",
    "ldd (linear)": f"--arch ldd_transformer {PLAIN}",
    "ldd (dense)": f"--arch ldd_transformer --attention-dropout 0.1 {PLAIN}",
    "supervised_heads": f"--arch supervised_head_transformer {HEADS}",
    "lisa": "--arch lisa_transformer --criterion lisa",
    "sennrich_haddow": f"--arch sennrich_haddow_transformer --label-features deprel:4 {PLAIN}",
    "relative_depth": f"--arch relative_depth_transformer {PLAIN}",
    "structural_positions": f"--arch structural_positions_transformer {PLAIN}",
    "predicted_pascal": f"--arch parser_free_pascal_transformer {HEADS}",
    "predicted_ldd": f"--arch parser_free_ldd_transformer {HEADS}",
    "gcn": f"--arch gcn_transformer {PLAIN}",
    "dbsa": f"--arch dbsa_transformer {HEADS}",
    "lasyn": f"--arch lasyn_transformer {LASYN}",
    "lasyn (K = 2)": f"--arch lasyn_transformer {LASYN} --em-steps 2",
    "pascal + supervised_heads + lasyn": "--arch syntax_transformer --encoder-syntax pascal,supervised_heads "
    f"--decoder-syntax lasyn {LASYN}",
}
LSTMS = {
    "lstm": f"--arch lstm {PLAIN}",
    **{f"dlaa ({a})": f"--arch dlaa_lstm --dlaa-alignment {a} {PLAIN}" for a in ("interpolate", "hard", "gaussian")},
    "local-m": f"--arch local_attention_lstm --local-attention monotonic {PLAIN}",
    "local-p": f"--arch local_attention_lstm --local-attention predictive {PLAIN}",
    "sdrnmt1": f"--arch sdrnmt1_lstm {PLAIN}",
    "sdrnmt2": f"--arch sdrnmt2_lstm {PLAIN}",
    "senmt": f"--arch senmt_lstm {PLAIN}",
    "tree2seq": f"--arch tree2seq_lstm {PLAIN}",
    "gcn (lstm)": f"--arch gcn_lstm {PLAIN}",
}
ROWS = {**TRANSFORMERS, **LSTMS}


@dataclass
class Bench:
    """The data that all cells use, and a folder for what they write."""

    data: Path
    joined: Path
    work: Path

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
        options = ["--lang", lang, "--input", *inputs, "--outdir", segmented, "--train", "sentencepiece"]
        if syntax_command("segment", *options, "--vocab-size", 40):
            raise RuntimeError("segment failed")
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
        ]
        fairseq("preprocess", *options, *prefixes, *more)
    return Bench(directory / "data", directory / "joined", directory / "work")


# ------------------------------------------------------------------------------------------------------------- the ways


def train(bench: Bench, row: str, out: Path, more: str = "", data: str | Path | None = None, updates: int = 3) -> Path:
    """fairseq-train for a few updates; the last checkpoint."""
    sizes = TRANSFORMER if row in TRANSFORMERS else LSTM
    options = (
        f"--task syntax_translation -s en -t de --optimizer adam --lr 0.01 --max-tokens 400 --seed 5 --num-workers 0 "
        f"--log-format none --max-update {updates} --cpu --no-epoch-checkpoints {sizes} {ROWS[row]} {more}"
    )
    fairseq("train", data or bench.data, "--save-dir", out, *options.split())
    return out / "checkpoint_last.pt"


def checkpoint(bench: Bench, row: str) -> Path:
    """The row's checkpoint, trained when it is first asked for."""
    out = bench.trained / row.replace(" ", "_")
    path = out / "checkpoint_last.pt"
    return path if path.exists() else train(bench, row, out)


def translate(bench: Bench, *paths: Path, more: str = "", data: Path | None = None) -> None:
    """fairseq-generate over the test set: every sentence has a translation."""
    options = "--task syntax_translation -s en -t de --beam 2 --max-len-b 12 --cpu --max-tokens 400 " + more
    printed = fairseq("generate", data or bench.data, "--path", ":".join(map(str, paths)), *options.split())
    found = {line.split("\t")[0] for line in printed.splitlines() if line.startswith("H-")}
    if len(found) != 8:
        raise AssertionError(f"{len(found)} of 8 sentences were translated")


def training(more: str, bench: Bench, row: str, out: Path) -> None:
    """Train with more options, then translate."""
    translate(bench, train(bench, row, out, more))


def joined(bench: Bench, row: str, out: Path) -> None:
    translate(bench, train(bench, row, out, "--share-all-embeddings", bench.joined), data=bench.joined)


def sharded(bench: Bench, row: str, out: Path) -> None:
    train(bench, row, out, "--max-epoch 3", f"{bench.data}:{bench.data}", updates=9)


def finetuned(bench: Bench, row: str, out: Path) -> None:
    train(bench, row, out, f"--finetune-from-model {checkpoint(bench, row)}")


def resumed(bench: Bench, row: str, out: Path) -> None:
    """Stopped and taken up again, with an optimizer that starts anew."""
    train(bench, row, out)
    train(bench, row, out, "--reset-optimizer --reset-lr-scheduler --reset-meters --reset-dataloader", updates=5)


def generating(more: str, bench: Bench, row: str, out: Path) -> None:
    """Translate with more options, by a model that was trained once."""
    translate(bench, checkpoint(bench, row), more=more)


def ensemble(others: Sequence[str], bench: Bench, row: str, out: Path) -> None:
    translate(bench, checkpoint(bench, row), *(checkpoint(bench, other) for other in others))


def constrained(bench: Bench, row: str, out: Path) -> None:
    """``--constraints`` comes with the input of fairseq-interactive."""
    interact(bench, row, "--constraints --max-len-b 60", "\tA")


def interact(bench: Bench, row: str, more: str = "", constraint: str = "") -> None:
    blocks = (bench.data.parent / "raw" / "test.en.conllu").read_text(encoding="utf-8").split("\n\n")
    sentences = ["\n".join(l for l in b.splitlines() if not l.startswith("#")) for b in blocks]
    lines = ["\\n".join(s.splitlines()).replace("\t", "\\t") + constraint for s in sentences if s.strip()][:5]
    options = "--task syntax_translation -s en -t de --beam 2 --max-len-b 12 --cpu --buffer-size 3 " + more
    saved, sys.stdin = sys.stdin, StringIO("".join(line + "\n" for line in lines))
    try:
        printed = fairseq("interactive", bench.data, "--path", checkpoint(bench, row), *options.split())
    finally:
        sys.stdin = saved
    if len({line.split("\t")[0] for line in printed.splitlines() if line.startswith("H-")}) != len(lines):
        raise AssertionError("not every line was translated")


def interactive(bench: Bench, row: str, out: Path) -> None:
    interact(bench, row)


def validated(bench: Bench, row: str, out: Path) -> None:
    options = "--task syntax_translation --valid-subset test --max-tokens 400 --cpu --log-format none"
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


def trained_with(*options: str) -> dict[str, Way]:
    return {f"`{option}`": partial(training, option) for option in options}


def generated_with(*options: str) -> dict[str, Way]:
    return {f"`{option}`": partial(generating, option) for option in options}


WAYS: dict[str, Way] = {
    "default": partial(training, ""),
    **trained_with(
        "--update-freq 2",
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
        "--encoder-normalize-before --decoder-normalize-before",
        "--no-cross-attention --cross-self-attention",
        "--layernorm-embedding",
        "--encoder-learned-pos --decoder-learned-pos",
        "--amp",
        "--fp16",
        "--memory-efficient-fp16",
        "--num-workers 2",
        "--batch-size 4",
        "--max-source-positions 12 --skip-invalid-size-inputs-valid-test",
        "--left-pad-source False",
        "--required-batch-size-multiple 1",
        "--truncate-source --max-source-positions 12",
        "--num-batch-buckets 2",
        "--valid-subset valid,test",
        "--patience 1 --max-epoch 2",
        "--keep-last-epochs 1 --keep-best-checkpoints 1",
        "--eval-bleu --eval-bleu-args {}",
        "--sentence-avg",
    ),
    "sharded data": sharded,
    "`--finetune-from-model`": finetuned,
    "resumed, `--reset-*`": resumed,
    "average of checkpoints": averaged,
    **generated_with(
        "--nbest 2",
        "--sampling --sampling-topk 3",
        "--diverse-beam-groups 2",
        "--prefix-size 1",
        "--score-reference",
        "--print-alignment",
        "--no-early-stop",
        "--no-repeat-ngram-size 2",
        "--iter-decode-max-iter 2",
        "--fp16",
    ),
    "`--constraints`": constrained,
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
        return Outcome("refused", str(error))
    except SystemExit as stop:
        text = said.getvalue().strip().splitlines()
        if "unrecognized arguments" in (text[-1] if text else ""):
            return Outcome("–", text[-1])
        return Outcome("fails", f"exit {stop.code}: {text[-1] if text else ''}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("fails", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    return Outcome("works")


def baseline(row: str) -> str:
    """fairseq's own model of the row's family."""
    return "transformer" if row in TRANSFORMERS else "lstm"


def run_all(bench: Bench, rows: Sequence[str], ways: Sequence[str], done: Callable[[str, str, Outcome], None]) -> None:
    """Run cells, the baselines first: what fails in fairseq's own model is not a defect of a row."""
    base = {(family, way): run(bench, family, way) for way in ways for family in {baseline(row) for row in rows}}
    for way in ways:
        for row in rows:
            own = base[baseline(row), way]
            found = own if row == baseline(row) else run(bench, row, way)
            if found.kind == "fails" and own.kind == "fails":
                found = Outcome("fairseq", own.why)
            done(row, way, found)


def table(found: dict[tuple[str, str], Outcome], rows: Sequence[str], ways: Sequence[str]) -> str:
    """The outcomes as Markdown: a line for each way, what was refused or fails below."""
    mark = {"works": "✓", "refused": "refused", "fairseq": "fairseq", "–": "–", "fails": "**fails**"}
    lines = ["| | " + " | ".join(rows) + " |", "|" + "---|" * (len(rows) + 1)]
    lines += [f"| {way} | " + " | ".join(mark[found[row, way].kind] for row in rows) + " |" for way in ways]
    reasons: dict[tuple[str, str], list[str]] = {}
    for way in ways:
        for row in rows:
            outcome = found[row, way]
            if outcome.kind in ("refused", "fairseq", "fails"):
                reasons.setdefault((way, f"{outcome.kind}: {outcome.why}"), []).append(row)
    notes = [f"- {way}, {', '.join(names)}: {why}" for (way, why), names in reasons.items()]
    return "\n".join([*lines, "", *notes, ""])


def _run_family(rows: Sequence[str], ways: Sequence[str]) -> dict[tuple[str, str], Outcome]:
    """The cells of some rows, in a folder of their own; what is not plain is printed as it comes."""
    found: dict[tuple[str, str], Outcome] = {}

    def done(row: str, way: str, outcome: Outcome) -> None:
        found[row, way] = outcome
        if outcome.kind not in ("works", "–"):
            print(f"{way} · {row}: {outcome.kind}: {outcome.why}", flush=True)

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        if rows:
            run_all(make(Path(directory)), rows, ways, done)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Run systems in the ways of fairseq, and write the table.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--table", type=Path, metavar="FILE")
    args = parser.parse_args()
    families = [[r for r in args.rows if r in family] for family in (TRANSFORMERS, LSTMS)]
    with ProcessPoolExecutor(2) as pool:
        parts = pool.map(_run_family, families, [args.ways] * 2)
    found = {cell: outcome for part in parts for cell, outcome in part.items()}
    text = "\n".join(table(found, rows, args.ways) for rows in families if rows)
    if args.table:
        args.table.write_text(text, encoding="utf-8")
    else:
        print(text)
    counts = {
        kind: sum(o.kind == kind for o in found.values()) for kind in ("works", "refused", "fairseq", "–", "fails")
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return int(counts["fails"] > 0)
