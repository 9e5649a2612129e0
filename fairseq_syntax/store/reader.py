"""Reading a store: memory-mapped, by sentence number, in any process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.store import schema as layout


class _Chunk(NamedTuple):
    word_offsets: np.ndarray
    words: dict[str, np.ndarray]
    arc_offsets: np.ndarray | None
    arcs: dict[str, np.ndarray]


# Places in the batch, and the chunk that their sentences are in.
_Part = tuple[slice | np.ndarray, _Chunk]


class SyntaxStore:
    """The syntax of one side of a split.

    Opens lazily, so that it can be pickled to spawned workers and shared by forked ones.

    Args:
        path: the file

    Raises:
        SyntaxDataError: no such file, not a whole store, or one of another version
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._reader, self.metadata = _open(self.path)
        self._sentences, self._per_chunk = self.metadata["sentences"], self.metadata["chunk"]
        self._chunks: dict[int, _Chunk] = {}

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, path: str) -> None:
        self.__init__(path)  # type: ignore[misc]

    def __len__(self) -> int:
        return self._sentences

    @property
    def has_arcs(self) -> bool:
        """Whether the store holds the parser's distributions."""
        return self.metadata["arcs"] is not None

    @property
    def labels(self) -> dict[str, list[str]]:
        """Names of the label ids, by column: ``deprel``, ``upos``, ``xpos``."""
        return self.metadata["labels"]

    def fetch(self, ids: np.ndarray, *, arcs: bool = False) -> dict[str, np.ndarray | int]:
        """The flat arrays of a batch, as :mod:`fairseq_syntax.data.batch` describes them.

        Args:
            ids: [B] sentence numbers, 0-based, in the batch's order; they may repeat
            arcs: whether to fetch the distributions as well

        Raises:
            SyntaxDataError: a number out of range, or arcs asked of a store without
        """
        ids = np.asarray(ids, dtype=np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            raise SyntaxDataError(f"sentence {ids.max()} asked of a store of {len(self)}", path=self.path)
        if arcs and not self.has_arcs:
            raise SyntaxDataError(
                "the store holds no arcs", path=self.path, hint="parse with --distributions and binarize again"
            )
        parts: list[_Part]
        if 0 < len(self) <= self._per_chunk:
            # One chunk, as all small corpora have, needs no second set of indices.
            rows, parts = ids, [(slice(None), self._chunk(0))]
        else:
            chunk_ids, rows = np.divmod(ids, self._per_chunk)
            parts = [(np.flatnonzero(chunk_ids == c), self._chunk(int(c))) for c in np.unique(chunk_ids)]

        starts, n_words, places = _gather(parts, rows, lambda chunk: chunk.word_offsets)
        start_of_word = starts.repeat(n_words)
        total = len(start_of_word)
        words = np.empty((5, total), dtype=np.int32)
        n_arcs_of_word = np.empty(total if arcs else 0, dtype=np.int64)
        for chunk, target, source in places:
            for row, (name, _) in enumerate(layout.WORD_FIELDS):
                words[row, target] = chunk.words[name].take(source)
            if arcs:
                n_arcs_of_word[target] = chunk.words["arcs"].take(source)
        pieces = words[0]
        counts = np.zeros((3, len(ids)), dtype=np.int32)
        pieces_until = np.zeros(total + 1, dtype=np.int64)
        pieces.cumsum(out=pieces_until[1:])
        counts[0] = pieces_until.take(starts + n_words) - pieces_until.take(starts)
        counts[1] = n_words
        # Multiplying before narrowing: a product of two piece counts always fits, a sum of them may not.
        flat: dict[str, np.ndarray | int] = {
            "counts": counts,
            "pieces": pieces,
            "words": words[1:],
            "n_tree_arcs": int(pieces.astype(np.int64) @ pieces.take(words[1] + start_of_word)),
        }
        if arcs:
            _, counts[2], places = _gather(parts, rows, lambda chunk: chunk.arc_offsets)
            flat |= _fetch_arcs(places, start_of_word, n_arcs_of_word, pieces)
        return flat

    def _chunk(self, number: int) -> _Chunk:
        chunk = self._chunks.get(number)
        if chunk is None:
            try:
                batch = self._reader.get_batch(number)
                # Arrow does not look into the buffers by itself: a damaged length would end the process.
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as e:
                raise _damaged(self.path, e) from e
            words, arcs = batch.column("words"), batch.column("arcs") if self.has_arcs else None
            chunk = _Chunk(
                words.offsets.to_numpy(),
                _columns(words.values),
                None if arcs is None else arcs.offsets.to_numpy(),
                {} if arcs is None else _columns(arcs.values),
            )
            if wrong := _contradiction(chunk, number * self._per_chunk):
                raise _damaged(self.path, ValueError(wrong))
            self._chunks[number] = chunk
        return chunk


def _contradiction(chunk: _Chunk, first: int) -> str | None:
    """The first sentence of a chunk whose numbers cannot be true; ``first`` is the number of the chunk's first."""
    lengths = np.diff(chunk.word_offsets)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    word = np.arange(len(sentence)) - np.repeat(_starts(lengths), lengths)
    head = chunk.words["head"]
    for i in np.flatnonzero(head >= lengths[sentence])[:1]:
        where = f"sentence {first + sentence[i] + 1}"
        return f"{where}: the head of word {word[i] + 1} is word {head[i] + 1} of {lengths[sentence[i]]}"
    if chunk.arc_offsets is None:
        return None
    ends = np.concatenate([[0], np.cumsum(chunk.words["arcs"], dtype=np.int64)])[chunk.word_offsets]
    n_arcs = np.diff(chunk.arc_offsets)
    for b in np.flatnonzero(np.diff(ends) != n_arcs)[:1]:
        return f"sentence {first + b + 1}: {n_arcs[b]} arcs, but its words count {np.diff(ends)[b]}"
    dependent = np.repeat(np.arange(len(sentence)), chunk.words["arcs"])
    for a in np.flatnonzero(chunk.arcs["head"] >= np.repeat(lengths, n_arcs))[:1]:
        i = dependent[a]
        return f"sentence {first + sentence[i] + 1}: an arc of word {word[i] + 1} leaves the sentence"
    return None


def _columns(values: pa.StructArray) -> dict[str, np.ndarray]:
    return {f.name: values.field(f.name).to_numpy() for f in values.type}


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


def _gather(
    parts: list[_Part], rows: np.ndarray, offsets_of: Callable[[_Chunk], Any]
) -> tuple[np.ndarray, np.ndarray, list[tuple[_Chunk, slice | np.ndarray, np.ndarray]]]:
    """Where the words of the batch's sentences, or their arcs, come from and go to.

    Returns:
        where each sentence begins in the batch, and its length, [B] int64; and per chunk the places in the batch and
        those in the chunk
    """
    begin, lengths = np.empty((2, len(rows)), dtype=np.int64)
    for at, chunk in parts:
        offsets = offsets_of(chunk)
        begin[at] = offsets.take(rows[at])
        lengths[at] = offsets.take(rows[at] + 1) - begin[at]
    starts = _starts(lengths)
    source = _runs(begin, lengths)
    targets = [at if isinstance(at, slice) else _runs(starts[at], lengths[at]) for at, _ in parts]
    return starts, lengths, [(chunk, target, source[target]) for target, (_, chunk) in zip(targets, parts)]


def _fetch_arcs(places, start_of_word, n_arcs_of_word, pieces) -> dict[str, np.ndarray | int]:
    word = np.arange(len(pieces)).repeat(n_arcs_of_word)
    arcs = np.empty((3, len(word)), dtype=np.int32)
    probs = np.empty(len(word), dtype=np.float32)
    for chunk, target, source in places:
        arcs[1, target] = chunk.arcs["head"].take(source)
        arcs[2, target] = chunk.arcs["label"].take(source)
        probs[target] = chunk.arcs["prob"].take(source)
    probs *= np.float32(1 / layout.PROB_SCALE)
    first_word = start_of_word.take(word)
    arcs[0] = word - first_word
    total_pieces = int(pieces.take(word).astype(np.int64) @ pieces.take(arcs[1] + first_word))
    return {"arcs": arcs, "probs": probs, "n_piece_arcs": total_pieces}


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Indices of runs of ``lengths`` that begin at ``starts``, one run after the other."""
    return np.repeat(starts - _starts(lengths), lengths) + np.arange(lengths.sum())


def _damaged(path: str, error: Exception) -> SyntaxDataError:
    return SyntaxDataError(f"not a whole syntax store: {error}", path=path, hint="run fairseq-syntax binarize again")


def _open(path: str) -> tuple[pa.ipc.RecordBatchFileReader, dict[str, Any]]:
    if not os.path.exists(path):
        raise SyntaxDataError(
            "there is no syntax beside this token dataset", path=path, hint="run fairseq-syntax binarize"
        )
    try:
        reader = pa.ipc.open_file(pa.memory_map(path))
        raw = (reader.schema.metadata or {}).get(layout.METADATA_KEY)
        metadata = None if raw is None else json.loads(raw)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise _damaged(path, e) from e
    if not isinstance(metadata, dict) or "version" not in metadata:
        raise SyntaxDataError("an Arrow file, but not a syntax store", path=path)
    if metadata["version"] != layout.VERSION:
        raise SyntaxDataError(
            f"a store of version {metadata['version']}; this package reads version {layout.VERSION}",
            path=path,
            hint="run fairseq-syntax binarize again",
        )
    if missing := layout.OWN_METADATA - metadata.keys():
        raise _damaged(path, ValueError(f"its metadata lack {', '.join(sorted(missing))}"))
    sentences, chunk = metadata["sentences"], metadata["chunk"]
    if not (isinstance(sentences, int) and isinstance(chunk, int) and chunk > 0):
        raise _damaged(path, ValueError("its metadata have no counts"))
    if reader.num_record_batches != -(-sentences // chunk):
        raise _damaged(path, ValueError("it has lost record batches"))
    with_arcs = metadata["arcs"] is not None
    if not reader.schema.equals(layout.schema(with_arcs)):
        raise SyntaxDataError("the store's columns are not those of its version", path=path)
    return reader, metadata
