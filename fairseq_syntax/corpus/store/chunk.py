"""Record batches of a store: packing of sentences, changes of label ids, access to buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fairseq_syntax.corpus.store import store_format
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import checksum


def pack_chunk(sentences: Sequence[StoredSentence], *, with_arcs: bool, first: int = 0) -> pa.RecordBatch:
    """Pack sentences into a record batch with the store's schema.

    Raises:
        SyntaxDataError: a number exceeds the format's range, a head is outside its line, or arcs are missing; it counts
            the sentences from ``first``
    """
    n_words = np.fromiter(map(len, (s.pieces for s in sentences)), np.int64, len(sentences))
    starts = np.cumsum(n_words) - n_words
    columns = _word_columns(sentences, n_words, starts, first)
    flags = np.zeros(len(columns["head"]), dtype=np.int64)
    flags[starts[n_words > 0]] = store_format.FIRST_OF_SENTENCE
    flags[[starts[b] + w for b, s in enumerate(sentences) for w in s.sentences]] = store_format.FIRST_OF_SENTENCE
    words = np.empty((len(flags), 4), dtype=np.uint16)
    words[:, store_format.HEAD] = columns["head"]
    words[:, store_format.PIECES] = columns["pieces"] | flags
    words[:, store_format.XPOS] = columns["xpos"]
    words[:, store_format.LABELS] = store_format.join_labels(columns["deprel"], columns["upos"])

    pieces = columns["pieces"]
    pieces_of_head = pieces[columns["head"] + np.repeat(starts, n_words)]
    arrays = [
        _lists(n_words, words),
        _per_sentence(pieces, starts, n_words, first),
        _per_sentence(pieces * pieces_of_head, starts, n_words, first),
    ]
    if with_arcs:
        arrays += _pack_arcs(sentences, starts, n_words, pieces, first)
    return pa.record_batch(arrays, schema=store_format.schema(with_arcs))


def _word_columns(
    sentences: Sequence[StoredSentence], n_words: np.ndarray, starts: np.ndarray, first: int
) -> dict[str, np.ndarray]:
    """The numbers of all words by column, [W] int64, checked, since NumPy would store them modulo 2^16."""
    _check_range("number of words", n_words, 0, store_format.LIMIT, np.arange(len(n_words)), first)
    columns = {}
    for name, limit in store_format.WORD_LIMITS.items():
        numbers = chain.from_iterable(map(attrgetter(name), sentences))
        columns[name] = np.fromiter(numbers, np.int64, int(n_words.sum()))
        _check_range(name, columns[name], 1 if name == "pieces" else 0, limit, starts, first)
    _check_range("head", columns["head"], 0, np.repeat(n_words, n_words) - 1, starts, first)
    return columns


def _pack_arcs(
    sentences: Sequence[StoredSentence], starts: np.ndarray, n_words: np.ndarray, pieces: np.ndarray, first: int
) -> list[pa.Array]:
    """The columns ``arcs`` and ``piece_arcs``; see :func:`pack_chunk`."""
    runs = []
    for b, sentence in enumerate(sentences):
        if sentence.arcs is None:
            raise SyntaxDataError(f"sentence {first + b + 1} has no arcs, others have")
        runs.append(sorted(sentence.arcs))
    n_arcs = np.fromiter(map(len, runs), np.int64, len(runs))
    total = int(n_arcs.sum())
    every = chain.from_iterable(chain.from_iterable(runs))  # ids are exact in float64
    numbers = np.fromiter(every, np.float64, 4 * total).reshape(total, 4)
    dependent, head, label = (numbers[:, i].astype(np.int64) for i in range(3))
    arc_starts = np.cumsum(n_arcs) - n_arcs
    last = np.repeat(n_words, n_arcs) - 1
    for name, ids, most in (("dependent", dependent, last), ("head", head, last), ("label", label, store_format.LIMIT)):
        _check_range(f"an arc's {name}", ids, 0, most, arc_starts, first)
    arcs = np.empty((total, 4), dtype=np.uint16)
    arcs[:, store_format.ARC_DEPENDENT] = dependent
    arcs[:, store_format.ARC_HEAD] = head
    arcs[:, store_format.ARC_LABEL] = label
    arcs[:, store_format.ARC_PROB] = np.rint(numbers[:, 3] * store_format.PROB_SCALE).clip(0, store_format.PROB_SCALE)
    offset = np.repeat(starts, n_arcs)
    expanded = pieces[dependent + offset] * pieces[head + offset] if total else np.zeros(0, dtype=np.int64)
    return [_lists(n_arcs, arcs), _per_sentence(expanded, arc_starts, n_arcs, first)]


def _check_range(
    name: str, numbers: np.ndarray, least: int, most: int | np.ndarray, starts: np.ndarray, first: int
) -> None:
    """Raise SyntaxDataError for the first of the numbers [N] of words or arcs that is not from ``least`` to ``most``.

    Args:
        most: for all numbers, or for each [N]
        starts: the index of each sentence's first number; the error counts the sentences from ``first``
    """
    for i in np.flatnonzero((numbers < least) | (numbers > most))[:1]:
        b = int(np.searchsorted(starts, i, side="right")) - 1
        most = np.broadcast_to(most, numbers.shape)[i]
        raise SyntaxDataError(f"sentence {first + b + 1}: {name} {numbers[i]} is not from {least} to {most}")


def _lists(counts: np.ndarray, numbers: np.ndarray) -> pa.ListArray:
    """Make a list column from items [N, 4] uint16 and the lengths ``counts`` [B] of the lists."""
    kind = store_format.schema(False).field("words").type
    values = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), type=kind.value_type)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, type=kind)


def _per_sentence(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, first: int) -> pa.Array:
    """The sum of the values in each sentence, [B] uint32. Raises SyntaxDataError on overflow."""
    # By prefix sums, since np.add.reduceat returns the next value instead of 0 for an empty sentence.
    until = np.concatenate([[0], np.cumsum(values)])
    sums = until[starts + lengths] - until[starts]
    _check_range("number of pieces, or of arcs between them,", sums, 0, (1 << 32) - 1, np.arange(len(sums)), first)
    return pa.array(sums, pa.uint32())


def list_numbers(batch: pa.RecordBatch, column: str) -> np.ndarray:
    """The items of a list column (words or arcs), [N, 4] uint16."""
    return np.frombuffer(Buffers.of(batch).values[column], dtype="<u2").reshape(-1, 4)


def list_lengths(batch: pa.RecordBatch, column: str) -> np.ndarray:
    """The lengths of the lists in a column (words or arcs), [B] int64."""
    return np.diff(np.frombuffer(Buffers.of(batch).offsets[column], dtype="<i4")).astype(np.int64)


def with_label_ids(batch: pa.RecordBatch, tables: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """The batch with other label ids: ``tables`` has the new id of each id of ``deprel``, ``upos`` and ``xpos``."""
    if all((table == np.arange(len(table))).all() for table in tables.values()):
        return batch
    words = list_numbers(batch, "words").copy()
    old_deprel, old_upos = store_format.split_labels(words[:, store_format.LABELS])
    old = {"deprel": old_deprel, "upos": old_upos, "xpos": words[:, store_format.XPOS]}
    new = {name: tables[name][ids] for name, ids in old.items()}
    for name, ids in new.items():
        if ids.max(initial=0) > store_format.WORD_LIMITS[name]:
            raise SyntaxDataError(
                f"{name} {ids.max()} is too large for the store ({store_format.WORD_LIMITS[name]} at most)"
            )
    words[:, store_format.LABELS] = store_format.join_labels(new["deprel"], new["upos"])
    words[:, store_format.XPOS] = new["xpos"]
    columns = dict(zip(batch.schema.names, batch.columns))
    columns["words"] = _lists(list_lengths(batch, "words"), words)
    if "arcs" in columns:
        arcs, n_arcs = list_numbers(batch, "arcs").copy(), list_lengths(batch, "arcs")
        arcs[:, store_format.ARC_LABEL] = tables["deprel"][arcs[:, store_format.ARC_LABEL]]
        # Sorted as by :func:`pack_chunk`, since new ids change the order of arcs.
        keys = [arcs[:, i] for i in (store_format.ARC_LABEL, store_format.ARC_HEAD, store_format.ARC_DEPENDENT)]
        columns["arcs"] = _lists(n_arcs, arcs[np.lexsort([*keys, np.arange(len(n_arcs)).repeat(n_arcs)])])
    return pa.record_batch(list(columns.values()), schema=batch.schema)


def _beginning(buffer: pa.Buffer | None, size: int, column: str) -> pa.Buffer:
    """The first bytes of a buffer, which Arrow may pad. Raises ValueError if it is too short."""
    buffer = pa.py_buffer(b"") if buffer is None else buffer
    if not 0 <= size <= buffer.size:
        raise ValueError(f"the column {column} is cut off")
    return buffer.slice(0, size)


class Buffers(NamedTuple):
    """The buffers of a record batch that contain numbers: one per column, and the offsets of lists."""

    offsets: dict[str, pa.Buffer]
    values: dict[str, pa.Buffer]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Buffers:
        """The buffers of a batch. Raises ValueError if they are not those of a store, or too short for the rows."""
        offsets, values = {}, {}
        for name, column in zip(batch.schema.names, batch.columns):
            # Arrow's layout: for each level a bitmap of what is null, of which a store has none,
            # and numbers.
            parts = column.buffers()
            if pa.types.is_list(column.type):
                offsets[name] = _beginning(parts[1], 4 * (batch.num_rows + 1), name)
                ends = np.frombuffer(offsets[name], dtype="<i4")
                values[name] = _beginning(parts[-1], 8 * int(ends[-1]), name)
                bitmaps, first = [parts[0], *parts[2:-1]], int(ends[0])
            else:
                values[name] = _beginning(parts[1], 4 * batch.num_rows, name)
                bitmaps, first = parts[:1], 0
            nullable = any(bitmap is not None for bitmap in bitmaps)
            if nullable or column.offset or column.null_count or first:
                raise ValueError(f"the column {name} is not one that a store has")
        return cls(offsets, values)

    def checksum(self) -> str:
        """The XXH3 checksum (64 bits, hexadecimal) of all buffers, in the order of columns."""
        columns = ((self.offsets.get(name), values) for name, values in self.values.items())
        return checksum(*(memoryview(buffer) for column in columns for buffer in column if buffer is not None))
