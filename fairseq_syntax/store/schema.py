"""Columns, metadata and names of the store. The one place that says what is in the file; README.md explains it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

VERSION = 1
METADATA_KEY = b"fairseq_syntax"
OWN_METADATA = frozenset({"version", "chunk", "sentences", "words", "pieces", "arcs", "tokens"})  # in every store
SENTENCES_PER_CHUNK = 65_536
# A probability is kept as a 16-bit fixed-point number: an error below 8e-6 everywhere, which half precision (2.4e-4
# near 1, where most of a parser's mass sits) does not reach in the same two bytes.
PROB_SCALE = 65_535
LIMIT = 65_535  # words and labels are 16-bit numbers

WORD_FIELDS = (
    ("pieces", pa.uint16()),
    ("head", pa.uint16()),
    ("deprel", pa.uint16()),
    ("upos", pa.uint8()),
    ("xpos", pa.uint16()),
)
ARC_COUNT = ("arcs", pa.uint16())
ARC_FIELDS = (("head", pa.uint16()), ("label", pa.uint16()), ("prob", pa.uint16()))


@dataclass
class StoredSentence:
    """The syntax of one line, ready to be stored: word-level arrays of equal length, and arcs sorted by dependent.

    ``pieces`` (at least 1 each), ``head`` (0-based in the line, a root is its own head), and the ids ``deprel``,
    ``upos``, ``xpos`` in the label inventory; ``arcs``: (dependent, head, label id, probability) or None.
    """

    pieces: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    deprel: list[int] = field(default_factory=list)
    upos: list[int] = field(default_factory=list)
    xpos: list[int] = field(default_factory=list)
    arcs: list[tuple[int, int, int, float]] | None = None


def word_type(with_arcs: bool) -> pa.DataType:
    """Arrow type of a word's struct."""
    return pa.struct(list(WORD_FIELDS) + ([ARC_COUNT] if with_arcs else []))


def schema(with_arcs: bool) -> pa.Schema:
    """Arrow schema of the store, without its metadata."""
    columns = [pa.field("words", pa.list_(word_type(with_arcs)), nullable=False)]
    if with_arcs:
        columns.append(pa.field("arcs", pa.list_(pa.struct(list(ARC_FIELDS))), nullable=False))
    return pa.schema(columns)


def store_path(data_dir: str | os.PathLike[str], split: str, src: str, tgt: str, lang: str) -> str:
    """Name of the store of one side of a split, beside fairseq's ``SPLIT.SRC-TGT.LANG.bin``."""
    return os.path.join(data_dir, f"{split}.{src}-{tgt}.{lang}.syntax.arrow")


def sizes_fingerprint(sizes: np.ndarray) -> str:
    """Fingerprint of a token dataset: the hash of its sentences' lengths, ``</s>`` included.

    Reading a dataset's lengths is cheap, and a store made from another text or segmentation differs in them.
    """
    return hashlib.sha256(np.ascontiguousarray(sizes, dtype="<i4").tobytes()).hexdigest()[:16]
