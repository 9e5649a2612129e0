#!/usr/bin/env python3
"""Trains systems on the toy corpora and prints what they reach beside what can be reached.

    python examples/toy/run.py                     the plain Transformer against PASCAL
    python examples/toy/run.py --all               every system
    python examples/toy/run.py --only PASCAL DLAA  these rows
    python examples/toy/run.py --seeds 1 2 3       with three seeds each

Each corpus is generated, segmented and binarized, each system trained and made to translate the test set, by the
commands that a user has. What is done already is not done again, unless its options have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))  # from a checkout that is not installed too

from systems import CONTROLS, CORPORA, CORPUS_TRAINING, DEMO, GENERATION, SYSTEMS, TRAINING, System
from table import Table, over_seeds, table

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import on_termination, progress, say
from fairseq_syntax.runtime.files import file_sha256, fingerprint, locked, write_json

HERE = Path(__file__).resolve().parent
SPLITS = ("train", "valid", "test")
# The word pieces of the source and the target: few enough that many words are split.
PIECES = {"src": 170, "tgt": 240}


class StepError(RuntimeError):
    """A command failed; the message shows the end of what it said."""


class Runner:
    """Runs commands, each with a log of its own, on so many threads."""

    def __init__(self, root: Path, threads: int) -> None:
        self.root = root
        self.started = time.monotonic()
        self.running: set[subprocess.Popen] = set()
        self.stopped = False
        self.environment = {
            # Training on CPUs is faster where freed memory is kept: docs/how-to.md.
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": "2147483647",
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")])),
        }

    def say(self, text: str) -> None:
        say(f"[{time.monotonic() - self.started:5.0f} s] {text}")

    def run(self, command: list, log: Path) -> float:
        """Runs a command; returns its wall time in seconds."""
        begin = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            file.write(shlex.join(map(str, command)) + "\n")
            file.flush()
            process = subprocess.Popen(
                [str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, env=self.environment
            )
            self.running.add(process)
            try:
                if self.stopped:  # while it began
                    process.terminate()
                status = process.wait()
            finally:
                self.running.discard(process)
        if status:
            end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-15:])
            raise StepError(f"{command[0]} ended with status {status}; the end of {log}:\n{end}")
        return time.monotonic() - begin

    def stop(self, number: int) -> None:
        """At a signal: the commands that run end too, and no other begins."""
        self.stopped = True
        for process in list(self.running):
            with suppress(ProcessLookupError):
                process.terminate()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def tool(name: str) -> list[str]:
    """A command of fairseq or of this project, of the same Python environment as this script."""
    if name == "fairseq-syntax":
        return [sys.executable, "-m", "fairseq_syntax"]
    return [sys.executable, "-m", f"fairseq_cli.{name.removeprefix('fairseq-').replace('-', '_')}"]


def user_dir() -> str:
    import importlib.util

    spec = importlib.util.find_spec("fairseq_syntax")
    origin = spec.origin if spec and spec.origin else str(HERE.parents[1] / "fairseq_syntax" / "__init__.py")
    return os.path.dirname(origin)


def done_before(stamp: Path, key: object) -> bool:
    """Whether a stamp, which is written whole after the work, is that of the same work; a damaged one is none."""
    try:
        return json.loads(stamp.read_text(encoding="utf-8")).get("key") == key
    except (OSError, ValueError, AttributeError):
        return False


def prepare(runner: Runner, name: str, seed: int) -> Path:
    """Generates, segments and binarizes a corpus; returns its directory."""
    root = runner.root / name
    stamp = root / "prepared.json"
    sources = b"".join((HERE / file).read_bytes() for file in ("grammar.py", "generate.py"))
    original, control = CONTROLS.get(name, (name, None))
    key = [PIECES, CORPORA[original], control, seed, hashlib.sha256(sources).hexdigest()]
    if done_before(stamp, key):
        return root
    shutil.rmtree(root / "bin", ignore_errors=True)  # fairseq-preprocess does not replace dictionaries
    stamp.unlink(missing_ok=True)
    logs = root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    corpus, pieces = root / "corpus", root / "pieces"
    generate = [sys.executable, HERE / "generate.py", "--output", corpus, "--seed", seed, *CORPORA[original]]
    runner.run(generate, logs / "generate.log")
    if control:
        for split in SPLITS:
            parse, real = corpus / f"{split}.src.conllu", corpus / f"{split}.real.conllu"
            parse.replace(real)
            command = [*tool("fairseq-syntax"), "control", control, "--input", real, "--output", parse]
            runner.run(command, logs / f"control.{split}.log")
    for lang, size in PIECES.items():
        parsed = (corpus / f"train.{lang}.conllu").exists()
        files = [corpus / f"{split}.{lang}{'.conllu' if parsed else ''}" for split in SPLITS]
        train = ["--train", "sentencepiece", "--model-type", "bpe", "--vocab-size", str(size)]
        segment = [*tool("fairseq-syntax"), "segment", "--lang", lang, *train, "--input", *map(str, files)]
        segment += ["--output", str(pieces)]
        runner.run(segment, logs / f"segment.{lang}.log")
    prefixes = [part for split in SPLITS for part in (f"--{split}pref", str(pieces / split))]
    binarize = [*tool("fairseq-preprocess"), "--user-dir", user_dir(), "--task", "syntax_translation"]
    binarize += ["-s", "src", "-t", "tgt", *prefixes, "--destdir", str(root / "bin")]
    runner.run(binarize, logs / "preprocess.log")
    made = [[str(file.relative_to(corpus)), file_sha256(file)] for file in sorted(corpus.rglob("*")) if file.is_file()]
    write_json(stamp, {"key": key, "corpus": fingerprint(made, PIECES)})
    return root


def folder_name(system: System) -> str:
    """Where a system's runs are, in the folder of its corpus."""
    return "".join(c if c.isalnum() else "_" for c in system.name)


