"""Memory-mapped reading of a store by sentence number, in any process."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from fairseq_syntax.corpus.store import store_format
from fairseq_syntax.corpus.store.chunk import Buffers
from fairseq_syntax.corpus.store.flat import FlatArcs, FlatSyntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.manifest import unsealed

__all__ = ["SyntaxStore"]

_AGAIN = "make it again: run fairseq-syntax binarize, or fairseq-preprocess"


class SyntaxStore:
    """The syntax of one side of a split.

    The file is a single memory map with a table of the offsets of all columns of all chunks, so a batch is gathered by
    the same few operations from one chunk or thousands. A chunk's checksum is verified on first use.

    The file is opened lazily, so the object can be pickled to spawned workers and shared by forked ones.

    Args:
        path: the file

    Raises:
        SyntaxDataError: the file does not exist, is not a complete store, or has another version
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._mapped, self._file, self._reader, self.metadata = _open(self.path)
        self._sentences, self._per_chunk = self.metadata["sentences"], self.metadata["chunk"]
        self._verified = np.zeros(self._reader.num_record_batches, dtype=bool)
        # The offsets of each chunk's columns: in units of 4 bytes for 32-bit numbers, of 8 bytes for words and arcs.
        columns = ("words.offsets", "arcs.offsets", *self._reader.schema.names)
        self._begin = {name: np.zeros(len(self._verified), dtype=np.int64) for name in columns}
        size = self._file.size
        self._words32 = np.frombuffer(self._file, dtype="<i4", count=size // 4)
        self._words64 = np.frombuffer(self._file, dtype="<u8", count=size // 8)

    def __reduce__(self) -> tuple[type[SyntaxStore], tuple[str]]:
        return type(self), (self.path,)

    def __len__(self) -> int:
        return self._sentences

    @property
    def has_arcs(self) -> bool:
        """Whether the store contains the parser's distributions."""
        return self.metadata["arcs"] is not None

    def check_arcs(self) -> None:
        """Raises SyntaxDataError if the store contains no distributions."""
        if not self.has_arcs:
            hint = "parse with --distributions and binarize again"
            raise SyntaxDataError("the store contains no arcs", path=self.path, hint=hint)

    @property
    def labels(self) -> dict[str, list[str]]:
        """The names of label ids by column: ``deprel``, ``upos``, ``xpos``."""
        return self.metadata["labels"]

    def fetch(self, ids: np.ndarray, *, arcs: bool = False) -> FlatSyntax[np.ndarray]:
        """Fetch the syntax of a batch of sentences.

        Args:
            ids: [B] 0-based sentence numbers in the batch's order, which may repeat
            arcs: whether to fetch the distributions as well

        Raises:
            SyntaxDataError: a number is out of range, the store has no arcs, or a chunk is damaged
        """
        if arcs:
            self.check_arcs()
        chunk, row = self._locate(ids)
        n_words, numbers = self._lists("words", chunk, row)
        deprel, upos = store_format.split_labels(numbers[:, store_format.LABELS])
        flat = FlatSyntax(
            n_pieces=self._per_sentence("pieces", chunk, row).astype(np.int32),
            n_words=n_words,
            pieces=(numbers[:, store_format.PIECES] & (store_format.FIRST_OF_SENTENCE - 1)).astype(np.int32),
            head=numbers[:, store_format.HEAD].astype(np.int32),
            deprel=deprel.astype(np.int32),
            upos=upos.astype(np.int32),
            xpos=numbers[:, store_format.XPOS].astype(np.int32),
            n_tree_arcs=int(self._per_sentence("tree_arcs", chunk, row).sum(dtype=np.int64)),
        )
        if arcs:
            n_arcs, numbers = self._lists("arcs", chunk, row)
            flat.arcs = FlatArcs(
                n_arcs=n_arcs,
                dependent=numbers[:, store_format.ARC_DEPENDENT].astype(np.int32),
                head=numbers[:, store_format.ARC_HEAD].astype(np.int32),
                label=numbers[:, store_format.ARC_LABEL].astype(np.int32),
                prob=numbers[:, store_format.ARC_PROB] * np.float32(1 / store_format.PROB_SCALE),
                n_piece_arcs=int(self._per_sentence("piece_arcs", chunk, row).sum(dtype=np.int64)),
            )
        return flat

    def spans(self, sentence: int) -> list[tuple[int, int]]:
        """The word spans ``[start, end)`` of the sentences in a line, numbered as in :meth:`fetch`."""
        _, numbers = self._lists("words", *self._locate(np.array([sentence])))
        starts = np.flatnonzero(numbers[:, store_format.PIECES] & store_format.FIRST_OF_SENTENCE).tolist()
        return list(pairwise([*starts, len(numbers)]))

    def verify(self) -> None:
        """Verify the checksums of all chunks. Raises SyntaxDataError if one is damaged."""
        for number in np.flatnonzero(~self._verified):
            self._verify(int(number))
            self.release()

    def check_numbers(self) -> None:
        """Check the ranges of all numbers, in case another program wrote the store with valid checksums."""
        for first in range(0, len(self), self._per_chunk):
            ids = np.arange(first, min(first + self._per_chunk, len(self)))
            for name, wrong, sentence in self._checks(ids):
                if wrong.any():
                    line = ids[sentence[wrong.argmax()]] + 1
                    raise _damaged(self.path, f"sentence {line}: the {name} is out of range")
            self.release()

    def _checks(self, ids: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Checks of sentences, each of which assumes those before it.

        Yields:
            the name of the numbers, whether each is wrong, and the place in ``ids`` of the sentence of each
        """
        flat, where = self.fetch(ids, arcs=self.has_arcs), self._locate(ids)
        every = np.arange(len(ids))
        of_word = every.repeat(flat.n_words)
        first_word = flat.n_words.cumsum() - flat.n_words

        def total(sentence: np.ndarray, numbers: np.ndarray) -> np.ndarray:
            return np.bincount(sentence, numbers, len(ids))

        yield "number of pieces", total(of_word, flat.pieces) != flat.n_pieces, every
        yield "number of pieces of a word", flat.pieces == 0, of_word
        yield "head", flat.head >= flat.n_words[of_word], of_word
        for name, names in self.labels.items():
            yield name, getattr(flat, name) >= len(names), of_word
        # A device allocates memory by the numbers of arcs between pieces.
        expanded = flat.pieces * flat.pieces[flat.head + first_word[of_word]]
        yield "number of tree arcs", total(of_word, expanded) != self._per_sentence("tree_arcs", *where), every
        if (arcs := flat.arcs) is not None:
            of_arc = every.repeat(arcs.n_arcs)
            yield "arc", np.maximum(arcs.dependent, arcs.head) >= flat.n_words[of_arc], of_arc
            yield "label of an arc", arcs.label >= len(self.labels["deprel"]), of_arc
            dependent, head = (flat.pieces[word + first_word[of_arc]] for word in (arcs.dependent, arcs.head))
            counted = self._per_sentence("piece_arcs", *where)
            yield "number of arcs between pieces", total(of_arc, dependent * head) != counted, every

    def release(self) -> None:
        """Release the memory of pages read so far, so that a pass over the whole file needs little memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def _locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The chunk and row of sentences, [B] int64 each; verifies the chunks."""
        ids = np.asarray(ids, dtype=np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise SyntaxDataError(f"sentence {wrong} requested from a store of {len(self)}", path=self.path)
        chunk, row = np.divmod(ids, self._per_chunk)  # all chunks except the last have equally many rows
        verified = self._verified.take(chunk)
        if not verified.all():
            for number in np.unique(chunk[~verified]):
                self._verify(int(number))
        return chunk, row

    def _per_sentence(self, column: str, chunk: np.ndarray, row: np.ndarray) -> np.ndarray:
        return self._words32.take(self._begin[column].take(chunk) + row).view("<u4")

    def _lists(self, column: str, chunk: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lengths of the sentences' lists, [B] int32, and their concatenated items, [N, 4] uint16."""
        at = self._begin[f"{column}.offsets"].take(chunk) + row
        begin = self._words32.take(at)
        lengths = self._words32.take(at + 1) - begin
        until = lengths.cumsum(dtype=np.int64)
        # The positions of all items at once, since each list is a range that starts at an offset of its chunk.
        places = np.arange(until[-1] if len(until) else 0)
        places += (self._begin[column].take(chunk) + begin - until + lengths).repeat(lengths)
        return lengths, self._words64.take(places).view("<u2").reshape(-1, 4)

    def _verify(self, number: int) -> None:
        """Locate the columns of a chunk, and verify its checksum."""
        first = number * self._per_chunk
        where = f"its sentences {first + 1} to {min(first + self._per_chunk, len(self))}"
        try:
            batch = self._reader.get_batch(number)
            if batch.num_rows != min(self._per_chunk, len(self) - first):
                raise ValueError("they are not as many as they should be")
            buffers = Buffers.of(batch)
        except (pa.ArrowException, OSError, ValueError) as e:
            raise _damaged(self.path, f"{where}: {e}") from e
        if buffers.checksum() != self.metadata["checksums"][number]:
            raise _damaged(self.path, f"{where}: the checksum is another")
        for columns, ending, size in ((buffers.offsets, ".offsets", 4), (buffers.values, "", 0)):
            for name, buffer in columns.items():
                unit = size or (8 if name in buffers.offsets else 4)
                begin = buffer.address - self._file.address
                if buffer.size and (begin % unit or not 0 <= begin <= self._file.size - buffer.size):
                    raise _damaged(self.path, f"{where}: the column {name} lies outside the file")
                self._begin[name + ending][number] = begin // unit
        self._verified[number] = True


def _damaged(path: str, what: object) -> SyntaxDataError:
    return SyntaxDataError(f"not a complete syntax store: {what}", path=path, hint=_AGAIN)


def _open(path: str) -> tuple[mmap.mmap, pa.Buffer, pa.ipc.RecordBatchFileReader, dict[str, Any]]:
    if not os.path.exists(path):
        hint = "run fairseq-syntax binarize"
        raise SyntaxDataError("there is no syntax beside this token dataset", path=path, hint=hint)
    try:
        with open(path, "rb") as source:
            mapped = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        file = pa.py_buffer(mapped)
        reader = pa.ipc.open_file(file)
        raw = (reader.schema.metadata or {}).get(store_format.METADATA_KEY)
        metadata = None if raw is None else json.loads(raw)
        batches = reader.num_record_batches
    except (pa.ArrowException, OSError, ValueError) as e:
        raise _damaged(path, e) from e
    if not isinstance(metadata, dict) or "version" not in metadata:
        raise SyntaxDataError("an Arrow file, but not a syntax store", path=path, hint=_AGAIN)
    if metadata["version"] != store_format.VERSION:
        message = f"a store of version {metadata['version']}; this package reads version {store_format.VERSION}"
        raise SyntaxDataError(message, path=path, hint=_AGAIN)
    metadata = unsealed(metadata, path, _AGAIN)
    sentences, chunk, with_arcs = metadata["sentences"], metadata["chunk"], metadata["arcs"] is not None
    if batches != -(-sentences // chunk) or len(metadata["checksums"]) != batches:
        raise _damaged(path, "it has lost record batches")
    if not reader.schema.equals(store_format.schema(with_arcs)):
        raise SyntaxDataError("the store's columns are not those of its version", path=path, hint=_AGAIN)
    return mapped, file, reader, metadata
