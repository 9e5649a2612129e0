"""Which words of a translation stand for which words of its source, read from the decoder's attention.

A *word* here is a surface token of the parse where the sentence came with one, and otherwise what white space
separates, with punctuation at either end split off (:func:`words_of`). The attention is between pieces: a source word
has the sum of its pieces' weights, a target word the mean of its pieces' rows, and each target word is linked to the
source word with the largest weight. The weight on ``</s>`` counts for nothing.

Which head of which layer aligns best differs from model to model (Garg et al. 2019; Chen et al. 2020, who also read the
row of the step that *reads* a piece and not of the one that writes it). So all of them are tried on sentence pairs
(:func:`choose`), and the best is kept beside the checkpoint. Without that it is what fairseq takes: the mean of the
heads of the last layer, or of the heads that the model was trained to align by.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.attention import recorded
from fairseq_syntax.inference.spelling import decoder, pieces_of
from fairseq_syntax.text.files import whole_file

__all__ = ["Agreement", "AlignmentHead", "WordAlignment", "agreement", "read_gold"]

Span = tuple[int, int]
Weights = NDArray[np.float32]


@dataclass(frozen=True)
class WordAlignment:
    """Links between the words of a source and of its translation.

    Attributes:
        source_text, target_text: the texts that the offsets count in
        source_words, target_words: where each word stands in its text, ``[start, end)`` in characters, from 0
        links: (source word, target word), counted from 0, in the order of the target
    """

    source_text: str
    target_text: str
    source_words: list[Span]
    target_words: list[Span]
    links: list[tuple[int, int]]

    def pharaoh(self) -> str:
        """The links as ``0-0 2-1``: the source's word first, counted from 0."""
        return " ".join(f"{source}-{target}" for source, target in self.links)

    def as_json(self) -> dict[str, Any]:
        """The attributes, ready for :func:`json.dumps`."""
        return asdict(self)


def written(alignment: WordAlignment, path: str | os.PathLike[str]) -> str:
    """A line of a file: JSON if its name ends in ``.jsonl``, else the links in the Pharaoh format."""
    if os.fspath(path).endswith(".jsonl"):
        return json.dumps(alignment.as_json(), ensure_ascii=False)
    return alignment.pharaoh()


# ------------------------------------------------------------------------------------ words and pieces


@dataclass(frozen=True)
class PieceText:
    """A text, its words, and where its pieces stand; all spans are ``[start, end)`` in characters.

    A piece with an empty span belongs to no word.
    """

    text: str
    words: list[Span]
    pieces: list[Span]

    def membership(self) -> Weights:
        """[pieces, words]: 1 where a piece and a word have a character in common."""
        pieces = np.array(self.pieces, dtype=np.int64).reshape(-1, 1, 2)
        words = np.array(self.words, dtype=np.int64).reshape(1, -1, 2)
        overlap = np.minimum(pieces[..., 1], words[..., 1]) - np.maximum(pieces[..., 0], words[..., 0])
        return (overlap > 0).astype(np.float32)


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


def spell(pieces: Sequence[str], decode: Callable[[Iterable[str]], str]) -> PieceText:
    """The text of pieces and where they stand in it.

    Args:
        decode: makes text of pieces (:func:`~fairseq_syntax.inference.spelling.decoder`)
    """
    text = decode(pieces)
    spans: list[Span] = []
    end = 0
    for i in range(len(pieces)):
        before = end
        so_far = decode(pieces[: i + 1])
        end = min(max(before, len(so_far)), len(text))
        spans.append((before, end))
    # A piece without text of its own, such as the space before a word, stands where the next piece stands.
    for i in range(len(spans) - 2, -1, -1):
        if spans[i][0] == spans[i][1]:
            spans[i] = spans[i + 1]
    return PieceText(text, words_of(text), spans)


