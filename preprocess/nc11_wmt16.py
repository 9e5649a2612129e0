#!/usr/bin/env python3
"""News Commentary 11, or all of WMT 2016, English and German, as in the paper on PASCAL.

    python preprocess/nc11_wmt16.py --data DIR --output runs/nc11.en-de --joint [--download]
    python preprocess/nc11_wmt16.py --data DIR --output runs/wmt16.en-de --corpora wmt16 --vocab-size 32000 --joint

--data holds, anywhere below it, news-commentary-v11.de-en.de with its other side (for WMT 2016 also europarl-v7.de-en
and commoncrawl.de-en), and newstest2015 and newstest2016 as .sgm or plain text. Pairs of more than 80 tokens are left
out, and with --identify-languages those in other languages. Validation is on newstest2015, the test is newstest2016.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from pipeline import Splits, arguments, run
from sources import download, find, parallel

SITE = "https://data.statmt.org"
CORPORA = {
    "nc11": {"news-commentary-v11": f"{SITE}/wmt16/translation-task/training-parallel-nc-v11.tgz"},
    "wmt16": {
        "europarl-v7": "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "commoncrawl": "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "news-commentary-v11": f"{SITE}/wmt16/translation-task/training-parallel-nc-v11.tgz",
    },
}
TESTS = [f"{SITE}/wmt16/translation-task/{name}.tgz" for name in ("dev", "test")]


def take(args: argparse.Namespace) -> Splits:
    """The pairs of each split."""
    corpora = CORPORA[args.corpora]
    if args.download:
        download([*corpora.values(), *TESTS], args.data)
    langs = (args.source_lang, args.target_lang)
    # The training files name German first whichever way is translated.
    train = [[find(args.data, f"{name}.de-en.{lang}") for lang in langs] for name in corpora]
    yield "train", chain(*(parallel(*files) for files in train))
    yield "valid", newstest(args.data, 2015, langs)
    yield "test", newstest(args.data, 2016, langs)


def newstest(data: Path, year: int, langs: tuple[str, str]):
    """The pairs of a test set: translated in this direction, where the files tell."""
    pair = "".join(langs)
    sides = zip(langs, ("src", "ref"))
    files = [
        find(
            data,
            f"newstest{year}-{pair}-{side}.{lang}.sgm",
            f"newstest{year}-{side}.{lang}.sgm",
            f"newstest{year}.{lang}",
        )
        for lang, side in sides
    ]
    return parallel(*files)


def main() -> int:
    parser = arguments(__doc__, max_length=80, vocab_size=16000)
    parser.add_argument("--corpora", choices=tuple(CORPORA), default="nc11", help="training data (default: nc11)")
    return run(parser.parse_args(), take)


if __name__ == "__main__":
    sys.exit(main())
