"""A CoNLL-U file cut into parts of so many lines of its text, without reading what is in them."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple, NoReturn

from fairseq_syntax.corpus.conllu import is_conllu
from fairseq_syntax.corpus.conllu_reader import ConlluReader
from fairseq_syntax.corpus.line_numbers import LineNumbers, declared_in
from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_raw_lines

_DIGITS = frozenset(b"%d" % digit for digit in range(1, 10))


class ConlluPart(NamedTuple):
    """Lines [start, end) of the text, and the rows of their parse as they stand in the file after ``before`` others."""

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
    """The N of ``# lines = N`` in the first row of a file; None where it does not begin so."""
    first = next(_rows(path), b"").decode("ascii", "replace")
    return declared_in(first.rstrip("\r\n"))


def _rows(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a file, without a byte order mark."""
    rows = read_raw_lines(path)
    return chain((row.removeprefix(codecs.BOM_UTF8) for row in islice(rows, 1)), rows)


def count_lines(path: str | os.PathLike[str]) -> int | None:
    """The lines of the text of a file, plain or parsed, where they can be known without reading a parse."""
    return declared_lines(path) if is_conllu(path) else sum(1 for _ in read_raw_lines(path))


def conllu_parts(path: str | os.PathLike[str], part_lines: int, *, n_lines: int | None = None) -> Iterator[ConlluPart]:
    """Cuts a file, plain or ``.gz``.

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
    sentence: list[bytes] = []  # of the sentence, with the comments before it
    number: int | None = None
    words = False

    def place_sentence() -> Iterator[ConlluPart]:
        """Puts the sentence into its part, after those that end before it."""
        nonlocal start, before, rows
        index = numbers.place(number, at - len(sentence) + 1)
        while index >= start + part_lines:
            yield ConlluPart(start, start + part_lines, before, rows)
            start, before, rows = start + part_lines, at - len(sentence), []
        rows += sentence

    for raw in _rows(path):
        at += 1
        if raw[:1] in _DIGITS:  # nearly every row, so it comes first
            words = True
            sentence.append(raw)
            continue
        if b"\t" not in raw and not raw.decode("utf-8", "replace").strip():  # as the reader sees it
            sentence.append(raw)
            if words:
                yield from place_sentence()
            else:
                rows += sentence
            sentence, number, words = [], None, False
            continue
        if raw[:1] == b"#":
            declared, numbers.declared = numbers.declared, None
            number = numbers.comment(raw.decode("utf-8", "replace").rstrip("\r\n"), at, number, words)
            if numbers.declared is None:
                numbers.declared = declared
            else:
                raw = b"#\n"  # a part has other lines than the file
        else:
            words = True
        sentence.append(raw)
    if sentence:
        if words or number is not None:
            yield from place_sentence()
        else:
            rows += sentence
    total = numbers.total()
    while start < total:
        end = min(start + part_lines, total)
        yield ConlluPart(start, end, before, rows)
        start, before, rows = end, at, []
