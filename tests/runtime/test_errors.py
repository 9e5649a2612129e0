"""The error that users read: what it is about is data, which worker processes send home."""

import pickle
from pathlib import Path

import pytest

from fairseq_syntax.errors import SyntaxDataError


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