def options_of(system: System) -> str:
    """The options of a system's training."""
    return f"{system.model} {TRAINING} {CORPUS_TRAINING.get(system.corpus, '')} {system.options}"


@contextmanager
def training_bar(cells: list[tuple[System, int]], roots: dict[str, Path]) -> Iterator[None]:
    """Shows how many epochs of all cells' trainings have ended, by their logs."""
    logs = [roots[system.corpus] / folder_name(system) / str(seed) / "train.log" for system, seed in cells]
    # the last --max-epoch of a command line counts
    total = sum(int(re.findall(r"--max-epoch (\d+)", options_of(system))[-1]) for system, _ in cells)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1):
            texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs if log.exists()]
            bar.update(sum(text.count("| end of epoch ") for text in texts) - bar.n)

    with progress(total=total, of="training", unit="epochs") as bar:
        watcher = threading.Thread(target=watch, daemon=True)
        if not bar.disable:
            watcher.start()
        try:
            yield
        finally:
            over.set()
            if watcher.is_alive():
                watcher.join()


def commands_of(system: System) -> tuple[list[str], list[str]]:
    """The options of a system for training, but for the seed, and for translation."""
    train = ["--arch", system.arch, *shlex.split(options_of(system))]
    return train, shlex.split(f"{GENERATION} {system.generation}")


def key_of(system: System, corpus: Path) -> str:
    """What a result depends on: the files of the corpus, and all options, with the bytes of the files they name."""
    made = json.loads((corpus / "prepared.json").read_text(encoding="utf-8"))["corpus"]
    options = [[file_sha256(o) if os.path.isabs(o) else o for o in command] for command in commands_of(system)]
    return fingerprint(made, options, system.knows, system.tree, system.heads)


