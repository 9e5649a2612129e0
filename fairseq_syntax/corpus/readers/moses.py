"""A pair of plain files in Moses format, ``NAME.zh-en.zh`` and ``NAME.zh-en.en``, from which test sets are drawn.

This is the format of the UN Parallel Corpus (``UNv1.0.en-zh``, available in parts on the UN's site:
``cat UNv1.0.en-zh.tar.gz.* | tar -xz``), News Commentary (``news-commentary-v12.zh-en``), and the corpora of OPUS.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fairseq_syntax.corpus.downloads import find_sides
from fairseq_syntax.corpus.gathering import worded
from fairseq_syntax.corpus.parallel_text import Row, aligned, read_text
from fairseq_syntax.corpus.readers import Split

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

    The corpus is read once for its lengths and once for each split, which takes 4 bytes of memory per pair.

    Args:
        name: the prefix of the file names
        words: for each language, a program that puts spaces between words (:mod:`.word_segmentation`)
        seed: the random seed
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
        return worded(aligned([*map(read_text, paths)], paths), langs, words or {})

    lengths = np.frombuffer(array("i", (len(row[0].split()) for row in rows())), dtype=np.int32)
    order = np.random.default_rng(seed).permutation(len(lengths))
    in_order = lengths[order]
    free = np.ones(len(lengths), dtype=bool)  # positions in the order that belong to no split yet
    chosen: dict[str, np.ndarray] = {}

    def choose(split: str, wanted: np.ndarray, size: int | None) -> None:
        places = np.flatnonzero(wanted & free)[:size]
        free[places] = False
        chosen[split] = np.sort(order[places])

    # Tests first, since long sentences are rare.
    if group_count:
        for group in range(1, group_count + 1):
            over, to = (group - 1) * group_width, group * group_width
            choose(f"test_{to}", (in_order > over) & (in_order <= to), group_size)
    else:
        choose("test", in_order > 0, group_size)
    fits = (in_order > 0) & (in_order <= (max_length or np.iinfo(np.int32).max))
    choose("valid", fits, valid_pairs)
    choose("train", fits, train_pairs)
    tests = [split for split in chosen if split.startswith("test")]
    for split in ("train", "valid", *tests):
        yield Split(split, _of_numbers(rows(), chosen[split]))


def _of_numbers(rows: Iterable[Row], numbers: np.ndarray) -> Iterator[Row]:
    """The rows with these numbers, which are ascending."""
    wanted = iter(numbers.tolist())
    number = next(wanted, None)
    for n, row in enumerate(rows):
        if number is None:
            return
        if n == number:
            yield row
            number = next(wanted, None)