def locate(text: str, forms: Sequence[str]) -> list[Span] | None:
    """Where the forms stand in a text, one after another with nothing but white space between; None: they do not."""
    spans: list[Span] = []
    at = 0
    for form in forms:
        while at < len(text) and text[at].isspace():
            at += 1
        start = at
        for part in form.split():
            while at < len(text) and text[at].isspace():
                at += 1
            if not text.startswith(part, at):
                return None
            at += len(part)
        spans.append((start, at))
    return spans if not text[at:].strip() else None


def align(weights: Weights, source: PieceText, target: PieceText) -> WordAlignment:
    """Links between words.

    Args:
        weights: [target pieces, source pieces], attention
    """
    links = word_links(word_weights(weights, source.membership(), target.membership()))
    return WordAlignment(source.text, target.text, source.words, target.words, links)


def word_weights(weights: Weights, source: Weights, target: Weights) -> Weights:
    """Attention between words, [target words, source words].

    Args:
        weights: between pieces, [target pieces, source pieces]
        source, target: :meth:`PieceText.membership` of each side
    """
    return (target.T @ weights @ source) / np.maximum(target.sum(axis=0), 1)[:, None]


def word_links(weights: Weights) -> list[tuple[int, int]]:
    """For each target word the source word of the largest weight; none without any weight.

    Of weights that are equal but for rounding it is the first, lest it depend on the rest of the batch.
    """
    if not weights.size:
        return []
    largest = weights.max(axis=1)
    best = (weights >= (1 - 1e-4) * largest[:, None]).argmax(axis=1)
    return [(int(s), t) for t, s in enumerate(best) if largest[t] > 0]


# ------------------------------------------------------------------------------------ attention


@dataclass(frozen=True)
class AlignmentHead:
    """The attention that alignments are read from.

    Attributes:
        layer: of the decoder, from 0; None for an LSTM, which has one attention
        heads: how many of the layer's first heads are averaged, where ``head`` is None; 0: all
        head: the only head, from 0
        shift: 0: the row of the step that writes a piece; 1: of the step that reads it
    """

    layer: int | None = None
    head: int | None = None
    heads: int = 0
    shift: int = 0

    def pick(self, layers: Sequence[Tensor]) -> Tensor:
        """Of a model's attention over the source, [B, H, T, S] by layer, this one's [B, T, S]."""
        weights = layers[self.layer or 0]
        if self.head is not None:
            return weights[:, self.head]
        return weights[:, : self.heads or weights.size(1)].mean(dim=1)


def default_head(model: Any) -> AlignmentHead:
    """fairseq's: the last layer, or ``--alignment-layer`` and ``--alignment-heads`` of a model that has them."""
    layers = _cross_attentions(model)
    if not layers:
        return AlignmentHead()
    options = getattr(model, "args", None) or getattr(model, "cfg", None)
    layer = getattr(options, "alignment_layer", None)
    layer = len(layers) - 1 if layer is None else layer % len(layers)
    return AlignmentHead(layer, heads=getattr(options, "alignment_heads", None) or 0)


def _cross_attentions(model: Any) -> list[Any]:
    """The attentions over the source of a Transformer's decoder; none of an LSTM's."""
    layers: Any = getattr(model.decoder, "layers", ())
    return [layer.encoder_attn for layer in layers if getattr(layer, "encoder_attn", None) is not None]


