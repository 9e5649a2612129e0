"""The distinct labels of a text's parses, of which a store has room for a limited number in each column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn

from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.errors import SyntaxDataError

COLUMNS = ("deprel", "upos", "xpos")
ROOM = {"deprel": (1 << 10) - 1, "upos": (1 << 6) - 1, "xpos": (1 << 16) - 1}  # in the format of the store
NO_LABEL = "_"


class DistinctLabels:
    """The labels seen so far, by column. Every step that reads a whole parse counts them, so the first one tells."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {column: set() for column in COLUMNS}

    def add(self, line: ParsedLine) -> None:
        """Add the labels of a line's tokens and arcs, as they would be stored.

        Raises:
            SyntaxDataError: more distinct labels than a store has room for
        """
        owners = [token.word for token in line.tokens]
        labels = {column: [values[word] for word in owners] for column, values in self._columns(line).items()}
        if line.arcs:
            stored = set(owners)
            labels["deprel"] += [label for dependent, _, label, _ in line.arcs if dependent in stored]
        self.merge(labels)

    @staticmethod
    def _columns(line: ParsedLine) -> dict[str, list[str]]:
        return {"deprel": line.deprels, "upos": line.upos, "xpos": line.xpos}

    def merge(self, labels: Mapping[str, Collection[str]]) -> None:
        """Add labels by column, such as those of another part. Raises like :meth:`add`."""
        for column, names in labels.items():
            seen = self._seen[column]
            for name in names:
                if name not in seen and name != NO_LABEL:
                    if len(seen) == ROOM[column]:
                        raise_too_many(column, name)
                    seen.add(name)

    @property
    def labels(self) -> dict[str, list[str]]:
        """The labels of each column, sorted."""
        return {column: sorted(names) for column, names in self._seen.items()}


def raise_too_many(column: str, label: str) -> NoReturn:
    """Raise the SyntaxDataError of a label for which a store has no room."""
    raise SyntaxDataError(
        f"{column} {label!r} exceeds the limit: a store has room for {ROOM[column]:,} different ones",
        hint="are these labels, or something else in their column?",
    )
