"""Word-boundary marks of subword pieces, and the escapes of words that contain such marks themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

ESCAPE = "▂"  # where it occurs in a text, it is escaped itself
JOINER = "￭"
SEPARATOR = "@@"
SPACE_MARK = "▁"

_ESCAPES = {ESCAPE: "e", SPACE_MARK: "u", JOINER: "j", " ": "s"}
_UNESCAPES = {code: character for character, code in _ESCAPES.items()} | {"a": "@"}
_ESCAPED = re.compile(f"{ESCAPE}([{''.join(_UNESCAPES)}])")


class WordMarks(NamedTuple):
    """The word boundaries that a piece marks: whether it begins a word, and whether the next piece does."""

    starts: bool
    ends: bool


def word_marks(symbols: Iterable[str], kind: str | None) -> list[WordMarks]:
    """The word boundaries that pieces mark, without a parse. The first piece of a line begins a word in any case.

    subword-nmt's marks tell every word. sentencepiece's tell those after a space only; there a piece without a letter
    or a digit counts as a word of its own, as most words without a space before them are punctuation or follow it.

    Args:
        symbols: pieces, as in a dictionary
        kind: of the segmentation; None where each symbol is a word
    """
    if kind in ("subword_nmt", "words"):
        return [WordMarks(False, not symbol.endswith(SEPARATOR)) for symbol in symbols]
    if kind is None:
        return [WordMarks(True, True) for _ in symbols]
    marks = []
    for symbol in symbols:
        text = symbol.removeprefix(SPACE_MARK)
        punctuation = bool(text) and not any(character.isalnum() for character in text)
        marks.append(WordMarks(symbol.startswith(SPACE_MARK) or punctuation, punctuation))
    return marks


def _escape(text: str, characters: str) -> str:
    return re.sub(f"[{characters}]", lambda match: ESCAPE + _ESCAPES[match[0]], text)


def escape_sentencepiece(word: str) -> str:
    """The word escaped for sentencepiece: it contains no ``▁``."""
    return _escape(word, ESCAPE + SPACE_MARK)


def escape_subword_nmt(word: str, space: bool) -> str:
    """The word escaped for subword-nmt: it contains no space and does not end with ``@@``."""
    word = _escape(word, ESCAPE + JOINER + " ")
    if word.endswith(SEPARATOR):
        word = word[:-1] + ESCAPE + "a"
    return word if space else JOINER + word


def unescape(text: str) -> str:
    """The text with its escaped marks restored."""
    return _ESCAPED.sub(lambda match: _UNESCAPES[match[1]], text) if ESCAPE in text else text
