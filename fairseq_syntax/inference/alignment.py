"""Word alignments between a sentence and its translation.

A *word* is a surface token of the parse if the sentence has one. Otherwise it is a string between white space, with
punctuation at both ends split off (:func:`~fairseq_syntax.corpus.words.words_of`); ``<unk>`` is part of a word.
Attention is between pieces: the weight of a source word is the sum over its pieces, that of a target word the mean over
its pieces, and each target word is linked to the source word with the largest weight. The weight on ``</s>`` is
ignored.

The attention head is chosen by :mod:`fairseq_syntax.inference.alignment_head`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_syntax.corpus.words import Span, words_of
from fairseq_syntax.errors import SyntaxDataError

__all__ = ["Agreement", "WordAlignment", "agreement", "read_gold"]

Weights = NDArray[np.float32]
_UNKNOWN = "<unk>"  # fairseq's unknown piece; its brackets are not punctuation


@dataclass(frozen=True)
class WordAlignment:
    """A word alignment of a source and its translation.

    Attributes:
        source_text, target_text: the texts to which the offsets refer
        source_words, target_words: the span of each word in its text, ``[start, end)`` in characters, 0-based
        links: (source word, target word), 0-based, in the order of the target
    """

    source_text: str
    target_text: str
    source_words: list[Span]
    target_words: list[Span]
    links: list[tuple[int, int]]

    def pharaoh(self) -> str:
        """The links in the form ``0-0 2-1``: source word first, 0-based."""
        return " ".join(f"{source}-{target}" for source, target in self.links)

    def as_json(self) -> dict[str, Any]:
        """The attributes as a dictionary for :func:`json.dumps`."""
        return asdict(self)


def written(alignment: WordAlignment, path: str | os.PathLike[str]) -> str:
    """The alignment as a line of a file: JSON for a file name ending in ``.jsonl``, otherwise in Pharaoh format."""
    if os.fspath(path).endswith(".jsonl"):
        return json.dumps(alignment.as_json(), ensure_ascii=False)
    return alignment.pharaoh()


@dataclass(frozen=True)
class PieceText:
    """A text, its words, and the positions of its pieces; all spans are ``[start, end)`` in characters.

    A piece with an empty span belongs to no word.
    """

    text: str
    words: list[Span]
    pieces: list[Span]

    def membership(self) -> Weights:
        """[pieces, words] float32: 1 where a piece and a word share a character."""
        pieces = np.array(self.pieces, dtype=np.int64).reshape(-1, 1, 2)
        words = np.array(self.words, dtype=np.int64).reshape(1, -1, 2)
        overlap = np.minimum(pieces[..., 1], words[..., 1]) - np.maximum(pieces[..., 0], words[..., 0])
        return (overlap > 0).astype(np.float32)


def spell(pieces: Sequence[str], decode: Callable[[Iterable[str]], str]) -> PieceText:
    """The text that ``decode`` joins pieces into (:func:`.spelling.decoder`), and their positions in it."""
    text = decode(pieces)
    spans: list[Span] = []
    end = 0
    for i in range(len(pieces)):
        before = end
        so_far = decode(pieces[: i + 1])
        if not text.startswith(so_far):
            so_far = so_far.rstrip("\ufffd")  # bytes of an incomplete character, which belongs to its last byte's piece
        end = min(max(before, len(so_far)), len(text))
        spans.append((before, end))
    # A piece without text, such as the space before a word, has the span of the next piece.
    for i in range(len(spans) - 2, -1, -1):
        if spans[i][0] == spans[i][1]:
            spans[i] = spans[i + 1]
    return PieceText(text, words_of(text.replace(_UNKNOWN, "x" * len(_UNKNOWN))), spans)


def locate(text: str, forms: Sequence[str]) -> list[Span] | None:
    """The positions of consecutive forms in a text, separated by white space only; None if the text differs."""

    def next_word(at: int) -> int:
        return len(text) - len(text[at:].lstrip())

    spans: list[Span] = []
    at = 0
    for form in forms:
        start = next_word(at)
        for part in form.split():
            at = next_word(at)
            if not text.startswith(part, at):
                return None
            at += len(part)
        spans.append((start, at))
    return spans if next_word(at) == len(text) else None


def align(weights: Weights, source: PieceText, target: PieceText) -> WordAlignment:
    """A word alignment from attention, [target pieces, source pieces]."""
    return align_by_each([weights], source, target)[0]


def align_by_each(weights: Iterable[Weights], source: PieceText, target: PieceText) -> list[WordAlignment]:
    """:func:`align` by each of several attentions between the same texts."""
    sides = source.membership(), target.membership()
    links = [word_links(word_weights(of_one, *sides)) for of_one in weights]
    return [WordAlignment(source.text, target.text, source.words, target.words, of_one) for of_one in links]


def word_weights(weights: Weights, source: Weights, target: Weights) -> Weights:
    """Attention between words, [target words, source words], from that between pieces and the sides' membership."""
    return (target.T @ weights @ source) / np.maximum(target.sum(axis=0), 1)[:, None]


