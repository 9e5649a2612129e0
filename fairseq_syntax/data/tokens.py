"""Dictionaries and token datasets, equal to those of ``fairseq-preprocess`` and made in parts.

The files have the same bytes as fairseq's, for ``--dataset-impl mmap``. fairseq makes each file in one piece: a kill
loses all of it, and a killed worker leaves the others waiting. Two workers take as long as one (the first waits for the
other before it starts), and the index is a list of Python numbers, which takes hundreds of megabytes for ten million
sentences.
"""

from __future__ import annotations

import io
import os
import struct
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
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

from fairseq_syntax.corpus.text_parts import TextPart, text_parts, with_spans
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import (
    as_data_error,
    atomic_open,
    atomic_open_binary,
    atomic_path,
    count_raw_lines,
    read_lines,
)
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts
from fairseq_syntax.runtime.workers import Workers

PART_LINES = 50_000
_HEAD = struct.Struct("<9sQBQ")  # of an index: magic bytes, version, token type, number of sentences


def load_dictionary(path: str | os.PathLike[str]) -> Dictionary:
    """Load a fairseq dictionary. Raises SyntaxDataError if it cannot be read."""
    text = io.StringIO("".join(f"{line}\n" for line in read_lines(path)))
    try:
        return Dictionary.load(text)
    except Exception as error:  # of fairseq, such as ValueError
        reason = str(error).partition("\n")[0]
        raise SyntaxDataError(f"cannot be read as a dictionary: {reason}", path=path) from error


def load_tokens(prefix: str, dictionary: Dictionary | None = None) -> Any:
    """Load fairseq's token dataset from ``prefix.bin`` and ``prefix.idx``.

    Args:
        dictionary: the dictionary, to load text too (``--dataset-impl raw``)

    Raises:
        SyntaxDataError: a file is missing or damaged
    """
    is_text = dictionary is not None and os.path.exists(prefix) and not os.path.exists(index_file_path(prefix))
    kind = "raw" if is_text else _checked_kind(prefix)
    try:
        return data_utils.load_indexed_dataset(prefix, dictionary, kind)
    except (OSError, AssertionError, ValueError, RuntimeError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        message = f"cannot be read as a token dataset: {reason}"
        raise SyntaxDataError(message, path=index_file_path(prefix)) from error


def _checked_kind(prefix: str) -> str:
    """The ``--dataset-impl`` to open a dataset with, after checking it, since fairseq trusts a damaged index."""
    index_path, data_path = index_file_path(prefix), data_file_path(prefix)
    for path in (index_path, data_path):
        if not os.path.exists(path):
            raise SyntaxDataError("there is no such token dataset", path=path, hint="run fairseq-preprocess first")
    hint = "run fairseq-preprocess again"
    with open(index_path, "rb") as file:
        head = file.read(_HEAD.size)
    if head.startswith(IndexedDataset._HDR_MAGIC):
        return "lazy"  # or cached, which is written alike
    size = os.path.getsize(index_path)
    mark, _, code, n = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0, 0)
    if mark != MMapIndexedDataset.Index._HDR_MAGIC or code not in _code_to_dtype or size != _HEAD.size + 12 * n:
        raise SyntaxDataError("is damaged, or not an index of a token dataset", path=index_path, hint=hint)
    if not n:
        return "mmap"
    sizes = np.memmap(index_path, np.int32, "r", _HEAD.size, n)
    begins = np.memmap(index_path, np.int64, "r", _HEAD.size + sizes.nbytes, n)
    width = np.dtype(_code_to_dtype[code]).itemsize
    ends = np.cumsum(sizes, dtype=np.int64)
    if int(sizes.min()) < 0 or not np.array_equal(begins, (ends - sizes) * width):
        raise SyntaxDataError("is damaged", path=index_path, hint=hint)
    if (size := os.path.getsize(data_path)) != (due := int(ends[-1]) * width):
        raise SyntaxDataError(f"has {size} bytes, but the index says {due}", path=data_path, hint=hint)
    return "mmap"


