"""Parsers side by side: speed, memory, accuracy on a treebank, and what a parser of that accuracy gives systems.

    python tools/parsers.py --gold en_ewt-ud-test.conllu --every 5 --page fairseq_syntax/corpus/parsing/README.md \
        "Stanza, UD English-EWT=stanza:FOLDER" "spaCy, en_core_web_sm=spacy:en_core_web_sm" "UDPipe=udpipe:FILE"

Each parser parses the treebank's words in a process of its own, with one thread. The sentences are in a few parts, and
each part is parsed by one parser after the other, first by one process and then by two at once, so that other work on
the machine slows all alike. Times are the processors'. A parser that is given as ``NAME=PARSER:MODELS`` replaces the
row of this name in the table of ``--page``, others stay: compare speeds of one run only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu  # noqa: E402
from fairseq_syntax.lab.recipes.kept import Kept  # noqa: E402
from fairseq_syntax.lab.scoring.calibration import attachment, parsed_sentences  # noqa: E402
from fairseq_syntax.runtime.files import atomic_open  # noqa: E402

BEGIN, END = "<!-- by tools/parsers.py -->\n", "<!-- to here -->\n"
HEADER = (
    "| parser and models | words per second of one thread | of two processes | memory | UAS | LAS | phrases | toy "
    "| ATIS |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
)
TOY = {accuracy: ROOT / f"examples/toy/table/uncertain-{accuracy}.jsonl.gz" for accuracy in (0.6, 0.8, 0.95)}
ATIS = ROOT / "examples/atlas/results.json"


class Measured(NamedTuple):
    """What a process says of a part: its CPU seconds and its peak memory in bytes so far, and the parses."""

    seconds: float
    memory: int
    parses: list[ParsedLine]


def serve(connection: Connection, parser: str, models: str) -> None:
    """A process that parses lists of words until it is sent None."""
    from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser

    os.setsid()  # where a scheduler divides the processors among sessions, two processes get twice the time of one
    options = ParserOptions(parser, "en", models or None, tokenizer="whitespace", max_words=10**9)
    loaded = load_parser(options)
    connection.send(None)
    while (part := connection.recv()) is not None:
        begin = time.process_time()
        parses = loaded.parse(part)
        seconds = time.process_time() - begin
        connection.send(Measured(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, parses))


class Row:
    """A parser: two processes, and what they measured."""

    def __init__(self, given: str) -> None:
        self.name, _, place = given.rpartition("=")
        self.parser, _, models = place.partition(":")
        self.alone: list[float] = []  # CPU seconds of each part, by one process
        self.scaling: list[float] = []  # for each part, the speed of two processes over that of one
        self.memory = 0
        self.parses: list[ParsedLine] = []
        self.processes: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        for _ in range(2):
            ours, theirs = context.Pipe()
            context.Process(target=serve, args=(theirs, self.parser, models), daemon=True).start()
            self.processes.append(ours)

    def measure(self, part: list[list[str]], *, warm_up: bool = False) -> None:
        """Parse a part by one process, then by both at once."""
        alone, *both = [self.ask(self.processes[:1], part)[0], *self.ask(self.processes, part)]
        if not warm_up:
            self.alone.append(alone.seconds)
            self.scaling.append(2 * alone.seconds / statistics.mean(each.seconds for each in both))
            self.memory = max(self.memory, alone.memory)
            self.parses += alone.parses

    @staticmethod
    def ask(processes: Sequence[Connection], part: list[list[str]]) -> list[Measured]:
        for connection in processes:
            connection.send(part)
        return [connection.recv() for connection in processes]


def phrases(gold: Sequence[ParsedLine], parsed: Sequence[ParsedLine]) -> float:
    """The share of the gold prepositional phrases (nmod and obl with a case before) attached to the right word.

    Where the parse follows other conventions, the preposition may be the head of the phrase.
    """
    right = []
    for truth, guess in zip(gold, parsed, strict=True):
        for noun, (head, label) in enumerate(zip(truth.heads, truth.deprels)):
            cases = [w for w in range(noun) if truth.heads[w] == noun and truth.deprels[w] == "case"]
            if label.partition(":")[0] in ("nmod", "obl") and cases:
                top = guess.heads[noun] if guess.heads[noun] in cases else noun
                right.append(guess.heads[top] == head)
    return sum(right) / max(1, len(right))


def toy(accuracy: float, system: str = "UDP") -> str:
    """The exact match on the toy corpus, in %, of a system that reads the best trees of a parser of this accuracy.

    It is interpolated between the toy's corpora, and bounded below and above them.
    """
    exact = [_exact(path, system) for path in TOY.values()]
    sign = "< " * (accuracy < min(TOY)) + "> " * (accuracy > max(TOY))
    return f"{sign}{np.interp(accuracy, list(TOY), exact):.0f}"


def _exact(path: Path, system: str) -> float:
    systems = Kept.read(path).scores["test.ambiguous"]["report"]["systems"]
    return float(next(one["mean"]["exact"] for one in systems if one["name"] == system))


def atis(uas: float) -> str:
    """What wrong arcs cost on ATIS, in BLEU: the mean of all systems that were trained and tested on gold trees and on
    trees of which a share of the heads is right, interpolated to the share ``uas``.
    """
    quality = json.loads(ATIS.read_text(encoding="utf-8"))["parse_quality"]
    scores = {name: row["score"]["BLEU"] for name, row in quality["rows"].items()}
    systems = [name.removesuffix(".gold") for name in scores if name.endswith(".gold")]
    costs = {1.0: 0.0}
    for parse, share in quality["attachment"].items():
        if parse.endswith(".sharp"):
            costs[share / 100] = statistics.mean(scores[f"{s}.{parse}"] - scores[f"{s}.gold"] for s in systems)
    shares = sorted(costs)
    return f"{np.interp(uas, shares, [costs[share] for share in shares]):.1f}"


def parts_of(words: list[list[str]], number: int) -> list[list[list[str]]]:
    """The sentences in parts of about as many words, in order."""
    total, so_far = sum(map(len, words)), 0
    parts: list[list[list[str]]] = [[] for _ in range(number)]
    for sentence in words:
        parts[so_far * number // total].append(sentence)
        so_far += len(sentence)
    return parts


def rows(given: Sequence[str], gold: Sequence[ParsedLine], number: int) -> Iterator[tuple[str, str]]:
    """(name, row of the table) of each parser."""
    parsers = [Row(one) for one in given]
    for row in parsers:
        for connection in row.processes:
            connection.recv()  # it is loaded
    words = [line.words for line in gold]
    parts = parts_of(words, number)
    for row in parsers:
        row.measure(parts[0][:20], warm_up=True)
    for part in parts:
        for row in parsers:
            row.measure(part)
    for row in parsers:
        for connection in row.processes:
            connection.send(None)
        scores, of_phrases = attachment(gold, row.parses), phrases(gold, row.parses)
        speed = sum(map(len, words)) / sum(row.alone)
        cells = [
            row.name,
            f"{round(speed, -1):,.0f}",
            f"× {statistics.median(row.scaling):.2f}",
            f"{row.memory / 2**20:,.0f} MB",
            f"{100 * scores['uas']:.1f}",
            f"{100 * scores['las']:.1f}",
            f"{100 * of_phrases:.1f}",
            toy(of_phrases),
            # Phrases are harder than other words: if they seem easier, the treebank has other conventions of heads.
            atis(scores["uas"]) if of_phrases < scores["uas"] else "–",
        ]
        yield row.name, f"| {' | '.join(cells)} |\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parser", nargs="+", metavar="NAME=PARSER:MODELS")
    options.add_argument("--gold", required=True, type=Path, help="a treebank, CoNLL-U")
    options.add_argument("--every", type=int, default=1, help="take every N-th sentence")
    options.add_argument("--parts", type=int, default=5)
    options.add_argument("--page", type=Path, help="the page whose table is to be renewed")
    args = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that parse
    gold = [sentence for line in read_conllu(args.gold) for sentence in parsed_sentences(line)][:: args.every]
    table = dict(rows(args.parser, gold, args.parts))
    sys.stdout.write(HEADER + "".join(table.values()))
    if args.page is not None:
        before, _, rest = args.page.read_text(encoding="utf-8").partition(BEGIN)
        old, _, after = rest.partition(END)
        kept = {line.split(" | ")[0].removeprefix("| "): f"{line}\n" for line in old.splitlines()[2:]}
        with atomic_open(args.page) as file:
            file.write(before + BEGIN + HEADER + "".join((kept | table).values()) + END + after)


if __name__ == "__main__":
    main()
