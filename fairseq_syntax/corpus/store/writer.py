"""Atomic writing of a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from fairseq_syntax.corpus.store import store_format
from fairseq_syntax.corpus.store.chunk import Buffers, pack_chunk
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.runtime.files import StrPath, as_data_error, atomic_path, errors_in
from fairseq_syntax.runtime.manifest import sealed


def write_store(
    path: StrPath,
    batches: Callable[[], Iterator[pa.RecordBatch]],
    metadata: Mapping[str, Any],
    *,
    with_arcs: bool,
    chunk: int,
) -> None:
    """Write a store of record batches, which are iterated twice, because their counts precede them.

    Args:
        batches: returns the record batches at each call; all except the last have ``chunk`` rows
        metadata: values to add to :attr:`SyntaxStore.metadata` (JSON)
    """
    checksums: list[str] = []
    sizes = [np.zeros(0, dtype=np.int32)]
    words = arcs = 0
    for batch in batches():
        buffers = Buffers.of(batch)
        checksums.append(buffers.checksum())
        sizes.append(np.frombuffer(buffers.values["pieces"], dtype="<u4").astype(np.int32) + 1)
        words += buffers.values["words"].size // 8
        arcs += buffers.values["arcs"].size // 8 if with_arcs else 0
    lengths = np.concatenate(sizes)
    about: dict[str, Any] = {
        **metadata,
        "version": store_format.VERSION,
        "chunk": chunk,
        "sentences": len(lengths),
        "words": words,
        "pieces": int(lengths.sum(dtype=np.int64)) - len(lengths),
        "arcs": arcs if with_arcs else None,
        "tokens": store_format.sizes_fingerprint(lengths),
        "checksums": checksums,
    }
    sealed_metadata = json.dumps(sealed(about), ensure_ascii=False)
    final = store_format.schema(with_arcs).with_metadata({store_format.METADATA_KEY: sealed_metadata})
    with (
        atomic_path(path) as temporary,
        as_data_error(path),
        pa.OSFile(temporary, "wb") as sink,
        pa.ipc.new_file(sink, final) as writer,
    ):
        for batch in batches():
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=final))


def write_sentences(
    path: StrPath,
    sentences: Iterable[StoredSentence],
    metadata: Mapping[str, Any],
    *,
    with_arcs: bool,
    chunk: int = store_format.SENTENCES_PER_CHUNK,
) -> None:
    """Write a store of sentences; its record batches are kept in memory, with 8 bytes per word and arc.

    Args:
        metadata: as in :func:`write_store`
        with_arcs: whether to store the distributions, which every sentence then needs
        chunk: the number of sentences per record batch
    """
    rest = iter(sentences)
    batches: list[pa.RecordBatch] = []
    with errors_in(path):
        while waiting := list(islice(rest, chunk)):
            batches.append(pack_chunk(waiting, with_arcs=with_arcs, first=chunk * len(batches)))
    write_store(path, lambda: iter(batches), metadata, with_arcs=with_arcs, chunk=chunk)
