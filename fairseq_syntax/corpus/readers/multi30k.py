"""Multi30k, task 1: 29,000 image captions in English with German, French or Czech; for non-commercial research.

Files: ``train.en``, ``val.en``, ``test_2016_flickr.en``, ``test_2017_flickr.en`` and those of the other language, plain
or compressed; ``download: true`` downloads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_syntax.corpus.downloads import fetch_all, find
from fairseq_syntax.corpus.parallel_text import parallel
from fairseq_syntax.corpus.readers import Split

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{split}.{lang}.gz"
# Checksums of the files published in December 2017; other languages are not checked.
CHECKSUMS = {
    "train.de.gz": "sha256:726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "sha256:d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "sha256:f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "sha256:14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "sha256:9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "sha256:611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2017_flickr.de.gz": "sha256:a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en.gz": "sha256:76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
}
TESTS = ("test_2016_flickr", "test_2017_flickr")


def read(data: Path, source: str, target: str, *, tests: Sequence[str] = TESTS) -> Iterator[Split]:
    """The splits.

    Args:
        tests: file names, which are also the names of the splits
    """
    for split, name in (("train", "train"), ("valid", "val"), *zip(tests, tests)):
        yield Split(split, parallel(*(find(data, f"{name}.{lang}") for lang in (source, target))))


def download(data: Path, source: str, target: str, *, tests: Sequence[str] = TESTS) -> None:
    """Download missing files."""
    names = ["train", "val", *tests]
    urls = [URL.format(split=name, lang=lang) for name in names for lang in (source, target)]
    fetch_all(urls, data, CHECKSUMS)
