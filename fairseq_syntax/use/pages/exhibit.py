"""The data of a page about a sentence: parse, translations and attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine, text_of
from fairseq_syntax.data.labels import LabelInventory, to_stored
from fairseq_syntax.data.store_report import word_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.base_translator import BaseTranslator
from fairseq_syntax.use.parent_head import between_words, decode_parents, parent_head

if TYPE_CHECKING:
    from fairseq_syntax.inference.search_control import OnStep

__all__ = ["Exhibit", "Output", "Tree"]


@dataclass
class Tree:
    """The words' heads (0-based, a root is its own head) and labels; ``p``: the probability of each arc, if known."""

    heads: list[int]
    labels: list[str]
    p: list[float | None]


@dataclass
class Output:
    """A system's translation of a sentence.

    ``attention``: for each kind (``encoder``, ``cross``, ``decoder``), the weights [H, rows, columns] of each layer;
    empty for translations from a file. The columns of ``encoder`` and ``cross`` are the source's pieces and ``</s>``.
    The rows of ``cross`` are ``pieces``, each at the step that writes it; the rows and columns of ``decoder`` are what
    the steps read, ``</s>`` and all ``pieces`` but the last.
    """

    text: str
    scores: dict[str, float] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    attention: dict[str, list[np.ndarray]] = field(default_factory=dict)


@dataclass
class Exhibit:
    """A sentence with its parses, translations and attention.

    ``number`` is 1-based; ``counts``: the number of pieces of each word; ``pieces``: the source's, with ``</s>``;
    ``arcs``: the parser's distribution as (dependent, head, label, p), where a root is its own head; ``spans``: the
    word spans ``[start, end)`` of the sentences in the line, empty without a parse.
    """

    number: int
    source: str
    reference: str
    words: list[str]
    tags: list[str]
    counts: list[int]
    pieces: list[str]
    trees: dict[str, Tree] = field(default_factory=dict)
    arcs: list[tuple[int, int, str, float]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    outputs: dict[str, Output] = field(default_factory=dict)

    def add_parse(self, heads: list[int], labels: list[str], arcs: list[tuple[int, int, str, float]]) -> None:
        """Add the parser's tree and distribution, which is empty if it has none."""
        mass: dict[tuple[int, int], float] = {}  # of each arc, summed over labels
        for dependent, head, _, p in arcs:
            mass[dependent, head] = mass.get((dependent, head), 0.0) + p
        # 0 if the parser's threshold left the arc out, which can happen to arcs of the tree.
        of_heads = [mass.get((i, head), 0.0) if arcs else None for i, head in enumerate(heads)]
        self.arcs, self.trees["parser"] = arcs, Tree(heads, labels, of_heads)


def exhibit_of_parse(line: ParsedLine | None, pieces: list[str]) -> Exhibit:
    """The exhibit of a sentence outside a dataset, from its parse (if any) and its pieces with ``</s>``.

    The tokens of the line must record their numbers of pieces. A line that is not ``parsed`` has words but no tree.
    """
    if line is None:
        words = [word_of([piece]) for piece in pieces[:-1]]
        return Exhibit(1, " ".join(words), "", words, [], [1] * len(words), pieces)
    inventory = LabelInventory()
    stored = to_stored(line, inventory)
    names = inventory.labels
    tags = [names["upos"][i] for i in stored.upos]
    exhibit = Exhibit(1, text_of(line), "", [t.form for t in line.tokens], tags, list(stored.pieces), pieces)
    if not line.parsed:  # its heads are meaningless
        return exhibit
    arcs = [(d, h, names["deprel"][label], p) for d, h, label, p in stored.arcs or ()]
    exhibit.add_parse(stored.head, [names["deprel"][i] for i in stored.deprel], arcs)
    return exhibit


def show_model(
    exhibit: Exhibit, name: str, translator: BaseTranslator, dataset: Any, number: int, on_step: OnStep | None = None
) -> None:
    """Add a model's translation of a dataset's sentence (0-based), its attention and the tree that it predicts."""
    best, attention = translator.read(dataset, number, on_step)
    exhibit.outputs[name] = Output(best.text, {"log-probability": best.score}, best.pieces, attention)
    try:
        layer, head = parent_head(translator.models[0])
    except SyntaxDataError:
        return
    if exhibit.words:
        weights = between_words(attention["encoder"][layer][head], exhibit.counts)
        # An unparsed line counts as one sentence. Softmax in float32 can underflow to 0, which has no logarithm.
        heads, _ = decode_parents(np.log(np.maximum(weights, 1e-30)), exhibit.spans or [(0, len(exhibit.words))])
        p: list[float | None] = [float(weights[word, head]) for word, head in enumerate(heads)]
        labels = ["root" if i == h else "" for i, h in enumerate(heads)]
        exhibit.trees[f"{name} (predicted)"] = Tree(heads, labels, p)
