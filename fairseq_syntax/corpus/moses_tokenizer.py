"""Moses' tokenizer and byte-pair codes, with which fairseq's models of WMT19 and FSMT were trained.

A line is normalized and tokenized as a whole, as the models' own tokenizers do, and its tokens are cut by the codes:
``hou@@ se &apos;s``. Words of a parse get the pieces of the tokens that they consist of; a token that crosses the
boundary of two words (``don`` and ``'t`` of ``do`` and ``n't``) is cut there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

from fairseq_syntax.corpus.segmentation import RESERVED, SEPARATOR, SubwordNmtSegmenter
from fairseq_syntax.corpus.words import language_of
from fairseq_syntax.errors import SyntaxDataError, imports_of

_ESCAPED = re.compile(r"&(?:amp|lt|gt|apos|quot|#124|#91|#93);|@-@|.", re.S)
_CODES = re.compile(r"\S+ \S+( \d+)?")


class MosesSegmenter(SubwordNmtSegmenter):
    """Byte-pair codes of Moses' tokens, by the tokenizer of the language in ``about["moses"]``.

    Args:
        model: codes of fastBPE (``a b COUNT``), or the same without counts, as FSMT's ``merges.txt``
        about: with ``moses``, the language of the tokenizer (default: ``language``)

    Raises:
        SyntaxDataError: sacremoses is not installed, or a line is not a pair of symbols
    """

    kind = "moses"

    def __init__(self, model: bytes, about: dict | None = None) -> None:
        with imports_of("moses"):
            import sacremoses  # noqa: F401
        lines = model.decode("utf-8").rstrip("\n").split("\n")
        lines = lines[1:] if lines[0].startswith("#version") else lines
        for number, line in enumerate(lines, start=1):
            if line and not _CODES.fullmatch(line.rstrip("\r")):
                raise SyntaxDataError("not byte-pair codes of fastBPE: two symbols and a count", line=number)
        codes = "".join(f"{' '.join(line.split()[:2])}\n" for line in lines)
        super().__init__(f"#version: 0.2\n{codes or chr(10)}".encode(), about)
        self.model = model
        self._cut = lru_cache(100_000)(self._cut_token)

    def __reduce__(self) -> Any:  # the cache is not copied to other processes
        return type(self), (self.model, self.about)

    @cached_property
    def _lang(self) -> str:
        """The language of the tokenizer, which is known when the segmenter is used."""
        return language_of(str(self.about.get("moses") or self.about.get("language") or "en"))

    @cached_property
    def _normalize(self) -> Callable[[str], str]:
        from sacremoses import MosesPunctNormalizer

        options = {"pre_replace_unicode_punct": True, "post_remove_control_chars": True}
        normalize: Callable[[str], str] = MosesPunctNormalizer(self._lang, **options).normalize
        return normalize

    @cached_property
    def _tokenizer(self) -> Any:
        from sacremoses import MosesTokenizer

        return MosesTokenizer(self._lang)

    @cached_property
    def _detokenizer(self) -> Any:
        from sacremoses import MosesDetokenizer

        return MosesDetokenizer(self._lang)

    def _tokens(self, text: str) -> list[str]:
        tokens: list[str] = self._tokenizer.tokenize(self._normalize(text), aggressive_dash_splits=True)
        return tokens

    def _cut_token(self, token: str) -> tuple[str, ...]:
        """The pieces of a token."""
        self._bpe.cache = {}
        pieces = self._bpe.segment_tokens([token])
        return tuple(chain.from_iterable((p[0] + SEPARATOR, p[1:]) if p in RESERVED else (p,) for p in pieces))

    def encode_text(self, text: str) -> list[str]:
        """See the base class; the line is tokenized as a whole, whatever the data were cut from."""
        return [piece for token in self._tokens(text) for piece in self._cut(token)]

    def encode_words(self, words: Sequence[str], space_before: Sequence[bool]) -> list[list[str]]:
        """See the base class."""
        text = "".join(f" {word}" if space else word for word, space in zip(words, space_before, strict=True))
        characters = [_ESCAPED.findall(token) for token in self._tokens(text)]
        plain = [["-" if one == "@-@" else self._detokenizer.unescape_xml(one) for one in row] for row in characters]
        lengths = [len("".join(self._normalize(word).split())) for word in words]
        joined = "".join("".join(self._normalize(word).split()) for word in words)
        # Normalization across words, or one that removes a word: then each word is tokenized alone.
        if 0 in lengths or "".join(chain.from_iterable(plain)) != joined:
            return super().encode_words(words, space_before)
        encoded: list[list[str]] = [[] for _ in words]
        ends = [*accumulate(lengths)]
        at = word = 0
        for token in characters:
            bounds = [0, *(end - at for end in ends if at < end < at + len(token)), len(token)]
            for start, end in pairwise(bounds):
                while ends[word] <= at + start:
                    word += 1
                encoded[word] += self._cut("".join(token[start:end]))
            at += len(token)
        return encoded

    def _encode(self, text: str, space: bool) -> list[str]:
        # A word that the tokenizer removes, such as a control character, is used as it is.
        return [piece for token in self._tokens(text) or [text.replace(" ", "")] for piece in self._cut(token)]

    def decode(self, pieces: str | Iterable[str]) -> str:
        text = pieces if isinstance(pieces, str) else " ".join(pieces)
        decoded: str = self._detokenizer.detokenize(f"{text} ".replace(f"{SEPARATOR} ", "").split())
        return decoded
