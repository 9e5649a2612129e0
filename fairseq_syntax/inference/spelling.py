"""From tokens to text: the one way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fairseq_syntax.corpus.segmentation import Segmenter


def places_of_pieces(tokens: Tensor, dictionary: Any) -> list[int]:
    """Where the pieces of tokens [T] are: all but ``<s>``, which a search may draw, ``</s>`` and padding."""
    left_out = {dictionary.bos(), dictionary.eos(), dictionary.pad()}
    return [place for place, token in enumerate(tokens.tolist()) if token not in left_out]


def pieces_of(tokens: Tensor, dictionary: Any) -> list[str]:
    """The pieces of tokens [T], without ``<s>``, ``</s>`` and padding."""
    return [dictionary[int(tokens[place])] for place in places_of_pieces(tokens, dictionary)]


def decoder(segmenter: Segmenter | None) -> Callable[[Iterable[str]], str]:
    """What makes text of pieces: the segmentation that made them.

    Where the data have none beside them, it is spaces between the pieces, with the marks of subword-nmt undone.
    """
    return segmenter.decode if segmenter is not None else _undo_marks


def _undo_marks(pieces: Iterable[str]) -> str:
    from fairseq_syntax.corpus.segmentation import SEPARATOR

    return (" ".join(pieces) + " ").replace(f"{SEPARATOR} ", "").rstrip(" ")


def text_of_tokens(tokens: Tensor, dictionary: Any, segmenter: Segmenter | None) -> str:
    """The text of tokens [T]."""
    return decoder(segmenter)(pieces_of(tokens, dictionary))


class SegmentationDecoder:
    """A segmentation of the target as fairseq's ``--bpe``. Raw input is segmented by the task, with its parse."""

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def encode(self, x: str) -> str:
        """The pieces of a target text: fairseq-interactive asks for those of the words of ``--constraints``."""
        return " ".join(self._segmenter.encode_text(x))

    def decode(self, x: str) -> str:
        return self._segmenter.decode(x)
