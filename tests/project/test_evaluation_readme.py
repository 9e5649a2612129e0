"""The commands of examples/evaluation/README.md run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_syntax.cli import main as command

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_bash_block_runs(tmp_path, monkeypatch, capsys):
    text = (ROOT / "examples/evaluation/README.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for line in blocks.splitlines()]
    assert len(commands) == 6
    for program, *argv in commands:
        if program == "python":
            subprocess.run([sys.executable, *argv], check=True)
        else:  # in this process: starting each would load PyTorch
            assert program == "fairseq-syntax" and command(argv) == 0, argv
    printed = capsys.readouterr().out
    assert "Scores of 200 sentences" in printed and "lines, " in printed
    for name in ("scores.json", "box.png", "length.svg", "kept.src", "removed.tsv"):
        assert (tmp_path / "runs/demo" / name).stat().st_size > 0, name