def head_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Where the head that was chosen for a checkpoint is kept: ``NAME.alignment.json`` beside ``NAME.pt``."""
    return Path(checkpoint).with_suffix(".alignment.json")


def save_head(head: AlignmentHead, checkpoint: str | os.PathLike[str], **about: Any) -> Path:
    """Keep the head beside its checkpoint, with how it was chosen."""
    path = head_path(checkpoint)
    with whole_file(path) as file:
        json.dump({**asdict(head), "chosen": about}, file, indent=1)
        file.write("\n")
    return path


def load_head(checkpoint: str | os.PathLike[str], model: Any) -> AlignmentHead:
    """The head that was chosen for a checkpoint, else :func:`default_head`.

    Raises:
        SyntaxDataError: as :func:`read_head`
    """
    path = head_path(checkpoint)
    return read_head(path, model) if path.exists() else default_head(model)


def read_head(path: Path, model: Any) -> AlignmentHead:
    """The head in a file of :func:`save_head`.

    Raises:
        SyntaxDataError: there is no such file, it is damaged, or it names a head that the model does not have
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        head = AlignmentHead(**{k: v for k, v in values.items() if k != "chosen"})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        hint = "choose again with fairseq-syntax align --choose"
        raise SyntaxDataError(f"names no head: {error}", path=path, hint=hint) from None
    layers = _cross_attentions(model)
    if head.layer is None or not layers:
        fits = head.layer is None and not layers
    else:
        fits = head.layer < len(layers) and (head.head or 0) < layers[head.layer].num_heads
    if not fits:
        raise SyntaxDataError(
            f"names layer {head.layer}, head {head.head}, which the model does not have",
            path=path,
            hint="choose again with fairseq-syntax align --choose",
        )
    return head


@torch.no_grad()
def source_attention(model: Any, net_input: dict[str, Any], targets: Sequence[Tensor]) -> list[Tensor]:
    """A model's attention over the source in making given translations.

    Args:
        net_input: fairseq's, with ``src_tokens`` [B, S] and whatever else the encoder takes
        targets: B translations, int64, each ending in ``</s>``

    Returns:
        by layer [B, H, T, S] float32 (an LSTM: one layer, one head); rows are steps from 0, columns those of
        ``src_tokens``. Rows after a translation's end mean nothing.

    Raises:
        SyntaxDataError: the model does not attend to the source
    """
    tokens = net_input["src_tokens"]
    pad = model.decoder.dictionary.pad()
    width = max(len(t) for t in targets)
    previous = tokens.new_full((len(targets), width), pad)
    for row, target in zip(previous, targets):
        row[0] = model.decoder.dictionary.eos()
        row[1 : len(target)] = target[:-1]
    known = inspect.signature(model.forward).parameters  # a plain model in an ensemble knows no src_syntax
    given = {name: value for name, value in net_input.items() if name in known}
    needed = getattr(model.decoder, "need_attn", True)  # False once an LSTM has been made fast
    with recorded(model, kinds=("cross",)) as weights:
        model.decoder.need_attn = True
        try:
            out = model(**{**given, "prev_output_tokens": previous})
        finally:
            model.decoder.need_attn = needed
    if weights["cross"]:
        return weights["cross"]
    if isinstance(out[1], Tensor) and out[1].dim() == 3:
        # An LSTM, which has moved the padding to the right.
        left = tokens.ne(pad).int().argmax(dim=1)
        column = torch.arange(tokens.size(1), device=tokens.device)[None] - left[:, None]
        index = column.clamp(min=0)[:, None].expand(-1, width, -1)
        return [out[1].float().gather(2, index)[:, None]]
    raise SyntaxDataError("the model does not attend to the source, so there is nothing to align by")


class Aligner:
    """Reads alignments between pieces from one model, or the mean of several.

    Args:
        models: in evaluation mode, on one device
        heads: of each model
    """

    def __init__(self, models: Sequence[Any], heads: Sequence[AlignmentHead]) -> None:
        self.models, self.heads = models, heads

    def weights(self, net_input: dict[str, Any], targets: Sequence[Tensor]) -> list[Weights]:
        """Of each sentence [target pieces, source pieces], without ``</s>``.

        Args:
            net_input, targets: as in :func:`source_attention`
        """
        total: list[Weights] = []
        for model, head in zip(self.models, self.heads):
            attention = head.pick(source_attention(model, net_input, targets))
            found = list(cut(attention, net_input["src_tokens"], targets, head.shift, model.decoder.dictionary.pad()))
            total = [a + b for a, b in zip(total, found)] if total else found
        return [(weights / len(self.models)).astype(np.float32) for weights in total]

    def of_hypotheses(self, net_input: dict[str, Any], tokens: Sequence[Sequence[Tensor]]) -> list[list[Weights]]:
        """:meth:`weights` of each of the n best translations of each sentence."""
        found: list[list[Weights]] = [[] for _ in tokens]
        # A search may end with fewer hypotheses of one sentence than of another.
        for rank in range(max(map(len, tokens), default=0)):
            weights = self.weights(net_input, [best[min(rank, len(best) - 1)] for best in tokens])
            for own, best, new in zip(found, tokens, weights):
                if rank < len(best):
                    own.append(new)
        return found


