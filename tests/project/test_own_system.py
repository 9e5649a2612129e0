"""A system of one's own, in a folder outside the package, is at home in every command: examples/own_system."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import urllib.request
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray_cluster  # sets the environment that Ray reads when it is imported
import torch
import toy_data
from notebooks import ROOT, run_notebook
from own_plugin import EXAMPLE, own_plugin

from fairseq_syntax import Translator
from fairseq_syntax.cli.command import commands
from fairseq_syntax.corpus.conllu import format_conllu, read_conllu

in_commands = pytest.mark.matrix(1, of="commands that load a plugin")
PLUGIN = "tree_alibi"
LOADED = f"--user-dir {PLUGIN}"
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

    def train(self, arch: str, output: str, more: str, data: str = "toy/data") -> None:
        options = {**SIZES, **toy_data.TRAINING, "--arch": arch, "--save-dir": output}
        words = " ".join(f"{name} {value}" for name, value in options.items())
        self.run(f"fairseq-train {data} {words} {' '.join(toy_data.FLAGS)} {more}")


@pytest.fixture(scope="module")
def shell(toy, warm, tmp_path_factory) -> Shell:
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(EXAMPLE / PLUGIN, folder / PLUGIN)
    (folder / "toy").symlink_to(toy.data.parent)
    return Shell(folder, warm.put(tmp_path_factory.mktemp("commands")))


@pytest.fixture(scope="module")
def model(shell) -> str:
    """The checkpoint of a model with both systems, trained by plain fairseq-train with the plugin alone."""
    systems = f"--encoder-syntax {PLUGIN},grandparent_head --criterion supervised_head {LOADED}"
    shell.train("syntax_transformer", "model", systems)
    return "model/checkpoint_last.pt"


@pytest.fixture(scope="module")
def parents(shell) -> str:
    """The checkpoint of a model that needs no parse and predicts one, beside the plugin's head."""
    systems = "--encoder-syntax grandparent_head,supervised_heads --grandparent-head 2 --criterion supervised_head"
    shell.train("syntax_transformer", "parents", f"{systems} {LOADED}")
    return "parents/checkpoint_last.pt"


@pytest.fixture(scope="module")
def tagger(shell, toy) -> str:
    """The checkpoint of a LaSyn model whose encoder has the plugin's system; it translates texts into themselves."""
    (shell.folder / "same").mkdir()
    for split in ("train", "valid", "test"):
        for side in ("src", "tgt"):
            for suffix in ("", ".conllu"):
                (shell.folder / f"same/{split}.{side}{suffix}").symlink_to(toy.segmented / f"{split}.en{suffix}")
    prefixes = " ".join(f"--{split}pref same/{split}" for split in ("train", "valid", "test"))
    package = f"--user-dir {toy_data.USER_DIR} --task syntax_translation"
    shell.run(f"fairseq-preprocess {package} -s src -t tgt --destdir same/data {prefixes}")
    systems = f"--encoder-syntax {PLUGIN} --decoder-syntax lasyn --criterion lasyn_em --label-smoothing 0 {LOADED}"
    shell.train("syntax_transformer", "tagger", f"{systems} -s src -t tgt", data="same/data")
    return "tagger/checkpoint_last.pt"


@pytest.fixture(scope="module")
def averaged(shell, model) -> str:
    """Made without the plugin: averaging reads parameters, not code."""
    shell.run(f"fairseq-syntax average {model} model/checkpoint_best.pt --output average.pt")
    return "average.pt"


