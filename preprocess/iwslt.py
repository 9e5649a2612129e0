#!/usr/bin/env python3
"""IWSLT: TED talks, in the layout of the evaluation campaigns of 2014 to 2017.

    python preprocess/iwslt.py --data DIR --output runs/iwslt14.de-en --source-lang de --target-lang en [--download]
    python preprocess/iwslt.py --data DIR --output runs/iwslt17.en-de --valid dev2010 --test tst2010

--data holds, anywhere below it, train.tags.de-en.de with its other side, and IWSLT14.TED.dev2010.de-en.de.xml and so
on. --download fetches the German-English corpus of 2014; those of the other years have to be fetched by hand. By
default the validation and test data are those of fairseq's own recipe for IWSLT 2014: every 23rd training pair of those
that Moses' clean-corpus-n keeps (1 to 175 tokens a side, ratio at most 1.5), and dev2010, dev2012 and tst2010 to
tst2012 in one. For that, pip install sacremoses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import accumulate, chain
from pathlib import Path

from pipeline import Splits, arguments, run
from sources import Pair, download, find, parallel

from fairseq_syntax.errors import SyntaxDataError

URL = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
EVERY = 23
MOST_TOKENS, RATIO = 175, 1.5
TESTS = ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")


def take(args: argparse.Namespace) -> Splits:
    """The pairs of each split."""
    if args.download:
        download([URL], args.data)
    langs = (args.source_lang, args.target_lang)
    train = [find(args.data, *(f"train.tags.{pair}.{lang}" for pair in directions(langs))) for lang in langs]
    if args.valid:
        yield "train", parallel(*train)
        yield "valid", chain(*(evaluation(args.data, name, langs) for name in args.valid))
    else:
        kept = cleaned(parallel(*train), langs)
        number = accumulate(kept)  # of each pair among those that are kept
        wanted = bytes(0 if not keep else 2 if n % EVERY == 0 else 1 for keep, n in zip(kept, number))
        for split, mark in (("train", 1), ("valid", 2)):
            yield split, (pair for pair, own in zip(parallel(*train), wanted, strict=True) if own == mark)
    yield "test", chain(*(evaluation(args.data, name, langs) for name in args.test or TESTS))


def cleaned(pairs: Iterable[Pair], langs: tuple[str, str]) -> bytes:
    """Whether (0 or 1) Moses' ``clean-corpus-n.perl -ratio 1.5 … 1 175`` keeps each pair, in Moses' tokens.

    Raises:
        SyntaxDataError: sacremoses is not installed
    """
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise SyntaxDataError(
            "fairseq's split counts Moses' tokens", hint="pip install sacremoses, or name --valid and --test"
        ) from error
    tokenizers = [MosesTokenizer(lang) for lang in langs]
    return bytes(is_kept([len(t.tokenize(side)) for t, side in zip(tokenizers, pair)]) for pair in pairs)


def is_kept(tokens: list[int]) -> bool:
    """Whether a pair of so many tokens is one for training."""
    return min(tokens) >= 1 and max(tokens) <= MOST_TOKENS and max(tokens) <= RATIO * min(tokens)


def directions(langs: tuple[str, str]) -> tuple[str, str]:
    """The pair as it stands in the names of files, whichever way round."""
    return f"{langs[0]}-{langs[1]}", f"{langs[1]}-{langs[0]}"


def evaluation(data: Path, name: str, langs: tuple[str, str]):
    """The pairs of a development or test set, such as dev2010."""
    files = [find(data, *(f"IWSLT*.{name}.{pair}.{lang}.xml" for pair in directions(langs))) for lang in langs]
    return parallel(*files)


def main() -> int:
    parser = arguments(__doc__, max_length=175)
    sets = parser.add_argument_group("validation and test data")
    sets.add_argument(
        "--valid",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="such as dev2010 (default: every 23rd training pair)",
    )
    sets.add_argument("--test", nargs="+", action="extend", metavar="NAME", help=f"default: {' '.join(TESTS)}")
    return run(parser.parse_args(), take)


if __name__ == "__main__":
    sys.exit(main())