def cut(attention: Tensor, tokens: Tensor, targets: Sequence[Tensor], shift: int, pad: int) -> Iterator[Weights]:
    """The rows and columns of each sentence's pieces.

    Args:
        attention: [B, T, S], of :func:`source_attention`
        tokens: [B, S], the source
        shift: of :class:`AlignmentHead`
    """
    for rows, source, target in zip(attention.cpu(), tokens.cpu(), targets):
        columns = torch.nonzero(source.ne(pad)).squeeze(1)[:-1]
        yield rows[shift : len(target) - 1 + shift][:, columns].numpy()


class PrintedAlignment:
    """What fairseq-generate and fairseq-interactive print with ``--print-alignment``.

    Args:
        models: in evaluation mode
        task: its dictionaries and segmentation spell the words; see :func:`spell` and :func:`words_of`
        kind: ``hard``: links between words; ``soft``: for each piece of the translation the weight of each source piece
        heads: paths of :func:`save_head`, with colons, one for each model; if empty, fairseq's heads
    """

    def __init__(self, models: Sequence[Any], task: Any, kind: str, heads: str = "") -> None:
        paths = heads.split(os.pathsep) if heads else []
        if paths and len(paths) != len(models):
            raise SyntaxDataError(f"--alignment-head names {len(paths)} files, and there are {len(models)} models")
        chosen = [read_head(Path(p), m) for p, m in zip(paths, models)] or [default_head(m) for m in models]
        self._aligner, self._task, self._soft = Aligner(models, chosen), task, kind == "soft"

    def add(self, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]]) -> None:
        """Put an ``alignment`` into each hypothesis, as fairseq's programs print it."""
        tokens = [[h["tokens"] for h in best] for best in hypotheses]
        found = self._aligner.of_hypotheses(sample["net_input"], tokens)
        for source, best, weights in zip(sample["net_input"]["src_tokens"], hypotheses, found):
            words = self._spelt(source, self._task.source_dictionary, self._task.source_segmenter)
            for hypothesis, own in zip(best, weights):
                if self._soft:
                    hypothesis["alignment"] = [[f"{w:.6f}" for w in row] for row in own.tolist()]
                else:
                    target = self._spelt(
                        hypothesis["tokens"], self._task.target_dictionary, self._task.target_segmenter
                    )
                    hypothesis["alignment"] = align(own, words, target).links

    @staticmethod
    def _spelt(tokens: Tensor, dictionary: Any, segmenter: Any) -> PieceText:
        return spell(pieces_of(tokens, dictionary), decoder(segmenter))


# ------------------------------------------------------------------------------------ which head


@dataclass(frozen=True)
class Pair:
    """A sentence pair in words, for the choice of a head.

    Attributes:
        source, target: of each side
        weights: attention by candidate, each [target pieces, source pieces]
    """

    source: PieceText
    target: PieceText
    weights: dict[AlignmentHead, Weights]


def candidates(layers: Sequence[Tensor], of_lstm: bool) -> list[AlignmentHead]:
    """All heads and the mean of each layer, in either reading.

    Args:
        layers: of :func:`source_attention`
    """
    if of_lstm:
        return [AlignmentHead(shift=shift) for shift in (0, 1)]
    return [
        AlignmentHead(layer, head, shift=shift)
        for layer, weights in enumerate(layers)
        for head in (None, *range(weights.size(1)))
        for shift in (0, 1)
    ]


