"""A system of one's own, in a folder outside the package, is at home in every command: examples/own_system."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_data
from warm_commands import warm_commands

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_system"
PLUGIN = "tree_alibi"
SIZES = {name: value for name, value in toy_data.MODEL.items() if name != "--arch"}

pytestmark = [pytest.mark.slow, pytest.mark.checkout]


class Shell:
    """Commands of a new process each, in a folder that has a copy of the plugin and a link to the toy corpus."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore"}

    def run(self, line: str, status: int = 0, **variables: str) -> str:
        """Run a command line; what it printed on both streams."""
        done = subprocess.run(
            line.split(), cwd=self.folder, env={**self.environment, **variables}, capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said[-2000:]
        return said

    def train(self, arch: str, output: str, more: str = "", **variables: str) -> str:
        options = {**SIZES, **toy_data.TRAINING, "--arch": arch, "--save-dir": output}
        words = " ".join(f"{name} {value}" for name, value in options.items())
        return self.run(f"fairseq-train toy/data {words} {' '.join(toy_data.FLAGS)} {more}", **variables)


@pytest.fixture(scope="module")
def shell(toy, tmp_path_factory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(EXAMPLE / PLUGIN, folder / PLUGIN)
    (folder / "toy").symlink_to(toy.data.parent)
    with warm_commands(tmp_path_factory.mktemp("commands")) as commands:
        yield Shell(folder, commands)


@pytest.fixture(scope="module")
def model(shell) -> str:
    """The checkpoint of a model with both systems, trained by plain fairseq-train with the plugin alone."""
    systems = f"--encoder-syntax {PLUGIN},grandparent_head --criterion supervised_head --user-dir {PLUGIN}"
    shell.train("syntax_transformer", "model", systems)
    return "model/checkpoint_last.pt"


USES = {
    "translate": "translate MODEL --input toy/raw/test.en.conllu --output out/test.de",
    "align": "align MODEL --input toy/raw/test.en.conllu --translations toy/raw/test.de --output out/links",
    "show": "show MODEL --data toy/data --split test --sentences 1-2 --output out/page.html",
}


@pytest.mark.parametrize("name", USES)
def test_commands_load_its_models(shell, model, name):
    (shell.folder / "out").mkdir(exist_ok=True)
    line = f"fairseq-syntax {USES[name]}".replace("MODEL", model)
    output = shell.folder / line.split()[-1]
    refused = shell.run(line, status=1)
    assert len(refused.strip().splitlines()) == 1 and f"--user-dir FOLDER/{PLUGIN}" in refused
    assert not output.exists()
    shell.run(f"{line} --user-dir {PLUGIN}")
    assert output.stat().st_size
