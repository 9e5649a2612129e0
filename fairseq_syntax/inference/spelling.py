"""Detokenization: from tokens back to text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fairseq_syntax.corpus.segmentation import SEPARATOR, Segmenter
from fairseq_syntax.corpus.words import language_of

if TYPE_CHECKING:
    from torch import Tensor

# Spaces between two kana, Han characters or their punctuation.
_UNSPACED = r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
_BETWEEN_WORDS = re.compile(f"(?<={_UNSPACED}) +(?={_UNSPACED})")


def places_of_pieces(tokens: Tensor, dictionary: Any) -> list[int]:
    """The positions of pieces in tokens [T], without ``<s>`` (which sampling may draw), ``</s>`` and padding."""
    left_out = {dictionary.bos(), dictionary.eos(), dictionary.pad()}
    return [place for place, token in enumerate(tokens.tolist()) if token not in left_out]


def pieces_of(tokens: Tensor, dictionary: Any) -> list[str]:
    """The pieces of tokens [T], without ``<s>``, ``</s>`` and padding."""
    return [dictionary[int(tokens[place])] for place in places_of_pieces(tokens, dictionary)]


def decoder(segmenter: Segmenter | None, lang: str = "") -> Callable[[Iterable[str]], str]:
    """The function that joins pieces into text, by their segmentation; without one, by spaces, as subword-nmt does.

    Args:
        lang: the language of the text. Spaces between Chinese and Japanese words, from a tokenizer, are removed. (Thai,
            Lao, Khmer and Burmese have spaces between phrases, which look like those of a tokenizer.)
    """
    decode = segmenter.decode if segmenter is not None else _undo_marks
    if language_of(lang) not in ("zh", "yue", "ja"):
        return decode
    return lambda pieces: _BETWEEN_WORDS.sub("", decode(pieces))


def _undo_marks(pieces: Iterable[str]) -> str:
    return (" ".join(pieces) + " ").replace(f"{SEPARATOR} ", "").rstrip(" ")


def text_of_tokens(tokens: Tensor, dictionary: Any, segmenter: Segmenter | None, lang: str = "") -> str:
    """The text of tokens [T]; see :func:`decoder` for ``lang``."""
    return decoder(segmenter, lang)(pieces_of(tokens, dictionary))


def reference_of_tokens(tokens: Tensor, dictionary: Any, segmenter: Segmenter | None, lang: str = "") -> str:
    """The text of a reference's tokens [T], with ``<<unk>>`` for unknown words, as fairseq prints it.

    A translation's ``<unk>`` would otherwise be right where a word of the reference is not in the vocabulary.
    """
    text = text_of_tokens(tokens, dictionary, segmenter, lang)
    return text.replace(dictionary.unk_word, f"<{dictionary.unk_word}>")


class SegmentationDecoder:
    """The target's segmentation in the role of fairseq's ``--bpe``; raw input is segmented by the task."""

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def encode(self, x: str) -> str:
        """The pieces of a target text, which fairseq-interactive needs for ``--constraints``."""
        return " ".join(self._segmenter.encode_text(x))

    def decode(self, x: str) -> str:
        return self._segmenter.decode(x)
