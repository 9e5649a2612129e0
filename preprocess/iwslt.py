#!/usr/bin/env python3
"""IWSLT: TED talks, in the layout of the evaluation campaigns of 2014 to 2017.

    python preprocess/iwslt.py --data DIR --out runs/iwslt14.de-en --source-lang de --target-lang en [--download]
    python preprocess/iwslt.py --data DIR --out runs/iwslt17.en-de --valid dev2010 --test tst2010

--data holds, anywhere below it, train.tags.de-en.de with its other side, and IWSLT14.TED.dev2010.de-en.de.xml and so
on. --download fetches the German-English corpus of 2014; those of the other years have to be fetched by hand. By
default the validation and test data are those of fairseq's own recipe for IWSLT 2014: every 23rd training pair, and
dev2010, dev2012 and tst2010 to tst2012 in one.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from pipeline import Splits, arguments, run
from sources import download, find, parallel

URL = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
EVERY = 23
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
        yield "train", (pair for number, pair in enumerate(parallel(*train), 1) if number % EVERY)
        yield "valid", (pair for number, pair in enumerate(parallel(*train), 1) if number % EVERY == 0)
    yield "test", chain(*(evaluation(args.data, name, langs) for name in args.test or TESTS))


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
