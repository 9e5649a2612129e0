"""The part of a long matrix of cases that one run tries, drawn from a seed.

``@pytest.mark.matrix`` is for a test whose parameters make a long matrix: a run takes as few of its cases as have each
value of each parameter, so that each system and each option is tried in every run, and which are tried together
rotates. ``@pytest.mark.matrix(n)`` takes n of the cases, which have as many of the values as n can have.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any


def part(cases: Sequence[Mapping[str, Any]], seed: str, number: int | None = None) -> list[int]:
    """The numbers of the cases that are tried, ascending.

    Args:
        cases: of each case, its parameters
        seed: the same seed draws the same part
        number: how many are drawn (default: until each value of each parameter is among them)
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    values = [{(name, repr(value)) for name, value in case.items()} for case in cases]
    missing = set().union(*values)
    drawn: list[int] = []
    while order and (missing if number is None else len(drawn) < number):
        best = max(order, key=lambda case: len(values[case] & missing))  # the first of the order, where several are
        order.remove(best)
        missing -= values[best]
        drawn.append(best)
    return sorted(drawn)