def train_and_translate(runner: Runner, system: System, corpus: Path, seed: int) -> dict:
    """What one seed gives of a row of the table: the system's scores and seconds."""
    out = corpus / folder_name(system) / str(seed)
    stamp = out / "result.json"
    key = key_of(system, corpus)
    if done_before(stamp, key):
        return json.loads(stamp.read_text(encoding="utf-8"))["row"]
    train, translate = commands_of(system)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.pt"):  # of a run with other options, which fairseq-train would go on with
        old.unlink()
    common = [corpus / "bin", "--user-dir", user_dir(), "--task", "syntax_translation"]
    quiet = ["--no-progress-bar", "--no-epoch-checkpoints", "--save-dir", out]
    options = [*train, "--seed", str(seed)]
    seconds = runner.run([*tool("fairseq-train"), *common, *options, *quiet], out / "train.log")
    runner.say(f"{system.name}, seed {seed}: trained in {seconds:.0f} s")
    results = ["--path", out / "checkpoint_last.pt", "--results-path", out, "--gen-subset", "test"]
    more = runner.run([*tool("fairseq-generate"), *common, *results, *translate], out / "generate.log")
    row = {**score(out / "generate-test.txt", corpus / "corpus", system), "train_s": seconds, "translate_s": more}
    row |= {"seed": seed, "key": key}
    if system.tree:
        row["uas"] = attachment_score(runner, out, corpus / "corpus")
    if system.heads:
        row["heads"] = heads_right(runner, out, common, system.heads)
    write_json(stamp, {"key": key, "row": row})
    runner.say(f"{system.name}, seed {seed}: {row['exact']:.1f} % of {row['ambiguous']} ambiguous sentences exact")
    return row


def attachment_score(runner: Runner, out: Path, corpus: Path) -> float:
    """UAS of the trees that the model's parent head predicts for the test set, in %."""
    from fairseq_syntax.corpus.conllu import read_conllu
    from fairseq_syntax.lab.scoring.trees import collect_words, evaluate

    gold, predicted = corpus / "test.src.conllu", out / "tree.conllu"
    options = [out / "checkpoint_last.pt", "--input", gold, "--output", predicted]
    runner.run([*tool("fairseq-syntax"), "tree", *options], out / "tree.log")
    return 100 * evaluate(*(collect_words(read_conllu(path), str(path)) for path in (gold, predicted)))["UAS"].f1


def heads_right(runner: Runner, out: Path, common: list, names: tuple[str, ...]) -> list[float]:
    """Of the words of the test set whose head is to be seen, how many have it as the best of each parent head, in %.

    The text is given, that of the target too; the head's scores are not repaired to a tree.
    """
    log = out / "validate.log"
    options = ["--path", out / "checkpoint_last.pt", "--valid-subset", "test", "--max-tokens", "8000"]
    runner.run([*tool("fairseq-validate"), *common, *options, "--log-format", "json"], log)
    line = next(line for line in reversed(log.read_text("utf-8").splitlines()) if "_uas" in line)
    values = json.loads(line[line.index("{") :])
    return [float(values[f"test_{name}_uas"]) for name in names]


def score(output: Path, corpus: Path, system: System) -> dict:
    """Exact match on the ambiguous sentences, in %, what was possible, and BLEU on all."""
    from sacrebleu import corpus_bleu

    from fairseq_syntax.lab.scoring.outputs import read_translations

    hypotheses = read_translations(output).lines
    references = (corpus / "test.tgt").read_text(encoding="utf-8").splitlines()
    ambiguous = [bool(row) for row in (corpus / "test.open").read_text(encoding="utf-8").splitlines()]
    if not len(hypotheses) == len(references) == len(ambiguous):
        raise StepError(f"{output}: {len(hypotheses)} translations of {len(references)} sentences")
    exact = [hypothesis == reference for hypothesis, reference in zip(hypotheses, references)]
    best = json.loads((corpus / "info.json").read_text(encoding="utf-8"))["best"][system.knows]
    count = sum(ambiguous)
    right = [right for right, is_open in zip(exact, ambiguous) if is_open]
    return {
        "system": system.name,
        "corpus": system.corpus,
        "knows": system.knows,
        "possible": 100 * best["accuracy"],
        "error": 100 * best["error"],
        "exact": 100 * sum(right) / count,
        "right": "".join(str(int(one)) for one in right),
        "ambiguous": count,
        "unambiguous": 100 * sum(right for right, o in zip(exact, ambiguous) if not o) / max(len(exact) - count, 1),
        "bleu": corpus_bleu(hypotheses, [references]).score,
    }


