"""What a corpus of 10^7, 10^8 or 10^9 sentences costs in core-hours, from rates that this program measures.

    python examples/cluster/costs.py --output examples/cluster/COSTS.md

All rates are of the CPU time of one process with one thread, without its start; that of the parser is the last one of
``bench/results.jsonl``.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
SIZES = (10**7, 10**8, 10**9)
VOCABULARY = 8000
FEW = 1000  # lines, of which a vocabulary can be made


def corpus(folder: Path, lines: int, words: int, seed: int = 1) -> None:
    """Text and parse of random sentences: words by Zipf's law, as many as ``words`` on average, random trees."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 11))) for _ in range(30_000)]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    with open(folder / "train.en", "w") as text, open(folder / "train.en.conllu", "w") as parse:
        parse.write(f"# lines = {lines}\n")
        for number in range(1, lines + 1):
            count = max(1, round(draw.gauss(words, words / 3)))
            sentence = draw.choices(vocabulary, weights, k=count)
            text.write(" ".join(sentence) + "\n")
            root = draw.randrange(count) + 1
            parse.write(f"# line = {number}\n")
            for at, word in enumerate(sentence, 1):
                head = 0 if at == root else root if at == 1 or draw.random() < 0.3 else draw.randrange(1, at)
                head = root if head == at else head
                label = "root" if not head else draw.choice(("nsubj", "obj", "det", "case", "nmod"))
                parse.write(f"{at}\t{word}\t_\tNOUN\tNN\t_\t{head}\t{label}\t_\t_\n")
            parse.write("\n")


def rates(lines: int, words: int) -> dict[str, float]:
    """Sentences a second and core of each step but parsing.

    Raises:
        SystemExit: a step failed
    """
    from fairseq_syntax.cli import main as command
    from fairseq_syntax.corpus.conllu import read_conllu
    from fairseq_syntax.corpus.parsing.parse_jobs import Job, merge
    from fairseq_syntax.corpus.parsing.parser import ParserOptions
    from fairseq_syntax.runtime.files import make_folder

    found: dict[str, float] = {}

    def run(words: list[str]) -> None:
        if command(words):
            raise SystemExit(f"costs: {words[0]} failed")

    def timed(name: str, work: Callable[[], object]) -> None:
        begin = time.process_time()  # of this process alone, which does it all
        work()
        found[name] = lines / (time.process_time() - begin)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus(folder, lines, words)
        assert sum(1 for _ in read_conllu(folder / "train.en.conllu")) == lines
        sys.path.append(str(ROOT / "tests" / "helpers"))  # a parser without a model, for its options alone
        job = Job(folder / "train.en", folder / "merged", ParserOptions(parser="chain_parser"))
        timed("read", lambda: job.step)
        rows = (folder / "train.en.conllu").read_bytes().split(b"\n\n")
        make_folder(job.parts.folder)
        for start, end in job.spans:
            job.parts.commit((start, end), b"{}\n" + b"\n\n".join(rows[start:end]))
        timed("merge", lambda: merge(job))
        segment = ["segment", "--lang", "en", "--input", str(folder / "train.en.conllu"), "--output"]
        model = ["--train", "sentencepiece", "--vocab-size", str(VOCABULARY), "--train-lines", "5000"]
        run([*segment, str(folder / "trained"), *model])
        model = ["--model", str(folder / "trained" / "segmentation.en.json")]
        timed("segment", lambda: run([*segment, str(folder / "seg"), *model]))
        options = ["-s", "en", "-t", "de", "--trainpref", str(folder / "seg" / "train"), "--only-source"]
        data = str(folder / "bin")
        stock = [sys.executable, "-m", "fairseq_cli.preprocess", *options, "--destdir", data]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([*stock, "--task", "translation"], check=True, env=environment, capture_output=True)
        timed("binarize", lambda: run(["binarize", *options, "--output", data]))
    return found


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=20_000, metavar="N", help="measured on (default: 20000)")
    parser.add_argument("--words", type=int, default=25, metavar="N", help="of a sentence (default: 25)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the Markdown file to write")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from bench.harness import on_one_thread

    rates(min(FEW, args.lines), args.words)  # what is imported on the way is no cost of a sentence
    text = page(rates(args.lines, args.words), on_one_thread()["parse/stanza"], args.lines, args.words)
    print(text)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    return 0


def page(found: dict[str, float], parsing: dict, lines: int, words: int) -> str:
    """The page."""
    from bench.harness import device_name

    words_a_second = parsing["detail"]["words_per_second"]
    here = f"`costs.py`, {lines:,} sentences"
    steps = [
        (
            "`parse` (Stanza, CPU)",
            words_a_second / words,
            f"`parse/stanza` of `make bench`, {parsing['device']}: {words_a_second:,} words/s",
        ),
        ("`segment` (sentencepiece)", found["segment"], here),
        ("`binarize`", found["binarize"], here),
        ("reading the text once, in `parse`", found["read"], here),
        ("merging the parts of `parse`", found["merge"], here),
    ]
    rows = [
        f"| {name} | {rate:,.0f} | "
        + " | ".join(f"{size / rate / 3600:,.1f}" if size / rate > 360 else "< 0.1" for size in SIZES)
        + f" | {source} |"
        for name, rate, source in steps
    ]
    powers = " | ".join(f"10^{len(str(size)) - 1}" for size in SIZES)
    return "\n".join([
        "# What a large corpus costs",
        "",
        f"Core-hours (CPU time) for sentences of {words} words on average. Written by `python "
        f"examples/cluster/costs.py` on one core of: {device_name()}. A cluster takes the core-hours over its cores, "
        "but for the two steps that one process does: reading and merging.",
        "",
        f"| step | sentences/s and core | {powers} | measured by |",
        "|---|--:|--:|--:|--:|---|",
        *rows,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
