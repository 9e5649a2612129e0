"""Subword segmentation: sentencepiece, subword-nmt or whole words, applied word by word, so that each piece has a word.

The words that are segmented are the words of the parse. A word that follows another without a space between them
("do" + "n't", "house" + ".") is encoded as such, and :meth:`Segmenter.decode` gives the text back, character by
character, with runs of white space made one space.

==============  ===========================  =================================================================
kind            a word after a space         a word without a space before it
==============  ===========================  =================================================================
sentencepiece   ``▁hou se``                  ``se`` (no ``▁``)
subword_nmt     ``hou@@ se``                 ``￭se`` (the joiner is part of the word when pieces are learned)
words           ``house``                    ``￭house``
moses           ``hou@@ se``                 ``se``: codes of fastBPE after Moses' tokenizer (:mod:`.moses`)
==============  ===========================  =================================================================

Text that contains these marks is escaped. A piece that looks like a special symbol of a fairseq dictionary, such as
``</s>``, is split in two.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

from fairseq_syntax.corpus.words import single_spaced, words_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import sha256
from fairseq_syntax.runtime.files import atomic_open_binary, errors_in, read_bytes, read_json, without_mark, write_json

ESCAPE = "▂"  # escaped too if it occurs in a text
JOINER = "￭"
SEPARATOR = "@@"
SPACE_MARK = "▁"

_ESCAPES = {ESCAPE: "e", SPACE_MARK: "u", JOINER: "j", " ": "s"}
_UNESCAPES = {code: character for character, code in _ESCAPES.items()} | {"a": "@"}
_ESCAPED = re.compile(f"{ESCAPE}([{''.join(_UNESCAPES)}])")

FORMAT_VERSION = 1
# The cache is limited by pieces rather than words, so that long unique words cannot fill a server's memory (about
# 60 MB). Most words of running text are among the most frequent thousands.
CACHED_PIECES = 600_000
# Characters of a cached word at most, since sentencepiece makes one piece of a run of unknown characters.
LONGEST_KNOWN = 100
RESERVED = frozenset({"<s>", "<pad>", "</s>", "<unk>"})
TEXT, PARSE = "text", "parse"  # the origin of the words in a model's data

_CODES_VERSION = re.compile(r"#version: 0\.[12](\.0)*\s*\Z", re.ASCII)
_MERGE = re.compile(r"[^ ]+ [^ ]+\Z")


def spaces_before(tokens: Sequence) -> list[bool]:
    """Whether a space precedes each surface token of a line; True for the first."""
    return [True, *(token.space_after for token in tokens[:-1])][: len(tokens)]


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


def unescape_marks(text: str) -> str:
    """Restore escaped marks in a text."""
    return _ESCAPED.sub(lambda match: _UNESCAPES[match[1]], text) if ESCAPE in text else text


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
    if kind in ("subword_nmt", "words", "moses"):
        return [WordMarks(False, not symbol.endswith(SEPARATOR)) for symbol in symbols]
    if kind is None:
        return [WordMarks(True, True) for _ in symbols]
    marks = []
    for symbol in symbols:
        text = symbol.removeprefix(SPACE_MARK)
        punctuation = bool(text) and not any(map(str.isalnum, text))
        marks.append(WordMarks(symbol.startswith(SPACE_MARK) or punctuation, punctuation))
    return marks


class Segmenter(ABC):
    """A trained segmentation model; deterministic, with a bounded cache of words.

    Attributes:
        model: the model file's bytes
        about: further facts that ``save`` writes (training options, language, …)
        altered: words that decoding does not restore, with the result; empty unless the model normalizes text. Very
            long words (``LONGEST_KNOWN``) are not recorded.
    """

    kind: ClassVar[str]
    CONTINUED: ClassVar[str] = ""  # the suffix of pieces other than the last of a word

    def __init__(self, model: bytes, about: dict | None = None) -> None:
        self.model = model
        self.about = dict(about or {})
        self.altered: dict[str, str] = {}
        self._cache: dict[tuple[str, bool], list[str]] = {}
        self._cached = 0  # the number of pieces in the cache

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the model in hexadecimal."""
        return sha256(self.model)

    @property
    def pieces(self) -> int | None:
        """The number of pieces with which the model was trained; None for a user's own model."""
        return self.about.get("pieces")

    @property
    def cut_from(self) -> str:
        """The origin of the words in the model's data: ``parse`` or ``text``.

        Always ``text`` for the segmentation of an imported model (``about["imported"]``): whatever it is trained on
        further, a text has the pieces of the model's own tokenizer, also after an export.
        """
        return TEXT if "imported" in self.about else self.about.get("cut_from", TEXT)

    @property
    def note(self) -> dict[str, str]:
        """The record stored with pieces: the model, and whether words come from a parse."""
        return {"segmenter": self.fingerprint, "cut_from": self.cut_from}

    def encode_words(self, words: Sequence[str], space_before: Sequence[bool]) -> list[list[str]]:
        """The pieces of each surface token of a line, in order: at least one, without white space.

        Args:
            space_before: whether a space precedes each word (True for the first)

        Raises:
            SyntaxDataError: a word is empty or only white space
        """
        keys = zip(words, [True, *space_before[1:]] if words else [], strict=True)
        # Copies, so that callers cannot change the cached lists.
        return [list(self._cache.get(key) or self._pieces(*key)) for key in keys]

    def encode_text(self, text: str) -> list[str]:
        """The pieces of a raw line.

        Words are separated by white space. If the model's data were segmented from a parse (:attr:`cut_from`),
        punctuation is separated as well (:func:`~fairseq_syntax.corpus.words.words_of`).
        """
        if self.cut_from == PARSE:
            spans = words_of(text)
            words = [text[start:end] for start, end in spans]
            spaces = [True, *(a[1] < b[0] for a, b in pairwise(spans))]
            return list(chain.from_iterable(self.encode_words(words, spaces[: len(words)])))
        cache = self._cache  # not by encode_words, which copies each word's pieces
        return [piece for word in text.split() for piece in cache.get((word, True)) or self._pieces(word, True)]

    @abstractmethod
    def decode(self, pieces: str | Iterable[str]) -> str:
        """The text of pieces, given as a list or as a line separated by spaces."""

    def save(self, dest_prefix: str | os.PathLike[str]) -> Path:
        """Write ``dest_prefix.json`` and ``dest_prefix.model``; returns the path of the former."""
        path, model_path = (Path(f"{os.fspath(dest_prefix)}.{ending}") for ending in ("json", "model"))
        with atomic_open_binary(model_path) as model:
            model.write(self.model)
        head = {"format": FORMAT_VERSION, "kind": self.kind, "model": model_path.name}
        write_json(path, {**self.about, **head, "fingerprint": self.fingerprint})
        return path

    def _pieces(self, word: str, space: bool) -> list[str]:
        key = (word, space)
        if (cached := self._cache.get(key)) is not None:
            return cached
        text = single_spaced(word)
        if not text:
            raise SyntaxDataError(f"a word is empty or white space only: {word!r}", hint="correct the parse")
        encoded = self._encode(text, space)
        split = ((piece[0] + self.CONTINUED, piece[1:]) if piece in RESERVED else (piece,) for piece in encoded)
        pieces = list(chain.from_iterable(split))
        if len(text) > LONGEST_KNOWN:
            return pieces
        if self._cached + len(pieces) > CACHED_PIECES:
            self._cache.clear()
            self._cached = 0
        self._cache[key] = pieces
        self._cached += len(pieces)
        # The context word shows whether a preceding space is restored too.
        decoded = self.decode([*self._encode("x", True), *pieces])
        if decoded != ("x " if space else "x") + text and len(self.altered) < CACHED_PIECES // 4:
            self.altered[word] = decoded.removeprefix("x").strip()
        return pieces

    @abstractmethod
    def _encode(self, text: str, space: bool) -> list[str]:
        """The pieces of one word (which may contain single spaces), with or without a preceding space."""


