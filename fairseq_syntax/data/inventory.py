"""What several data directories have in common: one dictionary and one inventory of labels for all their texts.

fairseq trains on ``data0:data1:…``, one directory an epoch, each made by itself and on any machine. Their ids must mean
the same in all of them, so they are given before the first is made: those that one directory of all texts would get.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_syntax.corpus.conllu_parts import ConlluPart, conllu_parts
from fairseq_syntax.corpus.store.schema import SENTENCES_PER_CHUNK
from fairseq_syntax.data.binarize import PARSE_SUFFIX, to_stored
from fairseq_syntax.data.labels import COLUMNS, LabelInventory
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open
from fairseq_syntax.runtime.jobs import Workers, in_workers

_Labels = dict[str, list[str]]


def parses_of(texts: Sequence[str]) -> list[str]:
    """The parses beside files of pieces; none where no text has one.

    Raises:
        SyntaxDataError: a text is missing, or some have a parse and others have none
    """
    for text in texts:
        if not os.path.exists(text):
            raise SyntaxDataError("no such file", path=text)
    parses = [text + PARSE_SUFFIX for text in texts]
    missing = [path for path in parses if not os.path.exists(path)]
    if missing and len(missing) < len(parses):
        raise SyntaxDataError(
            "no such file, but other texts have a parse",
            path=missing[0],
            hint="fairseq-syntax segment writes it from the text's .conllu",
        )
    return [] if missing else parses


def label_inventory(parses: Sequence[str], *, workers: int | Workers = 1) -> LabelInventory:
    """The labels of parses, with the ids that binarizing the parses as one would give them.

    Args:
        parses: CoNLL-U files, in the order of the text
        workers: processes, or the workers of a cluster

    Raises:
        SyntaxDataError: bad input
    """
    labels = LabelInventory()
    for path in parses:
        labels.note_parse(path)
    tasks = ((path, part) for path in parses for part in conllu_parts(path, SENTENCES_PER_CHUNK))
    for found in in_workers(_labels_of, tasks, workers=workers):
        for column, names in found.items():
            for name in names:
                labels.id(column, name)
    return labels


def _labels_of(task: tuple[str, ConlluPart]) -> _Labels:
    path, part = task
    labels = LabelInventory()
    for line in part.read(path):
        to_stored(line, labels)
    return {column: labels.labels[column] for column in COLUMNS}


def dictionary(
    texts: Sequence[str], out: str, *, threshold: int, nwords: int, padding_factor: int, workers: int | Workers
) -> int:
    """Writes fairseq's dictionary of the pieces of several texts, as ``fairseq-preprocess`` makes it of one.

    A run that was killed continues with the parts that are missing.

    Args:
        texts: files of pieces
        out: the file to write
        threshold, nwords, padding_factor: as the options of ``fairseq-preprocess``
        workers: processes, or the workers of a cluster

    Returns:
        the number of its symbols

    Raises:
        SyntaxDataError: a text cannot be read, or the dictionary cannot be written
    """
    from fairseq_syntax.data.tokens import counted_words, dictionary_of  # loads fairseq

    with counted_words(texts, Path(out), workers=workers) as words:
        made = dictionary_of(words, threshold=threshold, nwords=nwords, padding_factor=padding_factor)
        with atomic_open(out) as file:
            made.save(file)
    return len(made)
