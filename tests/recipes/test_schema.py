"""What a recipe may say, and what is told of one that says something else."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from data_errors import data_error

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes import reference
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.stages import dependencies, shown_path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = EXAMPLES / "recipe.yaml"


def changed(folder: Path, before: str, after: str) -> Path:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert before in text
    path = folder / "recipe.yaml"
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    return path


def line_of(path: Path, text: str) -> int:
    lines = path.read_text(encoding="utf-8").split("\n")
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def test_the_example_has_all_its_keys_read():
    recipe = load_recipe(EXAMPLE)
    assert recipe.name == "multi30k-small"
    assert recipe.seeds == [1, 2, 3]
    linear = recipe.systems["pascal.linear"]
    assert (linear.arch, linear.options, linear.parse) == ("pascal_transformer", {"pascal-heads": "2"}, "linear")
    assert recipe.systems["PSH"].train == {"label-smoothing": "0.0"}
    assert recipe.parse.controls["linear"].make == ["linear"]
    assert recipe.translate.options == {"beam": "4", "max-tokens": "4000"}


@pytest.mark.parametrize(
    ("before", "after", "line", "meant"),
    [
        ("\nsystems:\n", "\nsytems:\n", "sytems:", "systems"),
        ("max_length: 100", "max_lenght: 100", "max_lenght", "max_length"),
        ("without_parse", "without_pars", "without_pars", "without_parse"),
        ("extends: pascal,", "extends: pascl,", "extends: pascl", "pascal"),
        ("parse: linear}", "parse: linaer}", "linaer", "linear"),
        ("baseline: transformer", "baseline: transfomer", "transfomer", "transformer"),
        ("by_length: 10", "by_length: ten", "by_length: ten", "ten"),
        ("seeds: [1", "seeds: [x", "seeds: [x", "x"),
        ("method: sentencepiece", "method: sentencepice", "sentencepice", "sentencepiece"),
        ("  source: en\n", "", "corpus:", "source"),
        ("target: de", "target: en", "corpus:", "target"),
        ("  data: ../data/multi30k ", "  # ", "corpus:", "data"),
        ("test2016: test_2016_flickr", "test2016: [test_2016_flickr, test_2017_flickr]", "corpus:", "one split"),
        ("size: {en: 4000, de: 4000}", "size: {en: 4000, fr: 4000}", "size: {en: 4000, fr", "fr"),
        ("    linear: linear\n", "    linear: linaer\n", "linear: linaer", "linaer"),
        ("    linear: linear\n", "    linear: damaged\n", "linear: damaged", "--wrong-arcs"),
        ("    linear: linear\n", "    linear: linear\n    parse: flat\n", "    parse: flat", "parse"),
        ("\n  dropout: 0.1", "\n  seed: 5", "  seed: 5", "seeds"),
    ],
)
def test_a_fault_is_told_with_its_line_and_what_is_meant(tmp_path, before, after, line, meant):
    path = changed(tmp_path, before, after)
    with pytest.raises(SyntaxDataError) as raised:
        load_recipe(path)
    assert Path(raised.value.path) == path
    assert raised.value.line == line_of(path, line)
    assert meant in str(raised.value)


def test_plugins_are_loaded_by_each_command_of_a_system_and_their_code_counts(tmp_path):
    """As the recipe says, or the system; paths are relative to the recipe."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "__init__.py").write_text("X = 1\n")
    path = with_systems(tmp_path, "systems: {a: {arch: transformer}, b: {arch: transformer, user_dir: []}}")
    path.write_text(f"user-dir: own\n{path.read_text('utf-8')}", encoding="utf-8")

    def steps() -> dict[str, tuple]:
        plan = Plan(load_recipe(path), path)
        stages = [stage for run in plan.runs for stage in plan.of_run(run)]
        assert {stage.kind for stage in stages} == {"train", "translate"}
        for stage in stages:
            variables = stage.commands[0].variables()
            assert variables == ({"FAIRSEQ_SYNTAX_USER_DIR": str(folder)} if stage.run.startswith("a/") else {})
            assert str(stage.commands[0]).startswith("FAIRSEQ_SYNTAX_USER_DIR=" if variables else "fairseq-")
        return {stage.name: (stage.about, plan.key(run)) for run in plan.runs for stage in plan.of_run(run)}

    before = steps()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "more.py").touch()
    (folder / "README.md").write_text("no code")
    assert steps() == before
    (folder / "__init__.py").write_text("X = 2\n")
    changed = {name for name, step in steps().items() if step != before[name]}
    assert changed == {name for name in before if " a/" in name}
    with data_error("user_dir", path=path):
        Plan(load_recipe(path, {"user-dir": "none"}), path)


