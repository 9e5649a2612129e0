"""The forms of a sentence to translate: text, a parse, or a line with the rows of a parse."""

from __future__ import annotations

import re
from typing import TypeAlias

from fairseq_syntax.corpus.conllu import ParsedLine, Token, begins_sentence, unflatten
from fairseq_syntax.corpus.conllu_reader import COLUMNS
from fairseq_syntax.corpus.line_numbers import is_line_comment
from fairseq_syntax.corpus.words import words_of

Sentence: TypeAlias = str | ParsedLine
_ID = re.compile(r"[0-9]+([-.][0-9]+)?")  # of a word, a range or an empty node


def is_parsed(line: Sentence) -> bool:
    """Whether an input line is a parse: an object, or CoNLL-U, plain or flattened.

    That is: its first row after comments has the ten columns, and is word 1, a range from 1 or an empty node before it.
    """
    if isinstance(line, ParsedLine):
        return True
    if not line.startswith(("1\t", "1\\t", "1-", "0.1", "#")):
        return False
    rows = (line if "\n" in line else unflatten(line)).split("\n")
    first = next((row for row in rows if not row.startswith("#")), "")
    return begins_sentence(first)


def is_row_of_block(line: Sentence) -> bool:
    """Whether a line is a single CoNLL-U row rather than a sentence: that of a word, or ``# line = N``."""
    if isinstance(line, ParsedLine) or "\n" in line or "\\n" in line:
        return False
    columns = line.split("\t")
    row = len(columns) == COLUMNS and _ID.fullmatch(columns[0]) is not None
    return (row and (columns[0], columns[6]) != ("1", "0")) or is_line_comment(line)


def is_empty(line: Sentence) -> bool:
    """Whether there is nothing to translate."""
    return not (line.words if isinstance(line, ParsedLine) else line.strip())


def unparsed(line: str) -> ParsedLine:
    """A line without a parse, with the words of its text (:func:`~fairseq_syntax.corpus.words.words_of`)."""
    spans = words_of(line)
    n = len(spans)
    return ParsedLine(
        words=[line[start:end] for start, end in spans],
        heads=list(range(n)),
        deprels=["_"] * n,
        upos=["_"] * n,
        xpos=["_"] * n,
        tokens=[
            Token(line[start:end], not line[end:] or line[end].isspace(), i, i, i)
            for i, (start, end) in enumerate(spans)
        ],
        sentences=[(0, n)] if n else [],
        parsed=False,
    )
