"""Exhibits of a split's sentences, with translations, trees, attention and scores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.data.store_report import word_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.spelling import reference_of_tokens, text_of_tokens
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.names import tokenizer_of_text
from fairseq_syntax.lab.scoring.outputs import check_parallel, read_translations
from fairseq_syntax.runtime.bounds import check_sentences
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.use import BEAM
from fairseq_syntax.use.pages.exhibit import Exhibit, Output, Tree, exhibit_of_parse, show_model
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
    tokenize: str | None = None,
    device: str | None = None,
) -> tuple[list[Exhibit], str, str]:
    """Translate sentences of a split with every model, and collect their attention and parses.

    Args:
        data: the binarized data directory
        numbers: the 1-based sentence numbers (default: the first ten)
        checkpoints: the checkpoint of each system
        files: translations of the whole split by further systems, in the formats of :func:`.outputs.read_translations`
        gold: the split's gold parse, one per line
        tokenize: sacrebleu's tokenizer (default: by the script of the references)

    Returns:
        the exhibits in the order of ``numbers``, and the codes of the source and the target language

    Raises:
        SyntaxDataError: a file is missing or does not belong to the split
    """
    if tokenize is not None:
        Scorer("bleu", [[""]], tokenize)  # an unknown one is an error before anything is translated
    shown: dict[str, tuple[Translator, Any]] = {}
    for name, path in checkpoints.items():
        translator: Any = Translator.load(path, data, device=device, beam=beam)
        translator.task.load_dataset(split)
        shown[name] = translator, translator.task.dataset(split)
    translator, dataset = next(iter(shown.values()))
    task, total = translator.task, len(dataset)
    src, tgt = task.cfg.source_lang, task.cfg.target_lang
    numbers = range(1, min(total, 10) + 1) if numbers is None else numbers
    check_sentences(numbers, total, data)
    runs = {name: read_translations(path) for name, path in (files or {}).items()}
    counts = [(split, total), *((run.path, len(run.lines)) for run in runs.values())]
    check_parallel([*counts, *([] if gold is None else [("the gold parse", len(gold))])])
    path = task.directory.store_path(split, "source")
    store = SyntaxStore(path) if os.path.exists(path) else None
    exhibits = []
    for number in progress(numbers, of="translating", unit="sentences"):
        exhibit = _source(task, dataset, number, store)
        if gold is not None:
            exhibit.trees["gold"] = _gold(gold[number - 1], exhibit)
        for name, (translator, of_model) in shown.items():
            show_model(exhibit, name, translator, of_model, number - 1)
        for name, run in runs.items():
            exhibit.outputs[name] = Output(run.lines[number - 1])
        exhibits.append(exhibit)
    _score(exhibits, tokenize or tokenizer_of_text([exhibit.reference for exhibit in exhibits]))
    return exhibits, src, tgt


def _score(exhibits: Sequence[Exhibit], tokenize: str) -> None:
    """Add the sentence scores of all outputs for which there is a reference."""
    for exhibit in exhibits:
        if exhibit.reference:
            for key, metric in (("bleu", "BLEU"), ("chrf", "chrF")):
                scorer = Scorer(key, [[exhibit.reference]], tokenize)
                for output in exhibit.outputs.values():
                    output.scores[metric] = float(scorer.sentences([output.text])[0])


def _source(task: Any, dataset: Any, number: int, store: SyntaxStore | None) -> Exhibit:
    """The exhibit of a sentence with its reference and its stored parse, if any."""
    tokens = dataset.src[number - 1]
    pieces = [task.source_dictionary[i] for i in tokens.tolist()]
    exhibit = exhibit_of_parse(None, pieces)
    decode = task.segmenter("source"), task.cfg.source_lang or ""
    exhibit.number, exhibit.source = number, text_of_tokens(tokens, task.source_dictionary, *decode)
    if dataset.tgt is not None:
        decode = task.segmenter("target"), task.cfg.target_lang or ""
        exhibit.reference = reference_of_tokens(dataset.tgt[number - 1], task.target_dictionary, *decode)
    if store is None:
        return exhibit
    flat = store.fetch(np.array([number - 1]), arcs=store.has_arcs)
    counts = flat.pieces.tolist()
    if sum(counts) != len(pieces) - 1:
        message = f"sentence {number} has {sum(counts)} pieces, but {len(pieces) - 1} tokens"
        raise SyntaxDataError(message, path=store.path, hint="fairseq-syntax inspect --check")
    left = iter(pieces)
    exhibit.counts, exhibit.words = counts, [word_of(list(islice(left, n))) for n in counts]
    heads, labels, tags = flat.head.tolist(), store.labels["deprel"], store.labels["upos"]
    exhibit.tags, exhibit.spans = [tags[i] for i in flat.upos], store.spans(number - 1)
    rows = flat.arcs.rows() if flat.arcs is not None else ()
    arcs = [(dependent, head, labels[label], p) for dependent, head, label, p in rows]
    exhibit.add_parse(heads, [labels[i] for i in flat.deprel], arcs)
    return exhibit


def _gold(line: ParsedLine, exhibit: Exhibit) -> Tree:
    gold = exhibit_of_parse(line, exhibit.pieces)
    if len(gold.words) != len(exhibit.words):
        raise SyntaxDataError(
            f"the gold parse of sentence {exhibit.number} has {len(gold.words)} tokens, the data {len(exhibit.words)}",
            line=line.file_line,
            hint="the gold parse must have the tokens that were parsed",
        )
    return gold.trees["parser"]
