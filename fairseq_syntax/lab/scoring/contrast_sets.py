"""Contrastive sets: sources with correct and incorrect translations, in their published formats.

- **JSON** of LingEval97 (Sennrich 2017): ``source``, ``reference``, and ``errors`` with ``contrastive``, ``type`` and
  ``distance``. Each error is an item.
- **Parallel files** of DistilLingEval (Vamvas and Sennrich 2021): a source file, a correct and an incorrect file.
- **TSV** with a header: ``source``, ``correct``, ``incorrect`` and, optionally, ``category`` and ``distance``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, NonNegativeInt, TypeAdapter, ValidationError

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.outputs import check_parallel
from fairseq_syntax.runtime.files import read_bytes, read_lines, uncompressed_name, without_mark
from fairseq_syntax.runtime.named_files import check_distinct, named_files

logger = logging.getLogger(__name__)
LONGEST = 15  # words; longer distances form one group, as in LingEval97's program
OPTIONAL = ("category", "distance")
COLUMNS = ("source", "correct", "incorrect", *OPTIONAL)  # of a TSV file


@dataclass(frozen=True)
class ContrastItem:
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
    items: list[ContrastItem] = field(default_factory=list)

    def row(self, source: int, text: str) -> int:
        """Add a row, and return its index."""
        self.rows.append((source, text))
        return len(self.rows) - 1


class Error(BaseModel):
    """An incorrect translation in LingEval97's layout."""

    contrastive: str
    type: str | None = None
    distance: NonNegativeInt | None = None


class LingEvalSource(BaseModel):
    """A source in LingEval97's layout."""

    source: str
    reference: str
    errors: list[Error]


def read_set(text: str) -> ContrastSet:
    """Read ``[NAME=]FILE.json``, ``[NAME=]FILE.tsv`` or ``[NAME=]SOURCE,CORRECT,INCORRECT``, also compressed.

    Raises:
        SyntaxDataError: a file cannot be read or has another layout (the error names the place)
    """
    name, paths = named_files(text, lambda path: "")
    if len(paths) == 3:
        return read_parallel(name or _common_name(paths), paths)
    path = Path(uncompressed_name(paths[0]))
    read = {".json": read_lingeval, ".tsv": read_pairs_tsv}.get(path.suffix)
    if len(paths) != 1 or read is None:
        hint = "FILE.json, FILE.tsv or SOURCE,CORRECT,INCORRECT"
        raise SyntaxDataError("is not a contrastive set", path=",".join(paths), hint=hint)
    return read(name or path.stem, paths[0])


def read_parallel(name: str, paths: Sequence[str]) -> ContrastSet:
    """Read a source, a correct and an incorrect file, line by line; the set's name is the category."""
    columns = [list(read_lines(path)) for path in paths]
    count = check_parallel([(path, len(lines)) for path, lines in zip(paths, columns)])
    rows = [(number, line) for column in columns[1:] for number, line in enumerate(column)]
    items = [ContrastItem(number, count + number, name) for number in range(count)]
    return _checked(ContrastSet(name, columns[0], rows, items), paths[0], first_line=1)


def read_pairs_tsv(name: str, path: str) -> ContrastSet:
    """Read a TSV file with a header; the rows to score are correct, incorrect, correct, …"""
    contrast = ContrastSet(name)
    lines = list(read_lines(path))
    while lines and not lines[-1].strip():
        lines.pop()
    header = [cell.strip() for cell in lines[0].split("\t")] if lines else []
    for column in COLUMNS:
        if header.count(column) != 1 and not (column in OPTIONAL and column not in header):
            raise SyntaxDataError(f"the header must have the column {column} once", path=path, line=1)
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise SyntaxDataError(f"{len(cells)} columns, but the header has {len(header)}", path=path, line=number)
        row = dict(zip(header, cells))
        try:
            distance = Error(contrastive=row["incorrect"], distance=row.get("distance") or None).distance  # type: ignore[arg-type]
        except ValidationError:
            message = f"the distance {row['distance']!r} is not a whole number of 0 or more"
            raise SyntaxDataError(message, path=path, line=number) from None
        source = number - 2
        contrast.sources.append(row["source"])
        correct, incorrect = contrast.row(source, row["correct"]), contrast.row(source, row["incorrect"])
        contrast.items.append(ContrastItem(correct, incorrect, row.get("category") or name, distance))
    return _checked(contrast, path, first_line=2)


def read_lingeval(name: str, path: str) -> ContrastSet:
    """Read LingEval97's layout; the rows to score are reference, errors, reference, errors, …"""
    try:
        entries = TypeAdapter(list[LingEvalSource]).validate_json(without_mark(read_bytes(path)))
    except ValidationError as error:
        problem = error.errors()[0]
        number, *keys = problem["loc"] or (None,)
        where = [] if number is None else [f"entry {int(number) + 1}"]
        where += [" ".join(map(repr, keys))] if keys else []  # such as 'errors' 0 'contrastive'
        message = ": ".join([*where, problem["msg"]])
        if problem["type"] != "json_invalid":  # of which the input is the whole file
            message += f", not {str(problem['input'])[:60]}"
        raise SyntaxDataError(message, path=path, hint="LingEval97's layout") from None
    contrast = ContrastSet(name, [entry.source for entry in entries])
    for source, entry in enumerate(entries):
        correct = contrast.row(source, entry.reference)
        for one in entry.errors:
            incorrect = contrast.row(source, one.contrastive)
            contrast.items.append(ContrastItem(correct, incorrect, one.type or name, one.distance))
    return _checked(contrast, path)


def joined(sets: Sequence[ContrastSet]) -> ContrastSet:
    """Join several sets into one, in which the names of categories include their set."""
    if len(sets) == 1:
        return sets[0]
    check_distinct((one.name for one in sets), "sets")
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


def _checked(contrast: ContrastSet, path: str, first_line: int | None = None) -> ContrastSet:
    """Check that a set has items, and warn of empty sources; ``first_line`` is the line of the first, if each has one.

    Published sets have some.
    """
    if not contrast.items:
        raise SyntaxDataError(f"the set {contrast.name} has no pairs", path=path)
    used = sorted({contrast.rows[item.correct][0] for item in contrast.items})
    if empty := [number for number in used if not contrast.sources[number].strip()]:
        place = f"source {empty[0] + 1}" if first_line is None else f"line {first_line + empty[0]}"
        more = f" (the first of {len(empty)})" if len(empty) > 1 else ""
        logger.warning("%s: %s is empty%s: models decide without a source there", path, place, more)
    return contrast


def _common_name(paths: Sequence[str]) -> str:
    """The common prefix of the names of parallel files, such as ``np_agreement.mt``, or their folder's name."""
    names = [os.path.basename(path) for path in paths]
    common = os.path.commonprefix(names).rstrip("._-")  # noqa: RUF071 (characters are meant)
    return common or os.path.basename(os.path.dirname(os.path.abspath(paths[0])))
