#!/usr/bin/env python3
"""How differently another language orders the words of a sentence: the share of crossing word alignments.

    pip install eflomal
    python examples/atlas/word_order.py --data runs/atlas/tr/data --languages en tr --lines 9895 --show 20

Words of the parse are aligned with the pieces of the translation by eflomal (Östling and Tiedemann 2016), in both
directions; links that both have count. Two links of one source sentence, of different words and different pieces, cross
where the order of the pieces is not that of the words. Their share is Kendall's distance of the two orders, 0 where no
word has moved and 1 where the order is reversed. *Neighbours* counts only words that no other aligned word stands
between. --lines measures the first lines alone, such as those that several languages share.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.runtime.files import read_lines

Link = tuple[int, int]


def crossings(links: Sequence[Link]) -> tuple[int, int]:
    """How many pairs of links cross, and how many pairs there are, of different words and different pieces.

    Args:
        links: (word, piece), both 0-based
    """
    at = np.array(sorted(set(links)), dtype=np.int64).reshape(-1, 2)
    words, pieces = (np.sign(column[None, :] - column[:, None]) for column in at.T)
    signs = (words * pieces)[np.triu_indices(len(at), 1)]
    return int((signs < 0).sum()), int((signs != 0).sum())


def neighbours(links: Sequence[Link]) -> list[list[Link]]:
    """The links of each two aligned words that no aligned word stands between."""
    by_word: dict[int, list[Link]] = {}
    for link in sorted(set(links)):
        by_word.setdefault(link[0], []).append(link)
    each = list(by_word.values())
    return [[one, other] for left, right in pairwise(each) for one in left for other in right]


def of_sentences(links: Sequence[Link], spans: Sequence[tuple[int, int]]) -> list[list[Link]]:
    """The links by the source sentence, words [start, end), that they are of."""
    return [[link for link in links if start <= link[0] < end] for start, end in spans]


def align(source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> list[list[Link]]:
    """Links that eflomal has in both directions, of each pair of lines; text is lower-cased for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, lines in (("source", source), ("target", target)):
            (folder / side).write_text("".join(" ".join(line).lower() + "\n" for line in lines), encoding="utf-8")
        files = [folder / name for name in ("source", "target", "forward", "reverse")]
        options = zip(("-s", "-t", "-f", "-r"), files)
        subprocess.run(["eflomal-align", *(str(word) for pair in options for word in pair)], check=True)
        forward, reverse = (read_links(file) for file in files[2:])
    return [sorted(set(one) & set(other)) for _, one, other in zip(source, forward, reverse, strict=True)]


def read_links(path: Path) -> list[list[Link]]:
    """Links in Pharaoh's format, ``0-0 1-2``, of each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [[(int(a), int(b)) for a, b in (link.split("-") for link in line.split())] for line in lines]


def measure(parses: Sequence[ParsedLine], links: Sequence[Sequence[Link]]) -> dict[str, float]:
    """The shares of crossing links: all pairs of a sentence, and neighbours; and how many words are aligned."""
    counts = np.zeros((2, 2), dtype=np.int64)
    aligned = 0
    for parse, line in zip(parses, links, strict=True):
        aligned += len({word for word, _ in line})
        for of_sentence in of_sentences(line, parse.sentences):
            counts[0] += crossings(of_sentence)
            for pair in neighbours(of_sentence):
                counts[1] += crossings(pair)
    (crossing, pairs), (swapped, neighbouring) = counts.tolist()
    return {
        "crossing": crossing / pairs,
        "neighbours": swapped / neighbouring,
        "aligned": aligned / sum(len(parse.words) for parse in parses),
        "lines": len(parses),
    }


def show(parse: ParsedLine, pieces: Sequence[str], links: Sequence[Link]) -> str:
    """A pair and its links, for the eye."""
    rows = [f"  {parse.words[word]} – {pieces[piece]}" for word, piece in sorted(links)]
    return "\n".join([" ".join(parse.words), " ".join(pieces), *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="of a recipe, with parses/ and pieces/")
    parser.add_argument("--languages", nargs=2, required=True, metavar="CODE", help="source and target")
    parser.add_argument("--lines", type=int, metavar="N", help="measure the first N (default: all)")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N pairs with their links")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    ours, theirs = args.languages
    target = [line.split() for line in read_lines(args.data / "pieces" / f"train.{theirs}")]
    parses = list(read_conllu(args.data / "parses" / f"train.{ours}.conllu", n_lines=len(target)))
    links = align([parse.words for parse in parses], target)
    figures = measure(parses[: args.lines], links[: args.lines])
    for number in islice(range(0, len(parses), max(1, len(parses) // max(1, args.show))), args.show):
        print(show(parses[number], target[number], links[number]) + "\n")
    text = json.dumps(figures, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