class SentencePieceSegmenter(Segmenter):
    """A sentencepiece model (unigram or BPE, with any byte fallback and normalization), applied word by word."""

    kind = "sentencepiece"
    # A serialised protocol buffer with a field appended is that buffer with the field replaced. This is
    # ModelProto.normalizer_spec (3) with add_dummy_prefix (3) and remove_extra_whitespaces (4) off; sentencepiece 0.2.3
    # has no method for it. Here the caller says where the spaces are.
    _KEEP_SPACES: ClassVar[bytes] = bytes([3 << 3 | 2, 4, 3 << 3, 0, 4 << 3, 0])

    def __init__(self, model: bytes, about: dict | None = None) -> None:
        import sentencepiece

        super().__init__(model, about)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model + self._KEEP_SPACES)
        names = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        marked = [name for name in names if name.strip(SPACE_MARK)]
        if sum(name.endswith(SPACE_MARK) for name in marked) > sum(name.startswith(SPACE_MARK) for name in marked):
            message = "the sentencepiece model marks the end of words (treat_whitespace_as_suffix), not their beginning"
            raise SyntaxDataError(message, hint="train it without that option")
        self._byte_of = {name: int(name[3:5], 16) for i, name in enumerate(names) if self._processor.is_byte(i)}

    def all_pieces(self) -> list[str]:
        """The pieces of the model that texts can have."""
        model = self._processor
        numbers = range(model.get_piece_size())
        return [model.id_to_piece(i) for i in numbers if not (model.is_control(i) or model.is_unknown(i))]

    def _encode(self, text: str, space: bool) -> list[str]:
        escaped = escape_sentencepiece(text)
        pieces = self._processor.encode(" " + escaped if space else escaped, out_type=str)
        # Normalization may delete a word completely; it is then used as it is, as an unknown piece.
        return pieces or [(SPACE_MARK if space else "") + escaped.replace(" ", SPACE_MARK)]

    def decode(self, pieces: str | Iterable[str]) -> str:
        if isinstance(pieces, str):
            # without any mark, fairseq's --remove-bpe sentencepiece has already restored the text
            pieces = pieces.split() if SPACE_MARK in pieces else [pieces]
        if self._byte_of:
            pieces = self._without_bytes(pieces)
        return unescape_marks("".join(pieces).replace(SPACE_MARK, " ").strip(" "))

    def _without_bytes(self, pieces: Iterable[str]) -> Iterator[str]:
        """The pieces, with the text of each run of byte pieces in their place."""
        for is_bytes, run in groupby(pieces, key=self._byte_of.__contains__):
            if is_bytes:
                yield bytes(self._byte_of[piece] for piece in run).decode("utf-8", errors="replace")
            else:
                yield from run


