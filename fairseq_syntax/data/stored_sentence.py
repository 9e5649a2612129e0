"""Conversion of a parsed line to the form of a store: one unit per surface token, label ids instead of labels."""

from __future__ import annotations

from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.corpus.store.schema import StoredSentence
from fairseq_syntax.data.labels import LabelInventory


def to_stored(line: ParsedLine, labels: LabelInventory) -> StoredSentence:
    """Convert a line to the form of a store: one unit per surface token, with the syntax of the word that owns it.

    A token with several syntactic words (a CoNLL-U range) has the head, label and tags of the word whose head is
    outside the range. Arcs to other words of the range point to the token; the arcs of these words are left out.
    """
    owners = [token.word for token in line.tokens]
    unit = list(range(len(line.words)))  # the token of each word
    arcs = line.arcs
    if len(owners) < len(unit):
        for number, token in enumerate(line.tokens):
            unit[token.first : token.last + 1] = [number] * (token.last + 1 - token.first)
        syntactic = set(owners)
        outside = (arc for arc in arcs or () if unit[arc[0]] != unit[arc[1]] or arc[0] == arc[1])
        arcs = arcs and [arc for arc in outside if arc[0] in syntactic]
    return StoredSentence(
        pieces=[token.pieces or 1 for token in line.tokens],
        head=[unit[line.heads[word]] for word in owners],
        deprel=labels.ids("deprel", [line.deprels[word] for word in owners]),
        upos=labels.ids("upos", [line.upos[word] for word in owners]),
        xpos=labels.ids("xpos", [line.xpos[word] for word in owners]),
        arcs=None if arcs is None else _between_tokens(arcs, unit, labels),
        sentences=[unit[start] for start, _ in line.sentences] if len(line.sentences) > 1 else [],
        parsed=line.parsed,
    )


def _between_tokens(
    arcs: list[tuple[int, int, str, float]], unit: list[int], labels: LabelInventory
) -> list[tuple[int, int, int, float]]:
    """Convert arcs between words to arcs between tokens; arcs that coincide are added up."""
    mass: dict[tuple[int, int, int], float] = {}
    ids = labels.ids("deprel", [label for _, _, label, _ in arcs])
    for (dependent, head, _, prob), label in zip(arcs, ids):
        key = unit[dependent], unit[head], label
        mass[key] = mass.get(key, 0.0) + prob
    return [(*key, prob) for key, prob in mass.items()]
