"""From a segmented, parsed text to the store beside its token dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from tqdm import tqdm

from fairseq_syntax.data.labels import ROOT_LABEL, LabelInventory
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.store import SyntaxStore, SyntaxStoreWriter
from fairseq_syntax.store.schema import StoredSentence
from fairseq_syntax.text.conllu import ParsedLine, read_conllu
from fairseq_syntax.text.files import read_lines
from fairseq_syntax.text.segmentation import Segmenter, load_segmenter, spaces_before

PARSE_SUFFIX = ".conllu"


@dataclass
class Summary:
    """What was binarized, for the log.

    ``label_mass`` adds up, by dependency label, the probability of the arcs (those of the artificial root under
    ``root``), or the words where there are no arcs.
    """

    sentences: int = 0
    words: int = 0
    pieces: int = 0
    arcs: int = 0
    mass: float = 0.0
    label_mass: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.sentences} sentences, {self.words} words, {self.pieces} pieces"
        if self.arcs:
            text += f", {self.arcs} arcs ({self.arcs / self.words:.2f} a word, mean mass {self.mass / self.words:.4f})"
        if self.label_mass:
            from fairseq_syntax.data.label_groups import built_in_for

            name, groups = built_in_for(self.label_mass)
            text += f"; {'mass' if self.arcs else 'labels'} in LDD's label groups ({name}): "
            text += str(groups.coverage(self.label_mass))
        return text


def segmentation_path(directory: str | os.PathLike[str], lang: str) -> str:
    """Where a directory keeps the segmentation of a language."""
    return os.path.join(directory, f"segmentation.{lang}.json")


def to_stored(line: ParsedLine, labels: LabelInventory) -> StoredSentence:
    """The line as the store holds it: one unit per surface token, which carries the syntax of the word that owns it.

    A token of several syntactic words (a CoNLL-U range) takes head, labels and tags of the word whose head lies
    outside the range; arcs to the other words of the range lead to the token, their own arcs are left out.
    """
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


def paired_lines(tokens: str, parse: str, segmenter: Segmenter | None = None) -> Iterator[tuple[list[str], ParsedLine]]:
    """The pieces and the parse of each line, checked against each other.

    Args:
        tokens: file of pieces, separated by spaces
        parse: CoNLL-U file of the same lines, with ``Pieces=`` where words are split
        segmenter: what made the pieces; with it, they must be the pieces of the parse's words

    Raises:
        SyntaxDataError: other line counts, or a line whose pieces are not those of its parse
    """
    parsed = read_conllu(parse)
    number = 0
    for number, (text, line) in enumerate(zip_longest(read_lines(tokens), parsed), start=1):
        if text is None:
            raise SyntaxDataError(f"has more lines than the {number - 1} of {tokens}", path=parse)
        if line is None:
            # Trailing empty lines of the text leave no trace in a parse without "# lines".
            if text.strip():
                raise SyntaxDataError(f"has {number - 1} lines, {tokens} has more", path=parse)
            line = ParsedLine(line_number=number - 1)
        pieces = text.split()
        expected = sum(t.pieces or 1 for t in line.tokens)
        if len(pieces) != expected:
            unsplit = all(t.pieces is None for t in line.tokens)
            raise SyntaxDataError(
                f"{len(pieces)} pieces, but the parse has {expected}",
                path=tokens,
                line=number,
                hint=f"write both files with fairseq-syntax segment; {parse} has no Pieces="
                if unsplit
                else f"is {parse} the parse of this text?",
            )
        own: list[list[str]] | None
        if segmenter is not None and line.tokens:
            own = segmenter.encode_words([t.form for t in line.tokens], spaces_before(line.tokens))
        else:
            own = None if any(t.pieces for t in line.tokens) else [[t.form] for t in line.tokens]
        if own is not None and pieces != (flat := [p for word in own for p in word]):
            at = next(i for i, (a, b) in enumerate(zip(pieces, flat)) if a != b) if len(flat) == len(pieces) else 0
            raise SyntaxDataError(
                f"piece {at + 1} is {pieces[at]!r}, but the parse has {flat[at]!r}",
                path=tokens,
                line=number,
                hint=f"is {parse} (line {line.file_line}) the parse of this text?",
            )
        if own is not None:
            wrong = next((t for t, word in zip(line.tokens, own) if (t.pieces or 1) != len(word)), None)
            if wrong is not None:
                raise SyntaxDataError(
                    f"the parse gives {wrong.form!r} {wrong.pieces or 1} pieces, its segmentation another number",
                    path=tokens,
                    line=number,
                    hint=f"write {tokens} and {parse} with fairseq-syntax segment",
                )
        yield pieces, line
    if number == 0:
        raise SyntaxDataError("the file is empty", path=tokens)


def binarize(
    tokens: str,
    parse: str,
    out: str,
    labels: LabelInventory,
    *,
    lang: str,
    dictionary: str,
    progress: bool = True,
) -> Summary:
    """Write the store of one side of a split.

    A store that was made from the same files, dictionary and segmentation with the same labels is left as it is.

    Args:
        tokens: the file of pieces that was binarized to tokens
        parse: its CoNLL-U file
        out: the store's name
        labels: the inventory; grows unless frozen
        lang: language of this side
        dictionary: ``dict.LANG.txt`` of the token dataset
        progress: show a progress bar on a terminal

    Raises:
        SyntaxDataError: bad input; nothing is written then
    """
    inputs = [*_digest(tokens, parse), file_fingerprint(dictionary)]
    about = segmentation_path(os.path.dirname(tokens) or ".", lang)
    segmenter = load_segmenter(about) if os.path.exists(about) else None
    if segmenter:
        inputs.append(segmenter.fingerprint)
    done = _already(out, inputs, labels)
    if done is not None:
        return done
    with_arcs = _has_arcs(parse)
    summary = Summary()
    lines = paired_lines(tokens, parse, segmenter)
    bar = tqdm(lines, desc=os.path.basename(out), unit=" lines", disable=None if progress else True, leave=False)
    with SyntaxStoreWriter(out, with_arcs=with_arcs) as writer:
        for _, line in bar:
            stored = to_stored(line, labels)
            if with_arcs and stored.arcs is None:
                if line.words:
                    raise SyntaxDataError("no Arcs= in this sentence, but in others", path=parse, line=line.file_line)
                stored.arcs = []
            if not with_arcs:
                stored.arcs = None
            writer.add(stored)
            summary.sentences += 1
            summary.words += len(stored.pieces)
            summary.pieces += sum(stored.pieces)
            summary.arcs += len(stored.arcs or ())
            summary.mass += sum(a[3] for a in stored.arcs or ())
            _add_label_mass(summary.label_mass, stored, labels)
        writer.update_metadata(
            {
                "lang": lang,
                "labels": labels.labels,
                "labels_fingerprint": labels.fingerprint,
                "dictionary_fingerprint": inputs[2],
                "segmentation_fingerprint": segmenter.fingerprint if segmenter else None,
                "inputs": inputs,
                "mass": summary.mass,
                "label_mass": {label: round(mass, 3) for label, mass in summary.label_mass.items()},
            }
        )
    return summary


def _add_label_mass(total: dict[str, float], stored: StoredSentence, labels: LabelInventory) -> None:
    names = labels.labels["deprel"]
    arcs = ((word, head, label, 1.0) for word, (head, label) in enumerate(zip(stored.head, stored.deprel)))
    for word, head, label, mass in arcs if stored.arcs is None else stored.arcs:
        name = ROOT_LABEL if word == head else names[label]
        total[name] = total.get(name, 0.0) + mass


def copy_segmentation(source_dir: str, data_dir: str, lang: str) -> None:
    """Put the segmentation of a language beside the data, so that raw text can be translated with the data alone."""
    about = segmentation_path(source_dir, lang)
    if os.path.exists(about) and os.path.abspath(source_dir) != os.path.abspath(data_dir):
        load_segmenter(about).save(os.path.join(data_dir, f"segmentation.{lang}"))


def file_fingerprint(path: str) -> str:
    """SHA-256 of a file's bytes, shortened."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()[:16] if hasattr(hashlib, "file_digest") else _sha256(f)


def _sha256(file) -> str:  # Python 3.10 lacks file_digest
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()[:16]


def _digest(*paths: str) -> list[str]:
    for path in paths:
        if not os.path.exists(path):
            raise SyntaxDataError("no such file", path=path, hint="fairseq-syntax parse, then fairseq-syntax segment")
    return [file_fingerprint(path) for path in paths]


def _has_arcs(parse: str) -> bool:
    return next((line.arcs is not None for line in read_conllu(parse) if line.words), False)


def _already(out: str, inputs: list[str], labels: LabelInventory) -> Summary | None:
    """The summary of a store made from the same inputs with labels that this inventory has, if there is one."""
    if not os.path.exists(out):
        return None
    try:
        found = SyntaxStore(out).metadata
    except SyntaxDataError:
        return None
    if found.get("inputs") != inputs:
        return None
    if labels.frozen and found["labels"] != labels.labels:
        return None
    if not labels.frozen:
        for column, names in found["labels"].items():
            for name in names:
                labels.id(column, name)
        if labels.labels != found["labels"]:
            return None
    return Summary(
        found["sentences"],
        found["words"],
        found["pieces"],
        found["arcs"] or 0,
        found["mass"],
        found.get("label_mass", {}),
    )
