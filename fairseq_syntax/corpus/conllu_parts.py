"""Splitting of a CoNLL-U file into parts of a fixed number of text lines, without parsing its rows."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple, NoReturn

from fairseq_syntax.corpus.conllu import is_conllu
from fairseq_syntax.corpus.conllu_reader import ConlluReader
from fairseq_syntax.corpus.line_numbers import LineNumbers, blocks, declared_in, is_blank
from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_raw_lines


class ConlluPart(NamedTuple):
    """Lines [start, end) of the text, and the rows of their parse, which follow ``before`` others in the file."""

    start: int
    end: int
    before: int
    rows: list[bytes]

    def read(self, path: str | None = None) -> Iterator[ParsedLine]:
        """The parse of each line. Raises SyntaxDataError as ``read_conllu``, with the lines of the file ``path``."""
        reader = ConlluReader(path, self.end, self.start, self.before)
        reader.line_numbers.declared = self.end  # so a part without any sentence is one of empty lines
        return reader.read(self.rows)


def declared_lines(path: str | os.PathLike[str]) -> int | None:
    """The N of ``# lines = N`` in the first row of a file; None if it is missing."""
    first = next(_rows(path), b"").decode("ascii", "replace")
    return declared_in(first.rstrip("\r\n"))


def _rows(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a file, without a byte order mark."""
    rows = read_raw_lines(path)
    return chain((row.removeprefix(codecs.BOM_UTF8) for row in islice(rows, 1)), rows)


def count_lines(path: str | os.PathLike[str]) -> int | None:
    """Number of text lines of a file; of a parse as declared in its header, else None."""
    return declared_lines(path) if is_conllu(path) else sum(1 for _ in read_raw_lines(path))


def conllu_parts(path: str | os.PathLike[str], part_lines: int, *, n_lines: int | None = None) -> Iterator[ConlluPart]:
    """Splits a CoNLL-U file, plain or compressed, into parts of its text.

    Args:
        part_lines: lines of each part; the last may have fewer
        n_lines: of the text, where they are known

    Raises:
        SyntaxDataError: the file cannot be read, or its numbering of the lines is not that of a text
    """

    def fail(message: str, line: int | None = None, hint: str | None = None) -> NoReturn:
        raise SyntaxDataError(message, path=path, line=line, hint=hint)

    numbers = LineNumbers(fail, n_lines)
    start = before = at = 0
    rows: list[bytes] = []  # of the part
    for first, block in blocks(_rows(path), b"\t"):
        number: int | None = None
        comments = [place for place, row in enumerate(block) if row[:1] == b"#"]
        for earlier, place in enumerate(comments):
            comment = block[place].decode("utf-8", "replace").rstrip("\r\n")
            number = numbers.comment(comment, first + place, number, within=place > earlier)
            if declared_in(comment) is not None:
                block[place] = b"#\n"  # a part has other lines than the file
        if len(block) > len(comments) + is_blank(block[-1]):  # a sentence
            index = numbers.place(number, first)
            while index >= start + part_lines:
                yield ConlluPart(start, start + part_lines, before, rows)
                start, before, rows = start + part_lines, first - 1, []
        rows += block
        at = first + len(block) - 1
    total = numbers.total()
    while start < total:
        end = min(start + part_lines, total)
        yield ConlluPart(start, end, before, rows)
        start, before, rows = end, at, []
