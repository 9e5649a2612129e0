"""A system of one's own, in a folder outside the package, is at home in every command: examples/own_system."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import toy_data
from own_plugin import EXAMPLE, own_plugin
from warm_commands import warm_commands

from fairseq_syntax import Translator
from fairseq_syntax.cli.command import commands
from fairseq_syntax.corpus.conllu import read_conllu

PLUGIN = "tree_alibi"
SIZES = {name: value for name, value in toy_data.MODEL.items() if name != "--arch"}

pytestmark = pytest.mark.checkout


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
    "contrast": "contrast MODEL --set set.tsv --conllu toy/raw/test.en.conllu --json out/contrast.json",
}


def test_every_command_that_takes_a_model_takes_plugins():
    for name, module in commands().items():
        parser = module.COMMAND.add_to(ArgumentParser().add_subparsers(), name)
        takes = any(action.dest == "model" and not action.option_strings for action in parser._actions)
        builds = takes and name != "average"  # which reads parameters, not code
        has_option = any(action.dest == "user_dir" for action in parser._actions)
        assert has_option == (builds or name in ("run", "init")), name


@pytest.mark.matrix(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_commands_load_its_models(shell, model, name):
    (shell.folder / "out").mkdir(exist_ok=True)
    sources, targets = (
        (shell.folder / "toy/raw" / f"test.{kind}").read_text("utf-8").splitlines() for kind in ("en.text", "de")
    )
    rows = (f"{source}\t{target}\t{target[::-1]}" for source, target in zip(sources, targets, strict=True))
    (shell.folder / "set.tsv").write_text("\n".join(["source\tcorrect\tincorrect", *rows, ""]), encoding="utf-8")
    line = f"fairseq-syntax {USES[name]}".replace("MODEL", model)
    output = shell.folder / line.split()[-1]
    *before, refusal = shell.run(line, status=1).splitlines()  # before: contrast notes an empty source
    assert f"--user-dir FOLDER/{PLUGIN}" in refusal and len(before) == (name == "contrast")
    assert not output.exists()
    shell.run(f"{line} --user-dir {PLUGIN}")
    assert output.stat().st_size


@pytest.mark.slow
def test_fairseqs_commands_and_python_load_its_models(shell, model):
    """By the variable that names plugins, beside this package's own --user-dir; and by an argument."""
    line = f"fairseq-generate toy/data --user-dir {toy_data.USER_DIR} --task syntax_translation --path {model} --cpu"
    assert f"--user-dir FOLDER/{PLUGIN}" in shell.run(line, status=1)
    printed = shell.run(f"{line} --gen-subset test", FAIRSEQ_SYNTAX_USER_DIR=PLUGIN)
    assert len([text for text in printed.splitlines() if text.startswith("H-")]) == toy_data.SIZES["test"]
    with own_plugin(shell.folder / PLUGIN) as folder:
        data, parse = shell.folder / "toy/data", shell.folder / "toy/raw/test.en.conllu"
        translator = Translator.load(shell.folder / model, data, device="cpu", user_dir=folder)
        assert len(translator.translate(list(read_conllu(parse)))) == toy_data.SIZES["test"]


@pytest.mark.slow
def test_the_recipe_runs_elsewhere_and_what_is_plain_at_inference_is_exported(shell):
    """The recipe of the example, a part of its systems, as anyone would begin."""
    draw = random.Random(3)
    (shell.folder / "corpus").mkdir()
    for split, lines in (("train", 60), ("valid", 8), ("test", 12)):
        for lang in ("en", "de"):
            text = (" ".join(draw.choices(toy_data.WORDS, k=draw.randint(3, 9))) for _ in range(lines))
            (shell.folder / "corpus" / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in text))
    shutil.copy(EXAMPLE / "recipe.yaml", shell.folder)
    line = "fairseq-syntax run recipe.yaml --smoke --workers 1 --only"
    wrong = shell.run(
        f"{line} tree_alibi --dry-run --set systems.tree_alibi.options.encoder-syntax=tree_albi", status=1
    )
    assert "did you mean tree_alibi" in wrong
    shell.run(f"{line} transformer grandparents tree_alibi.linear")
    models = shell.folder / "runs/recipe-smoke/models"
    recorded = {
        name: torch.load(models / name / "1/checkpoint_last.pt", weights_only=True)["extra_state"]["plugins"]
        for name in ("transformer", "grandparents", "tree_alibi.linear")
    }
    assert recorded.pop("transformer") == [], "user_dir: []"
    assert [[one["name"] for one in of_model] for of_model in recorded.values()] == [[PLUGIN], [PLUGIN]]
    checkpoint = "runs/recipe-smoke/models/grandparents/1/checkpoint_last.pt"
    shell.run(f"fairseq-syntax export {checkpoint} --user-dir {PLUGIN} --to fairseq --output exported")
    (shell.folder / "text").write_text("a man\n")
    shell.run("fairseq-syntax translate exported --input text --output out.de")
    assert (shell.folder / "out.de").read_text("utf-8").count("\n") == 1
