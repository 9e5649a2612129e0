"""Sentences to draw: each with its parse, its translations and the models' attention, for :mod:`.page` and
:mod:`.heatmap`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairseq_syntax.console import progress
from fairseq_syntax.data.binarize import to_stored
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.data.report import word_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.attention import Reader, load_reader, predicted_heads
from fairseq_syntax.inference.spelling import text_of_tokens
from fairseq_syntax.scoring.metrics import Scorer
from fairseq_syntax.scoring.outputs import read_translations
from fairseq_syntax.store import SyntaxStore, store_path
from fairseq_syntax.text.conllu import ParsedLine, text_of

__all__ = ["Exhibit", "Output", "Tree", "collect"]


@dataclass
class Tree:
    """Heads (0-based, a root its own) and labels of the words; ``p`` the probability of each arc, where it is known."""

    heads: list[int]
    labels: list[str]
    p: list[float | None]


@dataclass
class Output:
    """A system's translation of a sentence.

    ``attention``: by kind (``encoder``, ``cross``, ``decoder``) the weights [H, rows, columns] of each layer; empty for
    translations from a file. Columns of ``encoder`` and ``cross`` are the source's pieces and ``</s>``; rows of
    ``cross`` and ``decoder`` are ``pieces``.
    """

    text: str
    scores: dict[str, float] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    attention: dict[str, list[np.ndarray]] = field(default_factory=dict)


@dataclass
class Exhibit:
    """One sentence, with all that there is to see of it.

    ``number`` counts from 1; ``counts`` is the number of pieces of each word; ``pieces`` the source's, with ``</s>``;
    ``arcs`` the parser's distribution: (dependent, head, label, p), head = dependent for the root; ``spans`` the word
    spans ``[start, end)`` of the sentences in the line, none where there is no parse.
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


def collect(
    data: str,
    split: str,
    numbers: Sequence[int],
    checkpoints: Mapping[str, str],
    *,
    files: Mapping[str, str] | None = None,
    gold: Sequence[ParsedLine] | None = None,
    beam: int = 5,
    tokenize: str = "13a",
) -> tuple[list[Exhibit], str, str]:
    """Translate sentences of a split with every model, and gather what there is to see.

    Args:
        data: the binarized data directory
        numbers: sentences, counted from 1
        checkpoints: by the system's name, at least one
        files: translations of the whole split by further systems, as :func:`.outputs.read_translations` reads them
        gold: the split's gold parse, a line each
        tokenize: sacrebleu's tokenizer, for BLEU

    Returns:
        the exhibits in that order, and the codes of the source and the target language

    Raises:
        SyntaxDataError: something is missing, or does not belong to the split
    """
    if not checkpoints:
        raise SyntaxDataError("there is no model to show", hint="--model [NAME=]CHECKPOINT")
    readers = {name: load_reader(path, data, beam) for name, path in checkpoints.items()}
    datasets = {}
    for name, reader in readers.items():
        reader.task.load_dataset(split)
        datasets[name] = reader.task.dataset(split)
    task, dataset = next(iter(readers.values())).task, next(iter(datasets.values()))
    src, tgt = task.cfg.source_lang, task.cfg.target_lang
    total = len(dataset)
    for number in numbers:
        if not 1 <= number <= total:
            raise SyntaxDataError(f"no sentence {number}: {split} has {total}", path=data)
    runs = {}
    for name, path in (files or {}).items():
        runs[name] = read_translations(path).lines
        if len(runs[name]) != total:
            raise SyntaxDataError(f"{len(runs[name])} lines, but {split} has {total} sentences", path=path)
    if gold is not None and len(gold) != total:
        raise SyntaxDataError(f"the gold parse has {len(gold)} lines, but {split} {total} sentences")
    path = store_path(data, split, src, tgt, src)
    store = SyntaxStore(path) if os.path.exists(path) else None
    exhibits = []
    for number in progress(numbers, of="translating", unit="sentences"):
        exhibit = _source(task, dataset, number, store)
        if gold is not None:
            exhibit.trees["gold"] = _gold(gold[number - 1], exhibit)
        for name, reader in readers.items():
            show_model(exhibit, name, reader, datasets[name], number - 1)
        for name, lines in runs.items():
            exhibit.outputs[name] = Output(lines[number - 1])
        _score(exhibit, tokenize)
        exhibits.append(exhibit)
    return exhibits, src, tgt