def described(args: argparse.Namespace) -> str:
    """How and where the results of this run are made."""
    from importlib.metadata import version

    from sacrebleu.metrics import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "fairseq-fixed", "sacrebleu"))
    return (
        f"corpora of seed {args.seed}; {args.threads} thread a system, {args.workers} at a time, {os.cpu_count()} CPUs"
        f", no GPU; {versions}; BLEU {metric.get_signature()}"
    )


def next_command(out: Path, systems: list[System], seed: int) -> str:
    """A page with the attention of the systems on the first one's corpus."""
    corpus = systems[0].corpus
    names = {s.name: folder_name(s) for s in systems if s.corpus == corpus}
    models = [
        shlex.quote(f"{name}={out / corpus / folder / str(seed)}/checkpoint_last.pt") for name, folder in names.items()
    ]
    return f"fairseq-syntax show {' '.join(models)} --data {out / corpus / 'bin'} --split test --output page.html"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [system.name for system in SYSTEMS]
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every system")
    which.add_argument(
        "--only", nargs="+", action="extend", choices=names, metavar="NAME", help=f"of: {', '.join(names)}"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/toy"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="systems trained at once (default: 2)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each of them (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the corpora, and of training (default: 1)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", action="extend", metavar="N", help="train with each of these (default: --seed)"
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="put each result into this table, as Markdown, as soon as it is there; all are kept beside it (.jsonl), "
        "and what is kept is not made again",
    )
    args = parser.parse_args()
    args.seeds = list(dict.fromkeys(args.seeds or [args.seed]))
    systems = SYSTEMS if args.all else [s for s in SYSTEMS if s.name in args.only] if args.only else DEMO
    runner = Runner(args.output, args.threads)
    try:
        kept, run = (Table(args.table), described(args)) if args.table else (None, "")
        args.output.mkdir(parents=True, exist_ok=True)
        # Another run of this folder is waited for; what it made is not made again.
        folder = locked(args.output / "results.json")
        with folder, on_termination(runner.stop), ThreadPoolExecutor(args.workers) as pool:
            corpora = list(dict.fromkeys(system.corpus for system in systems))
            runner.say(f"making the corpus: {', '.join(corpora)}")
            roots = dict(zip(corpora, pool.map(lambda name: prepare(runner, name, args.seed), corpora)))
            runner.say(f"training {len(systems)} systems, {args.workers} at a time, on {args.threads} thread each")
            cells = [(system, seed) for seed in args.seeds for system in systems]

            def result(cell: tuple[System, int]) -> dict:
                system, seed = cell
                corpus = roots[system.corpus]
                if kept and (old := kept.known(system.name, seed, key_of(system, corpus))):
                    runner.say(f"{system.name}, seed {seed}: {old['exact']:.1f} % exact, as {args.table} has it")
                    return old
                new = train_and_translate(runner, system, corpus, seed)
                if kept:
                    kept.add({**new, "run": run})
                return new

            with training_bar(cells, roots):
                found = list(pool.map(result, cells))
            rows = [over_seeds([row for (s, _), row in zip(cells, found) if s is system]) for system in systems]
    except (StepError, SyntaxDataError) as error:
        print(error, file=sys.stderr)
        return 1
    (args.output / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\nExact match on the ambiguous test sentences, and the best that is possible with what a system knows:\n")
    print(table(rows))
    print(f"\n{args.output / 'results.json'}: the rows of this table")
    if not args.table:  # whose results may be kept without the models
        print(f"next: {next_command(args.output, systems, args.seeds[0])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
