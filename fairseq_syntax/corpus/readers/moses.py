"""One pair of plain files in Moses' manner, ``NAME.zh-en.zh`` and ``NAME.zh-en.en``, from which the tests are drawn.

So come the UN Parallel Corpus (``UNv1.0.en-zh``; to be fetched in parts from the UN's site and put together:
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
    """The splits: train, valid, and test or test_10, test_20, … by the words of the source; no pair is in two.

    The corpus is read once to learn its lengths, and once for each split; 4 bytes a pair are held.

    Args:
        name: what the files' names begin with
        words: by language, a program that puts spaces between words (:mod:`.word_segmentation`)
        seed: of the draw
        train_pairs: drawn at random; None: all that are left
        max_length: most words of a training or validation source
        valid_pairs: drawn at random
        group_width: words; group ``test_30`` of width 10 has sources of 21 to 30 words
        group_count: how many groups; 0: one test of ``group_size`` pairs of any length
        group_size: pairs of a group; all there are, where they are fewer
    """
    langs = (source, target)
    paths = find_sides(data, [name], langs, hint=HINT)

    def rows() -> Iterator[Row]:
        return worded(aligned([*map(read_text, paths)], paths), langs, words or {})

    lengths = np.frombuffer(array("i", (len(row[0].split()) for row in rows())), dtype=np.int32)
    order = np.random.default_rng(seed).permutation(len(lengths))
    in_order = lengths[order]
    free = np.ones(len(lengths), dtype=bool)  # places of the order that are in no split yet
    chosen: dict[str, np.ndarray] = {}

    def choose(split: str, wanted: np.ndarray, size: int | None) -> None:
        places = np.flatnonzero(wanted & free)[:size]
        free[places] = False
        chosen[split] = np.sort(order[places])

    # Tests first: long sentences are rare.
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
    """The rows of these numbers, in ascending order."""
    wanted = iter(numbers.tolist())
    number = next(wanted, None)
    for n, row in enumerate(rows):
        if number is None:
            return
        if n == number:
            yield row
            number = next(wanted, None)
