"""The demo finds its programs and passes its options on; the shell gets its completions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_syntax.cli import demo
from fairseq_syntax.cli import main as command
from fairseq_syntax.cli.command import commands


def test_options_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        calls.append(words)
        return subprocess.CompletedProcess(words, 3)

    monkeypatch.setattr(subprocess, "run", run)
    assert command(["demo", "--only", "PASCAL", "DLAA", "--output", "here", "--seeds", "1", "2"]) == 3
    (words,) = calls
    assert words[0] == sys.executable and Path(words[1]) == demo.toy_folder() / "run.py"
    assert words[2:] == ["--output", "here", "--workers", "2", "--only", "PASCAL", "DLAA", "--seeds", "1", "2"]


def test_a_package_without_the_programs_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "a" / "b" / "cli" / "demo.py"))
    assert command(["demo"]) == 1
    assert "toy programs are not there" in capsys.readouterr().err


def completions(line: str, out: Path) -> set[str]:
    """What a shell is offered at the end of a line."""
    environment = {**os.environ, "PYTHONPATH": str(Path(demo.__file__).parents[2])}
    environment |= {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    environment |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(out), "COMP_TYPE": "9"}
    subprocess.run([sys.executable, "-m", "fairseq_syntax"], env=environment, capture_output=True, timeout=60)
    return {word.strip() for word in out.read_text("utf-8").split("\n")}


@pytest.mark.slow
def test_the_shell_completes_subcommands_and_options(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    assert set(commands()) <= completions("fairseq-syntax ", tmp_path / "a")
    assert completions("fairseq-syntax parse --mer", tmp_path / "b") == {"--merge"}
