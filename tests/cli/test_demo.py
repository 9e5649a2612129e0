"""The demo finds its programs and passes its options on; the shell gets its completions."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_syntax.cli import demo, run
from fairseq_syntax.cli import main as command
from fairseq_syntax.cli.command import commands


def test_the_recipe_of_the_toy_corpus_is_run_with_two_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []
    monkeypatch.setattr(run, "main", lambda args: calls.append(args) or 3)
    assert command(["demo", "--output", str(tmp_path)]) == 3
    (args,) = calls
    assert Path(args.recipe) == demo.toy_folder() / "toy.yaml"
    assert args.only == ["transformer", "PASCAL"] and args.output == str(tmp_path) and args.workers is None


@pytest.mark.parametrize(
    "pascal, shown, told",
    [
        (["ja", "es rechts", "der links"], "der links", "its parse does:"),
        (["ja", "es links", "der mitten"], "der mitten", "which no translation"),
        (["ja", "es links", "der rechts"], "es links", "which no translation"),
    ],
    ids=["right", "wrong", "alike"],
)
def test_the_demo_says_what_its_sentence_shows(tmp_path: Path, pascal: list[str], shown: str, told: str) -> None:
    folder = tmp_path / "a demo"
    texts = {"src": ["yes", "it left", "the left"], "tgt": ["ja", "es links", "der links"], "open": ["", "2", "2"]}
    outputs = {"transformer": ["ja", "es links", "der rechts"], "PASCAL": pascal}
    for path, lines in [
        *((folder / "toy" / f"test.{ending}", lines) for ending, lines in texts.items()),
        *((folder / "outputs" / "test" / f"{name}.1.out", lines) for name, lines in outputs.items()),
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    said = demo._comparison(folder)
    assert told in said and f"PASCAL       {shown}" in said
    assert f"{folder}/PASCAL.txt" in shlex.split(said.partition("next: ")[2].splitlines()[0])


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
