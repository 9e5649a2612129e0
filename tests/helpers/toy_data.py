"""A tiny parsed corpus and the commands of the pipeline, run in this process.

The lines are not language: they hold what goes wrong elsewhere. Words of several pieces, several sentences in a line,
tokens of two words (``zum`` = ``zu`` + ``dem``), words without a space between them, an empty line, the same words
with two parses.
"""

import importlib
import io
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from composed import composed_quickly
from random_parses import random_tree

import fairseq_syntax
from fairseq_syntax import cli
from fairseq_syntax.corpus.conllu import ParsedLine, Token, owner, text_of, write_conllu

USER_DIR = str(Path(fairseq_syntax.__file__).parent)
SIZES = {"train": 60, "valid": 12, "test": 12}
WORDS = ["a", "man", "saw", "the", "girl", "with", "telescopes", "old", "dogs", "near", "unbelievable", "he", "painted"]
DEPRELS, UPOS, XPOS = ["nsubj", "obj", "obl", "case", "nmod:tmod"], ["NOUN", "VERB", "ADP"], ["NN", "VB", "_"]


def random_parsed_line(rng: random.Random, number: int, max_sentences: int = 3, arcs: bool = False) -> ParsedLine:
    """A line of one or more sentences with random trees; ``arcs``: a distribution too, most of it on the tree."""
    line = ParsedLine(line_number=number, arcs=[] if arcs else None)
    for _ in range(rng.randint(1, max_sentences)):
        start = len(line.words)
        # Tokens of two words: which tokens, and then the words.
        double = [rng.random() < 0.15 for _ in range(rng.randint(1, 5))]
        n = len(double) + sum(double)
        line.heads += random_tree(rng, n, start)
        at = start
        for is_double in double:
            line.words += ["zu", "dem"] if is_double else [rng.choice(WORDS)]
            first, at = at, at + 1 + is_double
            form = "zum" if is_double else line.words[first]
            word = owner(first, at - 1, line.heads)
            line.tokens.append(Token(form, rng.random() < 0.8, first, at - 1, word))
        for word in range(start, len(line.words)):
            root = line.heads[word] == word
            line.deprels.append("root" if root else rng.choice(DEPRELS))
            line.upos.append(rng.choice(UPOS))
            line.xpos.append(rng.choice(XPOS))
            if arcs:
                other = rng.randrange(start, len(line.words))
                line.arcs.append((word, line.heads[word], line.deprels[word], 0.75))
                if other not in (word, line.heads[word]):
                    line.arcs.append((word, other, rng.choice(DEPRELS), 0.125))
        line.sentences.append((start, len(line.words)))
    line.tokens[-1].space_after = True
    return line


def translation(line: ParsedLine) -> str:
    """A target that has something to do with the source: its tokens from the last to the first, capitals."""
    return " ".join(token.form.upper() for token in reversed(line.tokens))


def corpus(seed: int = 7, arcs: bool = True) -> dict[str, list[ParsedLine]]:
    """The lines of each split, by its name."""
    rng = random.Random(seed)
    splits = {}
    for split, n in SIZES.items():
        splits[split] = lines = [random_parsed_line(rng, i, arcs=arcs) for i in range(n)]
        lines[5] = ParsedLine(line_number=5)
        # Line 8 is line 7 with another parse.
        again = random_parsed_line(random.Random(seed), 8, max_sentences=1, arcs=arcs)
        other = random_parsed_line(random.Random(seed), 7, max_sentences=1, arcs=arcs)
        n_words = len(other.words)
        other.heads = [max(0, w - 1) for w in range(n_words)]
        again.heads = [min(n_words - 1, w + 1) for w in range(n_words)]
        for parse in (other, again):
            for token in parse.tokens:
                token.word = owner(token.first, token.last, parse.heads)
            parse.arcs = [(w, h, "nsubj", 0.5) for w, h in enumerate(parse.heads)] if arcs else None
        lines[7], lines[8] = other, again
    return splits


@dataclass
class Toy:
    """Where the toy corpus is: parses and target text, segmented files, binarized data; and its lines by split."""

    raw: Path
    segmented: Path
    data: Path
    lines: dict[str, list[ParsedLine]]


def write_raw(directory: Path, splits: dict[str, list[ParsedLine]]) -> None:
    """SPLIT.en.conllu and SPLIT.de."""
    for split, lines in splits.items():
        with open(directory / f"{split}.en.conllu", "w", encoding="utf-8") as file:
            file.write(f"# lines = {len(lines)}\n")
            for line in lines:
                write_conllu(file, line)
        (directory / f"{split}.de").write_text("".join(translation(line) + "\n" for line in lines), encoding="utf-8")
        (directory / f"{split}.en.text").write_text("".join(text_of(line) + "\n" for line in lines), encoding="utf-8")


