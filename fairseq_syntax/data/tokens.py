"""The token dataset of one side of a split, as ``fairseq-preprocess`` writes it, made in parts.

The bytes are those of fairseq's own ``--dataset-impl mmap``. fairseq makes it in one piece: a kill costs all of it, two
workers are no faster than one (the first waits for the others, and then begins), and the index is a list of Python
numbers, hundreds of megabytes for ten million sentences.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.binarizer import BinarizeSummary
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype, data_file_path, index_file_path
from fairseq.tokenizer import tokenize_line

from fairseq_syntax.console import progress
from fairseq_syntax.text.files import decode_line, fingerprint, read_raw_lines, whole_binary
from fairseq_syntax.text.jobs import Parts, in_workers

PART_LINES = 50_000


def binarize_tokens(
    path: str | os.PathLike[str], prefix: str, dictionary: Any, *, made_from: str, workers: int = 1
) -> BinarizeSummary:
    """Writes ``prefix.bin`` and ``prefix.idx``. A run that was killed continues with the parts that are missing.

    Args:
        path: text, whose words are separated by white space; only ``\\n`` ends a line
        prefix: of the two files
        dictionary: a fairseq ``Dictionary``
        made_from: a fingerprint of the text and the dictionary
        workers: processes; the files do not depend on their number

    Returns:
        fairseq's summary; of the words that are replaced by the unknown word, their number alone

    Raises:
        SyntaxDataError: the text cannot be read, or a file cannot be written
    """
    parts = Parts(Path(data_file_path(prefix)).absolute(), fingerprint(made_from, PART_LINES), ".tokens")
    n_lines = sum(1 for _ in read_raw_lines(path))
    dtype = best_fitting_int_dtype(len(dictionary))
    spans: list[tuple[int, int]] = []

    def missing() -> Iterator[tuple[int, list[bytes]]]:
        lines, start = read_raw_lines(path), 0
        while rows := list(islice(lines, PART_LINES)):
            spans.append((start, start + len(rows)))
            if parts.is_whole(spans[-1]):
                bar.update(len(rows))
            else:
                yield start, rows
            start += len(rows)

    with parts.being_made():
        with progress(total=n_lines, of=parts.output.name) as bar:
            count = min(workers, -(-n_lines // PART_LINES))
            for lines in in_workers(
                _work, missing(), workers=count, start=_start, arguments=(parts, os.fspath(path), dictionary, dtype)
            ):
                bar.update(lines)
        lengths, replaced = [], 0
        with whole_binary(parts.output) as file:
            for span in spans:
                head, _, body = parts.body(span).partition(b"\n")
                size = 4 * (span[1] - span[0])
                replaced += json.loads(head)["replaced"]
                lengths.append(np.frombuffer(body[:size], np.int32))
                file.write(body[size:])
        total = 0
        with MMapIndexedDataset.Index.writer(index_file_path(prefix), dtype) as index:
            # What its ``write`` does, which makes a list of Python numbers and three copies of it.
            index._file.write(struct.pack("<Q", n_lines))
            for sizes in lengths:
                index._file.write(sizes.tobytes())
            for sizes in lengths:
                ends = total + np.cumsum(sizes, dtype=np.int64)
                index._file.write(((ends - sizes) * np.dtype(dtype).itemsize).tobytes())
                total = int(ends[-1])
    return BinarizeSummary(n_lines, Counter({dictionary.unk_word: replaced}), total)


_worker: tuple[Any, ...] | None = None


def _start(parts: Parts, path: str, dictionary: Any, dtype: type) -> None:
    global _worker
    parts.check_folder()
    _worker = parts, path, dictionary.indices, dictionary.unk_index, dictionary.eos_index, dtype


def _work(task: tuple[int, list[bytes]]) -> int:
    """Makes a part: a line of JSON, the sentences' lengths as int32, and their ids."""
    assert _worker is not None
    parts, path, indices, unknown, end, dtype = _worker
    start, rows = task
    ids: list[int] = []
    lengths = np.empty(len(rows), np.int32)
    for place, row in enumerate(rows):
        words = tokenize_line(decode_line(row, path, start + place + 1))
        ids += [indices.get(word, -1) for word in words]  # the unknown word itself is not replaced
        ids.append(end)
        lengths[place] = len(words) + 1
    found = np.array(ids, np.int64)
    replaced = found < 0
    found[replaced] = unknown
    head = json.dumps({"replaced": int(replaced.sum())}).encode() + b"\n"
    parts.commit((start, start + len(rows)), head + lengths.tobytes() + found.astype(dtype).tobytes())
    return len(rows)
