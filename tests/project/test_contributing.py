"""The plugin to copy, examples/own_system: in one process, beside every other system, in any batch, in every table."""

import random
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from runpy import run_path

import gpu_costs
import pytest
import torch
import ways
from data_errors import data_error
from own_plugin import EXAMPLE, own_plugin
from random_parses import random_line
from tiny_syntax import encode, tiny_model

from fairseq_syntax import cli, plugins
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes import start
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.model.decoder import DecoderSystem
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS, EncoderSystem
from fairseq_syntax.model.heads import HeadClaims, HeadSystem

ROOT = Path(__file__).resolve().parents[2]
LINES = [random_line(random.Random(seed)) for seed in range(4)]

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def own():
    with own_plugin() as folder:
        yield folder


def test_its_own_tests(own):
    functions = run_path(str(EXAMPLE / "test_tree_alibi.py"))
    names = [name for name in functions if name.startswith("test_")]
    for name in names:
        functions[name]()
    assert len(names) == 3


@pytest.mark.parametrize("other", sorted(ENCODER_SYSTEMS))
def test_it_works_beside_every_other_system(own, other, tmp_path):
    groups = tmp_path / "groups.txt"
    groups.write_text("one: a b\ntwo: c d\n")
    # A system that reads another's parent head needs one that has it.
    reads = ["supervised_heads"] if other.startswith("predicted") else []
    options = {"encoder_layers": 4, "lisa_layer": 1, "parent_layer": 1, "ldd_label_groups": str(groups)}
    states = []
    for both, steepness in (["tree_alibi", other], 8.0), ([other, "tree_alibi"], 1.0):
        options |= {"ldd_variant": "LDP", "alibi_steepness": steepness}
        model = tiny_model("syntax_transformer", encoder_syntax=",".join(both + reads), **options).eval()
        with torch.no_grad():
            states.append(encode(model, LINES, True))
            alone = [encode(model, [line], left=False)[0] for line in LINES]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, states[-1]))
    assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(*states)), "its option has an effect"


def test_the_layout_names_every_hook():
    page = (ROOT / "fairseq_syntax" / "README.md").read_text(encoding="utf-8")
    hooks = {name for system in (HeadSystem, EncoderSystem, DecoderSystem) for name in vars(system) if name[0] != "_"}
    hooks |= {field.name for field in fields(HeadClaims)}
    assert [name for name in sorted(hooks - {"term_where_parsed"}) if not re.search(rf"`{name}\b", page)] == []


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("text.en", "text.de"):
        Path(file).write_text("a b\n", encoding="utf-8")
    return "init --train text --valid text --test text -s en -t de"


@pytest.mark.parametrize("where", ["in the package", "in a plugin"])
def test_a_first_recipe_has_it_with_no_further_edit(own, text, monkeypatch, where):
    """The file of the system is all that ``init --system`` reads in the package; of a plugin, what it registers."""
    if where == "in the package":
        shutil.copy(own / "alibi.py", "tree_alibi.py")
        monkeypatch.setattr(start, "SYSTEMS", Path.cwd())
        assert cli.main([*text.split(), "--system", "tree_alibi"]) == 0
    else:
        assert cli.main([*text.split(), "--system", "tree_alibi", "grandparent_head", "--user-dir", str(own)]) == 0
        recipe = load_recipe(Path("recipe.yaml"))
        assert Path("recipe.yaml").parent.joinpath(*recipe.user_dir).resolve() == own.resolve()
        assert recipe.systems["grandparent_head"].arch == "grandparent_transformer"
    assert load_recipe(Path("recipe.yaml")).systems["tree_alibi"].arch == "tree_alibi_transformer"


def test_a_system_that_nothing_registers_is_told(own, text, capsys):
    assert cli.main([*text.split(), "--system", "tree_albi"]) == 1
    said = capsys.readouterr().err
    assert "did you mean tree_alibi" in said and "--user-dir" in said and not Path("recipe.yaml").exists()


