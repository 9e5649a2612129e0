"""Exhibits of a split's sentences, with translations, trees, attention and scores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.schema import store_path
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.data.report import word_of
from fairseq_syntax.data.stored_sentence import to_stored
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.spelling import text_of_tokens
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.outputs import read_translations
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.use import BEAM
from fairseq_syntax.use.pages.exhibit import Exhibit, Output, Tree, arc_probabilities, show_model
from fairseq_syntax.use.translator import Translator

__all__ = ["collect"]


def collect(
    data: str,
    split: str,
    numbers: Sequence[int] | None,
    checkpoints: Mapping[str, str],
    *,
    files: Mapping[str, str] | None = None,
    gold: Sequence[ParsedLine] | None = None,
    beam: int = BEAM,
    tokenize: str = "13a",
    device: str | None = None,
) -> tuple[list[Exhibit], str, str]:
    """Translate sentences of a split with every model, and collect their attention and parses.

    Args:
        data: the binarized data directory
        numbers: the 1-based sentence numbers (default: the first ten)
        checkpoints: for each system name, at least one checkpoint
        files: translations of the whole split by further systems, in the formats of :func:`.outputs.read_translations`
        gold: the split's gold parse, one per line
        tokenize: sacrebleu's tokenizer, for BLEU
        device: default: a GPU if available

    Returns:
        the exhibits in the order of ``numbers``, and the codes of the source and the target language

    Raises:
        SyntaxDataError: a file is missing or does not belong to the split
    """
    if not checkpoints:
        raise SyntaxDataError("there is no model to show", hint="[NAME=]MODEL")
    translators: dict[str, Any] = {}
    datasets = {}
    for name, path in checkpoints.items():
        translators[name] = translator = Translator.load(path, data, device=device, beam=beam)
        translator.task.load_dataset(split)
        datasets[name] = translator.task.dataset(split)
    task, dataset = next(iter(translators.values())).task, next(iter(datasets.values()))
    src, tgt = task.cfg.source_lang, task.cfg.target_lang
    total = len(dataset)
    if numbers is None:
        numbers = range(1, min(total, 10) + 1)
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
        for name, translator in translators.items():
            show_model(exhibit, name, translator, datasets[name], number - 1)
        for name, lines in runs.items():
            exhibit.outputs[name] = Output(lines[number - 1])
        _score(exhibit, tokenize)
        exhibits.append(exhibit)
    return exhibits, src, tgt


def _source(task, dataset, number: int, store: SyntaxStore | None) -> Exhibit:
    pieces = [task.source_dictionary[i] for i in dataset.src[number - 1].tolist()]
    source = text_of_tokens(dataset.src[number - 1], task.source_dictionary, task.source_segmenter)
    reference = ""
    if dataset.tgt is not None:
        target = dataset.tgt[number - 1]
        reference = text_of_tokens(target, task.target_dictionary, task.target_segmenter)
    if store is None:
        words = [word_of([piece]) for piece in pieces[:-1]]  # all except </s>, which belongs to no word
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
    exhibit.trees["parser"] = Tree(heads, [labels[i] for i in flat.deprel], arc_probabilities(heads, exhibit.arcs))
    return exhibit


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


def _score(exhibit: Exhibit, tokenize: str) -> None:
    if not exhibit.reference:
        return
    for key, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        scorer = Scorer(key, [[exhibit.reference]], tokenize)
        for output in exhibit.outputs.values():
            output.scores[name] = float(scorer.sentences([output.text])[0])
