"""Label inventories: the ids of dependency labels, UPOS and XPOS tags, in one file for all splits of a language."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_syntax.corpus.store.schema import WORD_LIMITS
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import write_json

logger = logging.getLogger(__name__)

COLUMNS = ("deprel", "upos", "xpos")
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
        number = self._ids[column].get(label)
        if number is not None:
            return number
        if label == "_":  # a missing label does not count as an unknown one, for which there is a warning
            return 0
        if self.frozen:
            self.unknown[f"{column}={label}"] += 1
            return 0
        if len(self.labels[column]) > WORD_LIMITS[column]:
            raise SyntaxDataError(
                f"{column} {label!r} exceeds the limit: a store has room for {WORD_LIMITS[column]} different ones",
                hint="are these labels, or something else in their column?",
            )
        self.labels[column].append(label)
        self._ids[column][label] = len(self.labels[column]) - 1
        return self._ids[column][label]

    def ids(self, column: str, labels: Sequence[str]) -> list[int]:
        """Like :meth:`id`, for several labels."""
        numbers = self._ids[column]
        return [numbers[label] if label in numbers else self.id(column, label) for label in labels]

    def add(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Assign ids to new labels, given by column."""
        for column, names in labels.items():
            self.ids(column, names)

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the labels."""
        return hashlib.sha256(json.dumps(self.labels, ensure_ascii=False).encode()).hexdigest()[:16]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the inventory atomically as JSON."""
        options = {} if self.parsed_with is None else {"parsed_with": dict(self.parsed_with)}
        write_json(path, {**self.labels, **options})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LabelInventory:
        """Read an inventory, which is then frozen. Raises SyntaxDataError if it is missing or invalid."""
        try:
            with open(path, encoding="utf-8") as f:
                labels = json.load(f)
        except FileNotFoundError as e:
            raise SyntaxDataError("there is no label inventory", path=path, hint="binarize the training data") from e
        except (OSError, ValueError) as e:
            raise SyntaxDataError(f"not a label inventory: {e}", path=path) from e
        good = isinstance(labels, dict) and all(
            isinstance(labels.get(c), list)
            and labels[c][:1] == [UNKNOWN]
            and all(isinstance(name, str) for name in labels[c])
            and len(set(labels[c])) == len(labels[c])
            for c in COLUMNS
        )
        if not good:
            raise SyntaxDataError(
                f"not a label inventory: expected lists of distinct names for {', '.join(COLUMNS)}", path=path
            )
        before = labels.get("parsed_with")
        return cls(labels, frozen=True, parsed_with=before if isinstance(before, dict) else None)

    def note_parse(self, path: str, *, may_differ: bool = False) -> None:
        """Record the parser's options of a file, which must be the same for all texts of a model.

        Args:
            may_differ: warn about different options instead of raising an error

        Raises:
            SyntaxDataError: the first text was parsed with other options or models
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
