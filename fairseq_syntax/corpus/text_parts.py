"""Splitting of a text, or of its CoNLL-U file without parsing the rows, into parts of a fixed number of text lines."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from fairseq_syntax.corpus.conllu import is_conllu
from fairseq_syntax.corpus.conllu_reader import ConlluReader
from fairseq_syntax.corpus.line_numbers import LineNumbers, blocks, declared_in, is_blank
from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.runtime.files import count_raw_lines, decode_line, read_raw_lines
from fairseq_syntax.runtime.parts import Span


class TextPart(NamedTuple):
    """Lines [start, end) of a text, and the rows of the file ``path`` that are theirs, after ``before`` others."""

    path: str
    start: int
    end: int
    before: int
    rows: list[bytes]

    def texts(self) -> Iterator[str]:
        """Each line of a part of a text file. Raises SyntaxDataError if it is not UTF-8."""
        for number, row in enumerate(self.rows, start=self.before + 1):
            yield decode_line(row, self.path, number)

    def parses(self) -> Iterator[ParsedLine]:
        """The parse of each line of a part of a CoNLL-U file. Raises SyntaxDataError as ``read_conllu``."""
        reader = ConlluReader(self.path, self.end, self.start, self.before)
        reader.line_numbers.declared = self.end  # so a part without any sentence is one of empty lines
        return reader.read(self.rows)


def with_spans(*texts: Iterable[TextPart]) -> Iterator[tuple[Span, TextPart]]:
    """The parts of texts, each with its span of lines [start, end), which are numbered on from text to text."""
    before = end = 0
    for parts in texts:
        before = end
        for part in parts:
            end = before + part.end
            yield (before + part.start, end), part


def side_by_side(*sides: Iterable[TextPart]) -> Iterator[tuple[Span, tuple[TextPart, ...]]]:
    """The parts of parallel texts and their parses, with their span of lines [start, end)."""
    for parts in zip(*sides, strict=True):
        yield (parts[0].start, parts[0].end), parts


def text_parts(path: str | os.PathLike[str], part_lines: int) -> Iterator[TextPart]:
    """Splits a text file, plain or compressed; the last part may have fewer lines.

    Raises:
        SyntaxDataError: the file cannot be read
    """
    lines, start = read_raw_lines(path), 0
    while rows := list(islice(lines, part_lines)):
        yield TextPart(os.fspath(path), start, start + len(rows), start, rows)
        start += len(rows)


def count_lines(path: str | os.PathLike[str]) -> int | None:
    """The number of text lines of a file; of a parse, the number that its first row declares, if any, or None."""
    if not is_conllu(path):
        return count_raw_lines(path)
    return declared_in(next(_rows(path), b"").decode("ascii", "replace").rstrip("\r\n"))


def _rows(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a file, without a byte order mark."""
    rows = read_raw_lines(path)
    return chain((row.removeprefix(codecs.BOM_UTF8) for row in islice(rows, 1)), rows)


def conllu_parts(path: str | os.PathLike[str], part_lines: int, *, n_lines: int | None = None) -> Iterator[TextPart]:
    """Splits a CoNLL-U file, plain or compressed, into parts of its text.

    Args:
        part_lines: lines of each part; the last may have fewer
        n_lines: of the text, where they are known

    Raises:
        SyntaxDataError: the file cannot be read, or its numbering of the lines is not that of a text
    """
    numbers = LineNumbers(os.fspath(path), n_lines)
    start = before = at = 0
    rows: list[bytes] = []  # of the part
    for first, block in blocks(_rows(path), b"\t"):
        number: int | None = None
        comments = [place for place, row in enumerate(block) if row[:1] == b"#"]
        for earlier, place in enumerate(comments):
            # With fewer comments than rows before it, a comment stands below a row of the sentence.
            comment = block[place].decode("utf-8", "replace").rstrip("\r\n")
            number = numbers.comment(comment, first + place, number, within=place > earlier)
            if declared_in(comment) is not None:
                block[place] = b"#\n"  # a part has other lines than the file
        if len(block) > len(comments) + is_blank(block[-1]):  # a sentence
            index = numbers.place(number, first)
            while index >= start + part_lines:  # also of parts that hold empty lines alone
                yield TextPart(os.fspath(path), start, start + part_lines, before, rows)
                start, before, rows = start + part_lines, first - 1, []
        rows += block
        at = first + len(block) - 1
    total = numbers.total()
    while start < total:
        end = min(start + part_lines, total)
        yield TextPart(os.fspath(path), start, end, before, rows)
        start, before, rows = end, at, []
