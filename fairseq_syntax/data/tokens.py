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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.binarizer import BinarizeSummary
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import (
    IndexedDataset,
    MMapIndexedDataset,
    _code_to_dtype,
    best_fitting_int_dtype,
    data_file_path,
    index_file_path,
)
from fairseq.tokenizer import tokenize_line

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.files import (
    as_data_error,
    atomic_open_binary,
    atomic_path,
    decode_line,
    file_sha256,
    fingerprint,
    read_raw_lines,
)
from fairseq_syntax.runtime.jobs import Parts, Workers, in_workers, part_spans

PART_LINES = 50_000
_HEAD = struct.Struct("<9sQBQ")  # of an index: a mark, a version, the type of the tokens, the number of sentences


def load_dictionary(path: str | os.PathLike[str]) -> Dictionary:
    """fairseq's dictionary. Raises SyntaxDataError where it cannot be read."""
    try:
        return Dictionary.load(os.fspath(path))
    except Exception as error:  # fairseq raises that for what is not UTF-8
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise SyntaxDataError(f"cannot be read as a dictionary: {reason}", path=path) from error


def load_tokens(prefix: str) -> Any:
    """fairseq's token dataset of ``prefix.bin`` and ``prefix.idx``.

    Raises:
        SyntaxDataError: one of the files is not there, or they are damaged
    """
    check_tokens(prefix)
    index_path = index_file_path(prefix)
    try:
        dataset = data_utils.load_indexed_dataset(prefix, None)
    except SyntaxDataError:  # which is a ValueError, and says it all
        raise
    except (OSError, AssertionError, ValueError, RuntimeError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise SyntaxDataError(f"cannot be read as a token dataset: {reason}", path=index_path) from error
    return dataset


def check_tokens(prefix: str) -> None:
    """Makes sure that a dataset is whole before fairseq's own class opens it, which complains of half of it twice.

    Raises:
        SyntaxDataError: a file is missing or cut off, or is not what the other is of
    """
    index_path, data_path = index_file_path(prefix), data_file_path(prefix)
    for path in (index_path, data_path):
        if not os.path.exists(path):
            raise SyntaxDataError("there is no such token dataset", path=path, hint="run fairseq-preprocess first")
    hint = "run fairseq-preprocess again"
    try:
        with open(index_path, "rb") as file:
            head = file.read(_HEAD.size)
    except OSError as error:
        raise SyntaxDataError(f"cannot be read: {error.strerror}", path=index_path) from error
    if head.startswith(IndexedDataset._HDR_MAGIC):
        return  # of --dataset-impl cached and lazy
    size = os.path.getsize(index_path)
    mark, _, code, n = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0, 0)
    if mark != MMapIndexedDataset.Index._HDR_MAGIC or code not in _code_to_dtype or size != _HEAD.size + 12 * n:
        raise SyntaxDataError("is damaged, or no index of a token dataset", path=index_path, hint=hint)
    if not n:
        return
    sizes = np.memmap(index_path, np.int32, "r", _HEAD.size, n)
    begins = np.memmap(index_path, np.int64, "r", _HEAD.size + sizes.nbytes, n)
    width = np.dtype(_code_to_dtype[code]).itemsize
    ends = np.cumsum(sizes, dtype=np.int64)
    if int(sizes.min()) < 0 or not np.array_equal(begins, (ends - sizes) * width):
        raise SyntaxDataError("is damaged", path=index_path, hint=hint)
    if (found := os.path.getsize(data_path)) != (due := int(ends[-1]) * width):
        raise SyntaxDataError(f"has {found} bytes, but the index is of {due}", path=data_path, hint=hint)


