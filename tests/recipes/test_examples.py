"""Every recipe of the repository is one, without shell but in commands, and its kept results are its own."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fairseq_syntax.lab.recipes.layout import located
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import as_markdown, page_sections
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.recipes.smoke import smoke
from fairseq_syntax.lab.recipes.stages import KINDS, dependencies

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECIPES = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.name != "compose.yaml"]  # that is of Docker
CORPORA = sorted((EXAMPLES.parent / "preprocess").glob("*.yaml"))
KEPT = [path for path in RECIPES if path.with_suffix(".jsonl.gz").exists()]


def named(path: Path) -> str:
    return path.relative_to(EXAMPLES).as_posix()


@pytest.mark.checkout
@pytest.mark.parametrize("path", RECIPES, ids=named)
def test_every_recipe_is_one_and_has_stages(path):
    recipe = load_recipe(path)
    assert recipe.name
    plan = Plan(recipe, path)
    stages = plan.stages(plan.runs)
    names = [stage.name for stage in stages]
    assert len(names) == len(set(names))
    kinds = {stage.name: KINDS.index(stage.kind) for stage in stages}
    for name, needed in dependencies(stages).items():
        assert all(kinds[one] <= kinds[name] for one in needed), f"--to leaves nothing out that {name} needs"
    outputs = [output for stage in stages for output in stage.outputs]
    assert len(outputs) == len(set(outputs)), "no two stages make one file"
    assert {stage.kind for stage in stages} >= {"corpus", "filter", "pieces", "binarize", "train", "translate"}


@pytest.mark.checkout
@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.stem)
def test_a_recipe_of_a_corpus_ends_with_binarized_data_and_can_be_extended(path, tmp_path):
    work = Work(Plan(load_recipe(path), path))
    stages = work.all_stages()
    assert work.to == "binarize" and stages[-1].kind == "binarize" and {"corpus", "parse"} < {s.kind for s in stages}
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: {path}\nsystems: {{plain: {{arch: transformer}}}}\n")
    work = Work(Plan(load_recipe(mine), mine))
    assert [stage.name for stage in work.stages()][: len(stages)] == [stage.name for stage in stages]
    assert {"train", "translate"} < {stage.kind for stage in work.stages()}


@pytest.mark.matrix(25)
@pytest.mark.checkout
@pytest.mark.parametrize("path", RECIPES, ids=named)
def test_a_smoke_run_reads_no_file_with_a_line_for_each_sentence_of_a_test(path):
    """A smoke run has a few sentences of each test."""
    plan = Plan(smoke(load_recipe(path)), path)
    scored = [stage for table in plan.tables() if (stage := plan.score(table, plan.runs))]
    words = {word for stage in scored for command in stage.commands for word in str(command).split()}
    assert "--ref" in words and not {"--lines", "--groups"} & words


@pytest.mark.checkout
@pytest.mark.parametrize("path", KEPT, ids=named)
def test_results_that_are_kept_are_those_of_the_recipe(path, tmp_path):
    recipe = load_recipe(path, {"folder": str(tmp_path)})
    work = Work(Plan(recipe, path))
    assert work.kept_runs and len(work.kept_runs) == len(work.kept.runs)
    results = work.results()
    assert {str(table) for table in results.reports} == set(work.kept.scores)
    if recipe.page:  # as `run --report` writes it
        page = located(recipe.page, work.plan.base)
        assert page.read_text(encoding="utf-8") == as_markdown(work.plan, list(page_sections(work.plan, results)))


@pytest.mark.checkout
def test_results_of_another_recipe_are_not_taken(tmp_path):
    path = EXAMPLES / "multi30k" / "cpu.yaml"

    def changed(**changes: str) -> Work:
        return Work(Plan(load_recipe(path, {"folder": str(tmp_path), **changes}), path))

    other = changed(**{"train.lr": "0.5"})
    assert other.kept.runs and not other.kept_runs
    same = changed(threads="7", device="cuda", name="other", **{"systems.pascal.about": "what it is"})
    assert len(same.kept_runs) == 13
    of_one = changed(**{"commands.multitask.run": "true"})
    assert len(of_one.kept_runs) == 12, "all but the system whose data it makes"
    assert not changed(env="{X: 1}").kept_runs


@pytest.mark.checkout
def test_the_page_of_pretrained_models_has_the_tables_of_what_is_kept(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "pretrained")
    spec = spec_from_file_location("pretrained_page", EXAMPLES / "pretrained" / "page.py")
    spec.loader.exec_module(page := module_from_spec(spec))
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_tables(text) == text, "run examples/pretrained/page.py, and read the sentences beside its tables"