def test_the_tables_of_the_tests_have_it_with_no_further_edit(own, monkeypatch):
    """Its rows for fairseq's options, its bound of kernels on a GPU, and its row of estimates."""
    rows = ways.transformers()
    monkeypatch.setattr(ways, "TRANSFORMERS", rows)
    monkeypatch.setattr(ways, "ROWS", {**rows, **ways.LSTMS})
    criterion = ways.criterion(HeadSystem.criterion)
    assert rows["tree_alibi"] == f"--arch tree_alibi_transformer {criterion}"
    assert rows["grandparent_head"] == f"--arch grandparent_transformer {criterion}"
    assert gpu_costs.allowed("tree_alibi") == gpu_costs.KERNELS["transformer"]
    estimated = run_path(str(ROOT / "tools" / "gpu_estimate.py"))["rows"]()
    assert estimated["tree_alibi"].startswith(rows["tree_alibi"])


def test_what_checkpoints_record_of_plugins(own, monkeypatch, caplog):
    (recorded,) = plugins.record()
    assert recorded == {"name": "tree_alibi", "version": "0.1", "digest": plugins.code_digest(own)}
    model = {"_name": "tree_alibi_transformer", "encoder_syntax": "tree_alibi"}
    state = {"cfg": {"model": model, "task": {"_name": "syntax_translation"}}, "extra_state": {"plugins": [recorded]}}
    with caplog.at_level("WARNING"):
        plugins.check_checkpoint(state, "model.pt")
    assert not caplog.records
    recorded["digest"] = "other"
    with caplog.at_level("WARNING"):
        plugins.check_checkpoint(state, "model.pt")
    assert "other code of the plugin tree_alibi 0.1" in caplog.text
    model["encoder_syntax"] = "pascal,tree_albi"
    with data_error("tree_albi", "tree_alibi", path="model.pt"):
        plugins.check_checkpoint(state, "model.pt")
    recorded["name"] = "another"
    with data_error("--user-dir FOLDER/another", path="model.pt"):
        plugins.check_checkpoint(state, "model.pt")
    model["encoder_syntax"] = "pascal"
    caplog.clear()
    with caplog.at_level("WARNING"):
        plugins.check_checkpoint(state, "model.pt")
    assert "another 0.1" in caplog.text, "the model may have been trained by its criterion only"


def test_a_plugin_that_cannot_be_imported_is_told_and_loaded_when_mended(tmp_path):
    folder = tmp_path / "broken_plugin"
    with data_error("no such folder", path=folder):
        plugins.load_folders([folder])
    folder.mkdir()
    with data_error("__init__.py", path=folder, option="--user-dir"):
        plugins.load_folders([folder])
    with data_error(str(folder), path=tmp_path):
        (folder / "__init__.py").touch()
        plugins.load_folders([tmp_path])
    (folder / "__init__.py").write_text("import math\nimport no_such_module\n")
    with own_plugin():  # which forgets what is loaded beside it
        with pytest.raises(SyntaxDataError, match=r"no_such_module.*__init__\.py:2"):
            plugins.load_folders([folder])
        assert "broken_plugin" not in plugins.loaded()
        (folder / "__init__.py").write_text("__version__ = '3'\n")
        plugins.load_folders([folder])
        assert str(plugins.loaded()["broken_plugin"]) == "broken_plugin 3"


def test_an_installed_plugin_is_loaded_and_a_broken_one_reported(own, tmp_path, monkeypatch, caplog):
    """By its entry point; its version is that of its distribution."""
    for name, code in (("good_plugin", ""), ("bad_plugin", "1 / 0")):
        (tmp_path / f"{name}.py").write_text(code)
        about = tmp_path / f"{name}-2.5.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
        (about / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with own_plugin(own), caplog.at_level("WARNING"):
        plugins.load_installed()
        assert str(plugins.loaded()["good_plugin"]) == "good_plugin 2.5"
    assert "bad_plugin" in caplog.text and "2.5" in caplog.text and "ZeroDivisionError" in caplog.text
    for name in ("good_plugin",):
        sys.modules.pop(name)
        plugins._versions.pop(name)
