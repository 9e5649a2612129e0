"""Contrastive sets: sources with correct and incorrect translations, in their published formats.

- **JSON** of LingEval97 (Sennrich 2017): ``source``, ``reference``, and ``errors`` with ``contrastive``, ``type`` and
  ``distance``. Each error is an item.
- **Parallel files** of DistilLingEval (Vamvas and Sennrich 2021): a source file, a correct and an incorrect file.
- **TSV** with a header: ``source``, ``correct``, ``incorrect`` and, optionally, ``category`` and ``distance``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_bytes, read_lines, uncompressed_name
from fairseq_syntax.runtime.named_files import named_files

LONGEST = 15  # words; longer distances form one group, as in LingEval97's program
COLUMNS = ("source", "correct", "incorrect", "category", "distance")  # of a TSV file
OPTIONAL = ("category", "distance")


@dataclass(frozen=True)
class Item:
    """A comparison of the row ``correct`` with the row ``incorrect``; the distance is in words."""

    correct: int
    incorrect: int
    category: str
    distance: int | None = None


@dataclass
class ContrastSet:
    """Items, which refer to rows of source and translation.

    Attributes:
        name: the name of the set
        sources: the source lines
        rows: the translations to score, as (0-based index of the source, text), in the order of the published score
            files
        items: the comparisons
    """

    name: str
    sources: list[str] = field(default_factory=list)
    rows: list[tuple[int, str]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    def row(self, source: int, text: str) -> int:
        """Add a row, and return its index."""
        self.rows.append((source, text))
        return len(self.rows) - 1


def read_set(text: str) -> ContrastSet:
    """Read ``[NAME=]FILE.json``, ``[NAME=]FILE.tsv`` or ``[NAME=]SOURCE,CORRECT,INCORRECT``, also with ``.gz``.

    Raises:
        SyntaxDataError: a file cannot be read or has another layout (the error names the place)
    """
    name, paths = named_files(text, lambda path: "")
    if len(paths) == 3:
        return read_parallel(name or _common_name(paths), paths)
    if len(paths) != 1:
        raise SyntaxDataError(f"not a set: {text!r}", hint="FILE.json, FILE.tsv or SOURCE,CORRECT,INCORRECT")
    ending = Path(uncompressed_name(paths[0])).suffix
    if ending not in (".json", ".tsv"):
        raise SyntaxDataError("a set is .json, .tsv or three files", path=paths[0], hint="SOURCE,CORRECT,INCORRECT")
    name = name or os.path.basename(uncompressed_name(paths[0])).removesuffix(ending)
    return read_json(name, paths[0]) if ending == ".json" else read_tsv(name, paths[0])


def read_parallel(name: str, paths: Sequence[str]) -> ContrastSet:
    """Read a source, a correct and an incorrect file, line by line; the set's name is the category."""
    columns = [list(read_lines(path)) for path in paths]
    for path, lines in zip(paths[1:], columns[1:]):
        if len(lines) != len(columns[0]):
            raise SyntaxDataError(f"{len(lines)} lines, but {paths[0]} has {len(columns[0])}", path=path)
    contrast_set = ContrastSet(name, columns[0])
    for column in columns[1:]:
        for number, line in enumerate(column):
            contrast_set.row(number, line)
    count = len(columns[0])
    contrast_set.items = [Item(number, count + number, name) for number in range(count)]
    return _checked(contrast_set, paths[0], first_line=1)


def read_tsv(name: str, path: str) -> ContrastSet:
    """Read a TSV file with a header; the rows to score are correct, incorrect, correct, …"""
    contrast_set = ContrastSet(name)
    lines = list(read_lines(path))
    while lines and not lines[-1].strip():
        lines.pop()
    header = [cell.strip() for cell in lines[0].split("\t")] if lines else []
    for column in COLUMNS:
        if header.count(column) != 1 and not (column in OPTIONAL and column not in header):
            message = f"the header must have the column {column} once"
            raise SyntaxDataError(message, path=path, line=1)
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise SyntaxDataError(f"{len(cells)} columns, but the header has {len(header)}", path=path, line=number)
        row = dict(zip(header, cells))
        try:
            distance = _distance(row.get("distance") or None)
        except ValueError as error:
            raise SyntaxDataError(str(error), path=path, line=number) from None
        contrast_set.sources.append(row["source"])
        source = len(contrast_set.sources) - 1
        correct, incorrect = contrast_set.row(source, row["correct"]), contrast_set.row(source, row["incorrect"])
        contrast_set.items.append(Item(correct, incorrect, row.get("category") or name, distance))
    return _checked(contrast_set, path, first_line=2)


