"""Shared vocabularies: one dictionary and one label inventory for the texts of several data directories.

fairseq can train on ``data0:data1:…``, with one directory per epoch, made independently and on any machine. Ids must
have the same meaning in all of them, so they are assigned in advance, as in a single directory of all texts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairseq_syntax.corpus.store.store_format import SENTENCES_PER_CHUNK
from fairseq_syntax.corpus.text_parts import TextPart, conllu_parts, with_spans
from fairseq_syntax.data.binarize import PARSE_SUFFIX
from fairseq_syntax.data.labels import LabelInventory, to_stored
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts
from fairseq_syntax.runtime.workers import Workers


def parses_of(texts: Sequence[str]) -> list[str]:
    """The parses of files of pieces, which have to exist if one does; empty if no text has one."""
    parses = [text + PARSE_SUFFIX for text in texts]
    return parses if any(map(os.path.exists, parses)) else []


def label_inventory(parses: Sequence[str], out: str, *, workers: int | Workers = 1) -> dict[str, int]:
    """Write the label inventory of parses, with the ids that binarizing them as one file would assign.

    A killed run resumes with the missing parts.

    Args:
        parses: CoNLL-U files, in the order of the texts
        workers: the number of processes, or the workers of a cluster

    Returns:
        the number of labels of each column
    """

    def merge(made: MadeParts) -> dict[str, int]:
        labels = LabelInventory()
        for path in parses:
            labels.note_parse(path)
        for names, _ in made:
            labels.add(names)
        labels.save(out)
        return {column: len(names) - 1 for column, names in labels.labels.items()}

    step = RecordedStep.of("labels", [out], parses)
    source = with_spans(*(conllu_parts(path, SENTENCES_PER_CHUNK) for path in parses))
    note, _ = map_parts(step, source, _labels_of, merge, part_lines=SENTENCES_PER_CHUNK, workers=workers)
    return note


def _labels_of(part: TextPart) -> Made:
    labels = LabelInventory()
    for line in part.parses():
        to_stored(line, labels)
    return labels.labels, b""