def syntax_command(*argv) -> int:
    """``fairseq-syntax ARGV``; the exit status."""
    with redirect_stdout(io.StringIO()):
        return cli.main([str(a) for a in argv])


def segment(raw: Path, out: Path, kind: str = "sentencepiece", size: int = 40) -> None:
    """Train segmentations on the training data and apply them to all splits."""
    for lang, suffix in (("en", ".en.conllu"), ("de", ".de")):
        files = [raw / f"{split}{suffix}" for split in SIZES]
        sizes = [] if kind == "words" else ["--vocab-size", size]
        options = ["--lang", lang, "--input", *files, "--output", out, "--train", kind, *sizes]
        assert syntax_command("segment", *options) == 0


def fairseq(command: str, *argv) -> str:
    """``fairseq-COMMAND ARGV`` with the plugin, in this process; what it printed."""
    module = importlib.import_module(f"fairseq_cli.{command}")
    # A process that loads batches is started where a test asks for it. One that fairseq starts by itself costs a fork,
    # and survives a training that ends in the middle of an epoch.
    loads = command in ("train", "generate", "validate") and "--num-workers" not in argv
    alone = ["--num-workers", "0"] if loads else []
    saved, sys.argv = sys.argv, [f"fairseq-{command}", *map(str, argv), *alone, "--user-dir", USER_DIR]
    out = io.StringIO()
    logs = [logging.getLogger(name) for name in (f"fairseq_cli.{command}", "fairseq.logging.progress_bar")]
    handlers = [{*log.handlers} for log in logs]
    try:
        with redirect_stdout(out), composed_quickly():
            module.cli_main()
    finally:
        sys.argv = saved
        for log, before in zip(logs, handlers, strict=True):
            for handler in {*log.handlers} - before:  # of --log-file, which fairseq leaves open
                log.removeHandler(handler)
                handler.close()
    return out.getvalue()


@contextmanager
def logged(name: str) -> Iterator[io.StringIO]:
    """What a logger says. pytest's caplog stays empty after fairseq has set up logging in this process."""
    logger, text = logging.getLogger(name), io.StringIO()
    handler, level = logging.StreamHandler(text), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield text
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def preprocess_options(segmented: Path, data: Path) -> list:
    """What fairseq-preprocess is given."""
    options = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--destdir", data, "--workers", 1]
    return options + [x for split in SIZES for x in (f"--{split}pref", segmented / split)]


def make(directory: Path, seed: int = 7, arcs: bool = True) -> Toy:
    """The whole pipeline."""
    toy = Toy(directory / "raw", directory / "segmented", directory / "data", corpus(seed, arcs))
    toy.raw.mkdir()
    write_raw(toy.raw, toy.lines)
    segment(toy.raw, toy.segmented)
    fairseq("preprocess", *preprocess_options(toy.segmented, toy.data))
    return toy


MODEL = {
    "--arch": "pascal_transformer",
    "--encoder-layers": 2,
    "--decoder-layers": 1,
    "--encoder-embed-dim": 16,
    "--decoder-embed-dim": 16,
    "--encoder-ffn-embed-dim": 32,
    "--decoder-ffn-embed-dim": 32,
    "--encoder-attention-heads": 4,
    "--decoder-attention-heads": 2,
    "--dropout": 0.1,
}
TRAINING = {
    "--task": "syntax_translation",
    "-s": "en",
    "-t": "de",
    "--optimizer": "adam",
    "--lr": 0.01,
    "--criterion": "label_smoothed_cross_entropy",
    "--label-smoothing": 0.1,
    "--max-tokens": 400,
    "--seed": 5,
    "--num-workers": 0,
    "--log-format": "none",
    "--max-epoch": 2,
}
FLAGS = ["--cpu", "--no-epoch-checkpoints"]


def train(data, save_dir: Path, *more, each_epoch: bool = True, **changed) -> dict:
    """fairseq-train; the last checkpoint.

    Args:
        data: the data directory, or several with colons
        more: more options
        each_epoch: whether to validate and to save after each epoch, rather than once, at the end
        changed: other values of options, ``max_epoch=3``; None leaves an option out
    """
    import torch

    options = {**MODEL, **TRAINING, **{"--" + name.replace("_", "-"): value for name, value in changed.items()}}
    if not each_epoch:
        options |= dict.fromkeys(("--validate-interval", "--save-interval"), options["--max-epoch"])
    given = [x for name, value in options.items() if value is not None for x in (name, value)]
    fairseq("train", data, "--save-dir", save_dir, *given, *FLAGS, *more)
    return torch.load(save_dir / "checkpoint_last.pt", weights_only=True)


def train_in_two_processes(arguments: list) -> None:
    """``fairseq-train`` with these arguments in two processes on the CPU, which share the batches."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    argv = [*launch, "-m", "fairseq_cli.train", *map(str, arguments)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr[-3000:]
