"""The new system of CONTRIBUTING.md, in one file as it stands there: it trains beside every other, in any batch."""

import random
import re
import sys
import types
from dataclasses import fields
from pathlib import Path
from runpy import run_path

import gpu_costs
import pytest
import torch
import ways
from random_parses import random_line
from tiny_syntax import encode, sample, tiny_model

from fairseq_syntax import cli
from fairseq_syntax.lab.recipes import start
from fairseq_syntax.lab.recipes.reading import load
from fairseq_syntax.model.decoder import DecoderSystem
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS, EncoderSystem
from fairseq_syntax.model.heads import HeadClaims, HeadSystem

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
LINES = [random_line(random.Random(seed)) for seed in range(4)]


@pytest.fixture
def siblings():
    """The module of the example, known while a test runs."""
    module = sys.modules["siblings"] = types.ModuleType("siblings")
    exec(compile(CODE, "siblings.py", "exec"), module.__dict__)
    yield module
    del sys.modules["siblings"], ENCODER_SYSTEMS["siblings"]


@pytest.mark.parametrize("other", sorted(ENCODER_SYSTEMS))
@pytest.mark.parametrize("order", [1, -1])
def test_the_example_beside_every_other_system(siblings, other, order, tmp_path):
    groups = tmp_path / "groups.txt"
    groups.write_text("one: a b\ntwo: c d\n")
    both = ["siblings", other][::order]
    # A system that reads another's parent head needs one that has it.
    both += ["supervised_heads"] if other.startswith("predicted") else []
    options = {"encoder_layers": 4, "lisa_layer": 1, "parent_layer": 1, "ldd_label_groups": str(groups)}
    model = tiny_model("syntax_transformer", encoder_syntax=",".join(both), ldd_variant="LDP", **options)
    model(**sample(LINES, True)["net_input"])[0].square().sum().backward()
    bonus = model.encoder.systems["siblings"].bonus
    assert bonus.grad.abs().min() > 0
    model.eval()
    before = encode(model, LINES, True)
    with torch.no_grad():
        bonus.fill_(2.0)
    after = encode(model, LINES, True)
    assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(before, after))
    alone = [encode(model, [line], left=False)[0] for line in LINES]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, after))


@pytest.mark.checkout
def test_the_layout_names_every_hook():
    page = (ROOT / "fairseq_syntax" / "README.md").read_text(encoding="utf-8")
    hooks = {name for system in (HeadSystem, EncoderSystem, DecoderSystem) for name in vars(system) if name[0] != "_"}
    hooks |= {field.name for field in fields(HeadClaims)}
    assert [name for name in sorted(hooks - {"term_where_parsed"}) if not re.search(rf"`{name}\b", page)] == []


def test_the_bonus_by_loops(siblings):

    together = torch.zeros(1, 3, 3).bool()
    together[0, 0, 2] = together[0, 2, 0] = True
    term = siblings.SiblingTerm(together, torch.tensor([1.0, -2.0]))
    scores = torch.randn(1, 2, 3, 3)
    found = term.scores(scores, None)
    for h, bonus in enumerate((1.0, -2.0)):
        for i in range(3):
            for j in range(3):
                extra = bonus if {i, j} == {0, 2} else 0.0
                assert float(found[0, h, i, j]) == pytest.approx(float(scores[0, h, i, j]) + extra)


def test_a_first_recipe_has_the_example_with_no_further_edit(siblings, tmp_path, monkeypatch):
    """The file of the system, in the folder of the systems, is all that ``init --system`` reads."""
    (tmp_path / "siblings.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "SYSTEMS", tmp_path)
    for file in ("text.en", "text.de"):
        Path(file).write_text("a b\n", encoding="utf-8")
    options = "--train text --valid text --test text -s en -t de --system siblings --output recipe.yaml"
    assert cli.main(["init", *options.split()]) == 0
    system = load(Path("recipe.yaml")).systems["siblings"]
    assert (system.arch, system.options) == ("syntax_transformer", {"encoder-syntax": "siblings"})


@pytest.fixture
def rows(siblings, monkeypatch):
    """The rows of the tests, as they are where the example is a file of the package."""
    transformers = ways.transformers()
    monkeypatch.setattr(ways, "TRANSFORMERS", transformers)
    monkeypatch.setattr(ways, "ROWS", {**transformers, **ways.LSTMS})
    return transformers


def test_the_tables_of_the_tests_have_the_example_with_no_further_edit(rows):
    """Its row for fairseq's options, its bound of kernels on a GPU, and its row of estimates."""
    assert rows["siblings"] == f"--arch syntax_transformer --encoder-syntax siblings {ways.PLAIN}"
    assert gpu_costs.allowed("siblings") == gpu_costs.KERNELS["transformer"]
    path = ROOT / "tools" / "gpu_estimate.py"
    estimated = run_path(str(path))["rows"]()
    assert estimated["siblings"].startswith(rows["siblings"])


@pytest.mark.slow
def test_the_example_trains_and_translates_as_every_row_does(rows, tmp_path):
    bench = ways.make(tmp_path)
    assert ways.run(bench, "siblings", "default") == ways.Outcome("works")
