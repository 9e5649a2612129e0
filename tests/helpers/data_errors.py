"""What a refusal is about, rather than how it is worded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fairseq_syntax import cli
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.faults import WITH_TRACEBACK


@contextmanager
def data_error(
    *names: str, path: str | os.PathLike[str] | None = None, line: int | None = None, option: str | None = None
) -> Iterator[pytest.ExceptionInfo[SyntaxDataError]]:
    """Like ``pytest.raises`` for a :class:`SyntaxDataError`.

    Args:
        names: what its text must name: other options, files, words of the input
        path: the file at fault, or the last part of its path
        line: its line
        option: the option at fault
    """
    with pytest.raises(SyntaxDataError) as caught:
        yield caught
    error = caught.value
    assert not [name for name in names if name not in str(error)], error
    if path is not None:
        assert error.path is not None, error
        assert os.fspath(path) in (os.fspath(error.path), Path(error.path).name), error
    assert line is None or error.line == line, error
    assert option is None or error.option == option, error


def run(*argv: object) -> int:
    """Run a command of this package; its errors are raised. Returns the exit status."""
    with mock.patch.dict(os.environ, {WITH_TRACEBACK: "1"}):
        return cli.main([str(word) for word in argv])


def refused(argv: Iterable[str | os.PathLike[str]], *names: str, **about: Any) -> None:
    """A command of this package is refused for what it is about; see :func:`data_error`."""
    with data_error(*names, **about):
        run(*argv)