@contextmanager
def counted_words(
    paths: Sequence[str | os.PathLike[str]], dictionary_path: Path, *, workers: int | Workers = 1
) -> Iterator[Counter[str]]:
    """The words of texts, and how often each is in them.

    A run that was killed continues with the parts that are missing. They lie beside the dictionary that is made of the
    counts, and are removed at the end of the ``with`` block.

    Args:
        paths: texts, whose words are separated by white space; only ``\\n`` ends a line
        dictionary_path: of the dictionary
        workers: processes, or the workers of a cluster

    Raises:
        SyntaxDataError: a text cannot be read, or a file cannot be written
    """
    made_from = fingerprint("words", [file_sha256(path) for path in paths], PART_LINES)
    parts = Parts(dictionary_path.absolute(), made_from, ".words")
    with parts.being_made():
        counts: Counter[str] = Counter()
        for span in _make_parts(parts, paths, workers, _count, ()):
            counts.update(json.loads(parts.body(span)))
        yield counts


def dictionary_of(words: Mapping[str, int], *, threshold: int, nwords: int, padding_factor: int) -> Dictionary:
    """The dictionary that fairseq's ``build_dictionary`` makes of texts with these words, which are so often in them.

    Args:
        threshold, nwords, padding_factor: as the options of ``fairseq-preprocess``
    """
    dictionary = Dictionary()
    for word, count in words.items():
        dictionary.add_symbol(word, count)
    dictionary.finalize(threshold=threshold, nwords=nwords, padding_factor=padding_factor)
    return dictionary


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
        spans = _make_parts(parts, [path], workers, _binarize, (dictionary, dtype))
        lengths, replaced = [], 0
        index_path = Path(index_file_path(prefix))
        with atomic_path(index_path) as temporary, atomic_open_binary(parts.output) as file:
            for span in spans:
                head, _, body = parts.body(span).partition(b"\n")
                size = 4 * (span[1] - span[0])
                replaced += json.loads(head)["replaced"]
                lengths.append(np.frombuffer(body[:size], np.int32))
                file.write(body[size:])
            with as_data_error(index_path):
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
    paths: Sequence[str | os.PathLike[str]],
    workers: int | Workers,
    make: Callable[..., bytes],
    arguments: tuple[Any, ...],
) -> list[tuple[int, int]]:
    """Makes the parts of texts that are missing; returns the spans of all, in lines that go on from text to text.

    ``make(sentences, *arguments)`` returns the content of a part; a sentence is its words.
    """
    spans: list[tuple[int, int]] = []
    texts: list[tuple[str, int, list[tuple[int, int]]]] = []
    for path in paths:
        before = spans[-1][1] if spans else 0
        own = part_spans(sum(1 for _ in read_raw_lines(path)), PART_LINES)
        texts.append((os.fspath(path), before, own))
        spans += [(before + start, before + end) for start, end in own]

    def missing() -> Iterator[_Task]:
        for path, before, own in texts:
            lines = read_raw_lines(path)
            for start, end in own:
                rows, span = list(islice(lines, PART_LINES)), (before + start, before + end)
                if parts.is_whole(span):
                    bar.update(len(rows))
                else:
                    yield span, rows, path, start

    with progress(total=spans[-1][1] if spans else 0, of=parts.output.name) as bar:
        workers = min(workers, len(spans)) if isinstance(workers, int) else workers
        for lines in in_workers(_work, missing(), workers=workers, start=_start, arguments=(parts, make, arguments)):
            bar.update(lines)
    return spans


_Task = tuple[tuple[int, int], list[bytes], str, int]  # the part's span, its lines, their text, the lines before them
_worker: tuple[Parts, Callable[..., bytes], tuple[Any, ...]] | None = None


def _start(parts: Parts, make: Callable[..., bytes], arguments: tuple[Any, ...]) -> None:
    global _worker
    parts.check_folder()
    _worker = parts, make, arguments


def _work(task: _Task) -> int:
    assert _worker is not None
    parts, make, arguments = _worker
    span, rows, path, before = task
    sentences = (tokenize_line(decode_line(row, path, before + place)) for place, row in enumerate(rows, start=1))
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
