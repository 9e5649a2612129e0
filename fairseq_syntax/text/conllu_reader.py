"""The reading side of :mod:`fairseq_syntax.text.conllu`: rows to parsed lines, and an error for all else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NoReturn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.text.parsed_line import ParsedLine, Token, owner

COLUMNS = 10
MASS_TOLERANCE = 1e-3
MOST_EMPTY_LINES = 1_000_000
ESCAPES = {" ": r"\s", "\t": r"\t", "\n": r"\n", "\r": r"\r", "|": r"\p", "\\": r"\\", ",": r"\c"}

_UNESCAPES = {escape: char for char, escape in ESCAPES.items()}
_TO_UNESCAPE = re.compile(r"\\[stnrp\\c]")
_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)\Z", re.ASCII)
_NUMBERS = {str(number): number for number in range(1000)}
_EMPTY_NODE = re.compile(r"[0-9]+\.[0-9]+\Z", re.ASCII)
LINE_COMMENT = re.compile(r"#\s*(lines?)\s*=\s*(.*?)\s*\Z", re.ASCII)


class ConlluReader:
    """Reads one file, or a part of it; holds what its error messages need.

    Args:
        path: for messages
        n_lines: of the text, where they are known
        first_line: the line of the text to begin with, counted from 0
        before: lines of the file before those that are read
    """

    def __init__(self, path: str | None, n_lines: int | None, first_line: int = 0, before: int = 0) -> None:
        self.path = path
        self.before = before
        self.n_lines = n_lines
        self.first_line = first_line
        self.declared: int | None = None  # by "# lines"

    def fail(self, message: str, line: int | None = None, hint: str | None = None) -> NoReturn:
        raise SyntaxDataError(message, path=self.path or "<CoNLL-U>", line=line, hint=hint)

    def read(self, lines: Iterable[Any]) -> Iterator[ParsedLine]:
        current: ParsedLine | None = None
        numbered: bool | None = None
        position = self.first_line  # the next text line to be yielded
        for number, start, rows in self.sentences(lines):
            if numbered is None:
                numbered = number is not None
            elif numbered != (number is not None):
                self.fail(
                    f"this sentence has {'no' if numbered else 'a'} '# line = N', the ones before have "
                    f"{'one' if numbered else 'none'}",
                    start,
                    "give every sentence its '# line = N', or none if each is a line of its own",
                )
            index = number - 1 if number is not None else position + (current is not None)
            if current is not None and index != current.line_number:
                if index < current.line_number:
                    self.fail(f"'# line = {index + 1}' comes after '# line = {current.line_number + 1}'", start)
                yield current
                position = current.line_number + 1
                current = None
            if current is None:
                limit = self.n_lines if self.n_lines is not None else self.declared
                if limit is not None and index >= limit:
                    self.fail(
                        f"this sentence is of line {index + 1}, but the text has {limit} lines",
                        start,
                        "parse the text again, or name the right text",
                    )
                if index < position:
                    self.fail(f"'# line = {index + 1}' comes before the first line, {position + 1}", start)
                self.check_gap(index - position, start)
                for empty in range(position, index):
                    yield ParsedLine(line_number=empty, file_line=start)
                position = index
                current = ParsedLine(line_number=index, file_line=start)
            self.add_sentence(current, rows)
        if current is not None:
            yield current
            position = current.line_number + 1
        yield from self.rest(position, self.declared is not None if numbered is None else numbered)

    def rest(self, position: int, numbered: bool) -> Iterator[ParsedLine]:
        """The empty lines after the last sentence."""
        if self.n_lines is not None and self.declared is not None and self.n_lines != self.declared:
            self.fail(f"holds the parse of {self.declared} lines, but the text has {self.n_lines}")
        total = self.n_lines if self.n_lines is not None else self.declared
        if total is None:
            return
        if not numbered and position != total:
            self.fail(
                f"holds {position} sentences, but the text has {total} lines",
                None,
                "without '# line = N' comments there must be one sentence for every line",
            )
        self.check_gap(total - position, None)
        for empty in range(position, total):
            yield ParsedLine(line_number=empty, file_line=self.last_line + 1)

    def check_gap(self, lines: int, at: int | None) -> None:
        """A number of a million empty lines in a row is a slip, where no text says otherwise."""
        if self.n_lines is None and lines > MOST_EMPTY_LINES:
            self.fail(f"{lines} lines without a sentence", at, "is a number in '# line = N' or '# lines = N' wrong?")

    def sentences(self, lines: Iterable[Any]) -> Iterator[tuple[int | None, int, list[tuple[int, list[str]]]]]:
        """Yields (``# line`` or None, file line, rows); a row is (file line, columns)."""
        rows: list[tuple[int, list[str]]] = []
        number: int | None = None
        start = 0
        at = self.before
        try:
            for line in lines:
                at += 1
                raw: str = line.decode("utf-8") if isinstance(line, bytes) else line
                raw = raw.rstrip("\r\n") if raw[-1:] in "\r\n" else raw
                if at == 1:
                    raw = raw.removeprefix("\ufeff")
                if not raw or (raw.isspace() and "\t" not in raw):
                    if rows:
                        yield number, start, rows
                    elif number is not None:
                        self.fail(f"'# line = {number}' has no sentence", start)
                    rows, number, start = [], None, 0
                    continue
                start = start or at
                if raw[0] == "#":
                    number = self.comment(raw, at, number, bool(rows))
                    continue
                columns = raw.split("\t")
                if len(columns) != COLUMNS or "" in columns:
                    found = f"{len(columns)} columns" if len(columns) != COLUMNS else "an empty column"
                    self.fail(f"{found} where ten are due, split by tabs: {_shown(raw)}", at)
                rows.append((at, columns))
        except UnicodeDecodeError as error:
            self.fail(f"not UTF-8: {error.reason} at byte {error.start + 1} of the line", at, "convert it with iconv")
        self.last_line = at
        if rows:
            yield number, start, rows
        elif number is not None:
            self.fail(f"'# line = {number}' has no sentence", start)

    def comment(self, raw: str, at: int, number: int | None, within: bool) -> int | None:
        match = LINE_COMMENT.match(raw)
        if match is None:
            return number
        if within:
            self.fail(f"{_shown(raw)} in the middle of a sentence", at, "a blank line ends a sentence")
        value = _natural(match[2])
        if value is None or (value == 0 and match[1] == "line"):
            self.fail(f"not a number of lines: {_shown(raw)}", at)
        if match[1] == "lines":
            self.declared = value
            return number
        return value

    def add_sentence(self, line: ParsedLine, rows: list[tuple[int, list[str]]]) -> None:
        offset = len(line.words)
        found = list(zip(*(columns for _, columns in rows)))
        if found[0] == _ids(len(rows)):  # words only: nearly every sentence of nearly every language
            self.add_words(line, rows, found, offset)
            return
        ranges: list[tuple[int, int, int, list[str]]] = []  # first, last, file line, columns; counted over the line
        words: list[tuple[int, list[str]]] = []
        for at, columns in rows:
            if columns[0] == str(len(words) + 1):
                words.append((at, columns))
            elif (match := _RANGE.match(columns[0])) and len(columns[0]) < 20:
                first, last = int(match[1]), int(match[2])
                if first != len(words) + 1 or last < first or (ranges and ranges[-1][1] >= offset + first - 1):
                    self.fail(f"the range {columns[0]} does not begin with the next word, {len(words) + 1}", at)
                ranges.append((offset + first - 1, offset + last - 1, at, columns))
            elif not _EMPTY_NODE.match(columns[0]):
                self.fail(f"id {_shown(columns[0])} where {len(words) + 1} is due", at)
        if not words:
            self.fail("a sentence without words", rows[0][0])
        if ranges and ranges[-1][1] >= offset + len(words):
            self.fail(f"the range {ranges[-1][3][0]} ends after the sentence", ranges[-1][2])

        self.add_heads(line, words, offset)
        arcs: list[tuple[int, int, str, float]] = []
        has_arcs = False
        within = iter([*ranges, None])
        span = next(within)
        for index, (at, columns) in enumerate(words, start=offset):
            _, form, _, upos, xpos, _, _, deprel, _, misc = columns
            line.words.append(form)
            line.upos.append(upos)
            line.xpos.append(xpos)
            line.deprels.append(deprel)
            if "Arcs=" in misc:
                has_arcs = self.add_arcs(arcs, misc, index, offset, len(words), at) or has_arcs
            if span is not None and index == span[0]:
                first, last, token_at, token_columns = span
                word = owner(first, last, line.heads)
            elif span is not None and span[0] < index <= span[1]:
                span = next(within) if index == span[1] else span
                continue
            else:
                first, last, word, token_at, token_columns = index, index, index, at, columns
            line.tokens.append(self.token(token_columns, token_at, first, last, word))
            if span is not None and index == span[1]:
                span = next(within)
        if has_arcs:
            line.arcs = arcs if line.arcs is None else line.arcs + arcs
        line.sentences.append((offset, offset + len(words)))

    def add_words(
        self, line: ParsedLine, rows: list[tuple[int, list[str]]], columns: list[tuple[str, ...]], offset: int
    ) -> None:
        """A sentence in which every token is a word: what :meth:`add_sentence` does, a column at a time."""
        _, forms, _, upos, xpos, _, _, deprels, _, miscs = columns
        n_words = len(forms)
        self.add_heads(line, rows, offset)
        line.words += forms
        line.upos += upos
        line.xpos += xpos
        line.deprels += deprels
        arcs: list[tuple[int, int, str, float]] = []
        has_arcs = False
        tokens = line.tokens
        for index, misc in enumerate(miscs, start=offset):
            if misc == "_":
                tokens.append(Token(forms[index - offset], True, index, index, index))
                continue
            at = rows[index - offset][0]
            if "Arcs=" in misc:
                has_arcs = self.add_arcs(arcs, misc, index, offset, n_words, at) or has_arcs
            tokens.append(self.token(rows[index - offset][1], at, index, index, index))
        if has_arcs:
            line.arcs = arcs if line.arcs is None else line.arcs + arcs
        line.sentences.append((offset, offset + n_words))

    def add_heads(self, line: ParsedLine, words: list[tuple[int, list[str]]], offset: int) -> None:
        """Heads of one sentence, checked to be a tree with one root."""
        heads: list[int] = []
        root = None
        for index, (at, columns) in enumerate(words):
            head = _NUMBERS.get(columns[6])
            if head is None:
                head = _natural(columns[6])
            if head is None or head > len(words):
                self.fail(
                    f"head {_shown(columns[6])} of word {index + 1} is not a number between 0 and {len(words)}",
                    at,
                    "the sentence is not parsed" if columns[6] == "_" else None,
                )
            if head == 0:
                if root is not None:
                    self.fail(f"words {root + 1} and {index + 1} are both roots; a sentence has one", at)
                root = index
            heads.append(head - 1 if head else index)
        # state: 0 not seen, k seen on the k-th walk up; a walk that meets itself is a cycle.
        state = [0] * len(heads)
        if root is not None:
            state[root] = -1
        for walk in range(len(heads)):
            index = walk
            while state[index] == 0:
                state[index] = walk + 1
                index = heads[index]
            if state[index] == walk + 1:
                self.fail(f"the heads form a cycle through word {index + 1}", words[index][0])
            index = walk
            while state[index] == walk + 1:
                state[index] = -1
                index = heads[index]
        line.heads.extend([head + offset for head in heads] if offset else heads)

    def add_arcs(
        self, arcs: list[tuple[int, int, str, float]], misc: str, index: int, offset: int, n_words: int, at: int
    ) -> bool:
        found = False
        mass = 0.0
        for value in misc.split("|"):
            if not value.startswith("Arcs="):
                continue
            found = True
            for arc in value[5:].split(",") if len(value) > 5 else ():
                head_text, _, rest = arc.partition(":")
                label, _, p_text = rest.rpartition(":")
                head = _NUMBERS.get(head_text)
                if head is None:
                    head = _natural(head_text)
                if head is None or not label:
                    self.fail(f"not an arc HEAD:LABEL:P: {_shown(arc)}", at)
                parent = head - 1 + offset if head else index
                if head > n_words or (parent == index and head):
                    self.fail(
                        f"the arc {_shown(arc)} of word {index - offset + 1} leaves the sentence or is a loop", at
                    )
                try:
                    p = float(p_text)
                except ValueError:
                    p = -1.0
                if not 0.0 <= p <= 1.0:
                    self.fail(f"the probability of the arc {_shown(arc)} is not in [0, 1]", at)
                mass += p
                if "\\" in label:
                    label = unescape(label)
                arcs.append((index, parent, label, p))
        if mass > 1.0 + MASS_TOLERANCE:
            self.fail(f"the arcs of word {index - offset + 1} have a mass of {mass:.4f}, above 1", at)
        return found

    def token(self, columns: list[str], at: int, first: int, last: int, word: int) -> Token:
        misc = columns[9]
        if misc == "_":
            return Token(columns[1], True, first, last, word)
        space_after, pieces = True, None
        for entry in misc.split("|"):
            if entry == "SpaceAfter=No":
                space_after = False
            elif entry.startswith("Pieces="):
                pieces = _natural(entry[7:])
                if not pieces:
                    self.fail(f"not a number of pieces: {_shown(entry)}", at)
        return Token(columns[1], space_after, first, last, word, pieces)


@lru_cache(maxsize=1024)
def _ids(count: int) -> tuple[str, ...]:
    """The ids of a sentence of plain words."""
    return tuple(map(str, range(1, count + 1)))


def unescape(text: str) -> str:
    """A value of MISC with its escapes undone."""
    return _TO_UNESCAPE.sub(lambda match: _UNESCAPES[match[0]], text)


def _natural(text: str) -> int | None:
    """A number of plain digits, or None; ``int`` alone would take '+1', '1_0' and ' 1'."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
