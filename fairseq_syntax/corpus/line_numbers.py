"""Sentence boundaries of CoNLL-U, and line numbers of the text: ``# line = N`` and ``# lines = N``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeVar

from fairseq_syntax.errors import SyntaxDataError, quoted

# Without the text, this many consecutive empty lines count as an error in a number.
MOST_EMPTY_LINES = 1_000_000
Row = TypeVar("Row", str, bytes)
_COMMENT = re.compile(r"#\s*(lines?)\s*=\s*(.*?)\s*\Z", re.ASCII)


def blocks(rows: Iterable[Row], tab: Row, first: int = 1) -> Iterator[tuple[int, list[Row]]]:
    """Split the rows of a file at blank rows; yields the number of each block's first row, and its rows.

    Args:
        tab: a tab in the type of the rows
        first: the number of the first row
    """
    block: list[Row] = []
    for row in rows:
        block.append(row)
        if tab not in row and is_blank(row):
            yield first, block
            first, block = first + len(block), []
    if block:
        yield first, block


def is_blank(row: str | bytes) -> bool:
    """Whether a row ends a sentence, by consisting of white space other than the tabs of empty columns."""
    text = row if isinstance(row, str) else row.decode("utf-8", "replace")
    return "\t" not in text and not text.strip()


class LineNumbers:
    """Assigns text lines to the sentences of a file or a part of it, and rejects inconsistent numbering.

    Args:
        path: the file, for errors
        n_lines: the number of text lines, if known
        first_line: the 0-based text line of the first sentence

    Attributes:
        declared: the number of lines according to ``# lines``
        numbered: whether sentences have ``# line`` comments; None before the first sentence
        next: the first text line that has not been reached
    """

    def __init__(self, path: str, n_lines: int | None = None, first_line: int = 0) -> None:
        self._path, self.n_lines = path, n_lines
        self.declared: int | None = None
        self.numbered: bool | None = None
        self.next = first_line
        self._last: int | None = None

    def comment(self, row: str, at: int, number: int | None, within: bool) -> int | None:
        """Process a comment row.

        Args:
            row: the row without its line end
            at: its line in the file
            number: the line number from preceding comments of the sentence, if any
            within: whether rows of the sentence precede the comment

        Returns:
            the 1-based line number of the sentence, if this or a preceding comment states it
        """
        match = _COMMENT.match(row)
        if match is None:
            return number
        if within:
            self._fail(f"{quoted(row)} in the middle of a sentence", at, "a blank line ends a sentence")
        value = natural(match[2])
        if value is None or (value == 0 and match[1] == "line"):
            self._fail(f"not a number of lines: {quoted(row)}", at)
        if match[1] == "lines":
            self.declared = value
            return number
        return value

    def place(self, number: int | None, at: int) -> int:
        """The 0-based text line of the next sentence.

        Args:
            number: the line number from its comments; without numbers, each sentence is one line
            at: its line in the file
        """
        if self.numbered is None:
            self.numbered = number is not None
        elif self.numbered != (number is not None):
            self._fail(
                f"this sentence has {'no' if self.numbered else 'a'} '# line = N', the ones before have "
                f"{'one' if self.numbered else 'none'}",
                at,
                "give every sentence its '# line = N', or none if each is a line of its own",
            )
        index = self.next if number is None else number - 1
        if index == self._last:
            return index
        if self._last is not None and index < self._last:
            self._fail(f"'# line = {index + 1}' comes after '# line = {self._last + 1}'", at)
        n_lines = self._known_lines
        if n_lines is not None and index >= n_lines:
            self._fail(
                f"this sentence is of line {index + 1}, but the text has {n_lines} lines",
                at,
                "parse the text again, or name the right text",
            )
        if index < self.next:
            self._fail(f"'# line = {index + 1}' comes before the first line, {self.next + 1}", at)
        self._check_gap(index - self.next, at)
        self._last, self.next = index, index + 1
        return index

    def total(self) -> int:
        """The number of text lines, after all sentences have been placed."""
        if self.n_lines is not None and self.declared is not None and self.n_lines != self.declared:
            self._fail(f"holds the parse of {self.declared} lines, but the text has {self.n_lines}")
        total = self._known_lines
        if total is None:
            return self.next
        # Without sentences, `# lines = N` means that all lines are empty.
        may_lack_sentences = self.declared is not None if self.numbered is None else self.numbered
        if self.next != total and not may_lack_sentences:
            self._fail(
                f"holds {self.next} sentences, but the text has {total} lines",
                None,
                "without '# line = N' comments there must be one sentence for every line",
            )
        self._check_gap(total - self.next, None)
        return total

    @property
    def _known_lines(self) -> int | None:
        """The number of text lines, from the caller or as declared in the file."""
        return self.n_lines if self.n_lines is not None else self.declared

    def _check_gap(self, lines: int, at: int | None) -> None:
        if self.n_lines is None and lines > MOST_EMPTY_LINES:
            self._fail(f"{lines} lines without a sentence", at, "is a number in '# line = N' or '# lines = N' wrong?")

    def _fail(self, message: str, line: int | None = None, hint: str | None = None) -> NoReturn:
        raise SyntaxDataError(message, path=self._path, line=line, hint=hint)


def declared_in(row: str) -> int | None:
    """The N of a row ``# lines = N``; None for any other row."""
    match = _COMMENT.match(row)
    return natural(match[2]) if match is not None and match[1] == "lines" else None


def is_line_comment(row: str) -> bool:
    """Whether a row is ``# line = N`` or ``# lines = N``."""
    return _COMMENT.match(row) is not None


def natural(text: str) -> int | None:
    """The number written in plain digits, or None; ``int`` would also accept '+1', '1_0' and ' 1'."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
