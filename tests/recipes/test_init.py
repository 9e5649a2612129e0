"""``fairseq-syntax init`` writes a recipe that suits the corpus, and that runs as it is."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
from data_errors import data_error, refused
from fairseq.models import ARCH_MODEL_REGISTRY
from matrix_part import of_ten_seconds

import fairseq_syntax
from fairseq_syntax import cli
from fairseq_syntax.cli.command import check_line
from fairseq_syntax.lab.recipes.checks import problems
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.stages import Out
from fairseq_syntax.lab.recipes.start import recipe_entry, recipe_system_names
from fairseq_syntax.model.decoder import DECODER_SYSTEMS
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.model.lstm import SyntaxLSTMModel

pytestmark = pytest.mark.usefixtures("composed")
CHAIN = "fairseq_syntax.corpus.parsing.chain"
HELPERS = Path(__file__).resolve().parents[1] / "helpers"
PACKAGE = Path(fairseq_syntax.__file__).parents[1]
WORDS = ["a", "man", "in", "red", "shirt", "rides", "his", "bike", "near", "two", "dogs", "and", "one", "cat"]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch) -> Path:
    """English with German, a word for a word, and with Japanese, without spaces."""
    draw = random.Random(3)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, lines in (("train", 150), ("valid", 10), ("test", 20)):
        texts = [draw.choices(WORDS, k=draw.randint(4, 12)) for _ in range(lines)]
        (folder / f"{split}.en").write_text("".join(" ".join(words) + "\n" for words in texts))
        (folder / f"{split}.de").write_text("".join(" ".join(w.upper() for w in words) + "\n" for words in texts))
        kana = ["".join(chr(0x3042 + WORDS.index(word)) for word in words) for words in texts]
        (folder / f"{split}.ja").write_text("".join(f"{line}\n" for line in kana), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STANZA_RESOURCES_DIR", str(tmp_path / "no-models"))
    return tmp_path


def init(target: str, more: str = "") -> None:
    files = "--train corpus/train --valid corpus/valid --test corpus/test"
    assert cli.main(shlex.split(f"init {files} -s en -t {target} {more}")) == 0


def test_it_offers_every_registered_system():
    lstms = {arch for arch, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, SyntaxLSTMModel)}
    assert set(recipe_system_names()) == {*ENCODER_SYSTEMS, *DECODER_SYSTEMS, *lstms}


@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_every_system_is_beside_the_baseline_and_its_placebo(corpus, kind):
    """With relative positions beside it, and with what it reads of the parses."""
    names = [name for name in recipe_system_names() if name.endswith("_lstm") == (kind == "lstm")]
    init("de", f"--system {' '.join(names)}")
    recipe = load_recipe(Path("recipe.yaml"))
    first, *others = recipe.systems.items()
    assert first[1].arch == {"lstm": "lstm", "transformer": "relative_positions_transformer"}[kind]
    assert {name.removesuffix(".shuffled") for name, _ in others} | {first[0]} >= set(names)
    for name, system in others:
        assert kind == "lstm" or "relative_positions" in system.options["encoder-syntax"].split(",")
        assert (system.parse == "shuffled") == name.endswith(".shuffled")
    if kind == "transformer":
        assert recipe.parse.source.distributions, "LDD reads the parser's probabilities"
        assert recipe.parse.target and recipe.systems["lasyn"].train == {"criterion": "lasyn_em"}
        assert recipe.systems["dbsa"].arch == "dbsa_transformer" and "lasyn.shuffled" not in recipe.systems


def test_a_trained_model_is_changed_little_by_the_systems_that_are_added():
    heads, pascal = (recipe_entry(name, beside="").options for name in ("supervised_heads", "pascal"))
    assert heads == {"encoder-syntax": "supervised_heads", "child-weight": 0, "parent-weight": 0.1}
    assert pascal == {"encoder-syntax": "pascal", "pascal-heads": 1, "pascal-layers": -1}
    assert recipe_entry("pascal").options == {"encoder-syntax": "pascal,relative_positions"}


@pytest.mark.checkout
def test_the_first_recipe_of_the_pages_is_what_it_writes(corpus):
    init("de")
    written, shown = load_recipe(Path("recipe.yaml")), load_recipe(Path(__file__).parents[2] / "examples/first.yaml")
    assert written.parse == shown.parse and written.score.shares == shown.score.shares
    for recipe in (written, shown):
        for system in recipe.systems.values():
            system.arch = system.arch.removesuffix("_iwslt_de_en")
    assert written.systems == shown.systems


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_fairseq_trains_and_searches_with_every_system(corpus, kind):
    names = [name for name in recipe_system_names() if name.endswith("_lstm") == (kind == "lstm")]
    init("de", f"--system {' '.join(names)}")
    path = Path("recipe.yaml")
    path.write_text(path.read_text().replace("parser: stanza", f"parser: {CHAIN}"))
    plan = Plan(load_recipe(path, {"pieces.size": "60"}), path)
    runs = [run for run in plan.runs if plan.recipe.systems[run.system].parse == "parse"]
    assert list(problems(plan, plan.stages(runs), check_line)) == []


@pytest.mark.parametrize(("names", "parsed"), [("PASCAL", True), ("relative-positions transformer", False)])
def test_the_text_is_parsed_if_a_model_reads_a_parse(corpus, capsys, names, parsed):
    init("de", f"--system {names}")
    recipe = load_recipe(Path("recipe.yaml"))
    assert bool(recipe.parse.source) == parsed == ("no-models" in capsys.readouterr().out)
    assert ("pascal" in recipe.systems) == parsed and (recipe.score.shares is not None) == parsed


def test_lstms_and_transformers_are_not_of_one_recipe(corpus):
    files = ["--train", "corpus/train", "--valid", "corpus/valid", "--test", "corpus/test", "-s", "en", "-t", "de"]
    refused(["init", *files, "--system", "pascal", "gcn_lstm"], option="--system")
    refused(["init", *files, "--system", "pascall"], "pascal", option="--system")


def test_models_of_a_parser_are_used_where_no_system_needs_them(corpus):
    init("de", "--system relative_positions --model-dir models")
    assert load_recipe(Path("recipe.yaml")).parse.source.models == "models"


def test_another_parser_is_in_the_recipe_and_in_its_commands(corpus, capsys):
    init("de", "--parser spacy --model-dir en_core_web_sm")
    assert "en_core_web_sm" in capsys.readouterr().out.splitlines()[0], "it is not installed, which is told at once"
    recipe = load_recipe(Path("recipe.yaml"))
    assert (recipe.parse.source.parser, recipe.parse.source.models) == ("spacy", "en_core_web_sm")
    plan = Plan(recipe, Path("recipe.yaml"))
    (command,) = [
        str(one) for stage in plan.stages(plan.runs) for one in stage.commands if "train.en.conllu" in str(one)
    ][:1]
    assert "--parser spacy " in command and "--model-dir en_core_web_sm " in command, "a name, no path"
    Path("en_core_web_sm").mkdir()
    assert str(plan.models(recipe.parse.source)) == "en_core_web_sm" and type(plan.models(recipe.parse.source)) is Out
    files = ["--train", "corpus/train", "--valid", "corpus/valid", "--test", "corpus/test", "-s", "en", "-t", "de"]
    refused(["init", *files, "--parser", "spacy", "--system", "ldd", "--output", "ldd.yaml"], option="--distributions")
    assert not Path("ldd.yaml").exists()
    with data_error("distributions"):
        load_recipe(Path("recipe.yaml"), {"parse.source.distributions": "true"})


def test_what_suits_a_target_without_spaces(corpus):
    Path("ja").mkdir()
    init("ja", "--output ja/recipe.yaml")
    recipe = load_recipe(Path("ja/recipe.yaml"))
    assert recipe.score.tokenize == "ja-mecab" and "max_ratio" not in recipe.corpus.filter
    assert recipe.pieces.character_coverage == {"ja": 0.9995} and recipe.pieces.size["ja"] >= 4000
    plan = Plan(recipe, Path("ja/recipe.yaml"))
    assert {Path(name).resolve() for name in plan.stages(plan.runs)[0].reads} >= {
        (corpus / "corpus" / f"{split}.{lang}").resolve() for split in ("train", "valid") for lang in ("en", "ja")
    }, "files are named as seen from the recipe"


@pytest.mark.parametrize("name", ["a #1", "b: c", "[v1], d", 'it\'s "e"', "@f", "{g}", "null", "- h", "2016", "é"])
def test_files_of_any_name_are_in_the_recipe(corpus, name):
    Path("corpus").rename(name)
    train = [f"{name}/train.en", f"{name}/train.de"]
    argv = ["init", "-s", "en", "-t", "de", "--train", *train, "--valid", f"{name}/valid"]
    argv += ["--test", f"2016={name}/test", "--model-dir", f"./{name}"]
    assert cli.main(argv) == 0
    recipe = load_recipe(Path("recipe.yaml"))
    assert recipe.corpus.train == train and recipe.corpus.valid == [f"{name}/valid"]
    assert [*recipe.corpus.tests] == ["2016"] and recipe.parse.source.models == name


def test_what_it_says(corpus, capsys):
    init("de")
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "next: fairseq-syntax run recipe.yaml"
    assert "no-models" in said[0] and "stanza.download('en')" in said[0], "a parser without models is told at once"
    for name in ("pos.pt", "depparse.pt"):
        (corpus / name).touch()
    init("de", "--model-dir . --output other.yaml")
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert load_recipe(Path("other.yaml")).parse.source.models == "."
    files = ["--train", "corpus/train", "--valid", "corpus/valid", "--test", "corpus/test", "-s", "en", "-t", "de"]
    init("de", "--system pascal")  # as nobody has changed the first one
    Path("recipe.yaml").write_text(Path("recipe.yaml").read_text().replace("seeds: [1]", "seeds: [1, 2]"))
    refused(["init", *files], path="recipe.yaml")
    (corpus / "corpus" / "valid.de").write_text("eine\n")
    refused(["init", *files, "--output", "third.yaml"], "corpus/valid.de")


@of_ten_seconds
@pytest.mark.slow
def test_it_runs_to_the_table_and_to_a_command_that_translates(corpus, capsys):
    init("de", "--model-dir models")
    path = Path("recipe.yaml")
    text = path.read_text().replace("parser: stanza", "parser: fairseq_syntax.corpus.parsing.chain")
    path.write_text(f'{text}\nenv: {{PYTHONPATH: "{HELPERS / "quick_fairseq"}:{PACKAGE}"}}\n')
    changes = ["pieces.size=60", "score.trials=0", "score.resamples=50"]
    assert cli.main(["run", "recipe.yaml", "--workers", "2", "--set", *changes]) == 0
    said = capsys.readouterr().out
    assert "\nruns/recipe/report.md: the report\n" in said, "named as seen from the current folder"
    assert "| supervised_heads.shuffled |" in (corpus / "runs" / "recipe" / "report.md").read_text("utf-8")
    command = shlex.split(said.splitlines()[-1])
    assert command[:3] == ["next:", "fairseq-syntax", "translate"] and Path(command[3]).exists()
    assert command[-2:] == ["--model-dir", "models"], "of the recipe: it is the parser's now as then"