@pytest.mark.parametrize(
    "score", ["by: [depth]", "trees: [base]", "shares: {controls: [random], by: [depth]}", "by_length: 10"]
)
def test_scores_that_use_a_parse_need_one(tmp_path, score):
    """They would be left out of the report without a word."""
    corpus = "{source: en, target: de, train: train, valid: valid, tests: {test: test}}"
    path = tmp_path / "recipe.yaml"
    path.write_text(f"corpus: {corpus}\nsystems: {{base: {{arch: transformer}}}}\nscore:\n  {score}\n")
    if score == "by_length: 10":
        assert load_recipe(path).score.by_length == 10
        return
    with pytest.raises(SyntaxDataError) as raised:
        load_recipe(path)
    assert (raised.value.path, raised.value.line) == (path, 4) and "parse.source" in str(raised.value)


def test_texts_are_read_as_they_are_written(tmp_path):
    recipe = load_recipe(changed(tmp_path, "target: de", "target: no"), {"pieces.size": "4000"})
    assert recipe.corpus.target == "no"
    assert load_recipe(EXAMPLE).train["lr"] == "0.004"


def test_a_recipe_extends_another(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "base.yaml")
    path = tmp_path / "longer.yaml"
    path.write_text("extends: base.yaml\ntrain: {max-epoch: 12}\nsystems: {lstm: {arch: lstm}}\n")
    with pytest.raises(SyntaxDataError) as raised:  # the base's variants name its systems
        load_recipe(path)
    assert raised.value.path == tmp_path / "base.yaml"
    path.write_text(path.read_text() + "translate: {variants: null, beam: 1}\nscore: null\n")
    recipe = load_recipe(path)
    assert list(recipe.systems) == ["lstm"]
    assert recipe.train["max-epoch"] == "12" and recipe.train["lr"] == "0.004"
    assert recipe.name == "longer" and recipe.folder is None


def test_options_of_a_reader_reach_it(tmp_path):
    """Where YAML could read them as others, they are quoted; otherwise they are as in the recipe."""
    values = {"plain": "2017", "names": ["a", "b"], "words": {"ja": "mecab -Owakati"}}
    hard = {"none": None, "names": ["a, b", "c"], "words": {"ja": "sed 's/\\t/\"/'"}, "text": "a: b #c", "empty": ""}
    path = changed(tmp_path, "size: {en: 4000, de: 4000}", "size: 4000")
    for options, plain in ((values, True), (hard, False)):
        recipe = load_recipe(path, {"corpus.options": json.dumps(options)})
        words = Plan(recipe, path).stages(Plan(recipe, path).runs)[0].commands[0].arguments()
        given = dict(word.split("=", 1) for at, word in pairwise(words) if at == "--option")
        assert {name: yaml.load(text, yaml.BaseLoader) for name, text in given.items() if name != "none"} == {
            name: value for name, value in options.items() if value is not None
        }
        assert (given == {"plain": "2017", "names": "[a, b]", "words": "{'ja': 'mecab -Owakati'}"}) is plain
    assert yaml.safe_load(given["none"]) is None


def test_what_a_recipe_extends_cannot_be_changed():
    with data_error("extends", option="--set"):
        load_recipe(EXAMPLE, {"extends": "other.yaml"})


def test_an_option_has_one_spelling(tmp_path):
    """With underscores as with dashes, also where it replaces one of another recipe, or leaves it out."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for name in ("share-decoder-input-output-embed", "max-epoch", "child-weight"):
        text = text.replace(name, name.replace("-", "_"))
    (tmp_path / "base.yaml").write_text(text, encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text("extends: base.yaml\nsize: {share-decoder-input-output-embed: false}\ntrain: {max-epoch: null}\n")
    recipe = load_recipe(
        path, {"train.max_update": "7", "systems.PSH.options.child-weight": "2", "translate.len_pen": "1"}
    )
    assert recipe.size["share-decoder-input-output-embed"] == "false" and recipe.train["max-update"] == "7"
    assert not {"max_epoch", "max-epoch", "max_update"} & recipe.train.keys()
    assert recipe.systems["PSH"].options == {"child-weight": "2"} and recipe.translate.options["len-pen"] == "1"
    assert recipe.corpus.filter.max_length == 100, "keys of recipes have underscores"
    path.write_text("extends: base.yaml\ntrain:\n  max-epoch: 2\n  max_epoch: 3\n")
    with data_error("duplicate", path=path, line=4):
        load_recipe(path)


SYSTEMS = """
systems:
  transformer: {arch: transformer, about: the baseline, train: {lr: 0.1, dropout: 0.2}, options: {a: 1}}
  wider: {extends: transformer, train: {dropout: null, warmup-updates: 5}}
  widest: {extends: wider, train: {lr: 0.3}, parse: linear}
