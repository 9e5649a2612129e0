"""A text's dictionary and its token dataset, as ``fairseq-preprocess`` writes them, made in parts.

The bytes are those of fairseq's own files, for datasets of ``--dataset-impl mmap``. fairseq makes each in one piece: a
kill costs all of it, and a worker that is killed leaves the others waiting. A dataset takes two workers as long as one
(the first waits for the others, and then begins), and its index is a list of Python numbers, hundreds of megabytes for
ten million sentences.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.binarizer import BinarizeSummary
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype, data_file_path, index_file_path
from fairseq.tokenizer import tokenize_line

from fairseq_syntax.console import progress
from fairseq_syntax.text.files import decode_line, fingerprint, read_raw_lines, unwritable, whole_binary, whole_path
from fairseq_syntax.text.jobs import Parts, in_workers, part_spans

PART_LINES = 50_000


@contextmanager
def counted_words(
    path: str | os.PathLike[str], dictionary_path: Path, *, made_from: str, workers: int = 1
) -> Iterator[Counter[str]]:
    """The words of a text and how often each is in it. A run that was killed continues with the parts that are missing.

    The parts lie beside the dictionary that is made of the counts, and are removed at the end of the ``with`` block.

    Args:
        path: text, whose words are separated by white space; only ``\\n`` ends a line
        dictionary_path: of the dictionary
        made_from: a fingerprint of the text
        workers: processes

    Raises:
        SyntaxDataError: the text cannot be read, or a file cannot be written
    """
    parts = Parts(dictionary_path.absolute(), fingerprint("words", made_from, PART_LINES), ".words")
    with parts.being_made():
        counts: Counter[str] = Counter()
        for span in _make_parts(parts, path, workers, _count, ()):
            counts.update(json.loads(parts.body(span)))
        yield counts


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
    dtype = best_fitting_int_dtype(len(dictionary))
    with parts.being_made():
        spans = _make_parts(parts, path, workers, _binarize, (dictionary, dtype))
        lengths, replaced = [], 0
        index_path = Path(index_file_path(prefix))
        with whole_path(index_path) as temporary, whole_binary(parts.output) as file:
            for span in spans:
                head, _, body = parts.body(span).partition(b"\n")
                size = 4 * (span[1] - span[0])
                replaced += json.loads(head)["replaced"]
                lengths.append(np.frombuffer(body[:size], np.int32))
                file.write(body[size:])
            with unwritable(index_path):
                _write_index(temporary, dtype, lengths)
                # A kill between the two names then leaves no dataset, and not the tokens of one with the index of
                # another.
                index_path.unlink(missing_ok=True)
    n_tokens = sum(int(sizes.sum(dtype=np.int64)) for sizes in lengths)
    return BinarizeSummary(spans[-1][1] if spans else 0, Counter({dictionary.unk_word: replaced}), n_tokens)


def _write_index(path: str, dtype: type, lengths: list[np.ndarray]) -> None:
    """What ``write`` of fairseq's writer does, which makes a list of Python numbers and three copies of it.

    Args:
        path: of the index
        dtype: of the tokens
        lengths: of the sentences, ``</s>`` included, part by part: int32
    """
    total = 0
    with MMapIndexedDataset.Index.writer(path, dtype) as index:
        index._file.write(struct.pack("<Q", sum(map(len, lengths))))
        for sizes in lengths:
            index._file.write(sizes.tobytes())
        for sizes in lengths:
            ends = total + np.cumsum(sizes, dtype=np.int64)
            index._file.write(((ends - sizes) * np.dtype(dtype).itemsize).tobytes())
            total = int(ends[-1])


def _make_parts(
    parts: Parts,
    path: str | os.PathLike[str],
    workers: int,
    make: Callable[..., bytes],
    arguments: tuple[Any, ...],
) -> list[tuple[int, int]]:
    """Makes the parts of a text that are missing; returns the spans of all, in lines.

    ``make(sentences, *arguments)`` returns the content of a part; a sentence is its words.
    """
    n_lines = sum(1 for _ in read_raw_lines(path))
    spans = part_spans(n_lines, PART_LINES)

    def missing() -> Iterator[tuple[tuple[int, int], list[bytes]]]:
        lines = read_raw_lines(path)
        for span in spans:
            rows = list(islice(lines, PART_LINES))
            if parts.is_whole(span):
                bar.update(len(rows))
            else:
                yield span, rows

    with progress(total=n_lines, of=parts.output.name) as bar:
        given = (parts, os.fspath(path), make, arguments)
        for lines in in_workers(_work, missing(), workers=min(workers, len(spans)), start=_start, arguments=given):
            bar.update(lines)
    return spans


_worker: tuple[Parts, str, Callable[..., bytes], tuple[Any, ...]] | None = None


def _start(parts: Parts, path: str, make: Callable[..., bytes], arguments: tuple[Any, ...]) -> None:
    global _worker
    parts.check_folder()
    _worker = parts, path, make, arguments


def _work(task: tuple[tuple[int, int], list[bytes]]) -> int:
    assert _worker is not None
    parts, path, make, arguments = _worker
    span, rows = task
    sentences = (tokenize_line(decode_line(row, path, span[0] + place)) for place, row in enumerate(rows, start=1))
    parts.commit(span, make(sentences, *arguments))
    return len(rows)


def _count(sentences: Iterable[list[str]]) -> bytes:
    """A line of JSON: how often each word is there."""
    return json.dumps(Counter(chain.from_iterable(sentences))).encode()


def _binarize(sentences: Iterable[list[str]], dictionary: Any, dtype: type) -> bytes:
    """A line of JSON, the sentences' lengths as int32, and their ids."""
    indices, end = dictionary.indices, dictionary.eos_index
    ids: list[int] = []
    lengths: list[int] = []
    for words in sentences:
        ids += [indices.get(word, -1) for word in words]  # the unknown word itself is not replaced
        ids.append(end)
        lengths.append(len(words) + 1)
    found = np.array(ids, np.int64)
    replaced = found < 0
    found[replaced] = dictionary.unk_index
    head = json.dumps({"replaced": int(replaced.sum())}).encode() + b"\n"
    return head + np.array(lengths, np.int32).tobytes() + found.astype(dtype).tobytes()
