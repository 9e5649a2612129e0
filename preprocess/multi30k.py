#!/usr/bin/env python3
"""Multi30k, task 1: 29,000 image captions, English and German (or French).

    python preprocess/multi30k.py --data DIR --out runs/multi30k [--download]

--data holds train.en, val.en, test_2016_flickr.en, test_2017_flickr.en and the other language's, plain or .gz. The
tests are test (2016) and test1 (2017). The corpus is for non-commercial research.
"""

from __future__ import annotations

import argparse
import sys

from pipeline import Splits, arguments, run
from sources import download, find, parallel

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{split}.{lang}.gz"
SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr", "test1": "test_2017_flickr"}


def take(args: argparse.Namespace) -> Splits:
    """The pairs of each split."""
    langs = (args.source_lang, args.target_lang)
    if args.download:
        download([URL.format(split=split, lang=lang) for split in SPLITS.values() for lang in langs], args.data)
    for name, split in SPLITS.items():
        yield name, parallel(*(find(args.data, f"{split}.{lang}") for lang in langs))


if __name__ == "__main__":
    sys.exit(run(arguments(__doc__, max_length=100).parse_args(), take))
