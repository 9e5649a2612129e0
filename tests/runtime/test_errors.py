"""The error that users read: what it is about is data, which worker processes send home."""

import pickle
from pathlib import Path

import pytest

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.faults import fault


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ({}, "wrong"),
        ({"path": "a.txt"}, "a.txt: wrong"),
        ({"path": Path("a.txt"), "line": 3, "hint": "mend it"}, "a.txt:3: wrong (mend it)"),
        ({"option": "--beam"}, "--beam: wrong"),
        ({"path": "a.pt", "option": "--beam", "hint": "1"}, "a.pt: --beam: wrong (1)"),
    ],
)
def test_what_an_error_is_about_is_kept(about, text):
    error = SyntaxDataError("wrong", **about)
    for actual in (error, pickle.loads(pickle.dumps(error))):
        assert str(actual) == text and actual.message == "wrong"
        for name in ("path", "line", "option", "hint"):
            assert getattr(actual, name) == about.get(name)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory"),  # of what is made of a line that could be read
        (AssertionError("Torch not compiled with CUDA enabled"), "GPU"),
        (AssertionError("x"), None),  # a defect, whose traceback is shown
        (ValueError("x"), None),
    ],
)
def test_what_is_no_defect_is_one_line(error, said):
    text = fault(error)
    assert text is None if said is None else said in text and "\n" not in text
