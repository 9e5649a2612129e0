"""A CoNLL-U file cut into parts of so many lines of its text, without reading what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.text.conllu_reader import LINE_COMMENT, ConlluReader
from fairseq_syntax.text.files import read_raw_lines
from fairseq_syntax.text.parsed_line import ParsedLine

# Without "# lines = N", so many empty lines in a row are taken for a mistake in a "# line = N".
MOST_EMPTY_LINES = 1_000_000


class ConlluPart(NamedTuple):
    """Lines [start, end) of the text, and the rows of their parse as they stand in the file after ``before`` others."""

    start: int
    end: int
    before: int
    rows: list[bytes]

    def read(self, path: str | None = None) -> Iterator[ParsedLine]:
        """The parse of each line. Raises SyntaxDataError as ``read_conllu``, with the lines of the file ``path``."""
        reader = ConlluReader(path, self.end, self.start, self.before)
        reader.declared = self.end  # so a part without any sentence is one of empty lines
        return reader.read(self.rows)


def conllu_parts(path: str | os.PathLike[str], part_lines: int, *, n_lines: int | None = None) -> Iterator[ConlluPart]:
    """Cuts a file, plain or ``.gz``.

    Args:
        part_lines: lines of each part; the last may have fewer
        n_lines: of the text, where they are known

    Raises:
        SyntaxDataError: the file cannot be read, or its numbering of the lines is not that of a text
    """
    declared: int | None = None
    numbered: bool | None = None
    start = before = at = next_line = 0  # next_line: the first line of which nothing was seen
    rows: list[bytes] = []  # of the part
    sentence: list[bytes] = []  # of the sentence, with the comments before it
    number: int | None = None
    words = False

    def fail(message: str, hint: str | None = None) -> NoReturn:
        raise SyntaxDataError(message, path=path, line=at, hint=hint)

    def place_sentence() -> Iterator[ConlluPart]:
        """Puts the sentence into its part, after those that end before it."""
        nonlocal start, before, rows, next_line, numbered
        if numbered is None:
            numbered = number is not None
        elif numbered != (number is not None):
            fail(
                "a sentence with '# line = N' and one without in one file",
                "give every sentence its '# line = N', or none if each is a line of its own",
            )
        index = number - 1 if number is not None else next_line
        limit = n_lines if n_lines is not None else declared
        if limit is not None and index >= limit:
            fail(f"this sentence is of line {index + 1}, but the text has {limit} lines", "parse the text again")
        if limit is None and index > next_line + MOST_EMPTY_LINES:
            fail(f"'# line = {index + 1}' after line {next_line}", "write '# lines = N' above the first sentence")
        while index >= start + part_lines:
            yield ConlluPart(start, start + part_lines, before, rows)
            start, before, rows = start + part_lines, at - len(sentence), []
        rows += sentence
        next_line = max(next_line, index + 1)

    for raw in read_raw_lines(path):
        at += 1
        if not raw.strip() and b"\t" not in raw:
            sentence.append(raw)
            if words:
                yield from place_sentence()
            else:
                rows += sentence
            sentence, number, words = [], None, False
            continue
        if raw[:1] == b"#":
            match = LINE_COMMENT.match(raw.decode("ascii", "replace"))
            if match and match[2].isdigit() and len(match[2]) < 10 and not words:
                if match[1] == "lines":
                    declared = int(match[2])
                    raw = b"#\n"  # a part has other lines than the file
                else:
                    number = int(match[2]) or None
        else:
            words = True
        sentence.append(raw)
    if sentence:
        if words or number is not None:
            yield from place_sentence()
        else:
            rows += sentence
    if n_lines is not None and declared is not None and n_lines != declared:
        raise SyntaxDataError(f"holds the parse of {declared} lines, but the text has {n_lines}", path=path)
    total = n_lines if n_lines is not None else declared
    if total is None:
        total = next_line
    elif numbered is False and next_line != total:
        hint = "without '# line = N' comments there must be one sentence for every line"
        raise SyntaxDataError(f"holds {next_line} sentences, but the text has {total} lines", path=path, hint=hint)
    while start < total:
        end = min(start + part_lines, total)
        yield ConlluPart(start, end, before, rows)
        start, before, rows = end, at, []
