"""Word-boundary marks of subword pieces, and escapes for words that contain such marks themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

ESCAPE = "▂"  # escaped too if it occurs in a text
JOINER = "￭"
SEPARATOR = "@@"
SPACE_MARK = "▁"

_ESCAPES = {ESCAPE: "e", SPACE_MARK: "u", JOINER: "j", " ": "s"}
_UNESCAPES = {code: character for character, code in _ESCAPES.items()} | {"a": "@"}
_ESCAPED = re.compile(f"{ESCAPE}([{''.join(_UNESCAPES)}])")


class WordMarks(NamedTuple):
    """The word boundaries marked by a piece: whether it begins a word, and whether the next piece does."""

    starts: bool
    ends: bool


def word_marks(symbols: Iterable[str], kind: str | None) -> list[WordMarks]:
    """The word boundaries marked by pieces, without a parse. (The first piece of a line always begins a word.)

    subword-nmt marks all words. sentencepiece only marks words after a space; other pieces without letters and digits
    count as separate words, since most words without a preceding space are punctuation or follow it. Without a
    ``kind`` of segmentation, each symbol is a word.
    """
    if kind in ("subword_nmt", "words"):
        return [WordMarks(False, not symbol.endswith(SEPARATOR)) for symbol in symbols]
    if kind is None:
        return [WordMarks(True, True) for _ in symbols]
    marks = []
    for symbol in symbols:
        text = symbol.removeprefix(SPACE_MARK)
        punctuation = bool(text) and not any(map(str.isalnum, text))
        marks.append(WordMarks(symbol.startswith(SPACE_MARK) or punctuation, punctuation))
    return marks


def _escape(text: str, characters: str) -> str:
    return re.sub(f"[{characters}]", lambda match: ESCAPE + _ESCAPES[match[0]], text)


def escape_sentencepiece(word: str) -> str:
    """Escape a word for sentencepiece, so that it contains no ``▁``."""
    return _escape(word, ESCAPE + SPACE_MARK)


def escape_subword_nmt(word: str, space: bool) -> str:
    """Escape a word for subword-nmt, so that it contains no space and does not end with ``@@``."""
    word = _escape(word, ESCAPE + JOINER + " ")
    if word.endswith(SEPARATOR):
        word = word[:-1] + ESCAPE + "a"
    return word if space else JOINER + word


def unescape(text: str) -> str:
    """Restore escaped marks in a text."""
    return _ESCAPED.sub(lambda match: _UNESCAPES[match[1]], text) if ESCAPE in text else text
