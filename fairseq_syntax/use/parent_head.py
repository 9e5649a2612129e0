"""Dependency trees from a parent head (``supervised_heads``, ``lisa`` or ``dbsa`` in the encoder), or any other head.

The head gives every word a distribution over parents; a root is its own parent (Wang et al. 2019, section 4.5). The
most probable parents need not form a tree, so the best tree is found by the Chu-Liu/Edmonds algorithm, in Stanza's
implementation. Only heads are predicted: relations are ``root`` or ``dep``, and there are no tags.

Heads that nothing trains towards parents attend to some of them, too (Raganato and Tiedemann 2018, An Analysis of
Encoder Representations in Transformer-Based Machine Translation): :meth:`ParentHeadParser.rank_heads` finds the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.parsed_line import is_tree
from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.recorded_attention import recorded
from fairseq_syntax.model.task import SyntaxTask

Segmented = tuple[ParsedLine, list[str]]  # a line, whose tokens have their number of pieces, and its pieces


class ParentHeadParser(Parser):
    """Predicts trees from the attention of a parent head.

    Args:
        options: ``batch_size`` counts pieces; with ``distributions``, all arcs with a probability of at least
            ``min_prob`` are returned, otherwise only those of the tree
        model: a ``syntax_transformer`` in evaluation mode
        task: the task it was trained with
        system: the encoder system that has the head; None for the first one that has any
        head: any head of the encoder, as (layer, head) from 0, instead of one that was trained on parents
        choose: for :meth:`rank_heads`, which needs no parent head
    """

    def __init__(
        self,
        options: ParserOptions,
        model: Any,
        task: SyntaxTask,
        system: str | None = None,
        *,
        head: tuple[int, int] | None = None,
        choose: bool = False,
    ) -> None:
        super().__init__(options)
        self.model = model
        if choose or head is not None:
            check_head(model, head)
        self.head = head
        self.place = None if choose or head is not None else parent_head(model, system)
        self.dictionary = task.source_dictionary
        self.max_pieces = model.encoder.max_positions() - 1  # less </s>
        self._segment = InteractiveInput(task).segment

    def parse(self, lines: Sequence[str] | Sequence[Sequence[str]], *, first_line: int = 0) -> list[ParsedLine]:
        """See the base class; the sentences of a line are encoded together, as in translation."""
        return self.predict(super().parse(lines, first_line=first_line))

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        """Return placeholder parses with the first word as root; :meth:`predict` needs the whole line's tokens."""
        return [
            SentenceParse([0] + [1] * (len(s) - 1), ["_"] * len(s), ["_"] * len(s), ["_"] * len(s), [])
            for s in sentences
        ]

    def predict(self, lines: Iterable[ParsedLine]) -> list[ParsedLine]:
        """Replace the heads of parsed lines by the model's predictions; tokens and tags are kept.

        If a token contains several words, all but the first attach to the first.
        """
        segmented = [self._segment(line) for line in lines]
        predicted = [ParsedLine(line_number=line.line_number) for line, _ in segmented]
        for batch in self._batches(segmented):
            for i, scores in zip(batch, self._scores([segmented[i] for i in batch])):
                predicted[i] = self._with_heads(segmented[i][0], scores)
        return predicted

    def rank_heads(self, lines: Iterable[ParsedLine]) -> list[tuple[float, tuple[int, int]]]:
        """The encoder's heads, as (layer, head) from 0, by how often they attend to the parse's parents, best first.

        Returns:
            for each head the share of tokens (as in :meth:`predict`, whose trees are not enforced here) that attend
            most, among the tokens of their sentence, to their parent; a root to itself

        Raises:
            SyntaxDataError: a line has no parse, or there are no words
        """
        segmented, right, total = [self._segment(line) for line in lines], Counter[tuple[int, int]](), 0
        for line, _ in segmented:
            if line.words and not line.parsed:
                raise SyntaxDataError("has no parse, from which the parents are taken", line=line.line_number + 1)
        for batch in self._batches(segmented):
            for i, of_layers in zip(batch, self._log_attention([segmented[i] for i in batch])):
                line = segmented[i][0]
                token_of, spans = tokens_and_sentences(line)
                parents = np.array([token_of[line.heads[token.first]] for token in line.tokens])
                total += len(parents)
                for start, end in spans:
                    for layer, scores in enumerate(of_layers):
                        best = scores[:, start:end, start:end].argmax(axis=2) + start  # [H, tokens]
                        hits = (best == parents[start:end]).sum(axis=1)
                        right.update({(layer, head): int(count) for head, count in enumerate(hits)})
        if not total:
            raise SyntaxDataError("there are no words")
        return [(count / total, place) for place, count in sorted(right.items(), key=lambda item: (-item[1], item[0]))]

    def _batches(self, segmented: Sequence[Segmented]) -> list[list[int]]:
        """The numbers of the lines that have pieces, in batches; checks that the model takes each line."""
        sizes = [len(pieces) for _, pieces in segmented]
        for (line, _), size in zip(segmented, sizes):
            if size > self.max_pieces:
                message = f"has {size} pieces, and the model takes {self.max_pieces}"
                raise SyntaxDataError(message, line=line.line_number + 1)
        batches: list[list[int]] = []
        # In ascending order, the last line is the longest, to which the others are padded.
        for i in sorted((i for i, size in enumerate(sizes) if size), key=sizes.__getitem__):
            if batches and (len(batches[-1]) + 1) * (sizes[i] + 1) <= self.options.batch_size:
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches

    @torch.inference_mode()
    def _scores(self, batch: list[Segmented]) -> list[np.ndarray]:
        """The scores between the first pieces of each line's tokens, ``[tokens, tokens]`` per line."""
        if self.head is not None:
            layer, head = self.head
            return [of_layers[layer][head] for of_layers in self._log_attention(batch)]
        step = self.model.encoder(self._tokens(batch), observe=True)["step"]
        scores = step.scores[self.place].float().cpu().numpy()  # [B, T, T]
        return [between_words(of_pieces, counts) for of_pieces, counts in zip(scores, _piece_counts(batch))]

    @torch.inference_mode()
    def _log_attention(self, batch: list[Segmented]) -> Iterator[list[np.ndarray]]:
        """For each line and layer, the log attention of the heads between tokens, by their first pieces: [H, W, W]."""
        with recorded(self.model, ("encoder",)) as weights:
            self.model.encoder(self._tokens(batch))
        # of a weight that is too small for its type, the smallest
        of_layers = [layer.clamp(min=torch.finfo(layer.dtype).tiny).log().cpu().numpy() for layer in weights["encoder"]]
        for number, counts in enumerate(_piece_counts(batch)):
            yield [np.stack([between_words(head, counts) for head in layer[number]]) for layer in of_layers]

    def _tokens(self, batch: list[Segmented]) -> torch.Tensor:
        """The tokens of a batch, [B, T], on the model's device."""
        rows = [self.dictionary.encode_line(" ".join(pieces), add_if_not_exist=False).long() for _, pieces in batch]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.dictionary.pad())
        return tokens.to(next(self.model.parameters()).device)

    def _with_heads(self, line: ParsedLine, scores: np.ndarray) -> ParsedLine:
        # The trees are over tokens; they are mapped to words by each token's first word.
        token_of, spans = tokens_and_sentences(line)
        tree, probabilities = decode_parents(scores, spans)
        first = [token.first for token in line.tokens]
        # A token's other words attach to its first word, which is therefore given all pieces. The tokens are copies
        # made by the segmentation.
        for token in line.tokens:
            token.word = token.first
        arcs = []
        heads: list[int] = []
        for word, t in enumerate(token_of):
            if first[t] == word:
                heads.append(first[tree[t]])
                arcs += [(word, first[h], _label(h == t), p) for h, p in self._arcs(tree[t], probabilities[t])]
            else:
                heads.append(first[t])
                arcs.append((word, first[t], _label(False), 1.0))
        labels = [_label(head == word) for word, head in enumerate(heads)]
        return replace(line, heads=heads, deprels=labels, arcs=arcs, parsed=True)

    def _arcs(self, head: int, row: np.ndarray) -> list[tuple[int, float]]:
        """The (head, probability) pairs of a token, most probable first, by its head and its probabilities [W]."""
        if not self.options.distributions:
            return [(head, float(row[head]))]
        likely = np.flatnonzero(row >= self.options.min_prob)
        return [(int(h), float(row[h])) for h in likely[np.argsort(-row[likely], kind="stable")]]


