"""Tokenizers, from raw text to tokens with spacing, so that the text can be restored from the parse.

For every tokenizer, joining the tokens restores the line, with white space reduced to single spaces.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

from fairseq_syntax.corpus.words import WITHOUT_SPACES, language_of, single_spaced
from fairseq_syntax.errors import SyntaxDataError


@dataclass(slots=True)
class Surface:
    """A token of the text and its syntactic words; a single one equal to its form, unless it is a contraction."""

    form: str
    space_after: bool
    words: list[str]


TokenizedLine = list[list[Surface]]  # sentences of tokens


def whole_words(forms: Iterable[str]) -> list[Surface]:
    """Tokens of one word each, with spaces between them."""
    return [Surface(form, True, [form]) for form in forms]


class Tokenizer(ABC):
    """Splits lines of text into sentences of tokens."""

    @abstractmethod
    def tokenize(self, lines: Sequence[str]) -> list[TokenizedLine]:
        """Tokenize lines; returns one entry per line, which is empty if the line has no tokens.

        Raises:
            SyntaxDataError: the tokens differ from the text of a line (1-based within ``lines``)
        """


def spell_out(text: str, forms: Iterable[str], line: int | None = None) -> list[Surface]:
    """Make tokens from ``forms``, which occur in ``text`` in order with only white space between them.

    White space within a form, as in French ``10 000``, becomes a single space.

    Raises:
        SyntaxDataError: the forms differ from the text; it names the number ``line``
    """
    forms = list(map(str.strip, forms))
    tokens = whole_words(map(single_spaced, forms))
    at = 0
    for number, form in enumerate(forms):
        start = text.find(form, at)
        if not form or start < 0 or text[at:start].strip():
            message = f"the tokenizer changed the text: no {form!r} in {text[at : at + 40]!r}"
            raise SyntaxDataError(message, line=line, hint="use another --tokenizer")
        if number:
            tokens[number - 1].space_after = start > at
        at = start + len(form)
    if text[at:].strip():
        message = f"the tokenizer lost text: {text[at : at + 40]!r}"
        raise SyntaxDataError(message, line=line, hint="use another --tokenizer")
    return tokens


# Replacements by Moses's tokenizer: escapes of reserved characters, and split hyphens (``-a``).
_MOSES = {"amp": "&", "#124": "|", "lt": "<", "gt": ">", "apos": "'", "quot": '"', "#91": "[", "#93": "]"}
_OF_MOSES = re.compile(rf"&({'|'.join(_MOSES)});|\A@-@\Z")


def without_moses(word: str) -> str:
    """The word that a token of Moses's tokenizer represents: ``'s`` for ``&apos;s``, ``-`` for ``@-@``."""
    return _OF_MOSES.sub(lambda match: _MOSES.get(match[1], "-"), word)


class WhitespaceTokenizer(Tokenizer):
    """A tokenizer for tokenized text: tokens are separated by spaces, and a line is one sentence."""

    def tokenize(self, lines: Sequence[str]) -> list[TokenizedLine]:
        return [[whole_words(forms)] if (forms := line.split()) else [] for line in lines]


# Everything but ASCII and Latin-1 punctuation and symbols, the general and CJK punctuation blocks, and pictographs.
# (\w does not match the vowel signs of many scripts, so it would split their words.)
_WORD = (
    r"[^\s!-/:-@\[-`{-~\u00a1-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u00d7\u00f7\u0589\u05be\u060c\u061b\u061f"
    r"\u066a\u06d4\u0964\u0965\u2010-\u2027\u2030-\u205e\u20a0-\u20cf\u2100-\u2bff\u2e00-\u2e7f\u3000-\u3004"
    r"\u3007-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\U0001f000-\U0001faff]"
)
_TOKEN = re.compile(
    rf"""
      (?:https?://|www\.)\S*[^\s.,;:!?'"()<>\[\]{{}}]         # a web address, without the punctuation behind it
    | [\w.+-]{{1,64}}@[\w-]+(?:\.[\w-]+)+                            # a mail address
    | (?:[^\W\d_]\.){{2,}}                                    # initials: U.S., e.g.
    | (?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|No|Inc|Co|Ltd|Corp|bzw|usw|ca|Nr|Mme|M|Sra|Sr)\.(?=\s*\S)
    | [+-]?\d+(?:[.,:]\d+)*(?:{_WORD}+)?(?:[-'’]{_WORD}+)*    # a number, a time, 15-year
    | {_WORD}+(?:[-'’_.&]{_WORD}+)*                           # a word, with hyphens and apostrophes inside
    | (\S)\1*                                                 # a run of the same sign: ... -- !!!
    """,
    re.VERBOSE,
)
# Words that the language's treebanks split in two.
_CONTRACTIONS = {
    "en": re.compile(r"(.+?)(n['’]t|['’](?:s|re|ve|ll|d|m))\Z|(can)(not)\Z", re.IGNORECASE),
    "fr": re.compile(r"((?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu)['’])(.+)\Z", re.IGNORECASE),
    "it": re.compile(r"((?:l|un|d|c|all|dell|dall|nell|sull|quest|quell|dov|com)['’])(.+)\Z", re.IGNORECASE),
}
_SENTENCE_END = re.compile(r"[.!?…。！？]+\Z")
_CLOSING = frozenset("\"'”’»)]}")


class BasicTokenizer(Tokenizer):
    """Tokenization by rules: words, numbers, addresses, runs of the same symbol, and a language's contractions.

    Args:
        lang: a two-letter code; contractions are split in English, French and Italian
        split_sentences: end a sentence after ``. ! ?`` and any closing quotes or brackets if a space and a token that
            does not begin with a lowercase letter follow; otherwise a line is one sentence
    """

    def __init__(self, lang: str, *, split_sentences: bool = False) -> None:
        if language_of(lang) in WITHOUT_SPACES:
            raise cannot_cut(lang)
        self.contraction = _CONTRACTIONS.get(lang)
        self.split_sentences = split_sentences

    def tokenize(self, lines: Sequence[str]) -> list[TokenizedLine]:
        return [self._line(line, number) for number, line in enumerate(lines, start=1)]

    def _line(self, line: str, number: int) -> TokenizedLine:
        forms: list[str] = []
        for match in _TOKEN.finditer(line):
            parts = self.contraction.match(match[0]) if self.contraction is not None else None
            forms += [part for part in parts.groups() if part] if parts is not None else [match[0]]
        tokens = spell_out(line, forms, number)
        return list(_sentences(tokens)) if self.split_sentences or not tokens else [tokens]


def _sentences(tokens: list[Surface]) -> Iterable[list[Surface]]:
    """Split the tokens of a line into sentences; none without tokens."""
    start = 0
    ended = False
    for index, token in enumerate(tokens):
        ended = bool(_SENTENCE_END.match(token.form)) or (ended and token.form[0] in _CLOSING)
        following = tokens[index + 1].form if index + 1 < len(tokens) else ""
        if ended and token.space_after and following and not following[0].islower() and following[0] not in _CLOSING:
            yield tokens[start : index + 1]
            start, ended = index + 1, False
    if tokens:
        yield tokens[start:]


def cannot_cut(what: str) -> SyntaxDataError:
    """The error for a text in a script without spaces between words."""
    message = f"the basic tokenizer cannot cut {what}, where no spaces are between words"
    hint = "--tokenizer spacy (pip install 'fairseq-syntax[ja]' or '[zh]') or stanza, or --pretokenized with spaces"
    return SyntaxDataError(message, option="--tokenizer", hint=hint)


class SpacyTokenizer(Tokenizer):
    """Tokenization by spaCy's rules, which need no model and support more languages than the basic tokenizer.

    Args:
        pipeline: the pipeline whose tokenizer it is (default: ``spacy.blank(lang)``)
    """

    def __init__(self, lang: str, *, split_sentences: bool = False, pipeline: Any = None) -> None:
        try:
            import spacy
            from spacy.pipeline import Sentencizer

            # By default, spaCy treats each Chinese character as a word.
            of_chinese = {"nlp": {"tokenizer": {"segmenter": "jieba"}}}
            pipeline = pipeline or spacy.blank(lang, config=of_chinese if lang == "zh" else {})
        except ImportError as error:
            extra = lang if lang in ("ja", "zh") else "spacy"
            hint = f"pip install 'fairseq-syntax[{extra}]'"
            raise SyntaxDataError(f"spaCy cannot be used: {error}", option="--tokenizer", hint=hint) from error
        logging.getLogger("jieba").setLevel(logging.WARNING)
        # Of Japanese, Sudachi takes 49,149 bytes, of which a character has at most four.
        self.longest: int = 12_000 if lang == "ja" else pipeline.max_length
        self.tokenized = pipeline.make_doc
        self.split: Any = Sentencizer() if split_sentences else None

    def tokenize(self, lines: Sequence[str]) -> list[TokenizedLine]:
        result: list[TokenizedLine] = []
        normal = [single_spaced(line) for line in lines]
        parts = [list(_parts(line, self.longest)) for line in normal]
        documents = map(self.tokenized, chain.from_iterable(parts))
        for number, (line, of_line) in enumerate(zip(normal, parts), start=1):
            forms: list[str] = []
            starts = {0}
            for document in islice(documents, len(of_line)):
                visible = [token for token in document if not token.is_space]
                if self.split is not None:
                    document = self.split(document)
                    starts |= {index for index, token in enumerate(visible, len(forms)) if token.is_sent_start}
                forms += [token.text for token in visible]
            tokens = spell_out(line, forms, number)
            bounds = [*sorted(starts), len(tokens)] if tokens else []
            result.append([tokens[start:end] for start, end in pairwise(bounds)])
        return result


def _parts(text: str, longest: int) -> Iterable[str]:
    """A text in parts of at most ``longest`` characters, cut behind a space or the end of a sentence if possible."""
    while len(text) > longest:
        end = max(text.rfind(mark, longest // 2, longest) for mark in " 。！？") + 1 or longest
        yield text[:end]
        text = text[end:]
    if text:
        yield text