class SubwordNmtSegmenter(Segmenter):
    """Byte-pair codes of subword-nmt."""

    kind = "subword_nmt"
    CONTINUED = SEPARATOR

    def __init__(self, model: bytes, about: dict | None = None) -> None:
        from subword_nmt.apply_bpe import BPE

        super().__init__(model, about)
        text = model.decode("utf-8")
        lines = text.rstrip("\n").split("\n")
        if lines[0].startswith("#version:") and len(lines) == 1:
            lines.append("")  # without merges
        for number, line in enumerate(lines, start=1):
            form = _CODES_VERSION if number == 1 and line.startswith("#version:") else _MERGE
            if not form.match(line.strip("\r\n ")):  # subword-nmt itself would exit
                raise SyntaxDataError("not byte-pair codes of subword-nmt, version 0.1 or 0.2", line=number)
        self._bpe = BPE(io.StringIO(text), separator=SEPARATOR)

    def _encode(self, text: str, space: bool) -> list[str]:
        self._bpe.cache = {}  # has no limit, unlike the segmenter's own
        return self._bpe.segment_tokens([escape_subword_nmt(text, space)])

    def decode(self, pieces: str | Iterable[str]) -> str:
        words: list[str] = []
        continued = False
        for piece in pieces.split() if isinstance(pieces, str) else pieces:
            inside, continued = continued, piece.endswith(SEPARATOR)
            piece = piece.removesuffix(SEPARATOR)
            if inside or (words and piece.startswith(JOINER)):
                words[-1] += piece if inside else piece.removeprefix(JOINER)
            else:
                words.append(piece)
        return unescape_marks(" ".join(words))


class WordSegmenter(SubwordNmtSegmenter):
    """Whole words as pieces; rare words are not in the dictionary and become ``<unk>``.

    Nothing is trained, so the model is the same for all texts.
    """

    kind = "words"
    MODEL: ClassVar[bytes] = b"words\n"

    def __init__(self, model: bytes = MODEL, about: dict | None = None) -> None:
        Segmenter.__init__(self, model, about)

    @property
    def cut_from(self) -> str:
        """Always ``parse``: punctuation is separated from words, also in raw text."""
        return PARSE

    def _encode(self, text: str, space: bool) -> list[str]:
        return [escape_subword_nmt(text, space)]