def _label(root: bool) -> str:
    return "root" if root else "dep"


def _piece_counts(batch: Sequence[Segmented]) -> Iterator[list[int]]:
    """The number of pieces of each token, by line."""
    return ([token.pieces or 0 for token in line.tokens] for line, _ in batch)


def tokens_and_sentences(line: ParsedLine) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The token of each word, int [words], and the first token of each sentence with the one after its last."""
    token_of = np.repeat(np.arange(len(line.tokens)), [token.last - token.first + 1 for token in line.tokens])
    return token_of, [(int(token_of[start]), int(token_of[end - 1]) + 1) for start, end in line.sentences]


def parent_head(model: Any, system: str | None = None) -> tuple[int, int]:
    """(layer, head) of the model's parent head.

    Raises:
        SyntaxDataError: the model or the system has none, or the model needs a parse to encode a sentence
    """
    systems = dict(getattr(model.encoder, "systems", {}))
    places = {name: place for name, module in systems.items() if (place := module.parent_head())}
    if system is not None and system not in places:
        raise SyntaxDataError(f"the model's encoder has no {system} with a parent head", option="--system")
    if not places:
        hint = "train one with --encoder-syntax supervised_heads, lisa or dbsa"
        raise SyntaxDataError("the model has no head that predicts parents", hint=hint)
    _check_needs_no_parse(model)
    return places[system or next(iter(places))]


def check_head(model: Any, head: tuple[int, int] | None) -> None:
    """Check that the encoder has self-attention, and this (layer, head), and that the model needs no parse.

    Raises:
        SyntaxDataError: it has not, or the model needs a parse to encode a sentence
    """
    heads = [layer.self_attn.num_heads for layer in getattr(model.encoder, "layers", ()) if hasattr(layer, "self_attn")]
    if not heads:
        raise SyntaxDataError("the model's encoder has no self-attention")
    if head is not None and not (head[0] < len(heads) and head[1] < heads[head[0]]):
        counts = ", ".join(f"layer {layer} has {count}" for layer, count in enumerate(heads))
        raise SyntaxDataError(f"the encoder has no head {head[1]} in layer {head[0]}: {counts}", option="--head")
    _check_needs_no_parse(model)


def _check_needs_no_parse(model: Any) -> None:
    if getattr(model, "inference_needs", None):
        raise SyntaxDataError(
            "the model reads a parse, so its parent head does not predict from text",
            hint="use a model whose encoder systems need no parse",
        )


def between_words(of_pieces: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Scores or weights between words, [W, W]: those between their first pieces.

    Args:
        of_pieces: [T, T], with ``</s>`` and padding after the pieces
        counts: the number of pieces of each word
    """
    first = np.cumsum([0, *counts[:-1]])
    return of_pieces[np.ix_(first, first)]


