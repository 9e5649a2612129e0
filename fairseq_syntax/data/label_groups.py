"""Label groups: the dependency labels assigned to each attention head of LDD (Liu and Sima'an 2022, Appendix A).

A group file has one line ``NAME: LABEL LABEL …`` per group, in the order of the heads; ``#`` starts a comment. A label
includes its subtypes (``aux`` includes ``aux:pass``) unless they are listed separately. Lines named ``-`` list labels
that belong to no group; labels that are not listed are unknown and are reported.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fairseq_syntax.data.labels import ROOT_LABEL
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines

BUILT_IN = ("ud", "stanford", "clearnlp")
NO_GROUP = -1


@dataclass(frozen=True)
class Coverage:
    """How much of some data's labels a map covers, in probability mass or number of labels."""

    kept: dict[str, float]  # for each group, in the order of the map
    left_out: dict[str, float]  # for each label that belongs to no group
    unknown: dict[str, float]  # for each label that the map does not list

    @property
    def total(self) -> float:
        """The total of all labels."""
        return sum(self.kept.values()) + sum(self.left_out.values()) + sum(self.unknown.values())

    @property
    def kept_share(self) -> float:
        """The share of labels in a group; 1 if there are no labels."""
        return sum(self.kept.values()) / self.total if self.total else 1.0

    @property
    def unknown_share(self) -> float:
        """The share of labels that the map does not list."""
        return sum(self.unknown.values()) / self.total if self.total else 0.0

    def __str__(self) -> str:
        parts = [f"{100 * self.kept_share:.1f} % in {len(self.kept)} label groups"]
        for what, labels in (("in no group", self.left_out), ("unknown to the map", self.unknown)):
            if labels:
                largest = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
                named = ", ".join(f"{label} {100 * mass / self.total:.1f}" for label, mass in largest[:8])
                share = 100 * sum(labels.values()) / self.total
                parts.append(f"{share:.1f} % {what} ({named}{', …' if len(largest) > 8 else ''})")
        if empty := [name for name, amount in self.kept.items() if not amount and self.total]:
            parts.append(f"nothing in {', '.join(empty)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class LabelGroups:
    """A map from labels to groups."""

    names: tuple[str, ...]  # of the groups, in the order of the heads
    members: tuple[tuple[str, ...], ...]  # the labels of each group
    left_out: frozenset[str] = frozenset()  # labels that belong to no group
    source: str = "label groups"  # the origin of the map, for messages

    @cached_property
    def _group(self) -> dict[str, int]:
        group = dict.fromkeys(self.left_out, NO_GROUP)
        return group | {label: i for i, labels in enumerate(self.members) for label in labels}

    def __len__(self) -> int:
        return len(self.names)

    def _find(self, label: str) -> int | None:
        """The group of a label by its longest listed prefix: ``NO_GROUP`` if in no group, None if unknown."""
        while label not in self._group and ":" in label:
            label = label.rpartition(":")[0]
        return self._group.get(label)

    def table(self, labels: Sequence[str]) -> list[int]:
        """The 0-based group of each label; -1 for labels in no group and unknown labels."""
        return [NO_GROUP if (group := self._find(label)) is None else group for label in labels]

    @property
    def root(self) -> int:
        """The group for the mass of the artificial root; -1 if no group contains the label ``root``."""
        return self._group.get(ROOT_LABEL, NO_GROUP)

    def coverage(self, mass: Mapping[str, float] | Iterable[str]) -> Coverage:
        """The coverage of labels with their mass, or of a list of labels with mass 1 each."""
        mass = mass if isinstance(mass, Mapping) else Counter(mass)
        kept, left_out, unknown = dict.fromkeys(self.names, 0.0), {}, {}
        for label, amount in mass.items():
            group = self._find(label)
            if group is None:
                unknown[label] = amount
            elif group == NO_GROUP:
                left_out[label] = amount
            else:
                kept[self.names[group]] += amount
        return Coverage(kept, left_out, unknown)

    def check(self, labels: Iterable[str]) -> Coverage:
        """The :meth:`coverage` of some data's labels; rejects a map for another label scheme.

        Raises:
            SyntaxDataError: the map lists less than half of the labels, or none of them in a group; or it is built-in,
                and another built-in map lists more of them (nearly half of UD's labels also occur in Stanford
                Dependencies)
        """
        labels = list(labels)
        coverage = self.coverage(labels)
        maps = {name: read_label_groups(name) for name in BUILT_IN}
        better = built_in_for(Counter(labels))
        is_built_in = any(self.members == other.members for other in maps.values())
        if is_built_in and maps[better].coverage(labels).unknown_share < coverage.unknown_share:
            hint = f"{better} knows more of them"
        elif coverage.unknown_share > 0.5 or not any(coverage.kept.values()):
            hint = f"one of {', '.join(BUILT_IN)}, or the name of a file"
        else:
            return coverage
        message = f"these label groups are made for other labels than those of the data: {coverage}"
        raise SyntaxDataError(message, path=self.source, option="--ldd-label-groups", hint=hint)

    def to_text(self) -> str:
        """The map in the format of group files."""
        lines = [f"{name}: {' '.join(labels)}\n" for name, labels in zip(self.names, self.members)]
        return "".join(lines) + (f"-: {' '.join(sorted(self.left_out))}\n" if self.left_out else "")


def read_label_groups(name_or_path: str) -> LabelGroups:
    """Read a group file, or a built-in map by its name (:data:`BUILT_IN`). Raises SyntaxDataError."""
    path = name_or_path
    if name_or_path in BUILT_IN:
        path = os.path.join(os.path.dirname(__file__), f"label_groups_{name_or_path}.txt")
    elif not os.path.exists(path):
        raise SyntaxDataError("no such file of label groups", path=path, hint=f"or {', '.join(BUILT_IN)}")
    return parse_label_groups("\n".join(read_lines(path)), path)


def built_in_for(mass: Mapping[str, float]) -> str:
    """The name of the built-in map that covers most of the labels, weighted by their mass."""
    return min(BUILT_IN, key=lambda name: read_label_groups(name).coverage(mass).unknown_share)


def parse_label_groups(text: str, path: str = "label groups") -> LabelGroups:
    """Parse the text of a group file; ``path`` is for errors."""
    groups: dict[str, list[str]] = {}
    left_out: list[str] = []
    line_of: dict[str, int] = {}
    # Not splitlines, since other line breaks of Unicode may occur in a comment.
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        # A name ends at a colon followed by a space, since labels may contain colons.
        name, colon, labels = (part.strip() for part in line.replace("\t", " ").partition(": "))
        if not colon or not name or not labels or " " in name:
            raise SyntaxDataError("a line of label groups reads NAME: LABEL LABEL …", path=path, line=number)
        if name in groups:
            raise SyntaxDataError(f"group {name} occurs twice", path=path, line=number)
        for label in labels.split():
            if label in line_of:
                raise SyntaxDataError(f"label {label} is already in line {line_of[label]}", path=path, line=number)
            line_of[label] = number
        (left_out if name == "-" else groups.setdefault(name, [])).extend(labels.split())
    if not groups:
        raise SyntaxDataError("no label groups in this file", path=path)
    return LabelGroups(tuple(groups), tuple(map(tuple, groups.values())), frozenset(left_out), path)
