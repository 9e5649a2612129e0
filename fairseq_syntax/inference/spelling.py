"""Detokenization: from tokens back to text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fairseq_syntax.corpus.words import language_of

if TYPE_CHECKING:
    from fairseq_syntax.corpus.segmentation import Segmenter

# Spaces between two kana, Han characters or their punctuation.
_UNSPACED = r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
_BETWEEN_WORDS = re.compile(f"(?<={_UNSPACED}) +(?={_UNSPACED})")


def places_of_pieces(tokens: Tensor, dictionary: Any) -> list[int]:
    """The positions of pieces in tokens [T]: all but ``<s>``, which sampling may draw, ``</s>`` and padding."""
    left_out = {dictionary.bos(), dictionary.eos(), dictionary.pad()}
    return [place for place, token in enumerate(tokens.tolist()) if token not in left_out]


def pieces_of(tokens: Tensor, dictionary: Any) -> list[str]:
    """The pieces of tokens [T], without ``<s>``, ``</s>`` and padding."""
    return [dictionary[int(tokens[place])] for place in places_of_pieces(tokens, dictionary)]


def decoder(segmenter: Segmenter | None, lang: str = "") -> Callable[[Iterable[str]], str]:
    """The function that joins pieces into text, by the segmentation that made them.

    Where the data have none beside them, it is spaces between the pieces, with the marks of subword-nmt undone.

    Args:
        lang: of the text; Chinese and Japanese words, where a tokenizer has put spaces between them, are joined again.
            (Thai, Lao, Khmer and Burmese have spaces between phrases, which cannot be told from a tokenizer's.)
    """
    decode = segmenter.decode if segmenter is not None else _undo_marks
    if language_of(lang) not in ("zh", "yue", "ja"):
        return decode
    return lambda pieces: _BETWEEN_WORDS.sub("", decode(pieces))


def _undo_marks(pieces: Iterable[str]) -> str:
    from fairseq_syntax.corpus.piece_marks import SEPARATOR

    return (" ".join(pieces) + " ").replace(f"{SEPARATOR} ", "").rstrip(" ")


def text_of_tokens(tokens: Tensor, dictionary: Any, segmenter: Segmenter | None, lang: str = "") -> str:
    """The text of tokens [T]; ``lang`` as in :func:`decoder`."""
    return decoder(segmenter, lang)(pieces_of(tokens, dictionary))


class SegmentationDecoder:
    """The target's segmentation as fairseq's ``--bpe``. Raw input is segmented by the task, with its parse."""

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def encode(self, x: str) -> str:
        """The pieces of a target text, which fairseq-interactive needs for ``--constraints``."""
        return " ".join(self._segmenter.encode_text(x))

    def decode(self, x: str) -> str:
        return self._segmenter.decode(x)