USES = {
    "translate": "translate MODEL --input toy/raw/test.en.conllu --output out/test.de",
    "average": "translate AVERAGED --data toy/data --input toy/raw/test.en.conllu --output out/average.de",
    "tree": "tree PARENTS --input toy/raw/test.en.text --output out/trees.conllu",
    "diversify": "diversify TAGGER --random 3 --samples 2 --distances 0 1 --output out/diversity",
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


@in_commands
@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_commands_load_its_models(shell, request, name):
    """With the plugin; without it, one line names it, and nothing is written."""
    (shell.folder / "out").mkdir(exist_ok=True)
    sources, targets = (
        (shell.folder / "toy/raw" / f"test.{kind}").read_text("utf-8").splitlines() for kind in ("en.text", "de")
    )
    rows = (f"{source}\t{target}\t{target[::-1]}" for source, target in zip(sources, targets, strict=True))
    (shell.folder / "set.tsv").write_text("\n".join(["source\tcorrect\tincorrect", *rows, ""]), encoding="utf-8")
    words = USES[name].split()
    words[1] = request.getfixturevalue(words[1].lower())
    line = f"fairseq-syntax {' '.join(words)}"
    written = shell.folder / words[-1] / ("translations.tsv" if name == "diversify" else "")
    *before, refusal = shell.run(line, status=1).splitlines()  # before: contrast notes an empty source
    assert f"--user-dir FOLDER/{PLUGIN}" in refusal and len(before) == (name == "contrast")
    assert not written.exists()
    shell.run(f"{line} {LOADED}")
    assert written.stat().st_size


@pytest.fixture
def translations(shell, model) -> dict[str, str]:
    """Those of the test's parses of one sentence, in CoNLL-U, by the model in this process."""
    lines = list(read_conllu(shell.folder / "toy/raw/test.en.conllu"))
    with own_plugin(shell.folder / PLUGIN) as folder:
        translator = Translator.load(shell.folder / model, shell.folder / "toy/data", device="cpu", user_dir=folder)
        return {format_conllu(line): str(translator.translate(line)) for line in lines if len(line.sentences) == 1}


@in_commands
@pytest.mark.slow
def test_its_models_are_served(shell, model, translations):
    line = f"fairseq-syntax serve own={model} --port 0 --device cpu --parser none"
    assert f"--user-dir FOLDER/{PLUGIN}" in shell.run(line, status=1).splitlines()[-1]
    command = [*line.split(), *LOADED.split()]
    with subprocess.Popen(
        command, cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            for parse, translation in translations.items():
                body = json.dumps({"conllu": parse}).encode()
                request = urllib.request.Request(f"{address}translate", body, {"content-type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    (served,) = json.load(answer)["translations"]
                assert served["text"] == translation
        finally:
            server.send_signal(signal.SIGTERM)
    assert len(translations) > 3 and len(set(translations.values())) > 1


@in_commands
@pytest.mark.slow
def test_an_installed_plugin_needs_no_option(shell, model):
    """By its entry point, in a process of its own, whose path has what pip writes."""
    site = shell.folder / "site"
    shutil.copytree(EXAMPLE / PLUGIN, site / PLUGIN)
    about = site / "tree_alibi-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tree-alibi\nVersion: 0.1\n")
    declared = (EXAMPLE / "pyproject.toml").read_text("utf-8").replace('"', "").partition("[project.entry-points.")[2]
    (about / "entry_points.txt").write_text(f"[{declared.partition('[')[0]}")
    path = os.pathsep.join(filter(None, (str(site), str(ROOT), os.environ.get("PYTHONPATH", ""))))
    line = USES["translate"].replace("MODEL", model).replace("out/test.de", "installed.de")
    shell.run(f"{sys.executable} -m fairseq_syntax {line}", PYTHONPATH=path)
    assert (shell.folder / "installed.de").read_text("utf-8").count("\n") == toy_data.SIZES["test"]


@in_commands
@pytest.mark.slow
def test_a_notebook_loads_its_models(shell, model, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    load = f"Translator.load({model!r}, 'toy/data', device='cpu'"
    cells = [
        f"from fairseq_syntax import ParsedLine, Translator\ntry:\n    {load})\nexcept ValueError as e:\n    print(e)",
        f"translator = {load}, user_dir={PLUGIN!r})\ntranslator",
        "translator.translate(ParsedLine.of_words(['a', 'man'], [2, 0], ['det', 'root'], tags=['DET', 'NOUN']))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    run_notebook(notebook, shell.folder, shell.folder / "ipython", monkeypatch)
    refused, shown, translated = ("".join(map(str, cell.outputs)) for cell in notebook.cells)
    assert "user_dir" in refused and PLUGIN in shown and "text/html" in translated


@in_commands
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


RUN = "fairseq-syntax run recipe.yaml --smoke --workers 1 --only"


@pytest.fixture(scope="module")
def recipe(shell) -> Path:
    """The models of the recipe of the example, without those of the linear parse for grandparents."""
    draw = random.Random(3)
    (shell.folder / "corpus").mkdir()
    for split, lines in (("train", 60), ("valid", 8), ("test", 12)):
        for lang in ("en", "de"):
            text = (" ".join(draw.choices(toy_data.WORDS, k=draw.randint(3, 9))) for _ in range(lines))
            (shell.folder / "corpus" / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in text))
    shutil.copy(EXAMPLE / "recipe.yaml", shell.folder)
    wrong = shell.run(f"{RUN} tree_alibi --dry-run --set systems.tree_alibi.options.encoder-syntax=tree_albi", status=1)
    assert "did you mean tree_alibi" in wrong
    shell.run(f"{RUN} transformer grandparents tree_alibi.linear")
    return shell.folder / "runs/recipe-smoke"


def recorded(checkpoint: Path) -> list[str]:
    """The names of the plugins of a checkpoint's training."""
    return [one["name"] for one in torch.load(checkpoint, weights_only=True)["extra_state"]["plugins"]]


@in_commands
@pytest.mark.slow
def test_the_recipe_runs_elsewhere_and_what_is_plain_at_inference_is_exported(shell, recipe):
    """A part of its systems, as anyone would begin."""
    checkpoints = {name: recipe / f"models/{name}/1/checkpoint_last.pt" for name in ("transformer", "grandparents")}
    assert recorded(checkpoints["transformer"]) == [], "user_dir: []"
    assert recorded(checkpoints["grandparents"]) == [PLUGIN]
    assert recorded(recipe / "models/tree_alibi.linear/1/checkpoint_last.pt") == [PLUGIN]
    export = f"fairseq-syntax export {checkpoints['grandparents']} --to fairseq --output exported"
    assert f"--user-dir FOLDER/{PLUGIN}" in shell.run(export, status=1) and not (shell.folder / "exported").exists()
    shell.run(f"{export} {LOADED}")
    (shell.folder / "text").write_text("a man\n")
    shell.run("fairseq-syntax translate exported --input text --output out.de")
    assert (shell.folder / "out.de").read_text("utf-8").count("\n") == 1


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@in_commands
@pytest.mark.slow
def test_its_recipe_runs_on_a_cluster(shell, recipe):
    """One more system: parsed, trained and translated by Ray's workers."""
    with ray_cluster.ray_cluster(1) as nodes:
        shell.run(f"{RUN} grandparents.linear --ray {nodes.address}")
    assert recorded(recipe / "models/grandparents.linear/1/checkpoint_last.pt") == [PLUGIN]
    assert len(list(recipe.glob("outputs/*/grandparents.linear.1.out"))) == 1
