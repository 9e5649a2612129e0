"""Output based on word alignments in fairseq-generate and -interactive: ``--print-alignment`` and ``--replace-unk``.

fairseq's own implementations run the model without its syntax, align pieces, and index source words by piece numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_syntax.corpus.segmentation import Segmenter, WordSegmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import PieceText, Weights, align, spell
from fairseq_syntax.inference.alignment_head import Aligner, default_head, read_head
from fairseq_syntax.inference.spelling import decoder, pieces_of
from fairseq_syntax.model.task import SyntaxTask

_UNKNOWN = "\ue000"  # replaces an unknown piece while words are split: part of words, and in no text


def spelled(pieces: Sequence[str], segmenter: Segmenter | None) -> PieceText:
    """The text and the words of pieces; without a segmentation, each piece is a word."""
    side = spell(pieces, decoder(segmenter) if segmenter else " ".join)
    if segmenter is None or segmenter.kind == WordSegmenter.kind:
        words = [(start + side.text.startswith(" ", start), end) for start, end in side.pieces]
        side = PieceText(side.text, words, words)
    return side


def _marked(tokens: Tensor, dictionary: Any) -> list[str]:
    """The pieces of tokens [T], with :data:`_UNKNOWN` for unknown pieces."""
    return [_UNKNOWN if piece == dictionary.unk_word else piece for piece in pieces_of(tokens, dictionary)]


class AlignedOutput:
    """Adds alignments and copied words to the hypotheses of a search.

    Args:
        models: in evaluation mode
        kind: ``hard`` for links between words, namely those of :func:`words_of` in the printed lines (``<unk>`` is part
            of a word), even if fairseq-interactive reads a parse with other tokens; ``soft`` for the weights of all
            source pieces for each piece of the translation; empty for none
        heads: files of :func:`save_head`, one per model, separated by colons; if empty, fairseq's heads
        copies: replacements of source words, of which others are copied unchanged; None if unknown words stay
    """

    def __init__(
        self, models: Sequence[Any], task: SyntaxTask, kind: str, heads: str, copies: Mapping[str, str] | None
    ) -> None:
        paths = heads.split(os.pathsep) if heads else []
        if paths and len(paths) != len(models):
            raise SyntaxDataError(f"{len(paths)} files, and there are {len(models)} models", option="--alignment-head")
        chosen = [read_head(Path(p), m) for p, m in zip(paths, models)] or [default_head(m) for m in models]
        self._aligner, self._task, self._kind, self._copies = Aligner(models, chosen), task, kind, copies

    def add(
        self, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]], source_text: Callable[[int], PieceText]
    ) -> None:
        """Add an ``alignment`` to each hypothesis, in the form that fairseq prints, and copy words into its ``tokens``.

        Args:
            source_text: the words and pieces of the source with a number of ``sample["id"]``, including unknown words
        """
        tokens = [[h["tokens"] for h in best] for best in hypotheses]
        unknown = self._task.target_dictionary.unk()
        copying = self._copies is not None and any(unknown in one for best in tokens for one in best)
        if not self._kind and not copying:
            return
        attention = self._aligner.of_hypotheses(sample["net_input"], tokens)
        for number, source, best, weights in zip(
            sample["id"].tolist(), sample["net_input"]["src_tokens"], hypotheses, attention
        ):
            words = spell(_marked(source, self._task.source_dictionary), decoder(self._task.source_segmenter))
            for hypothesis, of_pieces in zip(best, weights):
                if self._kind == "soft":
                    hypothesis["alignment"] = [[f"{w:.6f}" for w in row] for row in of_pieces.tolist()]
                elif self._kind:
                    pieces = _marked(hypothesis["tokens"], self._task.target_dictionary)
                    target = spell(pieces, decoder(self._task.target_segmenter))
                    hypothesis["alignment"] = align(of_pieces, words, target).links
                if copying and unknown in hypothesis["tokens"]:
                    hypothesis["tokens"] = self._with_copies(hypothesis["tokens"], of_pieces, source_text(number))

    def _with_copies(self, tokens: Tensor, weights: Weights, source: PieceText) -> Tensor:
        """Tokens [T] in which aligned source words, or their replacements, stand for words with unknown pieces.

        New pieces are added to the target's dictionary. ``weights``: [target pieces, source pieces].
        """
        dictionary, segmenter = self._task.target_dictionary, self._task.target_segmenter
        target = spelled(_marked(tokens, dictionary), segmenter)
        text, at = "", 0
        for s, t in align(weights, source, target).links:
            start, end = target.words[t]
            if _UNKNOWN in target.text[start:end]:
                word = source.text[slice(*source.words[s])]
                text += target.text[at:start] + (self._copies or {}).get(word, word)
                at = end
        text += target.text[at:]
        if _UNKNOWN in text:  # the source is empty
            return tokens
        pieces = segmenter.encode_text(text) if segmenter else text.split()
        return dictionary.encode_line(" ".join(pieces), add_if_not_exist=True).to(tokens)
