"""The forms of an input sentence: text, a parse, or a line with the rows of a parse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from fairseq_syntax.corpus.conllu import ParsedLine, begins_sentence, unflatten
from fairseq_syntax.corpus.conllu_reader import COLUMNS
from fairseq_syntax.corpus.line_numbers import is_line_comment
from fairseq_syntax.corpus.words import words_of
from fairseq_syntax.errors import SyntaxDataError

Sentence: TypeAlias = str | ParsedLine
_ID = re.compile(r"[0-9]+([-.][0-9]+)?")  # of a word, a range or an empty node


def is_parsed(line: Sentence) -> bool:
    """Whether an input line is a parse: an object, or CoNLL-U, plain or flattened.

    In CoNLL-U, the first row after the comments has ten columns, and is word 1, a range from 1 or an empty node 0.1.
    """
    if isinstance(line, ParsedLine):
        return True
    if not line.startswith(("1\t", "1\\t", "1-", "0.1", "#")):
        return False
    rows = (line if "\n" in line else unflatten(line)).split("\n")
    first = next((row for row in rows if not row.startswith("#")), "")
    return begins_sentence(first)


def is_row_of_block(line: Sentence) -> bool:
    """Whether a line is a single row of CoNLL-U (a word or ``# line = N``) and not a sentence."""
    if isinstance(line, ParsedLine) or "\n" in line or "\\n" in line:
        return False
    columns = line.split("\t")
    row = len(columns) == COLUMNS and _ID.fullmatch(columns[0]) is not None
    return (row and (columns[0], columns[6]) != ("1", "0")) or is_line_comment(line)


def with_written_tabs(line: str) -> str:
    r"""A flattened parse with the tabs between its columns written as ``\t``; other lines are returned unchanged.

    fairseq-interactive with ``--constraints`` would take all columns but the first for constraints. What follows the
    last column of the last row after a tab are constraints.
    """
    column = 0

    def written(match: re.Match[str]) -> str:
        nonlocal column
        column = 0 if match[0] == r"\n" else column + (match[0] != r"\\")
        return r"\t" if match[0] == "\t" and column < COLUMNS else match[0]

    parse = re.sub(r"\\[\\nt]|\t", written, line)
    return parse if is_parsed(parse.partition("\t")[0]) else line


def is_empty(line: Sentence) -> bool:
    """Whether a sentence has no words."""
    return not (line.words if isinstance(line, ParsedLine) else line.strip())


def check_unicode(text: str) -> None:
    """Raise SyntaxDataError for a text with a lone surrogate, which parsers and segmenters cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SyntaxDataError(f"no Unicode text: {error}") from None


def unparsed(sentence: str | Sequence[str]) -> ParsedLine:
    """A line without a parse, from its words or a text (:func:`~fairseq_syntax.corpus.words.words_of`)."""
    text = sentence if isinstance(sentence, str) else None
    words = sentence if text is None else [text[start:end] for start, end in words_of(text)]
    heads = ([0] + [1] * len(words))[: len(words)]
    return replace(ParsedLine.of_words(words, heads, ["_"] * len(words), text=text), parsed=False)
