"""Writing a store in constant memory. Nothing under the final name is ever incomplete."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from fairseq_syntax.corpus.store import schema as layout
from fairseq_syntax.corpus.store.chunk import Buffers, pack
from fairseq_syntax.corpus.store.schema import StoredSentence
from fairseq_syntax.runtime.files import as_data_error, atomic_path, errors_in
from fairseq_syntax.runtime.manifest import sealed


def write_store(
    path: str | os.PathLike[str],
    batches: Callable[[], Iterator[pa.RecordBatch]],
    metadata: Mapping[str, Any],
    *,
    with_arcs: bool,
    chunk: int,
) -> None:
    """Writes a store of record batches, which are gone through twice: the counts stand before them.

    Args:
        batches: gives the record batches anew at each call; all of ``chunk`` rows but the last
        metadata: what :attr:`SyntaxStore.metadata` is to say beside what the batches do (JSON values)

    Raises:
        SyntaxDataError: the file cannot be written
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
        "version": layout.VERSION,
        "chunk": chunk,
        "sentences": len(lengths),
        "words": words,
        "pieces": int(lengths.sum(dtype=np.int64)) - len(lengths),
        "arcs": arcs if with_arcs else None,
        "tokens": layout.sizes_fingerprint(lengths),
        "checksums": checksums,
    }
    final = layout.schema(with_arcs).with_metadata({layout.METADATA_KEY: json.dumps(sealed(about), ensure_ascii=False)})
    with (
        atomic_path(path) as temporary,
        as_data_error(path),
        pa.OSFile(temporary, "wb") as sink,
        pa.ipc.new_file(sink, final) as writer,
    ):
        for batch in batches():
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=final))


class SyntaxStoreWriter:
    """Writes a store sentence by sentence; use it as a context manager.

    The file appears under its name when the ``with`` block ends without an error. Until then there is only a temporary
    file without a name.

    Args:
        path: the final name
        with_arcs: whether every sentence brings its distribution
        chunk: sentences per record batch
    """

    def __init__(
        self, path: str | os.PathLike[str], *, with_arcs: bool, chunk: int = layout.SENTENCES_PER_CHUNK
    ) -> None:
        self.path = os.fspath(path)
        self.with_arcs = with_arcs
        self.metadata: dict[str, object] = {"labels": {}}
        self._chunk = chunk
        self._waiting: list[StoredSentence] = []
        self._sentences = 0

    def __enter__(self) -> SyntaxStoreWriter:
        with as_data_error(self.path):
            self._spool = tempfile.TemporaryFile(dir=os.path.dirname(self.path) or ".")
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._spool, "w"), layout.schema(self.with_arcs))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        try:
            if kind is None:
                self._flush()
                with as_data_error(self.path):
                    self._writer.close()
                    self._spool.flush()
                write_store(self.path, self._batches, self.metadata, with_arcs=self.with_arcs, chunk=self._chunk)
        finally:
            with suppress(OSError):  # what a full disk did not take, and nobody needs any more
                self._spool.close()

    def update_metadata(self, values: Mapping[str, object]) -> None:
        """Add what :attr:`SyntaxStore.metadata` is to say (JSON values); may be called until the block ends."""
        self.metadata.update(values)

    def add(self, sentence: StoredSentence) -> None:
        """Append the next sentence.

        Raises:
            SyntaxDataError: a number that the format does not hold, or arcs missing where they are stored; it may be
                raised for an earlier sentence
        """
        self._waiting.append(sentence)
        if len(self._waiting) >= self._chunk:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            with errors_in(self.path):
                batch = pack(self._waiting, with_arcs=self.with_arcs, first=self._sentences)
            self._sentences += len(self._waiting)
            self._waiting = []
            with as_data_error(self.path):
                self._writer.write_batch(batch)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self._spool.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._spool, "r"))
