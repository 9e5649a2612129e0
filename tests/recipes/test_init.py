"""``fairseq-syntax init`` writes a recipe that suits the corpus, and that runs as it is."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
from data_errors import refused
from tiny_syntax import tiny_model

import fairseq_syntax
from fairseq_syntax import cli
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load
from fairseq_syntax.lab.recipes.start import systems
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.model.transformer import PRESETS, criterion_of

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


def test_every_system_that_it_offers_is_one(corpus):
    init("de", f"--system {' '.join(systems())}")
    recipe = load(Path("recipe.yaml"))
    assert list(recipe.systems) == ["transformer", *systems()]
    assert recipe.parse.source.distributions, "LDD reads the parser's probabilities"
    for name, system in list(recipe.systems.items())[1:]:
        preset = PRESETS[system.arch]
        assert preset["encoder_syntax"].split(",")[-1] == name and "decoder_syntax" not in preset
        assert system.train.get("criterion", "label_smoothed_cross_entropy") == criterion_of(preset)


def test_it_offers_every_registered_system_that_reads_no_parse_of_the_target():
    both_sides = {p["encoder_syntax"] for p in PRESETS.values() if {"encoder_syntax", "decoder_syntax"} <= set(p)}
    assert set(systems()) == set(ENCODER_SYSTEMS) - both_sides


@pytest.mark.parametrize("name", systems())
def test_the_text_is_parsed_if_a_model_of_these_systems_reads_a_parse(corpus, capsys, name):
    init("de", f"--system {name}")
    recipe = load(Path("recipe.yaml"))
    system = recipe.systems[name]
    names = {key.replace("-", "_"): value for key, value in system.options.items()}
    Path("groups.txt").write_text("one: a b\ntwo: c d\n")
    needs = tiny_model(system.arch, ldd_label_groups="groups.txt", **names).training_needs
    source = recipe.parse.source
    assert bool(source) == bool(needs) and (source is None or source.distributions == ("arcs" in needs))
    assert bool(source) == (name != "relative_positions"), "all others are trained with a parse"
    assert ("no-models" in capsys.readouterr().out) == bool(needs), "a parser is asked for only where one is used"


def test_models_of_a_parser_are_used_where_no_system_needs_them(corpus):
    init("de", "--system relative_positions --model-dir models")
    assert load(Path("recipe.yaml")).parse.source.models == "models"


def test_what_suits_a_target_without_spaces(corpus):
    Path("ja").mkdir()
    init("ja", "--output ja/recipe.yaml")
    recipe = load(Path("ja/recipe.yaml"))
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
    recipe = load(Path("recipe.yaml"))
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
    assert load(Path("other.yaml")).parse.source.models == "."
    files = ["--train", "corpus/train", "--valid", "corpus/valid", "--test", "corpus/test", "-s", "en", "-t", "de"]
    refused(["init", *files], path="recipe.yaml")
    (corpus / "corpus" / "valid.de").write_text("eine\n")
    refused(["init", *files, "--output", "third.yaml"], "corpus/valid.de")


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
    assert "| pascal |" in (corpus / "runs" / "recipe" / "report.md").read_text("utf-8")
    command = shlex.split(said.splitlines()[-1])
    assert command[:3] == ["next:", "fairseq-syntax", "translate"] and Path(command[3]).exists()
    assert command[-2:] == ["--model-dir", "models"], "of the recipe: it is the parser's now as then"