def read_json(name: str, path: str) -> ContrastSet:
    """Read LingEval97's layout; the rows to score are reference, errors, reference, errors, …"""

    def fail(number: int, what: str) -> NoReturn:
        raise SyntaxDataError(f"entry {number + 1} {what}", path=path, hint="LingEval97's layout")

    content = read_bytes(path)
    try:
        entries = json.loads(content)
    except ValueError as error:
        raise SyntaxDataError(f"not JSON: {error}", path=path) from error
    if not isinstance(entries, list) or not entries:
        raise SyntaxDataError("not a list of entries", path=path, hint="LingEval97's layout")
    contrast_set = ContrastSet(name)
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("source", "reference")):
            fail(number, "has no 'source' and 'reference'")
        errors = entry.get("errors")
        if not isinstance(errors, list) or not all(
            isinstance(error, dict) and isinstance(error.get("contrastive"), str) for error in errors
        ):
            fail(number, "has no list 'errors' whose members have 'contrastive'")
        contrast_set.sources.append(entry["source"])
        correct = contrast_set.row(number, entry["reference"])
        for one in errors:
            try:
                distance = _distance(one.get("distance"))
            except ValueError as error:
                fail(number, f"has another layout: {error}")
            row = contrast_set.row(number, one["contrastive"])
            contrast_set.items.append(Item(correct, row, str(one.get("type") or name), distance))
    return _checked(contrast_set, path)


def joined(sets: Sequence[ContrastSet]) -> ContrastSet:
    """Join several sets into one, in which the names of categories include their set."""
    if len(sets) == 1:
        return sets[0]
    names = [one.name for one in sets]
    for name in names:
        if names.count(name) > 1:
            raise SyntaxDataError(f"two sets are called {name}", hint="name them: --set A=FILE B=FILE")
    whole = ContrastSet("all")
    for one in sets:
        sources, rows = len(whole.sources), len(whole.rows)
        whole.sources += one.sources
        whole.rows += [(sources + source, text) for source, text in one.rows]
        for item in one.items:
            category = item.category if item.category == one.name else f"{one.name}: {item.category}"
            moved = replace(item, correct=rows + item.correct, incorrect=rows + item.incorrect, category=category)
            whole.items.append(moved)
    return whole


def _distance(value: Any) -> int | None:
    """A distance, or None for no distance. Raises ValueError if it is not a non-negative integer."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if number < 0 or not number.is_integer():
        raise ValueError(f"the distance {value!r} is not a whole number of 0 or more")
    return int(number)


def _checked(contrast_set: ContrastSet, path: str, first_line: int | None = None) -> ContrastSet:
    """Check that a set has items and that no source is empty, and return it.

    Args:
        path: the file of the set
        first_line: the line number of the first source, if each source has its own line

    Raises:
        SyntaxDataError: there are no items, or a source is empty
    """
    if not contrast_set.items:
        raise SyntaxDataError(f"the set {contrast_set.name} has no pairs", path=path)
    used = {contrast_set.rows[row][0] for item in contrast_set.items for row in (item.correct, item.incorrect)}
    for number, source in enumerate(contrast_set.sources):
        if number in used and not source.strip():
            line = None if first_line is None else first_line + number
            raise SyntaxDataError(f"source {number + 1} is empty", path=path, line=line)
    return contrast_set


def _common_name(paths: Sequence[str]) -> str:
    """The common prefix of the names of parallel files, such as ``np_agreement.mt``, or their folder's name."""
    names = [os.path.basename(path) for path in paths]
    common = os.path.commonprefix(names).rstrip("._-")  # noqa: RUF071 (characters are meant)
    return common or os.path.basename(os.path.dirname(os.path.abspath(paths[0])))
