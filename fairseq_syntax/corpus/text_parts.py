"""Splitting of texts and their CoNLL-U files (without parsing rows) into parts of a fixed number of text lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from fairseq_syntax.corpus.conllu import is_conllu
from fairseq_syntax.corpus.conllu_reader import ConlluReader
from fairseq_syntax.corpus.line_numbers import LineNumbers, declared_in
from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import count_raw_lines, decode_line, read_lines, read_raw_lines
from fairseq_syntax.runtime.parts import Span


class TextPart(NamedTuple):
    """Lines [start, end) of a text, and their rows in the file ``path``, which follow ``before`` others."""

    path: str
    start: int
    end: int
    before: int
    rows: list[bytes]

    def texts(self) -> Iterator[str]:
        """The lines of a part of a text file. Raises SyntaxDataError if a line is not UTF-8."""
        for number, row in enumerate(self.rows, start=self.before + 1):
            yield decode_line(row, self.path, number)

    def parses(self) -> Iterator[ParsedLine]:
        """The parses of a part of a CoNLL-U file. Raises SyntaxDataError like ``read_conllu``."""
        return ConlluReader(self.path, self.end, self.start, self.before, is_part=True).read(self.rows)

    def lines(self) -> Iterator[str | ParsedLine]:
        """The texts or parses of the part, by the name of its file."""
        return self.parses() if is_conllu(self.path) else self.texts()


def with_spans(*texts: Iterable[TextPart]) -> Iterator[tuple[Span, TextPart]]:
    """The parts of texts with their line spans [start, end), numbered consecutively over all texts."""
    before = end = 0
    for parts in texts:
        before = end
        for part in parts:
            end = before + part.end
            yield (before + part.start, end), part


def parallel_parts(*sides: Iterable[TextPart]) -> Iterator[tuple[Span, tuple[TextPart, ...]]]:
    """The parts of parallel texts and their parses, with their line spans [start, end)."""
    for parts in zip(*sides, strict=True):
        yield (parts[0].start, parts[0].end), parts


def parts_of(path: str | os.PathLike[str], part_lines: int) -> Iterator[TextPart]:
    """Split a text file or a parse, by its name; see :func:`text_parts` and :func:`conllu_parts`."""
    return conllu_parts(path, part_lines) if is_conllu(path) else text_parts(path, part_lines)


def text_parts(path: str | os.PathLike[str], part_lines: int) -> Iterator[TextPart]:
    """Split a text file, plain or compressed; the last part may have fewer lines."""
    lines, start = read_raw_lines(path), 0
    while rows := list(islice(lines, part_lines)):
        yield TextPart(os.fspath(path), start, start + len(rows), start, rows)
        start += len(rows)


def count_lines(path: str | os.PathLike[str]) -> int | None:
    """The number of text lines in a file; for a parse, the number declared in its first row, or None."""
    if not is_conllu(path):
        return count_raw_lines(path)
    return declared_in(next(read_lines(path), ""))


def count_parallel_lines(paths: Sequence[str]) -> int:
    """The number of lines of each of some parallel texts. Raises SyntaxDataError if they differ, or all are empty."""
    counts = [count_raw_lines(path) for path in paths]
    total, shortest = max(counts), min(counts)
    if shortest < total:
        message = f"ends after {shortest} lines, and {paths[counts.index(total)]} goes on"
        hint = "they are not the two sides of one corpus, or one is cut off"
        raise SyntaxDataError(message, path=paths[counts.index(shortest)], line=shortest, hint=hint)
    if not total:
        raise SyntaxDataError("the file is empty", path=paths[0])
    return total


def conllu_parts(path: str | os.PathLike[str], part_lines: int, *, n_lines: int | None = None) -> Iterator[TextPart]:
    """Split a CoNLL-U file, plain or compressed, of a text of ``n_lines`` lines, if known.

    Raises:
        SyntaxDataError: its line numbers are invalid
    """
    name, numbers = os.fspath(path), LineNumbers(os.fspath(path), n_lines)
    start = before = at = 0
    rows: list[bytes] = []  # the rows of the part
    for line, first, block in numbers.blocks(read_raw_lines(path)):
        while line >= start + part_lines:  # also parts with only empty lines
            yield TextPart(name, start, start + part_lines, before, rows)
            start, before, rows = start + part_lines, first - 1, []
        rows += block
        at = first + len(block) - 1
    total = numbers.total()
    while start < total:
        end = min(start + part_lines, total)
        yield TextPart(name, start, end, before, rows)
        start, before, rows = end, at, []