def _source(task, dataset, number: int, store: SyntaxStore | None) -> Exhibit:
    pieces = [task.source_dictionary[i] for i in dataset.src[number - 1].tolist()]
    source = text_of_tokens(dataset.src[number - 1], task.source_dictionary, getattr(task, "source_segmenter", None))
    reference = ""
    if dataset.tgt is not None:
        reference = text_of_tokens(
            dataset.tgt[number - 1], task.target_dictionary, getattr(task, "target_segmenter", None)
        )
    if store is None:
        words = [word_of([piece]) for piece in pieces[:-1]]
        return Exhibit(number, source, reference, words, [], [1] * len(words), pieces)
    flat = store.fetch(np.array([number - 1]), arcs=store.has_arcs)
    counts = flat.pieces.tolist()
    if sum(counts) != len(pieces) - 1:
        raise SyntaxDataError(
            f"sentence {number} has {sum(counts)} pieces, but {len(pieces) - 1} tokens",
            path=store.path,
            hint="fairseq-syntax inspect --check",
        )
    left = iter(pieces)
    words = [word_of([next(left) for _ in range(n)]) for n in counts]
    heads, labels, tags = flat.head.tolist(), store.labels["deprel"], store.labels["upos"]
    exhibit = Exhibit(number, source, reference, words, [tags[i] for i in flat.upos], counts, pieces)
    exhibit.spans = store.spans(number - 1)
    if flat.arcs is not None:
        exhibit.arcs = [(dependent, head, labels[label], p) for dependent, head, label, p in flat.arcs.rows()]
    exhibit.trees["parser"] = Tree(heads, [labels[i] for i in flat.deprel], _arc_probabilities(heads, exhibit.arcs))
    return exhibit


def exhibit_of_parse(line: ParsedLine | None, pieces: list[str]) -> Exhibit:
    """A sentence that is not of a data set: its parse, over its pieces with ``</s>``; None: it has no parse.

    The line's tokens must know how many pieces they have. A line that is not ``parsed`` has words and no tree.
    """
    if line is None:
        words = [word_of([piece]) for piece in pieces[:-1]]
        return Exhibit(1, " ".join(words), "", words, [], [1] * len(words), pieces)
    inventory = LabelInventory()
    stored = to_stored(line, inventory)
    names = inventory.labels
    tags = [names["upos"][i] for i in stored.upos]
    exhibit = Exhibit(1, text_of(line), "", [t.form for t in line.tokens], tags, list(stored.pieces), pieces)
    if not line.parsed:  # its heads stand for nothing
        return exhibit
    exhibit.arcs = [(d, h, names["deprel"][label], p) for d, h, label, p in stored.arcs or ()]
    labels = [names["deprel"][i] for i in stored.deprel]
    exhibit.trees["parser"] = Tree(stored.head, labels, _arc_probabilities(stored.head, exhibit.arcs))
    return exhibit


def _arc_probabilities(heads: list[int], arcs: list[tuple[int, int, str, float]]) -> list[float | None]:
    """Each word's probability of its head, over all labels; None where there are no distributions."""
    mass: dict[tuple[int, int], float] = {}
    for dependent, head, _, p in arcs:
        mass[dependent, head] = mass.get((dependent, head), 0.0) + p
    return [mass.get((i, head), 0.0) if arcs else None for i, head in enumerate(heads)]


def _gold(line: ParsedLine, exhibit: Exhibit) -> Tree:
    inventory = LabelInventory()
    stored = to_stored(line, inventory)
    if len(stored.head) != len(exhibit.words):
        raise SyntaxDataError(
            f"the gold parse of sentence {exhibit.number} has {len(stored.head)} tokens, the data {len(exhibit.words)}",
            line=line.file_line,
            hint="the gold parse must have the tokens that were parsed",
        )
    names = inventory.labels["deprel"]
    return Tree(stored.head, [names[i] for i in stored.deprel], [None] * len(stored.head))


def show_model(exhibit: Exhibit, name: str, reader: Reader, dataset: Any, number: int) -> None:
    """Add a model's translation of a sentence (0-based) of a dataset, its attention, and the tree it believes in."""
    found = reader.read(dataset, number)
    exhibit.outputs[name] = Output(found["text"], {"log p": found["score"]}, found["pieces"], found["attention"])
    if found["parents"] is not None and exhibit.words:
        layer, head = found["parents"]
        weights = found["attention"]["encoder"][layer][head]
        heads = predicted_heads(weights, exhibit.counts, exhibit.spans or [(0, len(exhibit.words))])
        first = np.cumsum([0, *exhibit.counts[:-1]])
        p: list[float | None] = [float(weights[first[i], first[h]]) for i, h in enumerate(heads)]
        labels = ["root" if i == h else "" for i, h in enumerate(heads)]
        exhibit.trees[f"{name} (predicted)"] = Tree(heads, labels, p)


def _score(exhibit: Exhibit, tokenize: str) -> None:
    if not exhibit.reference:
        return
    for key, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        scorer = Scorer(key, [[exhibit.reference]], tokenize)
        for output in exhibit.outputs.values():
            output.scores[name] = float(scorer.sentences([output.text])[0])
