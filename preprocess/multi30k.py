#!/usr/bin/env python3
"""Multi30k, task 1: 29,000 image captions, English and German (or French).

    python preprocess/multi30k.py --data DIR --output runs/multi30k [--download]

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

# SHA-256 of the files as they were published in December 2017; other languages go unchecked.
CHECKSUMS = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
}


def take(args: argparse.Namespace) -> Splits:
    """The pairs of each split."""
    langs = (args.source_lang, args.target_lang)
    if args.download:
        urls = [URL.format(split=split, lang=lang) for split in SPLITS.values() for lang in langs]
        download(urls, args.data, CHECKSUMS)
    for name, split in SPLITS.items():
        yield name, parallel(*(find(args.data, f"{split}.{lang}") for lang in langs))


if __name__ == "__main__":
    sys.exit(run(arguments(__doc__, max_length=100).parse_args(), take))
