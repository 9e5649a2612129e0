"""Every recipe of a paper's table, and of a corpus, runs, cut down to seconds, on files in its corpus's own format."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import paper_corpora
import pytest
import toy_data
from matrix_part import of_ten_seconds

from fairseq_syntax import cli
from fairseq_syntax.cli.command import check_line
from fairseq_syntax.lab.recipes.checks import problems
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import write_report
from fairseq_syntax.lab.recipes.runner import Runner
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.recipes.schema import Recipe
from fairseq_syntax.lab.recipes.smoke import smoke
from fairseq_syntax.runtime.commands import run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PAPERS = ("pascal", "ldd", "supervised_heads", "lasyn", "dlaa")
RECIPES = sorted(path for paper in PAPERS for path in (EXAMPLES / paper).glob("*.yaml"))
CORPORA = sorted(path for path in (EXAMPLES.parent / "preprocess").glob("*.yaml") if path.stem != "libreoffice")
EVERY = bool(os.environ.get("EVERY_RECIPE"))  # as `make recipes` does, in minutes
# Otherwise these alone train: one of each paper.
TRAINED = RECIPES if EVERY else [max((EXAMPLES / paper).glob("*.yaml")) for paper in PAPERS]
CHARACTERS = f"{sys.executable} -c 'import sys; [print(*line.strip()) for line in sys.stdin]'"
pytestmark = [pytest.mark.checkout, pytest.mark.slow, pytest.mark.usefixtures("composed")]


class InProcess(Runner):
    """Runs commands in this process, which has fairseq loaded: it takes seconds to."""

    def _run(self, command, log, gpus) -> int:
        program, arguments = command.words[0], command.arguments()
        text = StringIO()
        if program == "fairseq-syntax":
            with redirect_stdout(text):
                status = cli.main(arguments[3:]) or 0
        elif str(program).startswith("fairseq-"):
            rest = arguments[3:]
            place = rest.index("--user-dir")
            text.write(toy_data.fairseq(program.removeprefix("fairseq-"), *rest[:place], *rest[place + 2 :]))
            status = 0
        else:
            status = run_command(arguments, os.getcwd(), self.variables, str(log))
        if command.stdout is not None:
            command.stdout.write_text(text.getvalue(), encoding="utf-8")
        return status


def some(recipe) -> list[str]:
    """The first system and the last: rows that an `extends` took over have been run with the recipe it extends."""
    names = list(recipe.systems)
    return list(dict.fromkeys([names[0], names[-1]]))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def reduced(path: Path, folder: Path) -> tuple[Recipe, Recipe]:
    """A recipe, with its corpus as small files in the folder, and its version for a smoke test."""
    recipe = load_recipe(path, {"corpus.data": str(folder / "data"), "folder": str(folder / "out")})
    paper_corpora.CORPORA[recipe.corpus.reader](folder / "data", (recipe.corpus.source, recipe.corpus.target))
    return recipe, smoke(recipe)


@pytest.mark.parametrize("path", CORPORA if EVERY else CORPORA[:1], ids=name_of)
def test_a_recipe_of_a_corpus_ends_with_binarized_data(path, tmp_path):
    _, small = reduced(path, tmp_path)
    work = Work(Plan(small, path))
    assert work.run(InProcess(work.plan.folder, 1, work.variables)) == []
    stores = {path.name.partition(".")[0] for path in work.plan.bin().glob("*.syntax.arrow")}
    assert stores >= {"train", "valid", "test"}


def smoke_test(path: Path, folder: Path, to: str) -> tuple[Work, list[str], Recipe]:
    """Runs the smoke test of a recipe up to a kind of stage; without EVERY_RECIPE, of the last system alone."""
    recipe, small = reduced(path, folder)
    if recipe.corpus.reader == "moses":  # tests are drawn from a corpus of 400 pairs
        words = dict.fromkeys(recipe.corpus.options["words"], CHARACTERS)
        small.corpus.options.update(words=words, group_size="5", valid_pairs="5")
    small = small.model_copy(update={"score": small.score.model_copy(update={"tokenize": "char"})})
    extended = any(line.startswith("extends:") for line in path.read_text(encoding="utf-8").splitlines())
    names = some(small) if extended else list(small.systems)
    if not EVERY:
        names = names[-1:]
    work = Work(Plan(small, path), names, to=to)
    if to == "report":  # what `run` checks first
        assert list(problems(work.plan, work.all_stages(), check_line)) == []
    assert work.run(InProcess(work.plan.folder, 1, work.variables)) == []
    return work, names, recipe


@of_ten_seconds
@pytest.mark.parametrize("path", [path for path in RECIPES if path not in TRAINED], ids=name_of)
def test_a_recipe_ends_with_binarized_data(path, tmp_path):
    smoke_test(path, tmp_path, "binarize")
    assert list((tmp_path / "out-smoke").rglob("*.syntax.arrow"))


@of_ten_seconds
@pytest.mark.parametrize("path", TRAINED, ids=name_of)
def test_a_recipe_ends_with_a_report(path, tmp_path):
    work, names, recipe = smoke_test(path, tmp_path, "report")
    report = write_report(work.plan, work.results())[0].read_text(encoding="utf-8")
    for name in names:
        assert f"| {name} |" in report
    for one in recipe.published if EVERY else ():
        assert one.source in report
    for table in work.plan.tables():
        assert work.plan.score_file(table).exists()
