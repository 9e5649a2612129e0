"""Estimates with 95 % intervals as cells of a table, marked if they are significant with Holm's correction.

An estimate is ``[value]``, ``[value, low, high]`` or, if it is tested, ``[value, low, high, p, …]``, as of
:attr:`.significance.Difference.estimate`. A table shows many of them, of which one in twenty would be called
significant by chance; its tests are therefore one family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES, holm

Estimate = Sequence[Any]  # of floats; p may be None


class Marks(NamedTuple):
    """How a table marks significant estimates: ``form`` encloses the text, and ``name`` is its name in a note."""

    form: str
    name: str
    to: str = " to "  # between the bounds of an interval


STAR = Marks("{}*", "*")
BOLD = Marks("**{}**", "bold", "\u00a0to\u00a0")  # in a narrow column, two lines


def if_enough(estimate: Estimate, count: int) -> Estimate:
    """The estimate, without interval and test if it is of fewer than :data:`LEAST_SENTENCES` sentences or groups."""
    return estimate if count >= LEAST_SENTENCES else estimate[:1]


def shown_estimate(estimate: Estimate, to: str = " to ") -> str:
    """A signed estimate with its interval, if it has one: ``+1.26 (+0.60 to +1.92)``."""
    value, *rest = estimate[:3]
    return f"{value:+.2f} ({rest[0]:+.2f}{to}{rest[1]:+.2f})" if rest else f"{value:+.2f}"


def p_of(estimate: Estimate) -> float | None:
    """The p value of an estimate; None if it was not tested."""
    return estimate[3] if len(estimate) > 3 else None


def survivors(estimates: Sequence[Estimate]) -> list[bool]:
    """Which of the estimates of a table are significant at the 5 % level with Holm's correction for its tests."""
    p = [float("nan") if p is None else p for p in map(p_of, estimates)]
    return [adjusted < 0.05 for adjusted in holm(p)]


def cells(
    rows: Sequence[Sequence[str | Estimate | None]], marks: Marks = STAR, missing: str = ""
) -> tuple[list[list[str]], list[str]]:
    """The rows of a table as text, and a note about its marks; no note if the table has no tests.

    Args:
        rows: texts and estimates; None for an estimate that does not exist
        missing: the text in place of None
    """
    estimates = [cell for row in rows for cell in row if cell is not None and not isinstance(cell, str)]
    significant = iter(survivors(estimates))

    def text(cell: str | Estimate | None) -> str:
        if cell is None or isinstance(cell, str):
            return missing if cell is None else cell
        return (
            marks.form.format(shown_estimate(cell, marks.to)) if next(significant) else shown_estimate(cell, marks.to)
        )

    texts = [[text(cell) for cell in row] for row in rows]
    tests = sum(p_of(estimate) is not None for estimate in estimates)
    correction = f" with Holm's correction for the {tests} tests of this table" if tests > 1 else ""
    notes = [f"{marks.name}: significant, p < 0.05{correction}"] if tests else []
    untested = sum(len(estimate) > 1 and p_of(estimate) is None for estimate in estimates)
    return texts, [*notes, "without marks: differences of older results, which were not tested"] if untested else notes
