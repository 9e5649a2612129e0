"""Parsing and validation of CoNLL-U rows; see :mod:`fairseq_syntax.corpus.conllu`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from fairseq_syntax.corpus.line_numbers import LineNumbers, blocks, is_blank, natural
from fairseq_syntax.corpus.parsed_line import ParsedLine, Token, cycle_through, owner
from fairseq_syntax.errors import SyntaxDataError, quoted
from fairseq_syntax.runtime.files import decode_line

NAMES = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
COLUMNS = len(NAMES)
MASS_TOLERANCE = 1e-3
ESCAPES = {" ": r"\s", "\t": r"\t", "\n": r"\n", "\r": r"\r", "|": r"\p", "\\": r"\\", ",": r"\c"}

_UNESCAPES = {escape: char for char, escape in ESCAPES.items()}
_TO_UNESCAPE = re.compile(r"\\[stnrp\\c]")
_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)\Z", re.ASCII)
# Most heads; a look-up is faster than a conversion.
_NUMBERS = {str(number): number for number in range(1000)}
_EMPTY_NODE = re.compile(r"[0-9]+\.[0-9]+\Z", re.ASCII)


class ConlluReader:
    """Reads a file or a part of it, and keeps the context for error messages.

    Args:
        path: the file, for errors
        n_lines: the number of text lines, if known
        first_line: the 0-based text line of the first sentence
        before: the number of preceding lines in the file
        empty: whether to yield text lines without a sentence
    """

    def __init__(
        self,
        path: str = "<CoNLL-U>",
        n_lines: int | None = None,
        first_line: int = 0,
        before: int = 0,
        *,
        empty: bool = True,
    ) -> None:
        self.path = path
        self.before = self.last_line = before
        self.first_line = first_line
        self.empty = empty
        self.line_numbers = LineNumbers(self.path, n_lines, first_line)

    def fail(self, message: str, line: int | None = None, hint: str | None = None) -> NoReturn:
        raise SyntaxDataError(message, path=self.path, line=line, hint=hint)

    def read(self, lines: Iterable[Any]) -> Iterator[ParsedLine]:
        """Yield the parse of each text line, from the rows of the file as text or bytes."""
        current: ParsedLine | None = None
        position = self.first_line  # the next text line to yield
        for number, start, rows, places in self.sentences(lines):
            index = self.line_numbers.place(number, start)
            if current is not None and index != current.line_number:
                yield current
                current = None
            if current is None:
                yield from self.empty_lines(position, index, start)
                current = ParsedLine(line_number=index, file_line=start)
                position = index + 1
            self.add_sentence(current, rows, places)
            if number is None:  # one sentence per line: yield it at once, for interactive input
                yield current
                current = None
        if current is not None:
            yield current
        yield from self.empty_lines(position, self.line_numbers.total(), self.last_line + 1)

    def empty_lines(self, start: int, end: int, file_line: int) -> Iterator[ParsedLine]:
        """Yield the text lines [start, end), which have no sentence, if requested."""
        if self.empty:
            for number in range(start, end):
                yield ParsedLine(line_number=number, file_line=file_line)

    def sentences(self, lines: Iterable[Any]) -> Iterator[tuple[int | None, int, list[str], list[int]]]:
        """Yield each sentence: its ``# line`` or None, its first file line, its rows, and their file lines."""
        for start, block in blocks(self.rows(lines), "\t", self.before + 1):
            rows: list[str] = []
            places: list[int] = []
            number: int | None = None
            for at, row in enumerate(block, start):
                if row[:1] == "#":
                    self.check_column_names(row, at)
                    number = self.line_numbers.comment(row, at, number, bool(rows))
                elif "\t" in row:
                    rows.append(row)
                    places.append(at)
            if rows:
                yield number, start, rows, places
            elif number is not None:
                self.fail(f"'# line = {number}' has no sentence", start)

    def rows(self, lines: Iterable[Any]) -> Iterator[str]:
        """Yield the rows without line ends, each checked for ten columns, without reading ahead."""
        for line in lines:
            self.last_line += 1
            if isinstance(line, bytes):
                row = decode_line(line, self.path, self.last_line)
            else:
                row = line.rstrip("\r\n")
                row = row.removeprefix("\ufeff") if self.last_line == 1 else row
            if row.count("\t") != COLUMNS - 1 and row[:1] != "#" and not is_blank(row):
                columns = row.count("\t") + 1
                self.fail(f"{columns} columns; ten are expected, separated by tabs: {quoted(row)}", self.last_line)
            yield row

    def check_column_names(self, comment: str, at: int) -> None:
        """Check the column names of CoNLL-U Plus, which allows other columns and orders."""
        name, equals, columns = comment.removeprefix("#").partition("=")
        if equals and name.strip() == "global.columns" and columns.split() != NAMES:
            self.fail(f"columns {quoted(columns.strip())}, and {' '.join(NAMES)} are wanted", at)

    def check_values(self, columns: Sequence[str], at: int) -> None:
        """Check columns: none may be empty, no word only white space, no label surrounded by white space."""
        if "" in columns:
            row = "\t".join(columns)
            self.fail(f"an empty column; ten columns are expected, separated by tabs: {quoted(row)}", at)
        if not columns[1].strip():
            self.fail(
                f"a word of white space only: {quoted(columns[1])}", at, "leave it out, and its space between words"
            )
        for name, value in (("UPOS", columns[3]), ("DEPREL", columns[7])):
            if value != value.strip():
                self.fail(f"white space around the {name} {quoted(value)}", at)

    def add_sentence(self, line: ParsedLine, rows: list[str], places: list[int]) -> None:
        """Add a sentence to its text line; ``places`` are the file lines of its rows."""
        offset = len(line.words)
        ranges: dict[int, tuple[int, int, list[str]]] = {}  # first → last word of the line, file line, columns
        words: list[tuple[int, list[str]]] = []
        last_covered = -1
        for row, at in zip(rows, places):
            columns = row.split("\t")
            self.check_values(columns, at)
            if columns[0] == str(len(words) + 1):
                words.append((at, columns))
            elif (match := _RANGE.match(columns[0])) and len(columns[0]) < 20:  # or int() raises
                first, last = (offset + int(number) - 1 for number in match.groups())
                if first != offset + len(words) or last < first or last_covered >= first:
                    self.fail(f"the range {columns[0]} does not begin with the next word, {len(words) + 1}", at)
                ranges[first], last_covered = (last, at, columns), last
            elif not _EMPTY_NODE.match(columns[0]):
                self.fail(f"id {quoted(columns[0])} where {len(words) + 1} is due", at)
        if not words:
            self.fail("a sentence without words", places[0])
        if last_covered >= offset + len(words):
            _, at, columns = ranges[max(ranges)]
            self.fail(f"the range {columns[0]} ends after the sentence", at)

        self.add_heads(line, [columns[6] for _, columns in words], [at for at, _ in words], offset)
        next_token = offset
        for index, (at, columns) in enumerate(words, start=offset):
            _, form, _, upos, xpos, _, _, deprel, _, misc = columns
            line.words.append(form)
            line.upos.append(upos)
            line.xpos.append(xpos)
            line.deprels.append(deprel)
            if "Arcs=" in misc:
                self.add_arcs(line, misc, index, offset, len(words), at)
            if index == next_token:
                last, token_at, columns = ranges.get(index, (index, at, columns))
                word = owner(index, last, line.heads) if last > index else index
                line.tokens.append(self.token(columns[1], columns[9], token_at, index, last, word))
                next_token = last + 1
        line.sentences.append((offset, offset + len(words)))

    def add_heads(self, line: ParsedLine, texts: list[str], places: list[int], offset: int) -> None:
        """Add the heads of one sentence, which must be a tree with one root."""
        n_words = len(texts)
        numbers = list(map(_NUMBERS.get, texts))
        if None in numbers:  # above 999, or invalid
            numbers = list(map(natural, texts))
        heads: list[int] = []
        root = None
        for index, head in enumerate(numbers):
            if head is None or head > n_words:
                self.fail(
                    f"head {quoted(texts[index])} of word {index + 1} is not a number between 0 and {n_words}",
                    places[index],
                    "the sentence is not parsed" if texts[index] == "_" else None,
                )
            if head == 0:
                if root is not None:
                    self.fail(f"words {root + 1} and {index + 1} are both roots; a sentence has one", places[index])
                root = index
            elif head == index + 1:  # from here on, a word that is its own head is a root
                self.fail(f"the heads form a cycle through word {head}", places[index])
            heads.append(head - 1 if head else index)
        if (cycle := cycle_through(heads)) is not None:
            self.fail(f"the heads form a cycle through word {cycle + 1}", places[cycle])
        line.heads += [head + offset for head in heads] if offset else heads

    def add_arcs(self, line: ParsedLine, misc: str, index: int, offset: int, n_words: int, at: int) -> None:
        """Add the arcs of one word, if its MISC column contains any."""
        mass = 0.0
        for value in misc.split("|"):
            if not value.startswith("Arcs="):
                continue
            line.arcs = [] if line.arcs is None else line.arcs
            for arc in value[5:].split(",") if len(value) > 5 else ():
                head_text, _, rest = arc.partition(":")
                label, _, p_text = rest.rpartition(":")
                head = _NUMBERS.get(head_text)
                if head is None:
                    head = natural(head_text)
                if head is None or not label:
                    self.fail(f"not an arc HEAD:LABEL:P: {quoted(arc)}", at)
                parent = head - 1 + offset if head else index
                if head > n_words or (parent == index and head):
                    self.fail(f"arc {quoted(arc)} of word {index - offset + 1} leaves the sentence or is a loop", at)
                try:
                    p = float(p_text)
                except ValueError:
                    p = -1.0
                if not 0.0 <= p <= 1.0:
                    self.fail(f"the probability of the arc {quoted(arc)} is not in [0, 1]", at)
                mass += p
                if "\\" in label:
                    label = unescape(label)
                line.arcs.append((index, parent, label, p))
        if mass > 1.0 + MASS_TOLERANCE:
            self.fail(f"the arcs of word {index - offset + 1} have a mass of {mass:.4f}, above 1", at)

    def token(self, form: str, misc: str, at: int, first: int, last: int, word: int) -> Token:
        """The surface token of words ``first`` to ``last``, with its spacing and number of pieces from MISC."""
        space_after, pieces = True, None
        for entry in misc.split("|") if misc != "_" else ():
            if entry == "SpaceAfter=No":
                space_after = False
            elif entry.startswith("Pieces="):
                pieces = natural(entry[7:])
                if not pieces:
                    self.fail(f"not a number of pieces: {quoted(entry)}", at)
        return Token(form, space_after, first, last, word, pieces)


def unescape(text: str) -> str:
    """Unescape a value of MISC."""
    return _TO_UNESCAPE.sub(lambda match: _UNESCAPES[match[0]], text)