"""


def with_systems(folder: Path, systems: str) -> Path:
    shutil.copy(EXAMPLE, folder / "base.yaml")
    path = folder / "recipe.yaml"
    path.write_text(f"extends: base.yaml\ntranslate: {{variants: null}}\nscore: null\n{systems}", encoding="utf-8")
    return path


def test_a_system_extends_another(tmp_path):
    systems = load_recipe(with_systems(tmp_path, SYSTEMS)).systems
    assert systems["widest"].train == {"lr": "0.3", "dropout": None, "warmup-updates": "5"}
    assert systems["wider"].train["lr"] == "0.1" and systems["transformer"].train["dropout"] == "0.2"
    assert (systems["widest"].arch, systems["widest"].options) == ("transformer", {"a": "1"})
    assert (systems["wider"].parse, systems["widest"].parse) == ("parse", "linear")
    assert systems["transformer"].about and not systems["widest"].about


def test_all_systems_run_with_the_first_seed_before_any_runs_with_the_next(tmp_path):
    path = with_systems(tmp_path, f"{SYSTEMS}seeds: [4, 2]\n")
    names = ("transformer", "wider", "widest")
    assert [str(run) for run in Plan(load_recipe(path), path).runs] == [
        f"{name}/{seed}" for seed in (4, 2) for name in names
    ]


def test_zero_is_a_value_as_any_other(tmp_path):
    """Of options whose default is another number."""
    path = with_systems(tmp_path, SYSTEMS)
    plan = Plan(load_recipe(path, {"seeds": "[0]", "score": "{resamples: 0, trials: 0}"}), path)
    train = next(stage for stage in plan.stages(plan.runs) if stage.kind == "train")
    assert " --seed 0 " in str(train.commands[0])
    score = plan.score(plan.tables()[0], plan.runs)
    assert " --resamples 0 --trials 0 " in str(score.commands[0])


def test_the_search_is_that_of_the_other_translations_without_a_parse(tmp_path):
    text = EXAMPLE.read_text(encoding="utf-8").replace("\n  beam: 4", "\n  beam: 4\n  lenpen: 0.6")
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")

    def command(options: str) -> str:
        plan = Plan(load_recipe(path, {"translate.variants.text-alone.options": options}), path)
        return str(plan.translations(plan.runs[0])[-1].commands[0])

    assert " --beam 4 --lenpen 0.6 --parser none " in command("{}")
    assert " --beam 5 --parser none " in command("{beam: null, lenpen: null, max-tokens: null}")


def with_commands(folder: Path, before: str) -> Plan:
    """One command reads what another makes, and both come before the same stages; a third reads a model."""
    commands = f"""
commands:
  draw: {{reason: test, before: corpus, run: "date", outputs: ["{{folder}}/drawn"]}}
  shuffle: {{reason: test, before: corpus, run: "date", inputs: ["{{folder}}/drawn"],
            outputs: ["{{folder}}/shuffled"]}}
  probe: {{reason: test, before: {before}, run: "date",
          inputs: ["{{folder}}/models/transformer/1/checkpoint_best.pt"],
          outputs: ["{{folder}}/probed"]}}
