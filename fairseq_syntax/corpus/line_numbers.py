"""Sentence boundaries of CoNLL-U, and line numbers of the text: ``# line = N`` and ``# lines = N``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from fairseq_syntax.errors import SyntaxDataError, quoted

# Without the text, this many consecutive empty lines count as an error in a number.
MOST_EMPTY_LINES = 1_000_000
# With another value than a number, such as `# line = corpus.txt:12`, it is the comment of another program.
_COMMENT = re.compile(r"#\s*(lines?)\s*=\s*([-+]?[\d_., ]*?)\s*\Z", re.ASCII)


class Block(NamedTuple):
    """Rows up to a blank row, the file line of the first, and their 0-based text line; -1 without a sentence."""

    line: int
    first: int
    rows: list


def blocks(rows: Iterable, first: int = 1) -> Iterator[tuple[int, list]]:
    """Split the rows of a file, text or bytes, after blank rows; yields the number of each block's first row."""
    block: list = []
    tab: Any = None
    for row in rows:
        block.append(row)
        tab = tab or ("\t" if isinstance(row, str) else b"\t")
        if tab not in row and is_blank(row):  # the first condition, for speed, excludes most rows
            yield first, block
            first, block = first + len(block), []
    if block:
        yield first, block


def is_blank(row: Any) -> bool:
    """Whether a row, text or bytes, ends a sentence: it is white space without the tabs of empty columns."""
    tab = b"\t" if isinstance(row, bytes) else "\t"
    return tab not in row and not _text(row).strip()


def _text(row: str | bytes) -> str:
    return row if isinstance(row, str) else row.decode("utf-8", "replace").rstrip("\r\n")


class LineNumbers:
    """Assigns text lines to the sentences of a file or a part of it, and rejects inconsistent numbering.

    Args:
        path: the file, for errors
        n_lines: the number of text lines, if known
        first_line: the 0-based text line of the first sentence
        is_part: whether ``# lines`` counts other lines too, and there may be no sentence

    Attributes:
        numbered: whether sentences have ``# line`` comments; None before the first sentence
        next: the first text line that has not been reached
    """

    def __init__(self, path: str, n_lines: int | None = None, first_line: int = 0, is_part: bool = False) -> None:
        self._path, self._n_lines, self._trusted = path, n_lines, n_lines is not None
        self._declared = is_part
        self.numbered: bool | None = None
        self.next = first_line
        self._last: int | None = None

    def blocks(self, rows: Iterable, before: int = 0) -> Iterator[Block]:
        """Split rows, text or bytes, that follow ``before`` others, and number their sentences."""
        for first, block in blocks(rows, before + 1):
            number: int | None = None
            sign: Any = "#" if isinstance(block[0], str) else b"#"
            comments = [place for place, row in enumerate(block) if row[:1] == sign]
            for earlier, place in enumerate(comments):
                # If fewer comments than rows precede a comment, it is below a row of the sentence.
                number = self._comment(_text(block[place]), first + place, number, within=place > earlier)
            if len(block) > len(comments) + is_blank(block[-1]):
                yield Block(self._place(number, first), first, block)
            elif number is None:
                yield Block(-1, first, block)
            else:
                self.fail(f"'# line = {number}' has no sentence", first)

    def _comment(self, row: str, at: int, number: int | None, within: bool) -> int | None:
        """The 1-based line number of a sentence after a comment in file line ``at``; ``number`` is that before it.

        ``within``: whether rows of the sentence precede the comment.
        """
        match = _COMMENT.match(row)
        if match is None:
            return number
        if within:
            self.fail(f"{quoted(row)} in the middle of a sentence", at, "a blank line ends a sentence")
        value = natural(match[2])
        if value is None or (value == 0 and match[1] == "line"):
            self.fail(f"not a number of lines: {quoted(row)}", at)
        if match[1] == "line":
            return value
        if not self._declared:
            if self._n_lines not in (None, value):
                self.fail(f"holds the parse of {value} lines, but the text has {self._n_lines}", at)
            self._n_lines, self._declared = value, True
        return number

    def _place(self, number: int | None, at: int) -> int:
        """The 0-based text line of the sentence in file line ``at``; without numbers, each sentence is one line."""
        if self.numbered is None:
            self.numbered = number is not None
        elif self.numbered != (number is not None):
            message = "some sentences have a '# line = N', and others none"
            self.fail(message, at, "give every sentence one, or none if each is a line of its own")
        index = self.next if number is None else number - 1
        if index == self._last:
            return index
        if index < self.next:
            self.fail(f"'# line = {index + 1}' comes after '# line = {self.next}'", at)
        if self._n_lines is not None and index >= self._n_lines:
            message = f"this sentence is of line {index + 1}, but the text has {self._n_lines} lines"
            self.fail(message, at, "parse the text again, or name the right text")
        self._check_gap(index - self.next, at)
        self._last, self.next = index, index + 1
        return index

    def total(self) -> int:
        """The number of text lines, after all sentences have been placed."""
        total = self.next if self._n_lines is None else self._n_lines
        # Without sentences, `# lines = N` means that all lines are empty.
        may_lack_sentences = self._declared if self.numbered is None else self.numbered
        if self.next != total and not may_lack_sentences:
            hint = "without '# line = N' comments there must be one sentence for every line"
            self.fail(f"holds {self.next} sentences, but the text has {total} lines", hint=hint)
        self._check_gap(total - self.next, None)
        return total

    def _check_gap(self, lines: int, at: int | None) -> None:
        if not self._trusted and lines > MOST_EMPTY_LINES:
            self.fail(f"{lines} lines without a sentence", at, "is a number in '# line = N' or '# lines = N' wrong?")

    def fail(self, message: str, line: int | None = None, hint: str | None = None) -> NoReturn:
        """Raise SyntaxDataError at a line of the file."""
        raise SyntaxDataError(message, path=self._path, line=line, hint=hint)


def declared_in(row: str) -> int | None:
    """The N of a row ``# lines = N``; None for any other row."""
    match = _COMMENT.match(row)
    return natural(match[2]) if match is not None and match[1] == "lines" else None


def is_line_comment(row: str) -> bool:
    """Whether a row is ``# line = N`` or ``# lines = N``."""
    return _COMMENT.match(row) is not None


@lru_cache(maxsize=1000)  # the heads of most sentences
def natural(text: str) -> int | None:
    """The number written in plain digits, or None; ``int`` would also accept '+1', '1_0' and ' 1'."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
