"""Label inventories: the ids of dependency labels, UPOS and XPOS tags, in one file for all splits of a language.

With them, :func:`to_stored` converts a parsed line to the form of a store.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_syntax.corpus.distinct_labels import COLUMNS, NO_LABEL, raise_too_many
from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.corpus.store.store_format import WORD_LIMITS, StoredSentence
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import short_sha256
from fairseq_syntax.runtime.files import without_mark, write_json

logger = logging.getLogger(__name__)

ROOT_LABEL = "root"  # the deprel of a word attached to the artificial root
UNKNOWN = "<unk>"  # id 0: a label missing from the inventory, or no label ("_" in CoNLL-U)


def labels_path(data_dir: str | os.PathLike[str], lang: str) -> str:
    """The path of a language's inventory in a data directory."""
    return os.path.join(data_dir, f"labels.{lang}.json")


class LabelInventory:
    """The ids of the labels in each column.

    Args:
        labels: the names in each column; the first is :data:`UNKNOWN`
        frozen: whether new labels get the id of :data:`UNKNOWN` rather than a new one
        parsed_with: the options of the parser that produced the labels, if known
    """

    def __init__(
        self,
        labels: dict[str, list[str]] | None = None,
        *,
        frozen: bool = False,
        parsed_with: Mapping[str, Any] | None = None,
    ) -> None:
        self.labels = {c: list((labels or {}).get(c, [UNKNOWN])) for c in COLUMNS}
        self.frozen, self.parsed_with = frozen, parsed_with
        self.unknown: Counter[str] = Counter()
        self._ids = {c: {name: i for i, name in enumerate(names)} for c, names in self.labels.items()}

    def id(self, column: str, label: str) -> int:
        """The id of a label; new labels are added unless the inventory is frozen, and unknown ones are counted."""
        ids, names = self._ids[column], self.labels[column]
        if label in ids:
            return ids[label]
        if label == NO_LABEL:  # a missing label does not count as an unknown one, for which there is a warning
            return 0
        if self.frozen:
            self.unknown[f"{column}={label}"] += 1
            return 0
        if len(names) > WORD_LIMITS[column]:
            raise_too_many(column, label)
        ids[label] = len(names)
        names.append(label)
        return ids[label]

    def ids(self, column: str, labels: Sequence[str]) -> list[int]:
        """Like :meth:`id`, for several labels."""
        known = self._ids[column]
        return [known[label] if label in known else self.id(column, label) for label in labels]

    def add(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Assign ids to new labels, given by column."""
        for column, names in labels.items():
            self.ids(column, names)

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the labels."""
        return short_sha256(json.dumps(self.labels, ensure_ascii=False).encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the inventory atomically as JSON."""
        options = {} if self.parsed_with is None else {"parsed_with": dict(self.parsed_with)}
        write_json(path, self.labels | options)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LabelInventory:
        """Read an inventory, which is then frozen. Raises SyntaxDataError if it is missing or invalid."""
        try:
            labels = json.loads(without_mark(Path(path).read_bytes()))
            for names in (labels[column] for column in COLUMNS):
                if names[0] != UNKNOWN or not all(isinstance(n, str) for n in names) or len({*names}) < len(names):
                    raise ValueError(f"expected lists of distinct names that begin with {UNKNOWN}")
        except FileNotFoundError as error:
            message = "there is no label inventory"
            hint = "parse the training data (in a recipe: parse) and binarize them"
            raise SyntaxDataError(message, path=path, hint=hint) from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SyntaxDataError(f"not a label inventory: {error!r}", path=path) from error
        return cls(labels, frozen=True, parsed_with=labels.get("parsed_with"))

    def note_parse(self, path: str, *, may_differ: bool = False) -> None:
        """Record the parser's options of a file, which must be the same for all texts of a model.

        Raises:
            SyntaxDataError: the first text was parsed with other options or models; a warning if they ``may_differ``
        """
        from fairseq_syntax.corpus.header import parse_differences, parsed_with

        options = parsed_with(path)
        if self.parsed_with is None:
            self.parsed_with = options
        elif differences := parse_differences(self.parsed_with, options or {}):
            texts = [f"{name} {old!r} for the first text, {new!r} here" for name, (old, new) in differences.items()]
            message = f"was parsed differently from the first text: {'; '.join(texts)}"
            if not may_differ:
                hint = "parse both alike; where this is meant, give the labels: --source-labels or --target-labels"
                raise SyntaxDataError(message, path=path, hint=hint)
            logger.warning("%s %s", path, message)


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
