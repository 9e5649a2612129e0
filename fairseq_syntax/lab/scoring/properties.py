"""Properties of a source line's parse, and their intervals, by which scores are grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.parsed_line import depths
from fairseq_syntax.errors import SyntaxDataError, meant

PUNCTUATION = "punct"


def depth(line: ParsedLine) -> float:
    """The number of arcs between the deepest word and its root; 0 if there are only roots or no words."""
    return max(depths(line.heads), default=0)


def _spans(line: ParsedLine, punctuation: bool = False) -> list[tuple[int, int]]:
    """The leftmost and rightmost word of each arc between words; arcs of punctuation only on request."""
    return [
        (min(word, head), max(word, head))
        for word, head in enumerate(line.heads)
        if head != word and (punctuation or line.deprels[word].partition(":")[0] != PUNCTUATION)
    ]


def dependency_length(line: ParsedLine) -> float:
    """The mean distance in words between words and their heads (Liu 2008), without roots and punctuation; or 0."""
    spans = _spans(line)
    return sum(last - first for first, last in spans) / len(spans) if spans else 0.0


def longest_dependency(line: ParsedLine) -> float:
    """The longest distance in words between a word and its head, without roots and punctuation; or 0."""
    return max((last - first for first, last in _spans(line)), default=0)


def crossing(line: ParsedLine) -> float:
    """The number of pairs of crossing arcs between words, including punctuation."""
    spans = sorted(_spans(line, punctuation=True))
    return sum(first < start < last < end for i, (first, last) in enumerate(spans) for start, end in spans[i + 1 :])


PROPERTIES: dict[str, Callable[[ParsedLine], float]] = {
    "length": lambda line: len(line.words),
    "depth": depth,
    "dependency-length": dependency_length,
    "longest-dependency": longest_dependency,
    "crossing": crossing,
}
_COUNTS = ("crossing", "label", "upos")


@dataclass(frozen=True)
class Property:
    """A property by which lines are grouped.

    Attributes:
        name: one of :data:`PROPERTIES`; ``label=L``, the number of words with the relation L (and its subtypes, unless
            L is one); or ``upos=T``, the number of words with the tag T
        edges: the inclusive upper bounds of all intervals except the last; by default 0 and 1 for the numbers of
            labels, tags and crossing arcs, and the quartiles in the text for other properties
    """

    name: str
    edges: tuple[float, ...] | None = None

    @classmethod
    def of(cls, text: str) -> Property:
        """Parse ``NAME`` or ``NAME@EDGE,EDGE,…``, the argument of ``--by``.

        Raises:
            SyntaxDataError: the property does not exist, or the edges do not increase
        """
        name, at, bounds = text.partition("@")
        kind, _, value = name.partition("=")
        if not (name in PROPERTIES or (kind in ("label", "upos") and value)):
            hint = meant(name, [*PROPERTIES, "label=NAME", "upos=NAME"])
            raise SyntaxDataError(f"there is no property {name!r} of a parse", hint=hint)
        if not at:
            return cls(name)
        try:
            edges = tuple(float(edge) for edge in bounds.split(","))
        except ValueError:
            edges = (np.nan,)
        if not all(a < b for a, b in pairwise((-np.inf, *edges, np.inf))):
            raise SyntaxDataError(f"not increasing numbers: {bounds!r}", hint="such as --by length@10,20,30")
        return cls(name, edges)

    def value(self, line: ParsedLine) -> float:
        """The value for one line."""
        kind, equals, value = self.name.partition("=")
        if not equals:
            return PROPERTIES[kind](line)
        if kind == "upos":
            return line.upos.count(value)
        return sum(label == value or label.startswith(f"{value}:") for label in line.deprels)

    def values(self, lines: Sequence[ParsedLine]) -> np.ndarray:
        """The values for all lines, float64 [N]."""
        return np.array([self.value(line) for line in lines], dtype=np.float64)

    def intervals(self, values: np.ndarray) -> list[Interval]:
        """The non-empty intervals of the values [N], lowest first."""
        edges = self.edges
        if edges is None and self.name.partition("=")[0] in _COUNTS:
            edges = (0.0, 1.0)
        elif edges is None:
            # quartiles that occur as values; with few distinct values some coincide, so there are fewer intervals
            quartiles = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf") if len(values) else []
            edges = tuple(float(edge) for edge in np.unique(quartiles))
        places = np.searchsorted(edges, values)
        bounds = (None, *edges, None)
        return [Interval(bounds[k], bounds[k + 1], np.flatnonzero(places == k)) for k in np.unique(places)]


@dataclass(frozen=True)
class Interval:
    """The indices [n] of lines whose value is above ``over`` and at most ``to``; None means no bound."""

    over: float | None
    to: float | None
    lines: np.ndarray


def interval_label(name: str, over: float | None, to: float | None) -> str:
    """The label of an interval: ``3`` (a single value), ``≤ 3``, ``(3, 5]``, ``> 5``."""
    if over is None:
        return "all" if to is None else "0" if to == 0 else f"≤ {to:.4g}"
    if to is None:
        return f"> {over:.4g}"
    # the values of other properties are whole numbers
    whole = name != "dependency-length" and float(over).is_integer() and to == over + 1
    return f"{to:.4g}" if whole else f"({over:.4g}, {to:.4g}]"
