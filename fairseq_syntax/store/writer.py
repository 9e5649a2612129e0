"""Writing a store, sentence by sentence, in constant memory. Nothing under the final name is ever incomplete."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from types import TracebackType

import numpy as np
import pyarrow as pa

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.store import schema as layout
from fairseq_syntax.store.chunk import Buffers, pack
from fairseq_syntax.store.schema import StoredSentence


class SyntaxStoreWriter:
    """Writes a store; use it as a context manager.

    The file appears under its name when the ``with`` block ends without an error. Until then, and after a kill or
    a full disk, there is only a temporary file beside it, which no reader takes for a store.

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
        self._schema = layout.schema(with_arcs)
        self._waiting: list[StoredSentence] = []
        self._sizes: list[np.ndarray] = []
        self._checksums: list[str] = []
        self._words, self._arcs, self._sentences = 0, 0, 0
        self._partial = f"{self.path}.partial-{os.getpid()}-{secrets.token_hex(4)}"

    def __enter__(self) -> SyntaxStoreWriter:
        try:
            self._writer = pa.ipc.new_file(self._partial, self._schema)
        except OSError as e:
            raise self._unwritable(e) from e
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        try:
            if kind is None:
                self._flush()
            self._writer.close()
            if kind is None:
                self._finish()
        except OSError as e:
            raise self._unwritable(e) from e
        finally:
            for leftover in (self._partial, self._partial + ".whole"):
                if os.path.exists(leftover):
                    os.remove(leftover)

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
            batch = pack(self._waiting, with_arcs=self.with_arcs, first=self._sentences)
            self._waiting = []
            self._add_chunk(batch)

    def _add_chunk(self, batch: pa.RecordBatch) -> None:
        """Append a record batch of ``chunk`` rows; only the last may have fewer."""
        buffers = Buffers.of(batch)
        self._checksums.append(buffers.checksum())
        self._sizes.append(np.frombuffer(buffers.values["pieces"], dtype="<u4").astype(np.int32) + 1)
        self._sentences += batch.num_rows
        self._words += buffers.values["words"].size // 8
        self._arcs += buffers.values["arcs"].size // 8 if self.with_arcs else 0
        try:
            self._writer.write_batch(batch)
        except OSError as e:
            raise self._unwritable(e) from e

    def _unwritable(self, error: OSError) -> SyntaxDataError:
        return SyntaxDataError(f"could not write the store: {error}", path=self.path, hint="free some space")

    def _finish(self) -> None:
        """Copy the batches behind a header that knows the counts, then give the file its name."""
        sizes = np.concatenate([np.zeros(0, dtype=np.int32), *self._sizes])
        self.metadata |= {
            "version": layout.VERSION,
            "chunk": self._chunk,
            "sentences": self._sentences,
            "words": self._words,
            "pieces": int(sizes.sum(dtype=np.int64)) - len(sizes),
            "arcs": self._arcs if self.with_arcs else None,
            "tokens": layout.sizes_fingerprint(sizes),
            "checksums": self._checksums,
        }
        self.metadata["checksum"] = layout.metadata_checksum(self.metadata)
        final = self._schema.with_metadata({layout.METADATA_KEY: json.dumps(self.metadata, ensure_ascii=False)})
        whole = self._partial + ".whole"
        with pa.OSFile(self._partial) as source, pa.OSFile(whole, "wb") as sink:
            reader = pa.ipc.open_file(source)
            with pa.ipc.new_file(sink, final) as writer:
                for i in range(reader.num_record_batches):
                    batch = reader.get_batch(i)
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=final))
        with open(whole, "rb") as f:
            os.fsync(f.fileno())
        os.replace(whole, self.path)
