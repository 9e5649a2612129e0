"""Columns, metadata and file names of the store; see README.md for the format."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

from fairseq_syntax.corpus.distinct_labels import ROOM
from fairseq_syntax.runtime.digests import short_sha256

VERSION = 2
STORE_SUFFIX = ".syntax.arrow"
METADATA_KEY = b"fairseq_syntax"
SENTENCES_PER_CHUNK = 4096
# Probabilities are 16-bit fixed-point numbers with an error below 8e-6 everywhere. Half precision takes the same two
# bytes, but its error is 2.4e-4 near 1, where most of a parser's mass is.
PROB_SCALE = 65_535
LIMIT = 65_535  # word indices and labels are 16-bit numbers

# The four 16-bit numbers of a word, which together are copied as one 64-bit number.
HEAD, PIECES, XPOS, LABELS = range(4)
FIRST_OF_SENTENCE = 1 << 15  # a flag in PIECES
DEPREL_BITS = ROOM["deprel"].bit_length()  # the lower bits of LABELS; the upper six are the UPOS
WORD_LIMITS = {
    "head": LIMIT,
    "pieces": FIRST_OF_SENTENCE - 1,
    **ROOM,
}
# The four numbers of an arc.
ARC_DEPENDENT, ARC_HEAD, ARC_LABEL, ARC_PROB = range(4)


@dataclass
class StoredSentence:
    """The syntax of one line in the form of a store: word-level arrays of equal length, and arcs sorted by dependent.

    ``pieces`` (at least 1 each), ``head`` (0-based in the line, a root is its own head), and the ids ``deprel``,
    ``upos``, ``xpos`` in the label inventory; ``arcs``: (dependent, head, label id, probability) or None;
    ``sentences``: the index of the first word of each sentence in the line, empty for a single sentence. If ``parsed``
    is False, only ``pieces`` is meaningful; this does not occur in files.
    """

    pieces: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    deprel: list[int] = field(default_factory=list)
    upos: list[int] = field(default_factory=list)
    xpos: list[int] = field(default_factory=list)
    arcs: list[tuple[int, int, int, float]] | None = None
    sentences: list[int] = field(default_factory=list)
    parsed: bool = True


def join_labels(deprel: np.ndarray, upos: np.ndarray) -> np.ndarray:
    """The number ``LABELS`` of words, with ``deprel`` in the lower and ``upos`` in the upper bits."""
    return deprel | upos << DEPREL_BITS


def split_labels(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of :func:`join_labels`: ``deprel`` and ``upos``."""
    return labels & ((1 << DEPREL_BITS) - 1), labels >> DEPREL_BITS


def schema(with_arcs: bool) -> pa.Schema:
    """The Arrow schema of the store, without metadata."""
    import pyarrow as pa  # here, since exported models are used without stores

    def column(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    lists = pa.list_(column("item", pa.list_(column("item", pa.uint16()), 4)))
    columns = [column("words", lists), column("pieces", pa.uint32()), column("tree_arcs", pa.uint32())]
    if with_arcs:
        columns += [column("arcs", lists), column("piece_arcs", pa.uint32())]
    return pa.schema(columns)


def tokens_prefix(data_dir: str | os.PathLike[str], split: str, src: str, tgt: str, lang: str) -> str:
    """The path of fairseq's token dataset for one side of a split, without ``.bin`` and ``.idx``."""
    return os.path.join(data_dir, f"{split}.{src}-{tgt}.{lang}")


def store_path(data_dir: str | os.PathLike[str], split: str, src: str, tgt: str, lang: str) -> str:
    """The path of the store for one side of a split, next to its token dataset."""
    return tokens_prefix(data_dir, split, src, tgt, lang) + STORE_SUFFIX


def sizes_fingerprint(sizes: np.ndarray) -> str:
    """The fingerprint of a token dataset: a hash of the lengths of its sentences, including ``</s>``.

    Reading the lengths is cheap, and they differ for another text or segmentation.
    """
    return short_sha256(np.ascontiguousarray(sizes, dtype="<i4").tobytes())
