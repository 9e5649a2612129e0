"""Word splitting of unparsed text, and detection of scripts without spaces between words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

Span = tuple[int, int]  # [start, end) in characters
WITHOUT_SPACES = frozenset({"zh", "yue", "ja", "bo", "km", "lo", "my", "th"})
RIGHT_TO_LEFT = frozenset({"ar", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi"})
# Thai, Lao, Tibetan, Burmese, Khmer, kana, Han.
_WITHOUT_SPACES = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_RUN = re.compile(r"(.)\1*", re.DOTALL)  # a run of one character
_TOKENIZED = re.compile(r"(?<=\w)(\s?)[.,](?=\s|\Z)")


def single_spaced(text: str) -> str:
    """The text with each run of white space, including line breaks, replaced by one space; none at the ends."""
    return " ".join(text.split())


def unspaced(text: str) -> str:
    """The text without its white space."""
    return "".join(text.split())


def language_of(code: str) -> str:
    """The language of a locale code: ``zh`` for ``zh-CN`` and ``zh_cn``."""
    return code.replace("_", "-").partition("-")[0].lower()


def has_no_spaces(lines: Iterable[str]) -> bool:
    """Whether most letters of a text belong to scripts without spaces between words, such as Japanese or Thai."""
    letters = without = 0
    for line in lines:
        letters += sum(map(str.isalpha, line))
        without += len(_WITHOUT_SPACES.findall(line))
    return without > letters / 2


def looks_tokenized(lines: Iterable[str]) -> bool:
    """Whether most full stops and commas of a text (if there are at least ten) are preceded by a space."""
    spaces = [space for line in lines for space in _TOKENIZED.findall(line)]
    return len(spaces) >= 10 and sum(map(bool, spaces)) > len(spaces) / 2


def words_of(text: str) -> list[Span]:
    """Words separated by white space, with punctuation and symbols at either end as separate words.

    A run of one such character is one word: ``"Wait..."`` is ``"``, ``Wait``, ``...``, ``"``.
    """
    words: list[Span] = []
    for word in re.finditer(r"\S+", text):
        start, end = first, last = word.span()
        while first < last and _is_mark(text[first]):
            first += 1
        while last > first and _is_mark(text[last - 1]):
            last -= 1
        words += (run.span() for run in _RUN.finditer(text, start, first))
        words += [(first, last)] if first < last else []
        words += (run.span() for run in _RUN.finditer(text, last, end))
    return words


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