"""
    path = with_systems(folder, f"systems: {{transformer: {{arch: transformer}}}}\n{commands}")
    return Plan(load_recipe(path), path)


def test_commands_before_the_same_stages_may_read_one_another(tmp_path):
    plan = with_commands(tmp_path, before="score")
    stages = plan.stages(plan.runs)
    assert [stage.name for stage in stages][:3] == ["draw", "shuffle", "corpus"] and stages[-1].name == "probe"
    needs = dependencies(stages)
    assert (needs["draw"], needs["shuffle"]) == (set(), {"draw"}) and {"draw", "shuffle"} <= needs["corpus"]
    assert {"shuffle", "train transformer/1"} <= needs["probe"]


def test_placeholders_of_a_command(tmp_path):
    """A variable of the shell is not one, though its name may be the same."""
    line = "seed=7; cat {run}/{source}-{target} {unknown} > {folder}/${seed}.{seed}"
    one = f"{{each: run, reason: test, run: '{line}', outputs: ['{{folder}}/{{seed}}']}}"
    path = with_systems(tmp_path, f"systems: {{transformer: {{arch: transformer}}}}\ncommands: {{mine: {one}}}\n")
    plan = Plan(load_recipe(path), path)
    (stage,) = (stage for stage in plan.stages(plan.runs[:1]) if stage.name.startswith("mine"))
    *_, words = stage.commands[0].words
    source, target = plan.langs
    run, folder = map(shown_path, (plan.model(plan.runs[0]), plan.folder))
    assert str(words) == f"seed=7; cat {run}/{source}-{target} {{unknown}} > {folder}/${{seed}}.{plan.runs[0].seed}"


def test_a_command_before_what_it_reads_is_told(tmp_path):
    plan = with_commands(tmp_path, before="parse")
    with pytest.raises(SyntaxDataError, match=r"train transformer/1.*probe|probe.*train transformer/1"):
        dependencies(plan.stages(plan.runs))


@pytest.mark.parametrize(
    "command",
    [
        "train: {each: run, reason: test, run: date, outputs: ['{run}/dated']}",  # the name of a training
        "filter: {reason: test, run: date, outputs: ['{folder}/dated']}",
        "date: {each: run, reason: test, run: date, outputs: ['{folder}/dated']}",  # one file for all runs
        "date: {reason: test, run: date, outputs: ['{folder}/data/text/train.en']}",
    ],
)
def test_no_two_stages_have_one_name_or_make_one_file(tmp_path, command):
    path = with_systems(tmp_path, f"{SYSTEMS}commands:\n  {command}\n")
    plan = Plan(load_recipe(path), path)
    with data_error("both write", path=path):
        plan.stages(plan.runs)


@pytest.mark.parametrize(
    "changes",
    [
        {"translate.variants": "{some: {options: {beam: 1}}}", "score.lines": "{some: some.txt}"},
        {"corpus.tests": "{a: test_2016_flickr, a.some: test_2017_flickr}", "score.lines": "{some: some.txt}"},
    ],
)
def test_no_two_tables_have_one_name(tmp_path, changes):
    path = with_systems(tmp_path, SYSTEMS)
    with data_error("two tables of scores", path=path):
        Plan(load_recipe(path, changes), path)


def test_checkpoints_of_epochs_are_kept_however_the_option_is_written(tmp_path):
    path = with_systems(tmp_path, SYSTEMS)
    for key in ("keep-last-epochs", "keep_last_epochs"):
        plan = Plan(load_recipe(path, {f"train.{key}": "3"}), path)
        assert "--no-epoch-checkpoints" not in str(plan.train(plan.runs[0]).commands[0])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_training_is_the_same_on_a_machine_with_several_gpus(tmp_path, device, monkeypatch):
    """fairseq trains on all of them, with so many times larger batches, unless the recipe says on how many."""
    from fairseq import options

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    path = with_systems(tmp_path, SYSTEMS.replace(", options: {a: 1}", ""))

    def processes(changes: dict[str, str]) -> int:
        plan = Plan(load_recipe(path, {"device": device, **changes}), path)
        words = plan.train(plan.runs[0]).commands[0].arguments()[3:]
        return options.parse_args_and_arch(options.get_training_parser(), words).distributed_world_size

    assert processes({}) == 1
    assert processes({"train.distributed-world-size": "4"}) == 4


def test_a_choice_without_a_run_is_told():
    plan = Plan(load_recipe(EXAMPLE), EXAMPLE)
    assert [str(run) for run in plan.chosen(["pascal"], [2])] == ["pascal/2"]
    with data_error(option="--seeds"):
        plan.chosen(["pascal/1"], [2])


@pytest.mark.parametrize("other", ["widest", "wider", "nothing", "[transformer]"])
def test_a_system_that_cannot_be_extended_is_told_with_its_line(tmp_path, other):
    path = with_systems(tmp_path, SYSTEMS.replace("extends: transformer", f"extends: {other}"))
    with pytest.raises(SyntaxDataError) as raised:
        load_recipe(path)
    assert raised.value.path == path and raised.value.line in [
        line_of(path, f"  {name}:") for name in ("wider", "widest")
    ]


def test_changes_of_the_command_line_reach_any_key():
    changes = {"corpus.data": "elsewhere", "systems.pascal.linear.options.pascal-heads": "1", "seeds": "[4]"}
    recipe = load_recipe(EXAMPLE, changes)
    assert recipe.corpus.data == "elsewhere" and recipe.seeds == [4]
    assert recipe.systems["pascal.linear"].options == {"pascal-heads": "1"}


@pytest.mark.checkout
def test_the_reference_is_that_of_the_models():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.keys_page()


def test_a_character_that_yaml_has_not_is_told_with_its_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("name: a\nabout: b\x01\n", encoding="utf-8")
    with data_error("U+0001", path=path, line=2):
        load_recipe(path)


@pytest.mark.parametrize(
    "text",
    [
        "systems: &a [*a]",
        "systems: &a {x: *a}",
        f"systems: {'[' * 5000}{']' * 5000}",
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 14)),
    ],
    ids=["list of itself", "mapping of itself", "deep", "many"],
)
def test_what_is_without_end_is_not_a_recipe(tmp_path, text):
    """Aliases, of which each repeats ten of another, would be 2 * 10 ** 13 values."""
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with data_error(path=path):
        load_recipe(path)
    with pytest.raises(SyntaxDataError):
        load_recipe(EXAMPLE, {"about": "&a [*a]"})
