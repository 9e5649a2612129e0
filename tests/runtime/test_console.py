"""What commands say on a terminal: bars only there, and one form of the last lines."""

from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_syntax
from fairseq_syntax.runtime import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **options: object) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(console, "DELAY", 0.0)
    assert list(console.progress(iter("abcd"), total=4, **options)) == list("abcd")  # type: ignore[arg-type]
    return stream.getvalue()


def test_a_bar_has_rate_and_remaining_time_and_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), of="parsing")
    assert re.search(r"parsing: +0%.*0/4 \[00:00<\?, \? lines/s\]", text) and text.endswith("\r")


def test_no_bar_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO()) == ""
    assert shown(monkeypatch, Terminal(), quiet=True) == ""


def test_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console.finished("out/a", "3 lines", "fairseq-syntax score")
    assert capsys.readouterr() == ("out/a: 3 lines\nnext: fairseq-syntax score\n", "")
    console.finished("-", "3 lines", "fairseq-syntax score")  # stdout holds the output itself
    assert capsys.readouterr() == ("", "3 lines\n")


def test_a_line_reaches_a_pipe_at_once() -> None:
    program = "import time; from fairseq_syntax.runtime.console import say; say('done'); time.sleep(60)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout and select.select([process.stdout], [], [], 30)[0]
        assert process.stdout.readline() == b"done\n"
        process.kill()


def test_one_module_owns_the_bars() -> None:
    package = Path(fairseq_syntax.__file__).parent
    users = {path.name for path in package.rglob("*.py") if re.search(r"\btqdm\(", path.read_text("utf-8"))}
    assert users == {"console.py"}


def test_warnings_of_one_kind_are_counted() -> None:
    given: list[str] = []
    for count, expected in ((3, 3), (30, 4)):
        given.clear()
        warnings = console.CountedWarnings(given.append)
        for number in range(count):
            warnings.add(f"line {number}")
        warnings.end("lines")
        assert len(given) == expected
    assert "30" in given[-1]