def make_dictionary(
    step: RecordedStep,
    paths: Sequence[str | os.PathLike[str]],
    *,
    threshold: int,
    nwords: int,
    padding_factor: int,
    workers: int | Workers = 1,
) -> int:
    """Write the dictionary that ``fairseq-preprocess`` would make from texts, to each of the step's outputs.

    A killed run resumes with the missing parts.

    Args:
        paths: the texts, with words separated by white space; only ``\\n`` ends a line
        workers: the number of processes, or the workers of a cluster

    Returns:
        the number of symbols
    """

    def merge(made: MadeParts) -> dict[str, int]:
        words: Counter[str] = Counter()
        for counts, _ in made:
            words.update(counts)
        dictionary = Dictionary()
        for word, count in words.items():
            dictionary.add_symbol(word, count)
        dictionary.finalize(threshold=threshold, nwords=nwords, padding_factor=padding_factor)
        for path in step.outputs:
            with atomic_open(path) as file:
                dictionary.save(file)
        return {"symbols": len(dictionary)}

    source = with_spans(*(text_parts(path, PART_LINES) for path in paths))
    total = count_raw_lines(*paths)
    note, _ = map_parts(step, source, _count_words, merge, part_lines=PART_LINES, total=total, workers=workers)
    return int(note["symbols"])


def binarize_tokens(
    step: RecordedStep, path: str | os.PathLike[str], dictionary: Any, *, workers: int = 1
) -> BinarizeSummary | None:
    """Write a token dataset, unless it is done. A killed run resumes with the missing parts.

    Args:
        step: the step, whose outputs are ``PREFIX.bin`` and ``PREFIX.idx``
        path: the text, with words separated by white space; only ``\\n`` ends a line

    Returns:
        fairseq's summary, with only the number of unknown words; None if the step was already done
    """
    data_path, index_path = step.outputs
    dtype = best_fitting_int_dtype(len(dictionary))

    def merge(made: MadeParts) -> dict[str, int]:
        lengths, replaced = [np.zeros(0, np.int32)], 0
        with atomic_path(index_path) as temporary, atomic_open_binary(data_path) as file:
            for note, body in made:
                size = 4 * note["sentences"]
                replaced += note["replaced"]
                lengths.append(np.frombuffer(body[:size], np.int32))
                file.write(body[size:])
            sizes = np.concatenate(lengths)
            with as_data_error(index_path):
                _write_index(temporary, dtype, sizes)
                # A kill between the two renamings then leaves no dataset, rather than tokens with the index of
                # another.
                index_path.unlink(missing_ok=True)
        return {"sentences": made.lines, "tokens": int(sizes.sum(dtype=np.int64)), "replaced": replaced}

    make, total = partial(_tokens_part, dictionary, dtype), count_raw_lines(path)
    source = with_spans(text_parts(path, PART_LINES))
    note, was_done = map_parts(step, source, make, merge, part_lines=PART_LINES, total=total, workers=workers)
    replaced = Counter({dictionary.unk_word: note["replaced"]})
    return None if was_done else BinarizeSummary(note["sentences"], replaced, note["tokens"])


def _write_index(path: str, dtype: type, sizes: np.ndarray) -> None:
    """Write the index as fairseq's writer does, without its lists of Python numbers.

    Args:
        dtype: the type of the tokens
        sizes: [N] int32, the lengths of the sentences including ``</s>``
    """
    begins = (np.cumsum(sizes, dtype=np.int64) - sizes) * np.dtype(dtype).itemsize
    with MMapIndexedDataset.Index.writer(path, dtype) as index:
        for array in (np.array([len(sizes)], np.uint64), sizes, begins):
            index._file.write(array)


def _count_words(part: TextPart) -> Made:
    """Count the words of a part, for its note."""
    return Counter(chain.from_iterable(map(tokenize_line, part.texts()))), b""


def _tokens_part(dictionary: Dictionary, dtype: type, part: TextPart) -> Made:
    """The lengths (int32) and ids of a part's sentences."""
    indices, end = dictionary.indices, dictionary.eos_index
    ids: list[int] = []
    lengths: list[int] = []
    for words in map(tokenize_line, part.texts()):
        ids += [indices.get(word, -1) for word in words]  # the unknown word itself does not count as replaced
        ids.append(end)
        lengths.append(len(words) + 1)
    tokens = np.array(ids, np.int64)
    replaced = tokens < 0
    tokens[replaced] = dictionary.unk_index
    note = {"sentences": len(lengths), "replaced": int(replaced.sum())}
    return note, np.array(lengths, np.int32).tobytes() + tokens.astype(dtype).tobytes()
