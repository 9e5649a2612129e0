"""Parsing and validation of CoNLL-U rows; see :mod:`fairseq_syntax.corpus.conllu`.

The package conllu reads the format too, into a dictionary per word. This reader gives one record per text line, checks
trees, ranges and arcs, and names the row that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fairseq_syntax.corpus.cycles import cycle_through
from fairseq_syntax.corpus.line_numbers import Block, LineNumbers, is_blank, natural
from fairseq_syntax.corpus.parsed_line import ParsedLine, Token, owner
from fairseq_syntax.errors import quoted
from fairseq_syntax.runtime.files import decode_line

NAMES = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
COLUMNS = len(NAMES)
MASS_TOLERANCE = 1e-3
ESCAPES = {" ": r"\s", "\t": r"\t", "\n": r"\n", "\r": r"\r", "|": r"\p", "\\": r"\\", ",": r"\c"}

_UNESCAPES = {escape: char for char, escape in ESCAPES.items()}
_TO_UNESCAPE = re.compile(r"\\[stnrp\\c]")
_RANGE = re.compile(r"([1-9][0-9]{,8})-([1-9][0-9]{,8})\Z", re.ASCII)
_EMPTY_NODE = re.compile(r"[0-9]+\.[0-9]+\Z", re.ASCII)
_ARC = re.compile(r"([0-9]{1,9}):(.+):((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\Z", re.DOTALL)
_COLUMN_NAMES = re.compile(r"#\s*global\.columns\s*=(.*)")

Row = tuple[int, list[str]]  # its line in the file, and its columns


class ConlluReader:
    """Reads a file or a part of it, and keeps the context for error messages.

    Args:
        n_lines, first_line, is_part: as for :class:`.LineNumbers`
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
        is_part: bool = False,
        empty: bool = True,
    ) -> None:
        self.path, self.first_line, self.empty = path, first_line, empty
        self.before = self.last_line = before
        self.line_numbers = LineNumbers(path, n_lines, first_line, is_part)
        self.fail = self.line_numbers.fail

    def read(self, lines: Iterable[Any]) -> Iterator[ParsedLine]:
        """Yield the parse of each text line, from the rows of the file as text or bytes."""
        current: ParsedLine | None = None
        position = self.first_line  # the next text line to yield
        for sentence in self.sentences(lines):
            if current is not None and sentence.line != current.line_number:
                yield current
                current = None
            if current is None:
                yield from self.empty_lines(position, sentence.line, sentence.first)
                current = ParsedLine(line_number=sentence.line, file_line=sentence.first)
                position = sentence.line + 1
            self.add_sentence(current, sentence)
            if not self.line_numbers.numbered:  # one sentence per line: yield it at once, for interactive input
                yield current
                current = None
        if current is not None:
            yield current
        yield from self.empty_lines(position, self.line_numbers.total(), self.last_line + 1)

    def sentences(self, lines: Iterable[Any]) -> Iterator[Block]:
        """The blocks of rows with a sentence."""
        blocks = self.line_numbers.blocks(self.rows(lines), self.before)
        return (block for block in blocks if block.line >= 0)

    def empty_lines(self, start: int, end: int, file_line: int) -> Iterator[ParsedLine]:
        """Yield the text lines [start, end), which have no sentence, if requested."""
        if self.empty:
            for number in range(start, end):
                yield ParsedLine(line_number=number, file_line=file_line)

    def rows(self, lines: Iterable[Any]) -> Iterator[str]:
        """Yield the rows without line ends, each checked for ten columns, without reading ahead."""
        for at, line in enumerate(lines, self.before + 1):
            self.last_line = at
            row = decode_line(line, self.path, at) if isinstance(line, bytes) else line.rstrip("\r\n")
            row = row.removeprefix("\ufeff") if at == 1 else row  # rows that read_raw_lines has not read
            if row[:1] == "#":
                # CoNLL-U Plus allows other columns and orders
                if (match := _COLUMN_NAMES.match(row)) and match[1].split() != NAMES:
                    self.fail(f"columns {quoted(match[1].strip())}, and {' '.join(NAMES)} are wanted", at)
            elif row.count("\t") != COLUMNS - 1 and not is_blank(row):
                columns = row.count("\t") + 1
                self.fail(f"{columns} columns; ten are expected, separated by tabs: {quoted(row)}", at)
            yield row

    def check_values(self, columns: Sequence[str], at: int) -> None:
        """Check columns: none may be empty, no word only white space, no label surrounded by white space."""
        if "" in columns:
            row = "\t".join(columns)
            self.fail(f"an empty column; ten columns are expected, separated by tabs: {quoted(row)}", at)
        if not columns[1].strip():
            message = f"a word of white space only: {quoted(columns[1])}"
            self.fail(message, at, "leave it out, and its space between words")
        for name, value in (("UPOS", columns[3]), ("DEPREL", columns[7])):
            if value != value.strip():
                self.fail(f"white space around the {name} {quoted(value)}", at)

    def add_sentence(self, line: ParsedLine, sentence: Block) -> None:
        """Add a sentence to its text line."""
        offset, others_with_arcs = len(line.words), line.arcs is not None
        ranges: dict[int, tuple[int, Row]] = {}  # the first word → the last word of the line, and the row
        words: list[Row] = []
        last_covered = -1
        for at, row in enumerate(sentence.rows, sentence.first):
            if row[:1] == "#" or "\t" not in row:
                continue
            columns = row.split("\t")
            self.check_values(columns, at)
            if columns[0] == str(len(words) + 1):
                words.append((at, columns))
            elif match := _RANGE.match(columns[0]):
                first, last = (offset + int(number) - 1 for number in match.groups())
                if first != offset + len(words) or last < first or last_covered >= first:
                    self.fail(f"the range {columns[0]} does not begin with the next word, {len(words) + 1}", at)
                ranges[first], last_covered = (last, (at, columns)), last
            elif not _EMPTY_NODE.match(columns[0]):
                self.fail(f"id {quoted(columns[0])} where {len(words) + 1} is due", at)
        if not words:
            first_row = next(place for place, row in enumerate(sentence.rows) if row[:1] != "#")
            self.fail("a sentence without words", sentence.first + first_row)
        if last_covered >= offset + len(words):
            at, columns = ranges[max(ranges)][1]
            self.fail(f"the range {columns[0]} ends after the sentence", at)

        self.add_heads(line, words, offset)
        next_token, with_arcs = offset, False
        for index, word in enumerate(words, start=offset):
            at, (_, form, _, upos, xpos, _, _, deprel, _, misc) = word
            line.words.append(form)
            line.upos.append(upos)
            line.xpos.append(xpos)
            line.deprels.append(deprel)
            if "Arcs=" in misc:
                with_arcs |= self.add_arcs(line, misc, index, offset, len(words), at)
            if index == next_token:
                last, surface = ranges.get(index, (index, word))
                self.add_token(line, surface, index, last)
                next_token = last + 1
        if line.sentences and with_arcs != others_with_arcs:
            which = ("this", "others have") if others_with_arcs else ("another", "this one has")
            number = line.line_number + 1
            message = f"{which[0]} sentence of line {number} has no distribution (Arcs=), and {which[1]} one"
            self.fail(message, words[0][0], "parse all of it with --distributions, or remove the Arcs= of the others")
        line.sentences.append((offset, offset + len(words)))

    def add_heads(self, line: ParsedLine, words: list[Row], offset: int) -> None:
        """Add the heads of one sentence, which must be a tree with one root."""
        heads: list[int] = []
        root = None
        for index, (at, columns) in enumerate(words):
            head = natural(columns[6])
            if head is None or head > len(words):
                message = f"head {quoted(columns[6])} of word {index + 1} is not a number between 0 and {len(words)}"
                self.fail(message, at, "the sentence is not parsed" if columns[6] == "_" else None)
            if head == 0:
                if root is not None:
                    self.fail(f"words {root + 1} and {index + 1} are both roots; a sentence has one", at)
                root = index
            elif head == index + 1:  # from here on, a word that is its own head is a root
                self.fail(f"the heads form a cycle through word {head}", at)
            heads.append(head - 1 if head else index)
        if (cycle := cycle_through(heads)) is not None:
            self.fail(f"the heads form a cycle through word {cycle + 1}", words[cycle][0])
        line.heads += [head + offset for head in heads] if offset else heads

    def add_arcs(self, line: ParsedLine, misc: str, index: int, offset: int, n_words: int, at: int) -> bool:
        """Add the arcs of one word, if its MISC column contains any; returns whether it has an ``Arcs``, if empty."""
        mass, has = 0.0, False
        for value in misc.split("|"):
            if not value.startswith("Arcs="):
                continue
            line.arcs, has = [] if line.arcs is None else line.arcs, True
            for arc in value[5:].split(",") if len(value) > 5 else ():
                if (match := _ARC.match(arc)) is None:
                    self.fail(f"not an arc HEAD:LABEL:P: {quoted(arc)}", at)
                head, label, p = int(match[1]), match[2], float(match[3])
                parent = head - 1 + offset if head else index
                if head > n_words or (parent == index and head):
                    self.fail(f"arc {quoted(arc)} of word {index - offset + 1} leaves the sentence or is a loop", at)
                if p > 1.0:
                    self.fail(f"the probability of the arc {quoted(arc)} is above 1", at)
                mass += p
                if "\\" in label:
                    label = _TO_UNESCAPE.sub(lambda match: _UNESCAPES[match[0]], label)
                line.arcs.append((index, parent, label, p))
        if mass > 1.0 + MASS_TOLERANCE:
            self.fail(f"the arcs of word {index - offset + 1} have a mass of {mass:.4f}, above 1", at)
        return has

    def add_token(self, line: ParsedLine, row: Row, first: int, last: int) -> None:
        """Add the surface token of words ``first`` to ``last``, with its spacing and number of pieces from MISC."""
        at, columns = row
        misc, space_after, pieces = columns[9], True, None
        for entry in misc.split("|") if misc != "_" else ():
            if entry == "SpaceAfter=No":
                space_after = False
            elif entry.startswith("Pieces="):
                pieces = natural(entry[7:])
                if not pieces:
                    self.fail(f"not a number of pieces: {quoted(entry)}", at)
        word = owner(first, last, line.heads) if last > first else first
        line.tokens.append(Token(columns[1], space_after, first, last, word, pieces))
