"""ASPEC-JE: scientific abstracts, English and Japanese, of the Workshop on Asian Translation.

Available on request from the ASPEC site of JST and NICT (free for research, after signing its terms). The original
files: ``train/train-1.txt`` to ``train-3.txt``, ``dev/dev.txt``, ``devtest/devtest.txt``, ``test/test.txt``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from fairseq_syntax.corpus.downloads import find
from fairseq_syntax.corpus.parallel_text import Row, read_aspec
from fairseq_syntax.corpus.readers import Split
from fairseq_syntax.errors import SyntaxDataError

HINT = "ASPEC is to be asked for at its site, and its folder ASPEC-JE put here"


def read(data: Path, source: str, target: str, *, train_pairs: int | None = None) -> Iterator[Split]:
    """Yield the splits; training pairs are sorted by the quality of their alignment.

    Args:
        train_pairs: the number of best training pairs to use, such as 1.5 million of 3,008,500
    """
    if {source, target} != {"ja", "en"}:
        raise SyntaxDataError(f"ASPEC has Japanese and English, not {source} and {target}")

    def rows(*names: str) -> Iterator[Row]:
        paths = [find(data, f"{name}.txt", hint=HINT) for name in names]
        lines = chain(*(read_aspec(path) for path in paths))
        return ((line[source], line[target]) for line in lines)

    yield Split("train", islice(rows("train-1", "train-2", "train-3"), train_pairs))
    yield Split("valid", rows("dev"))
    yield Split("test", rows("test"))