def word_links(weights: Weights) -> list[tuple[int, int]]:
    """For each target word, the source word with the largest weight; words without weights have no link.

    Among weights that are equal up to rounding, the first is taken, so that the rest of the batch has no influence.
    """
    if not weights.size:
        return []
    largest = weights.max(axis=1)
    best = (weights >= (1 - 1e-4) * largest[:, None]).argmax(axis=1)
    return [(int(s), t) for t, s in enumerate(best) if largest[t] > 0]


@dataclass(frozen=True)
class Agreement:
    """Agreement of links A with a reference of sure links S and possible links P ⊇ S (Och and Ney 2003).

    Attributes:
        precision: ``|A ∩ P| / |A|``
        recall: ``|A ∩ S| / |S|``
        f1: their harmonic mean
        aer: alignment error rate, ``1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)``
    """

    precision: float
    recall: float
    f1: float
    aer: float


Gold = tuple[set[tuple[int, int]], set[tuple[int, int]]]


def read_gold(lines: Sequence[str], path: str | os.PathLike[str] | None = None) -> list[Gold]:
    """Read sure and possible links (a superset) from lines such as ``0-0 1-2 2p2``, where ``p`` marks possible links.

    Raises:
        SyntaxDataError: a line does not have this form
    """
    gold: list[Gold] = []
    for number, line in enumerate(lines, start=1):
        sure: set[tuple[int, int]] = set()
        possible: set[tuple[int, int]] = set()
        for link in line.split():
            mark = "p" if "p" in link else "-"
            source, _, target = link.partition(mark)
            if not (source.isdecimal() and target.isdecimal()):
                message = f"{link!r} is not a link such as 0-1, or 0p1 for a possible one"
                raise SyntaxDataError(message, path=path, line=number)
            (possible if mark == "p" else sure).add((int(source), int(target)))
        gold.append((sure, sure | possible))
    return gold


def check_gold(gold: Sequence[Gold], alignments: Iterable[WordAlignment | None]) -> None:
    """Check that gold links are between words of the alignments; None for a pair that is not checked.

    Raises:
        SyntaxDataError: a link is not; others of that file would be taken for links of other words
    """
    for number, ((_, possible), alignment) in enumerate(zip(gold, alignments, strict=True), start=1):
        if alignment is None:
            continue
        sizes = len(alignment.source_words), len(alignment.target_words)
        for s, t in sorted(possible):
            if s >= sizes[0] or t >= sizes[1]:
                message = f"the gold link {s}-{t} is not between words of a pair of {sizes[0]} and {sizes[1]}"
                hint = "links count words from 0, as align splits them: see its output to a .jsonl file"
                raise SyntaxDataError(message, line=number, hint=hint)


def agreement(links: Sequence[Sequence[tuple[int, int]]], gold: Sequence[Gold]) -> Agreement:
    """Compare the links of sentences with a reference."""
    total = sure = possible = right_sure = right = 0
    for of_sentence, (of_sure, of_possible) in zip(links, gold, strict=True):
        total += len(of_sentence)
        sure += len(of_sure)
        possible += len(of_possible)
        right_sure += len(of_sure & set(of_sentence))
        right += len(of_possible & set(of_sentence))
    precision, recall = right / max(total, 1), right_sure / max(sure, 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-12)
    return Agreement(precision, recall, f1, 1 - (right_sure + right) / max(total + sure, 1))
