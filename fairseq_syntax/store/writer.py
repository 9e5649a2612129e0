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
        self.metadata: dict[str, object] = {}
        self.sizes: list[int] = []
        self._chunk = chunk
        self._schema = layout.schema(with_arcs)
        self._words, self._arcs = 0, 0
        self._partial = f"{self.path}.partial-{os.getpid()}-{secrets.token_hex(4)}"
        self._clear()

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
            SyntaxDataError: more words or a larger id than the format holds, or arcs missing where they are stored
        """
        n = len(sentence.pieces)
        if n > layout.LIMIT:
            raise SyntaxDataError(f"sentence {len(self.sizes) + 1} has {n} words; the store holds {layout.LIMIT}")
        self._n_words.append(n)
        for name, _ in layout.WORD_FIELDS:
            self._word_columns[name].extend(getattr(sentence, name))
        if self.with_arcs:
            if sentence.arcs is None:
                raise SyntaxDataError(f"sentence {len(self.sizes) + 1} has no arcs, others have")
            self._add_arcs(n, sorted(sentence.arcs))
        self.sizes.append(sum(sentence.pieces) + 1)
        if len(self._n_words) >= self._chunk:
            self._flush()

    def _add_arcs(self, n_words: int, arcs: list[tuple[int, int, int, float]]) -> None:
        self._n_arcs.append(len(arcs))
        counts = [0] * n_words
        for dependent, head, label, prob in arcs:
            counts[dependent] += 1
            self._arc_columns["head"].append(head)
            self._arc_columns["label"].append(label)
            self._arc_columns["prob"].append(min(layout.PROB_SCALE, max(0, round(prob * layout.PROB_SCALE))))
        self._word_columns["arcs"].extend(counts)

    def _clear(self) -> None:
        self._n_words: list[int] = []
        self._n_arcs: list[int] = []
        self._word_columns: dict[str, list[int]] = {name: [] for name, _ in (*layout.WORD_FIELDS, layout.ARC_COUNT)}
        self._arc_columns: dict[str, list[int]] = {name: [] for name, _ in layout.ARC_FIELDS}

    def _flush(self) -> None:
        if not self._n_words:
            return
        try:
            columns = [_lists(self._n_words, self._word_columns, layout.word_type(self.with_arcs))]
            if self.with_arcs:
                columns.append(_lists(self._n_arcs, self._arc_columns, pa.struct(list(layout.ARC_FIELDS))))
        except (OverflowError, pa.ArrowInvalid) as e:
            raise SyntaxDataError(f"a number is too large for the store: {e}", path=self.path) from e
        self._words += sum(self._n_words)
        self._arcs += sum(self._n_arcs)
        try:
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        except OSError as e:
            raise self._unwritable(e) from e
        self._clear()

    def _unwritable(self, error: OSError) -> SyntaxDataError:
        return SyntaxDataError(f"could not write the store: {error}", path=self.path, hint="free some space")

    def _finish(self) -> None:
        """Copy the batches behind a header that knows the counts, then give the file its name."""
        sizes = np.asarray(self.sizes, dtype=np.int32)
        self.metadata |= {
            "version": layout.VERSION,
            "chunk": self._chunk,
            "sentences": len(self.sizes),
            "words": self._words,
            "pieces": int(sizes.sum()) - len(sizes),
            "arcs": self._arcs if self.with_arcs else None,
            "tokens": layout.sizes_fingerprint(sizes),
        }
        final = self._schema.with_metadata({layout.METADATA_KEY: json.dumps(self.metadata, ensure_ascii=False)})
        whole = self._partial + ".whole"
        with pa.memory_map(self._partial) as source, pa.OSFile(whole, "wb") as sink:
            reader = pa.ipc.open_file(source)
            with pa.ipc.new_file(sink, final) as writer:
                for i in range(reader.num_record_batches):
                    batch = reader.get_batch(i)
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=final))
        with open(whole, "rb") as f:
            os.fsync(f.fileno())
        os.replace(whole, self.path)


def _lists(counts: list[int], columns: dict[str, list[int]], struct: pa.StructType) -> pa.ListArray:
    """A list column from the lengths of its lists and the concatenated fields of their structs."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), pa.int32())
    fields = [pa.array(columns[f.name], f.type) for f in struct]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(fields, fields=list(struct)))
