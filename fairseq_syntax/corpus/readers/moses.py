"""A pair of plain files in Moses format, ``NAME.zh-en.zh`` and ``NAME.zh-en.en``, from which test sets are drawn.

This is the format of the UN Parallel Corpus (``UNv1.0.en-zh``, available in parts on the UN's site:
``cat UNv1.0.en-zh.tar.gz.* | tar -xz``), News Commentary (``news-commentary-v12.zh-en``), and the corpora of OPUS.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import compress
from pathlib import Path

import numpy as np

from fairseq_syntax.corpus.downloads import find_sides
from fairseq_syntax.corpus.gathering import worded
from fairseq_syntax.corpus.parallel_text import Row, Split, aligned, read_plain_text

HINT = "fetch the corpus by hand, and put its files here"


def read(
    data: Path,
    source: str,
    target: str,
    *,
    name: str = "UNv1.0",
    words: Mapping[str, str] | None = None,
    seed: int = 1,
    train_pairs: int | None = None,
    max_length: int | None = None,
    valid_pairs: int = 1000,
    group_width: int = 10,
    group_count: int = 0,
    group_size: int = 1000,
) -> Iterator[Split]:
    """Yield disjoint splits: train, valid, and test or test_10, test_20, … by the number of source words.

    The corpus is read once for its lengths and once for each split, which takes 18 bytes of memory per pair.

    Args:
        name: the prefix of the file names
        words: for each language, a program that puts spaces between words (:func:`.worded`)
        train_pairs: the number of random training pairs (default: all that are left)
        max_length: the maximum number of words in a training or validation source
        valid_pairs: the number of random validation pairs
        group_width: in words; group ``test_30`` with width 10 has sources of 21 to 30 words
        group_count: the number of groups; 0 for one test set of ``group_size`` pairs of any length
        group_size: the number of pairs per group, or fewer if there are not as many
    """
    langs = (source, target)
    paths = find_sides(data, [name], langs, hint=HINT)

    def rows() -> Iterator[Row]:
        return worded(aligned([*map(read_plain_text, paths)], paths), langs, words or {})

    lengths = np.frombuffer(array("i", (len(row[0].split()) for row in rows())), dtype=np.int32)
    order = np.random.default_rng(seed).permutation(len(lengths))
    in_order = lengths[order]
    splits: list[str] = []
    split_of = np.full(len(lengths), -1, dtype=np.int16)  # of each pair; -1: none yet

    def choose(split: str, wanted: np.ndarray, size: int | None) -> None:
        places = np.flatnonzero(wanted & (split_of[order] < 0))[:size]
        split_of[order[places]] = len(splits)
        splits.append(split)

    # Tests first, since long sentences are rare.
    for to in range(group_width, (group_count + 1) * group_width, group_width):
        choose(f"test_{to}", (in_order > to - group_width) & (in_order <= to), group_size)
    if not group_count:
        choose("test", in_order > 0, group_size)
    fits = (in_order > 0) & (in_order <= (max_length or np.iinfo(np.int32).max))
    choose("valid", fits, valid_pairs)
    choose("train", fits, train_pairs)
    for split in ("train", "valid", *splits[:-2]):
        yield Split(split, compress(rows(), split_of == splits.index(split)))
