"""Validation and test data out of a corpus that comes without: drawn at random, the tests in groups by length."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from fairseq_syntax.corpus.parallel_text import Row, Split


def held_out(
    rows: Callable[[], Iterable[Row]],
    *,
    seed: int = 1,
    train_pairs: int | None = None,
    max_length: int | None = None,
    valid_pairs: int = 1000,
    group_width: int = 10,
    group_count: int = 0,
    group_size: int = 1000,
) -> Iterator[Split]:
    """Training data, validation data and groups of test sentences by their source's length; no pair is in two.

    The corpus is read once to learn its lengths, and once for each split; 4 bytes a pair are held.

    Args:
        rows: gives the pairs anew; the words of a source are what stands between its spaces
        seed: of the draw
        train_pairs: drawn at random; None: all that are left
        max_length: most words of a training or validation source
        valid_pairs: drawn at random
        group_width: words; group ``test_30`` of width 10 has sources of 21 to 30 words
        group_count: how many groups; 0: one test of ``group_size`` pairs of any length
        group_size: pairs of a group; all there are, where they are fewer
    """
    lengths = np.frombuffer(array("i", (len(row[0].split()) for row in rows())), dtype=np.int32)
    order = np.random.default_rng(seed).permutation(len(lengths))
    in_order = lengths[order]
    free = np.ones(len(lengths), dtype=bool)  # places of the order that are in no split yet
    chosen: dict[str, np.ndarray] = {}

    def choose(name: str, wanted: np.ndarray, size: int | None) -> None:
        places = np.flatnonzero(wanted & free)[:size]
        free[places] = False
        chosen[name] = np.sort(order[places])

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
    for name in ("train", "valid", *(name for name in chosen if name.startswith("test"))):
        yield Split(name, _of_numbers(rows(), chosen[name]))


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