def decode_parents(scores: np.ndarray, sentences: Sequence[tuple[int, int]]) -> tuple[list[int], np.ndarray]:
    """Find the best tree of each sentence in a line.

    Args:
        scores: ``[W, W]``, the unnormalized log-probability that word j (column) is the parent of word i (row); the
            diagonal scores i as a root
        sentences: word spans ``[start, end)``; a parent is in the same sentence

    Returns:
        the heads, 0-based in the line (a root is its own head); and the probability ``[W, W]`` of each head (column)
        for each word (row), a softmax over the words of the sentence
    """
    heads: list[int] = []
    probabilities = np.zeros((len(scores), len(scores)))
    for start, end in sentences:
        logprobs = scores[start:end, start:end].astype(np.float64)
        logprobs -= np.logaddexp.reduce(logprobs, axis=1, keepdims=True)
        heads += [head + start for head in _best_tree(logprobs)]
        probabilities[start:end, start:end] = np.exp(logprobs)
    return heads, probabilities


def _best_tree(logprobs: np.ndarray) -> list[int]:
    heads: list[int] = logprobs.argmax(axis=1).tolist()
    if is_tree(heads):
        return heads
    from stanza.models.common.chuliu_edmonds import chuliu_edmonds_one_root  # which takes seconds

    n_words = len(logprobs)
    # Stanza's node 0 is an artificial root. Its single-root constraint assumes finite scores of at most 0.
    scores = np.full((n_words + 1, n_words + 1), -np.inf)  # [dependent, head]
    scores[1:, 1:] = np.maximum(np.minimum(logprobs, 0.0), -1e6)
    scores[1:, 0] = scores[1:, 1:].diagonal()  # Stanza clears the diagonal itself
    tree = chuliu_edmonds_one_root(scores)[1:] - 1
    return np.where(tree < 0, np.arange(n_words), tree).tolist()
