"""The part of a matrix that a run tries: every value of every parameter, and another part with another seed."""

import itertools

from matrix_part import part

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
