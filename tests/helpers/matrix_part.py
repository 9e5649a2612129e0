"""The part of a long matrix of cases that one run tries, drawn from a seed.

``@pytest.mark.matrix`` is for a test whose parameters make a long matrix: a run takes as few of its cases as have each
value of each parameter, so that each system and each option is tried in every run, and which are tried together
rotates. ``@pytest.mark.matrix(n)`` takes n of the cases, which have as many of the values as n can have.

``@pytest.mark.matrix(n, of="a kind")`` is for slow tests of one kind: they are a matrix together, whose cases are the
tests, and a run takes n of them, of as many functions as n can have.

A property that hypothesis tries on drawn examples is a matrix, too: ``settings(max_examples=examples(n))`` tries a
quarter of n, always other ones.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


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


_everything = True


def examples(number: int) -> int:
    """How many of so many examples this run tries: all with ``--cases all``, else a quarter."""
    return number if _everything else max(number // 4, 10)


# What conftest.py takes over: the option, and the seed of a run.


def pytest_addoption(parser):
    parser.addoption("--cases", metavar="SEED", help="the part of each matrix of cases to try, or all")


def pytest_configure(config):
    if config.option.cases is None:
        chosen = config.option.keyword or any("::" in argument for argument in config.args)
        # In the environment, so that all processes of xdist draw the same: they are given only what was typed.
        seed = os.environ.setdefault("PYTEST_CASES", str(random.SystemRandom().randrange(10_000)))
        config.option.cases = "all" if chosen else seed
    global _everything
    _everything = config.option.cases == "all"


def leave_cases_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the cases of matrices that this run does not try from the tests."""
    if config.option.cases != "all":
        left_out = _left_out(items, config.option.cases)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _left_out(items, seed: str) -> set[pytest.Item]:
    """The cases of matrices that this run does not try."""
    matrices: dict[str, list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("matrix"):
            matrices.setdefault(marker.kwargs.get("of", _function(item)), []).append(item)
    left_out: set[pytest.Item] = set()
    for name, cases in matrices.items():
        marker = cases[0].get_closest_marker("matrix")
        together = "of" in marker.kwargs
        values = [{"test": _function(case)} if together else case.callspec.params for case in cases]
        left_out |= set(cases) - {cases[i] for i in part(values, f"{seed} {name}", *marker.args)}
    return left_out


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_terminal_summary(terminalreporter, config):
    if config.option.cases != "all":
        terminalreporter.write_line(f"of each matrix a part: again with --cases {config.option.cases}, or --cases all")


# Kinds with tests in several modules.
in_a_process = pytest.mark.matrix(2, of="imports in a process of their own")
of_half_a_minute = pytest.mark.matrix(2, of="half a minute of the processor each")
of_ten_seconds = pytest.mark.matrix(6, of="five to ten seconds of the processor each")