def mutual_information(pairs: Sequence[tuple[Sequence[str], Sequence[str], Sequence[tuple[int, int]]]]) -> float:
    """How much the source word that a target word is linked to tells about it, in bits per target word.

    ``mean log2 p(t | s) / p(t)``, the probabilities counted on one half of the pairs and taken on the other, both ways
    round; ``p(t | s) = (count(s, t) + p(t)) / (count(s) + 1)``. Good links say much, whatever the language; links to
    anything at hand (the full stop, the same position) say little.

    Args:
        pairs: source words, target words, links
    """
    bits, count = 0.0, 0
    for fold in (0, 1):
        together: Counter[tuple[str, str]] = Counter()
        sources: Counter[str] = Counter()
        targets: Counter[str] = Counter()
        for source, target, links in pairs[fold::2]:
            targets.update(target)
            for s, t in links:
                together[source[s], target[t]] += 1
                sources[source[s]] += 1
        total, kinds = targets.total(), len(targets) + 1
        for source, target, links in pairs[1 - fold :: 2]:
            count += len(target)
            for s, t in links:
                alone = (targets[target[t]] + 1) / (total + kinds)
                given = (together[source[s], target[t]] + alone) / (sources[source[s]] + 1)
                bits += math.log2(given / alone)
    return bits / max(count, 1)


@dataclass(frozen=True)
class Agreement:
    """Links against given ones (Och and Ney 2003): sure links S, possible links P, which hold S; found links A.

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
    """Sure links and possible ones, which hold the sure ones, of lines such as ``0-0 1-2 2p2``; ``p``: possible.

    Raises:
        SyntaxDataError: a line is not such links
    """
    found: list[Gold] = []
    for number, line in enumerate(lines, start=1):
        sure: set[tuple[int, int]] = set()
        possible: set[tuple[int, int]] = set()
        for link in line.split():
            mark = "p" if "p" in link else "-"
            source, _, target = link.partition(mark)
            if not (source.isdecimal() and target.isdecimal()):
                message = f"{link!r} is no link such as 0-1, or 0p1 if it is possible"
                raise SyntaxDataError(message, path=path, line=number)
            (possible if mark == "p" else sure).add((int(source), int(target)))
        found.append((sure, sure | possible))
    return found


def agreement(links: Sequence[Sequence[tuple[int, int]]], gold: Sequence[Gold]) -> Agreement:
    """Links of sentences against given ones."""
    found = sure = possible = right_sure = right = 0
    for own, (of_sure, of_possible) in zip(links, gold, strict=True):
        found += len(own)
        sure += len(of_sure)
        possible += len(of_possible)
        right_sure += len(of_sure & set(own))
        right += len(of_possible & set(own))
    precision, recall = right / max(found, 1), right_sure / max(sure, 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-12)
    return Agreement(precision, recall, f1, 1 - (right_sure + right) / max(found + sure, 1))


@dataclass(frozen=True)
class Ranked:
    """A candidate with its score: bits per word, or F1 where links are given."""

    head: AlignmentHead
    score: float


def choose(pairs: Sequence[Pair], gold: Sequence[Gold] | None = None) -> list[Ranked]:
    """All candidates, the best first; equals in the order of layers and heads.

    Args:
        pairs: with the same candidates each
        gold: given links of each pair: the score is F1; None: :func:`mutual_information`
    """
    if not pairs:
        raise SyntaxDataError("no sentence pairs to choose a head by")
    members = [(pair.source.membership(), pair.target.membership()) for pair in pairs]
    words = [
        tuple([side.text[a:b].casefold() for a, b in side.words] for side in (pair.source, pair.target))
        for pair in pairs
    ]
    ranked = []
    for head in pairs[0].weights:
        links = [word_links(word_weights(pair.weights[head], *sides)) for pair, sides in zip(pairs, members)]
        if gold is not None:
            score = agreement(links, gold).f1
        else:
            score = mutual_information([(source, target, own) for (source, target), own in zip(words, links)])
        ranked.append(Ranked(head, score))
    return sorted(ranked, key=lambda r: -r.score)
