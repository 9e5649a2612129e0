"""The words of a text that nobody has parsed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

Span = tuple[int, int]  # [start, end) in characters


def words_of(text: str) -> list[Span]:
    """What white space separates; punctuation and symbols at either end of it are words of their own.

    A run of one such character is one word: ``"Wait..."`` is ``"``, ``Wait``, ``...``, ``"``.
    """
    words: list[Span] = []
    for start, end in _runs(text):
        first, last = start, end
        while first < last and _is_mark(text[first]):
            first += 1
        while last > first and _is_mark(text[last - 1]):
            last -= 1
        words += _same(text, start, first)
        words += [(first, last)] if first < last else []
        words += _same(text, last, end)
    return words


def _runs(text: str) -> Iterator[Span]:
    """The spans that white space separates."""
    at = 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        yield start, at


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _same(text: str, start: int, end: int) -> list[Span]:
    """Runs of one character in ``text[start:end]``."""
    spans: list[Span] = []
    for i in range(start, end):
        if spans and text[i] == text[i - 1]:
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
    return spans
