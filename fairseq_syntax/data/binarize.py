"""Binarization: writes the syntax of a segmented, parsed text to a store next to its token dataset."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.corpus.segmentation import Segmenter, spaces_before
from fairseq_syntax.corpus.store import store_format
from fairseq_syntax.corpus.store.chunk import list_lengths, list_numbers, pack_chunk, with_label_ids
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import SENTENCES_PER_CHUNK, STORE_SUFFIX, StoredSentence
from fairseq_syntax.corpus.store.writer import write_store
from fairseq_syntax.corpus.text_parts import TextPart, conllu_parts, parallel_parts, text_parts
from fairseq_syntax.data.directory import (
    check_same_segmentation,
    file_fingerprint,
    segmentation_of,
    segmentation_path,
    tokens_fingerprint,
)
from fairseq_syntax.data.label_groups import built_in_for, read_label_groups
from fairseq_syntax.data.labels import ROOT_LABEL, LabelInventory, to_stored
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import file_sha256, fingerprint
from fairseq_syntax.runtime.files import count_raw_lines, errors_in
from fairseq_syntax.runtime.jobs import RecordedStep, read_record
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts
from fairseq_syntax.runtime.workers import Workers

PARSE_SUFFIX = ".conllu"


@dataclass
class Summary:
    """A summary of a store, from its metadata.

    ``label_mass`` is, for each dependency label, the total probability of its arcs (those of the artificial root count
    as ``root``) or, without arcs, its number of words.
    """

    sentences: int
    words: int
    pieces: int
    arcs: int | None
    mass: float = 0.0
    label_mass: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, store: SyntaxStore) -> Summary:
        """The summary of a store; one that was not made by :func:`binarize` has no ``mass``."""
        names = [f.name for f in fields(cls) if f.name in store.metadata]
        return cls(**{name: store.metadata[name] for name in names})

    def text(self, groups: str = "") -> str:
        """In words, with the mass in label groups of LDD (by default the built-in ones that cover most of it)."""
        words = max(self.words, 1)
        text = f"{self.sentences:,} sentences, {self.words:,} words, {self.pieces:,} pieces"
        text += f" ({self.pieces / words:.2f} a word), "
        if self.arcs is None:
            text += "trees only (parse with --distributions for arcs)"
        else:
            text += f"{self.arcs:,} arcs ({self.arcs / words:.2f} a word, mean mass {self.mass / words:.4f})"
        if self.label_mass:
            groups = groups or built_in_for(self.label_mass)
            coverage = read_label_groups(groups).coverage(self.label_mass)
            text += f"; {'mass' if self.arcs else 'labels'} in LDD's label groups ({groups}): {coverage}"
        return text


def _checked_parses(text: TextPart, part: TextPart, segmenter: Segmenter | None) -> Iterator[ParsedLine]:
    """Yield the parses of a part, each checked against its line of pieces. Raises SyntaxDataError."""
    tokens, parse = text.path, part.path
    for number, (row, line) in enumerate(zip(text.texts(), part.parses(), strict=True), start=part.start + 1):
        pieces = row.split()
        counts = [token.pieces or 1 for token in line.tokens]
        if len(pieces) != sum(counts):
            hint = f"is {parse} the parse of this text, and were both written by fairseq-syntax segment?"
            message = f"{len(pieces)} pieces, but the parse has {sum(counts)}"
            raise SyntaxDataError(message, path=tokens, line=number, hint=hint)
        if segmenter is not None:
            words = segmenter.encode_words([token.form for token in line.tokens], spaces_before(line.tokens))
        elif not any(token.pieces for token in line.tokens):
            words = [[token.form] for token in line.tokens]
        else:  # segmented by a model that is not available
            yield line
            continue
        rest = iter(pieces)
        for token, count, expected in zip(line.tokens, counts, words):
            if (here := list(islice(rest, count))) != expected:
                cut, due = " ".join(here), " ".join(expected)
                message = f"{token.form!r} is {cut}, but its segmentation is {due}"
                hint = f"is {parse} (line {line.file_line}) the parse of this text?"
                raise SyntaxDataError(message, path=tokens, line=number, hint=hint)
        yield line


def binarize(
    tokens: str,
    parse: str,
    out: str,
    labels: LabelInventory,
    *,
    lang: str,
    dictionary: str,
    workers: int | Workers = 1,
) -> Summary:
    """Write the store of one side of a split.

    It is made in parts, and a killed run resumes with the missing parts. An intact store that was made from the same
    files, dictionary, segmentation and labels, for the same tokens, is kept.

    Args:
        tokens: the file of pieces that was binarized to tokens
        parse: its CoNLL-U file
        out: the path of the store
        labels: the inventory, which grows unless frozen
        dictionary: ``dict.LANG.txt`` of the token dataset
        workers: the number of processes, or the workers of a cluster

    Raises:
        SyntaxDataError: the input is invalid; nothing is written
    """
    segmenter = segmentation_of(os.path.dirname(tokens) or ".", lang)
    content = tokens_fingerprint(out.removesuffix(STORE_SUFFIX))
    inputs = [file_sha256(path)[:32] for path in (tokens, parse)]
    made_from = [*inputs, file_fingerprint(dictionary), segmenter.fingerprint if segmenter else None, content]
    step = RecordedStep(
        (Path(out),), fingerprint("binarize", store_format.VERSION, lang, made_from, labels.labels, labels.frozen)
    )
    with_arcs = next((line.arcs is not None for line in read_conllu(parse) if line.words), False)
    metadata = {
        "lang": lang,
        "dictionary_fingerprint": made_from[2],
        "segmentation_fingerprint": made_from[3],
        "tokens_content": content,
        "inputs": made_from,
        "labels_given": labels.frozen,
    }
    n_lines = count_raw_lines(tokens)
    make = partial(_store_part, segmenter, labels.labels if labels.frozen else None, with_arcs)
    texts = text_parts(tokens, SENTENCES_PER_CHUNK)
    parses = conllu_parts(parse, SENTENCES_PER_CHUNK, n_lines=n_lines)
    note, _ = map_parts(
        step,
        parallel_parts(texts, parses),
        make,
        lambda made: _merge(made, out, labels, with_arcs, metadata),
        part_lines=SENTENCES_PER_CHUNK,
        total=n_lines,
        workers=workers,
    )
    store = SyntaxStore(out)
    if not labels.frozen:
        labels.add(store.labels)
    labels.unknown.update(note["unknown"])
    return Summary.of(store)


def _store_part(
    segmenter: Segmenter | None, names: dict[str, list[str]] | None, with_arcs: bool, parts: tuple[TextPart, ...]
) -> Made:
    """Make the record batch of a part, of the pieces and of their parse.

    Label ids refer to the part's own inventory, which is stored in its note, or to ``names`` of a frozen one.
    """
    text, parses = parts
    labels = LabelInventory(names, frozen=names is not None)
    stored: list[StoredSentence] = []
    collecting = gc.isenabled()
    gc.disable()  # a part creates millions of objects without cycles
    try:
        for line in _checked_parses(text, parses, segmenter):
            with errors_in(parses.path, line.file_line):
                sentence = to_stored(line, labels)
            if not line.words:
                sentence.arcs = [] if with_arcs else None
            elif with_arcs != (sentence.arcs is not None):
                message = "some sentences have Arcs=, others have none"
                hint = "parse the whole text with --distributions, or all of it without"
                raise SyntaxDataError(message, path=parses.path, line=line.file_line, hint=hint)
            stored.append(sentence)
        with errors_in(text.path):
            batch = pack_chunk(stored, with_arcs=with_arcs, first=text.start)
    finally:
        stored.clear()  # otherwise the collector would search all of them
        if collecting:
            gc.enable()
    note = {"labels": labels.labels, "unknown": labels.unknown, "label_mass": _label_mass(batch, labels)}
    return note, batch.serialize().to_pybytes()


def _merge(
    made: MadeParts, out: str, labels: LabelInventory, with_arcs: bool, metadata: dict[str, Any]
) -> dict[str, Any]:
    """Merge the parts under one label inventory, with ids in the order of first occurrence in the text."""
    inventory = LabelInventory(labels.labels, frozen=labels.frozen)
    unknown: Counter[str] = Counter()
    label_mass: Counter[str] = Counter()
    for note in made.notes():
        unknown.update(note["unknown"])
        inventory.add(note["labels"])
        label_mass.update(note["label_mass"])

    def batches() -> Iterator[pa.RecordBatch]:
        for note, body in made:
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), store_format.schema(with_arcs))
            tables = {column: np.array(inventory.ids(column, names)) for column, names in note["labels"].items()}
            with errors_in(out):
                batch = with_label_ids(batch, tables)
            yield batch

    metadata |= {
        "labels": inventory.labels,
        "labels_fingerprint": inventory.fingerprint,
        "mass": sum(label_mass.values()) if with_arcs else 0.0,
        "label_mass": {label: round(mass, 3) for label, mass in label_mass.items()},
    }
    write_store(out, batches, metadata, with_arcs=with_arcs, chunk=SENTENCES_PER_CHUNK)
    return {"unknown": unknown}


def _label_mass(batch: pa.RecordBatch, labels: LabelInventory) -> dict[str, float]:
    """The mass of each label's arcs, or its number of words if there are no arcs; roots count as ``root``."""
    names = labels.labels["deprel"]
    if "arcs" in batch.schema.names:
        numbers = list_numbers(batch, "arcs")
        label = numbers[:, store_format.ARC_LABEL]
        root = numbers[:, store_format.ARC_HEAD] == numbers[:, store_format.ARC_DEPENDENT]
        weight = numbers[:, store_format.ARC_PROB] / store_format.PROB_SCALE
    else:
        numbers = list_numbers(batch, "words")
        label, _ = store_format.split_labels(numbers[:, store_format.LABELS])
        lengths = list_lengths(batch, "words")
        within = np.arange(len(numbers)) - (np.cumsum(lengths) - lengths).repeat(lengths)
        root, weight = numbers[:, store_format.HEAD] == within, np.ones(len(numbers))
    mass = np.bincount(label[~root], weights=weight[~root], minlength=len(names))
    total = {name: float(m) for name, m in zip(names, mass) if m}
    if root.any():
        total[ROOT_LABEL] = total.get(ROOT_LABEL, 0.0) + float(weight[root].sum())
    return total


