"""A parsed line in the form of a store: one unit per surface token, and label ids instead of labels."""

from __future__ import annotations

from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.corpus.store.schema import StoredSentence
from fairseq_syntax.data.labels import LabelInventory


def to_stored(line: ParsedLine, labels: LabelInventory) -> StoredSentence:
    """Convert a line to the form of a store: one unit per surface token, with the syntax of the word that owns it.

    A token of several syntactic words (a CoNLL-U range) takes head, labels and tags of the word whose head lies
    outside the range; arcs to the other words of the range lead to the token, their own arcs are left out.
    """
    if len(line.tokens) == len(line.words):
        stored = _of_words(line, labels)
        if stored is not None:
            return stored
    unit = [0] * len(line.words)
    for number, token in enumerate(line.tokens):
        unit[token.first : token.last + 1] = [number] * (token.last + 1 - token.first)
    stored = StoredSentence(
        pieces=[t.pieces or 1 for t in line.tokens],
        head=[unit[line.heads[t.word]] for t in line.tokens],
        deprel=[labels.id("deprel", line.deprels[t.word]) for t in line.tokens],
        upos=[labels.id("upos", line.upos[t.word]) for t in line.tokens],
        xpos=[labels.id("xpos", line.xpos[t.word]) for t in line.tokens],
        parsed=line.parsed,
    )
    if len(line.sentences) > 1:
        stored.sentences = [unit[start] for start, _ in line.sentences]
    if line.arcs is not None:
        owners = {t.word for t in line.tokens}
        mass: dict[tuple[int, int, int], float] = {}
        for dependent, head, label, prob in line.arcs:
            if dependent not in owners or (unit[dependent] == unit[head] and dependent != head):
                continue
            key = (unit[dependent], unit[head], labels.id("deprel", label))
            mass[key] = mass.get(key, 0.0) + prob
        stored.arcs = [(*key, prob) for key, prob in mass.items()]
    return stored


def _of_words(line: ParsedLine, labels: LabelInventory) -> StoredSentence | None:
    """The result of :func:`to_stored` for a line whose tokens are words and whose arcs are all different."""
    deprels = labels.ids("deprel", line.deprels)
    upos, xpos = labels.ids("upos", line.upos), labels.ids("xpos", line.xpos)
    starts = [start for start, _ in line.sentences] if len(line.sentences) > 1 else []
    arcs = None
    if line.arcs is not None:
        dependents, heads, names, probs = zip(*line.arcs) if line.arcs else ((), (), (), ())
        arc_labels = labels.ids("deprel", names)
        if len(set(zip(dependents, heads, arc_labels))) < len(arc_labels):
            return None
        arcs = list(zip(dependents, heads, arc_labels, probs))
    pieces = [t.pieces or 1 for t in line.tokens]
    return StoredSentence(pieces, list(line.heads), deprels, upos, xpos, arcs, starts, line.parsed)
