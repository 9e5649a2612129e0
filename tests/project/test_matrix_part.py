"""The part of a matrix that a run tries: every value of every parameter, and another part with another seed."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import matrix_part
import pytest
from matrix_part import _left_out, part

SYSTEMS, OPTIONS = [f"system{i}" for i in range(7)], [("a", 1), ("b", None), ("c", 0.5)]
CASES = [{"system": s, "option": o} for s, o in itertools.product(SYSTEMS, OPTIONS)]


def test_every_value_is_tried_by_few_cases():
    for seed in "0123456789":
        tried = [CASES[i] for i in part(CASES, seed)]
        assert {case["system"] for case in tried} == set(SYSTEMS)
        assert {case["option"] for case in tried} == set(OPTIONS)
        assert len(tried) == len(SYSTEMS), "the longer side"


def test_parts_rotate_and_a_seed_draws_the_same():
    parts = [part(CASES, str(seed)) for seed in range(40)]
    assert parts == [part(CASES, str(seed)) for seed in range(40)]
    assert set().union(*parts) == set(range(len(CASES))), "none is left out for good"


def test_a_number_of_cases():
    drawn = [part(CASES, seed, 4) for seed in "abc"]
    assert all(len(set(p)) == 4 and p == sorted(p) for p in drawn) and drawn[0] != drawn[1]
    assert part(CASES[:3], "0", 4) == [0, 1, 2]
    assert set(part(CASES, "0")) < set(part(CASES, "0", 9)), "those that have every value, and others"


@pytest.mark.parametrize(("everything", "tried"), [(True, [200, 30]), (False, [50, 10])])
def test_examples_of_a_property_are_a_part_of_those_of_a_whole_run(everything, tried, monkeypatch, request):
    assert matrix_part._everything == (request.config.option.cases == "all")
    monkeypatch.setattr(matrix_part, "_everything", everything)
    assert [matrix_part.examples(200), matrix_part.examples(30)] == tried


class Case:
    """A collected test of a kind of which a run takes two."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> pytest.Mark:
        return pytest.mark.matrix(2, of="a kind").mark


def test_a_run_takes_tests_of_a_kind_in_turn():
    """Of several modules, each function once, as long as there are others."""
    cases = [
        Case(f"{module}::test_{number}") for module in ("a.py", "b.py") for number in ("1", "2[x]", "2[y]", "2[z]")
    ]
    tried = [[case for case in cases if case not in _left_out(cases, str(seed))] for seed in range(40)]
    assert tried == [[case for case in cases if case not in _left_out(cases, str(seed))] for seed in range(40)]
    assert all(len({case.nodeid.partition("[")[0] for case in two}) == len(two) == 2 for two in tried)
    assert {case for two in tried for case in two} == set(cases)


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options, tried",
    [("-p xdist -n 2", 7 + 2 + 1 + 2), ("--cases 1", 7 + 2 + 1 + 2), ("--cases all", 21 + 9 + 1 + 5)],
)
def test_all_processes_try_the_same_part(tmp_path, options, tried):
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["matrix: of many cases"]\n')
    (tmp_path / "conftest.py").write_text(
        "from matrix_part import *\ndef pytest_collection_modifyitems(config, items): leave_cases_out(config, items)\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.matrix\n"
        "@pytest.mark.parametrize('system', range(7))\n"
        "@pytest.mark.parametrize('option', [object(), object(), object()])\n"
        "def test_one(system, option): pass\n"
        "@pytest.mark.matrix(2)\n"
        "@pytest.mark.parametrize('number', range(9))\n"
        "def test_two(number): pass\n"
        "def test_three(): pass\n"
        "@pytest.mark.matrix(2, of='a kind')\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_four(number): pass\n"
        "@pytest.mark.matrix(2, of='a kind')\n"
        "def test_five(): pass\n"
        "@pytest.mark.matrix(2, of='a kind')\n"
        "def test_six(): pass\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(Path(matrix_part.__file__).parent)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them takes most of the time
    command = [sys.executable, "-m", "pytest", *options.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and f"{tried} passed" in done.stdout, done.stdout
    assert ("again with --cases" in done.stdout) == ("all" not in options)