def check_segmentation(tokens: Sequence[str], lang: str, data_dir: str | None = None) -> None:
    """Check that all files of pieces were segmented by the same model, if they or their folders record it.

    Args:
        data_dir: the data directory to which they are added, if it has the training data already

    Raises:
        SyntaxDataError: they were not, so raw text would be segmented differently from the training text
    """
    folder = os.path.dirname(tokens[0]) if tokens else ""
    segmenter = segmentation_of(folder, lang) if tokens else None
    if segmenter is None:
        return
    about, here = segmentation_path(folder, lang), segmenter.note
    if data_dir:
        check_same_segmentation(folder, data_dir, lang)
    for path in tokens:
        if (made := read_record(path)) is None:  # a copy without hidden files
            check_same_segmentation(os.path.dirname(path) or ".", folder, lang)
            continue
        if made["outputs"] is None:
            message = "was not finished when segment was interrupted"
            raise SyntaxDataError(message, path=path, hint="give the command again")
        note, digest = made["note"], made["outputs"].get(os.path.basename(path))
        # The record does not apply to a file that has changed since.
        if any(note.get(name, value) != value for name, value in here.items()) and file_sha256(path) == digest:
            raise SyntaxDataError(
                f"was cut by another model than {about}, or into words otherwise",
                path=path,
                hint=f"cut it again: fairseq-syntax segment --model {about}",
            )


def copy_segmentation(source_dir: str, data_dir: str, lang: str) -> None:
    """Copy a language's segmentation into the data directory, which then suffices to translate raw text."""
    segmenter = segmentation_of(source_dir, lang)
    if segmenter is not None and os.path.abspath(source_dir) != os.path.abspath(data_dir):
        segmenter.save(os.path.join(data_dir, f"segmentation.{lang}"))