SEGMENTERS: dict[str, type[Segmenter]] = {
    cls.kind: cls for cls in (SentencePieceSegmenter, SubwordNmtSegmenter, WordSegmenter)
}
MOSES = "moses"


def _segmenter_class(kind: str) -> type[Segmenter]:
    """The class of a kind of segmentation."""
    if kind == MOSES:
        from fairseq_syntax.corpus.moses_tokenizer import MosesSegmenter  # needs sacremoses

        return MosesSegmenter
    return SEGMENTERS[kind]


def load_segmenter(path: str | os.PathLike[str]) -> Segmenter:
    """Load ``segmentation.LANG.json``, or a user's own sentencepiece model or codes of subword-nmt or fastBPE.

    Raises:
        SyntaxDataError: the file or its model is missing, damaged, invalid, or has another format version
    """
    raw = read_bytes(path)
    about: dict = {}
    model_path, model = Path(path), raw
    if Path(path).suffix == ".json":
        about = read_json(path)
        kind = about.get("kind", "")
        complete = {"model", "fingerprint"} <= about.keys()
        if not complete or about.get("format") != FORMAT_VERSION or kind not in (*SEGMENTERS, MOSES):
            if "format" not in about:
                _refuse_other_tools(raw, path)
            message = f"not a description of a segmentation model of format {FORMAT_VERSION}, which this version reads"
            raise SyntaxDataError(message, path=path, hint="segment again with this version")
        model_path = Path(path).parent / about["model"]
        model = read_bytes(model_path)
        if sha256(model) != about["fingerprint"]:
            hint = "put its own model back, or train again: fairseq-syntax segment --train … --overwrite"
            message = "not the model that its .json describes (fingerprints differ)"
            raise SyntaxDataError(message, path=model_path, hint=hint)
    else:
        _refuse_other_tools(raw, path)
        kind, model = SentencePieceSegmenter.kind, raw
        if _is_fast_bpe(raw):
            kind, model = MOSES, without_mark(raw)
        elif _looks_like_codes(raw):
            kind, model = SubwordNmtSegmenter.kind, without_mark(raw)
    notes = {name: value for name, value in about.items() if name not in ("format", "kind", "fingerprint")}
    try:
        with errors_in(model_path):
            return _segmenter_class(kind)(model, notes)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise SyntaxDataError(f"not a {kind} model: {error}", path=model_path) from error


def _is_fast_bpe(raw: bytes) -> bool:
    """Whether a file begins as fastBPE's codes do: two symbols and a count."""
    return re.fullmatch(rb"\S+ \S+ \d+", without_mark(raw).split(b"\n", 1)[0].rstrip(b"\r")) is not None


def _looks_like_codes(raw: bytes) -> bool:
    first = without_mark(raw).split(b"\n", 1)[0].decode("utf-8", "replace")
    return first.startswith("#version:") or (len(first.split(" ")) == 2 and not {"\0", "\ufffd"} & set(first))


_HUGGING_FACE = b'"pre_tokenizer"'


def _refuse_other_tools(raw: bytes, path: str | os.PathLike[str]) -> None:
    """Raise SyntaxDataError for a file that another tool than sentencepiece and subword-nmt made."""
    text = without_mark(raw)
    first = text.split(b"\n", 1)[0].rstrip(b"\r")
    train = "segment --train learns a model of your text"
    if text[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in text[:2]:
        tool, hint = "a text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"
    elif text.lstrip()[:1] == b"{":
        tool = "a tokenizer.json of Hugging Face's tokenizers" if _HUGGING_FACE in text else "a JSON file"
        hint = f"give the sentencepiece model or the codes that it was made from; {train}"
    elif re.fullmatch(rb"[^\t]+\t-?\d+(\.\d+)?(e-?\d+)?", first):
        tool, hint = "a vocabulary of sentencepiece", "give the .model beside it"
    elif _looks_like_codes(raw) and b"</w>" not in text:
        tool = "a vocabulary, a dictionary or the merges of another tool"
        hint = f"byte-pair codes of subword-nmt mark the ends of words (</w>); {train}"
    else:
        return
    message = f"this is {tool}; sentencepiece models and codes of subword-nmt and fastBPE are read"
    raise SyntaxDataError(message, path=path, hint=hint)
