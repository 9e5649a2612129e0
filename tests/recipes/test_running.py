"""A recipe runs: each stage once, again where what it is made from has changed, and on after a kill at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from kills import ended, forked
from matrix_part import examples, of_half_a_minute
from warm_commands import WarmCommands

import fairseq_syntax
from fairseq_syntax.cli import main as command
from fairseq_syntax.cli.run import _translate_command
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import Results, page_sections, write_report
from fairseq_syntax.lab.recipes.runner import Runner, training_share, typed
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.recipes.smoke import smoke
from fairseq_syntax.lab.recipes.stages import Free, Stage, StageCommand, states
from fairseq_syntax.runtime.jobs import read_record
from fairseq_syntax.runtime.recipe_stage import STAGE_VARIABLE, start_of_stage
from fairseq_syntax.runtime.workers import shares_of_gpus

pytestmark = pytest.mark.usefixtures("composed")
run_here = pytest.mark.matrix(2, of="recipes that run")
QUICK = Path(__file__).resolve().parents[1] / "helpers" / "quick_fairseq"
PACKAGE = Path(fairseq_syntax.__file__).parents[1]
RECIPE = f"""
corpus: {{source: en, target: de, train: corpus/train, valid: corpus/valid, tests: {{test: corpus/test}}}}
parse: {{source: {{parser: fairseq_syntax.corpus.parsing.chain}}, controls: {{random: random}}}}
pieces: {{size: 60}}
train: {{lr: 0.1, optimizer: adam, max-tokens: 400}}
systems:
  base: {{arch: transformer}}
  other: {{arch: pascal_transformer, parse: random}}
seeds: [1, 2]
score: {{metrics: [bleu], trials: 0, resamples: 50}}
env: {{PYTHONPATH: "{QUICK}:{PACKAGE}"}}
"""


def write_recipe(folder: Path) -> Path:
    draw = random.Random(3)
    words = ["a", "man", "in", "red", "shirt", "rides", "his", "bike", "near", "two", "dogs", "and", "one", "cat"]
    for split, lines in (("train", 120), ("valid", 10), ("test", 40)):
        for lang in ("en", "de"):
            path = folder / "corpus" / f"{split}.{lang}"
            path.parent.mkdir(exist_ok=True)
            text = (" ".join(draw.choices(words, k=draw.randint(4, 12))) for _ in range(lines))
            path.write_text("".join(f"{line}\n" for line in text))
    path = folder / "r.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.fixture(scope="module")
def quick(warm: WarmCommands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python by which this package's commands start at once; those of fairseq are the recipe's stand-ins."""
    return warm.put(tmp_path_factory.mktemp("quick"), ["fairseq-syntax"]) / "python"


@pytest.fixture
def started_at_once(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(quick))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, quick: Path) -> tuple[Path, list[str]]:
    """The results of the recipe, and the stages that were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(quick))
        work, made = run(write_recipe(tmp_path_factory.mktemp("first")))
    return work.plan.folder, made


@pytest.fixture
def finished(recipe: Path, first_run: tuple[Path, list[str]], started_at_once: None) -> None:
    """The recipe has been run: a copy of its results, since names do not count."""
    shutil.copytree(first_run[0], recipe.parent / "runs" / "r")


def run(path: Path, **changes: str) -> tuple[Work, list[str]]:
    """Runs a recipe here; what was made, by the lines that say so."""
    work = Work(Plan(load_recipe(path, changes), path))
    said: list[str] = []
    runner = Runner(work.plan.folder, 2, work.variables)
    runner.say = said.append  # type: ignore[method-assign]
    assert work.run(runner) == [], said
    return work, sorted(line.partition(": done in")[0] for line in said if ": done in" in line)


def content(folder: Path) -> dict[str, str]:
    """Data, parameters and translations, by their bytes."""
    files = [f for part in ("data", "models", "outputs") for f in (folder / part).rglob("*") if f.is_file()]
    named = [file for file in files if not file.name.startswith(".") and file.suffix != ".log"]
    return {str(file.relative_to(folder)): hashlib.sha256(compared(file)).hexdigest() for file in named}


def compared(file: Path) -> bytes:
    """A file's bytes; of fairseq's checkpoints, which hold times, the parameters'."""
    if not zipfile.is_zipfile(file):
        return file.read_bytes()
    model = torch.load(file, weights_only=False)["model"]
    return b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in model.items())


def scores(folder: Path) -> str:
    return (folder / "report.md").read_text("utf-8").partition("## Wall time")[0].partition("## Scores")[2]


def test_how_much_of_a_training_is_over(recipe, tmp_path):
    """By lines of fairseq's log: within an epoch, and at its end, which names no batch."""
    log = tmp_path / "train.log"
    within = "x | INFO | train_inner | epoch 003:      5 / 10 loss=4.2, ppl=18, num_updates=25, lr=0.1\n"
    end = "x | INFO | train | epoch 003 | loss 4.2 | ppl 18 | num_updates 30 | lr 0.1\n"
    for train, text, share in (
        ("{max-epoch: 4}", within, 2.5 / 4),
        ("{max-epoch: 4}", within + end, 3 / 4),
        ("{max-update: 100}", within, 0.25),
        ("{max-update: 100}", within + end, 0.3),
        ("{max-update: 100, max-epoch: 4}", within, 2.5 / 4),
        ("{max-update: 100}", "nothing yet\n", None),
    ):
        plan = Plan(load_recipe(recipe, {"train": train}), recipe)
        stage = next(stage for stage in plan.stages(plan.runs) if stage.kind == "train")
        log.write_text("an earlier line\n" * 3000 + text)
        assert training_share(log, stage) == share


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("options", "jobs"),
    [([], 6), (["--set", "threads=4"], 1), (["--workers", "2"], 2), (["--set", "device=cuda"], 1)],
)
def test_so_many_models_are_trained_at_a_time(recipe, monkeypatch, options, jobs):
    """On CPUs as many as there are cores for; on a GPU one."""
    seen = []
    monkeypatch.setattr("fairseq_syntax.runtime.workers.cores", lambda: 6)
    monkeypatch.setattr("fairseq_syntax.lab.recipes.checks.check_device", lambda name: None)
    monkeypatch.setattr(Work, "run", lambda work, runner: seen.append(runner.jobs) or ["train base/1"])
    assert command(["run", str(recipe), "--to", "score", *options]) == 1
    assert seen == [jobs]


@pytest.mark.parametrize("options", [["--output", "{}"], ["--set", "folder={}"]])
def test_a_smoke_run_does_not_touch_the_results(recipe, tmp_path, monkeypatch, options):
    """It would train in the same folders, and so remove the checkpoints."""
    folders = []
    monkeypatch.setattr(Work, "run", lambda work, runner: folders.append(work.plan.folder) or ["train base/1"])
    options = [option.format(tmp_path / "a $b") for option in options]
    for option in ([], ["--smoke"]):
        assert command(["run", str(recipe), "--to", "score", *options, *option]) == 1
    assert folders == [tmp_path / "a $b", tmp_path / "a $b-smoke"]


def test_models_of_a_parser_are_those_of_the_side_that_is_parsed(recipe, tmp_path, capsys):
    """A side that is not parsed is not parsed because of them."""
    dry = ["run", str(recipe), "--dry-run", "--model-dir", str(tmp_path / "models"), "--only", "base", "--seeds", "1"]
    assert command(dry) == 0
    assert "# parse train.en" in (said := capsys.readouterr().out) and "train.de.conllu" not in said
    target = recipe.read_text().replace("parse: {source: {", "parse: {target: {")
    recipe.write_text(target.replace(", parse: random", "").replace(", controls: {random: random}", ""))
    assert command(dry) == 0
    said = capsys.readouterr().out
    assert "# parse train.de" in said and "train.en.conllu" not in said
    models = re.search(r"--model-dir (\S+)", said)
    assert models and Path(models[1]).resolve() == (tmp_path / "models").resolve()
    recipe.write_text(re.sub(r"^parse: .*$", "", recipe.read_text(), flags=re.M))
    assert command(dry) != 0


def test_the_command_that_translates_takes_no_model_of_a_control(recipe):
    work = Work(Plan(load_recipe(recipe), recipe))
    for run in work.plan.runs:
        work.plan.model(run).mkdir(parents=True)
        work.plan.checkpoint(run).touch()
    assert "models/base/2/checkpoint_best.pt" in _translate_command(work)
    assert _translate_command(Work(Plan(load_recipe(recipe), recipe), only=["other"])) == ""


def test_a_smoke_run_leaves_what_is_next_to_the_recipe(recipe):
    small = smoke(load_recipe(recipe, {"page": "PAGE.md", "kept": "kept.jsonl.gz"}))
    plan = Plan(small, recipe)
    base = {"name": "base", "runs": ["base.1.out"], "mean": {"BLEU": 1.0}, "sd": {"BLEU": None}}
    scored = {"signatures": {"BLEU": ""}, "sentences": 40, "systems": [base]}
    write_report(plan, Results({plan.tables()[0]: scored}, {}))
    assert (plan.folder / "report.md").exists()
    assert sorted(path.name for path in recipe.parent.iterdir()) == ["corpus", "r.yaml", "runs"]


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1)])
def test_on_a_cluster_a_training_gets_the_gpu_of_its_recipe(recipe, monkeypatch, device, gpus):
    asked = []

    def chosen_workers(args, **kinds):
        asked.append(kinds)
        raise SyntaxDataError("no cluster")

    monkeypatch.setattr("fairseq_syntax.cli.run.chosen_workers", chosen_workers)
    assert command(["run", str(recipe), "--set", f"device={device}", "--ray"]) == 1
    assert asked == [{"count": 1, "cpus": 1, "gpus": gpus}]


@pytest.mark.parametrize(
    ("visible", "count", "shares"),
    [("0,1,2,3", 2, ["0,2", "1,3"]), ("4,MIG-5", 3, ["4", "MIG-5", "4"]), ("7", 1, ["7"]), ("", 2, [])],
)
def test_programs_on_one_machine_share_its_gpus(visible, count, shares):
    assert shares_of_gpus(count, visible) == shares


@pytest.mark.parametrize(
    ("options", "gpus"), [([], ["a", "b"]), (["--set", "env={CUDA_VISIBLE_DEVICES: 'c,d'}"], ["c", "d"])]
)
def test_stages_that_run_at_the_same_time_use_different_gpus(recipe, tmp_path, monkeypatch, options, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b")
    # Each of three stages adds its GPU; the first two wait for one another, so that they run at the same time.
    script = "echo $CUDA_VISIBLE_DEVICES > $1; [ $1 = 3 ] || until [ -e 1 ] && [ -e 2 ]; do sleep 0.05; done"
    stages = [
        Stage(
            "train", name, (StageCommand(["bash", "-c", script, "-", name]),), (tmp_path / name,), tmp_path / f".{name}"
        )
        for name in "123"
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairseq_syntax.lab.recipes.checks.check_device", lambda name: None)
    monkeypatch.setattr(Work, "run", lambda work, runner: runner.run(stages))
    assert command(["run", str(recipe), "--to", "score", "--set", "device=cuda", "--workers", "2", *options]) == 0
    used = [(tmp_path / name).read_text().strip() for name in "123"]
    assert sorted(used[:2]) == gpus and used[2] in gpus


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_each_stage_is_made_once_and_again_where_it_would_be_another(recipe, first_run):
    work, made = Work(Plan(load_recipe(recipe), recipe)), first_run[1]
    assert {"corpus", "filter", "parse train.en", "control random", "train base/1", "train other/2"} <= set(made)
    assert {"translate base/1 test", "score test"} <= set(made)
    assert run(recipe)[1] == [], "all is done"
    # a thread count, workers, other places and words touch nothing
    moved = {"threads": "3", "workers": "2", "name": "another", "folder": str(work.plan.folder), "about": "words"}
    assert run(recipe, **moved)[1] == []
    # what is trained otherwise is trained anew, and what follows from it; nothing else
    stages = Work(Plan(load_recipe(recipe, OTHER), recipe)).all_stages()
    now = states(stages)
    assert {now[f"train base/{seed}"] for seed in (1, 2)} == {now["translate base/1 test"], now["binarize"]} == {"done"}
    assert {now[f"train other/{seed}"] for seed in (1, 2)} == {"to do"}
    assert {now["translate other/1 test"], now["translate other/2 test"], now["score test"]} == {"pending"}
    other = run(recipe, **{"systems.other.train.lr": "0.2"})[1]
    runs = [f"other/{seed}" for seed in (1, 2)]
    assert other == ["score test", *(f"train {name}" for name in runs), *(f"translate {name} test" for name in runs)]
    assert len(run(recipe, **{"env.X": "1"})[1]) == len(made), "the environment may change anything"


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_what_is_damaged_or_not_what_was_made_is_made_anew(recipe):
    """Every file that a later stage may read: another's, cut, missing; and not what has no record."""
    work, _ = run(recipe)
    folder, plan = work.plan.folder, work.plan
    made = {path for stage in work.all_stages() for path in stage.outputs}
    files = {folder / name for name in content(folder)}
    assert files == {path for path in made if path.parent.name != "scores"}, "every file is an output"
    before, table = content(folder), plan.score_file(plan.tables()[0]).read_bytes()
    first, second, third, fourth = plan.runs
    shutil.copy(plan.checkpoint(second), plan.checkpoint(first))
    plan.checkpoint(second).write_bytes(plan.checkpoint(second).read_bytes()[:-1])
    for other in (third, fourth):
        (plan.model(other) / "checkpoint_last.pt").unlink()
    shutil.copy(plan.model(third) / "checkpoint_best.pt", plan.model(fourth) / "checkpoint_last.pt")
    shutil.copy(plan.parse("test", "en"), plan.parse("valid", "en"))
    source, target = (plan.segmentation(plan.bin(control), "en") for control in ("parse", "random"))
    source[0].unlink()
    target[1].write_bytes(b"")
    (plan.bin() / "manifest.json").write_text("{")
    plan.segmentation(plan.data / "pieces", "de")[1].write_bytes(b"x")
    shutil.copy(plan.dictionaries()[1], plan.dictionaries()[0])
    run(recipe)
    assert content(folder) == before and plan.score_file(plan.tables()[0]).read_bytes() == table
    assert run(recipe)[1] == []
    # Without the record, what a model was trained with is unknown, and training would resume from it.
    shutil.rmtree(folder / ".stages")
    failed = Work(plan).run(Runner(folder, 2, work.variables))
    assert sorted(failed) == sorted(f"train {run}" for run in plan.runs) and content(folder) == before


LOG = "{time} | epoch 001 | valid on 'valid' subset | loss 3 | ppl 8 | num_updates 20\n"


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_figures_of_another_log_are_not_reported(recipe, caplog):
    """Another's train.log, and none; a lost one costs no training."""
    plan = Plan(load_recipe(recipe), recipe)
    runs = plan.runs
    for run_ in runs:  # the quick training writes no log
        stage, record = plan.train(run_), plan.folder / ".stages" / f".train.{run_.system}.{run_.seed}.made.json"
        stage.log.write_text(LOG.format(time=run_), "utf-8")
        made = json.loads(record.read_text("utf-8"))
        made["note"]["log"] = hashlib.sha256(stage.log.read_bytes()).hexdigest()
        record.write_text(json.dumps(made), "utf-8")
    work = Work(plan)
    assert {*work.results().curves} == {*runs} and not caplog.records
    shutil.copy(plan.train(runs[1]).log, plan.train(runs[0]).log)
    plan.train(runs[2]).log.unlink()
    assert {*work.results().curves} == {runs[1], runs[3]}
    assert len([r for r in caplog.records if "train.log" in r.getMessage()]) == 2
    assert run(recipe)[1] == []


def test_a_training_records_its_log_and_knows_its_stage(tmp_path):
    script = f"echo ${STAGE_VARIABLE} > {tmp_path}/model.pt; echo log > {tmp_path}/train.log"
    command = StageCommand(["bash", "-c", script])
    made, log, stamp = tmp_path / "model.pt", tmp_path / "train.log", tmp_path / "stamp"
    stage = Stage("train", "train a/1", (command,), (made,), stamp, log=log, resumed=(f"{tmp_path}/*.pt",))
    assert Runner(tmp_path).run([stage]) == []
    assert made.read_text().strip() == read_record(stamp)["made_from"] and stage.log_is_its_own()
    log.write_text("of another\n")
    assert not stage.log_is_its_own() and stage.is_done()


@pytest.mark.parametrize("swapped", ["none", "another's", "gone", "of both"])
def test_a_log_that_was_swapped_while_a_training_was_interrupted_is_not_its_own(tmp_path, swapped):
    """The digest, taken at the end, would be that of another's figures with the rest of the training."""
    log, made, stamp = tmp_path / "train.log", tmp_path / "model.pt", tmp_path / "stamp"
    script = f"echo $1 | sed s/STAGE/${STAGE_VARIABLE}/ >> {log}; test -e {tmp_path}/begun || exit 1; touch {made}"

    def stage(update: int) -> Stage:
        words = ["bash", "-c", script.replace("$1", f"'{start_of_stage('STAGE', update)}'")]
        command = StageCommand([Free(word) for word in words])
        return Stage("train", "train a/1", (command,), (made,), stamp, log=log, resumed=(f"{tmp_path}/*.pt",))

    assert Runner(tmp_path).run([stage(0)]) == ["train a/1"]
    other, own = start_of_stage("b", 0) + "\n", log.read_text("utf-8")
    if swapped != "none":
        log.write_text({"another's": other, "gone": "", "of both": own + other}[swapped], "utf-8")
    (tmp_path / "begun").touch()
    assert Runner(tmp_path).run([stage(7)]) == []
    assert stage(7).is_done() and stage(7).log_is_its_own() == (swapped == "none")


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_another_text_with_the_same_words_for_training_costs_no_training(recipe):
    run(recipe)
    test = recipe.parent / "corpus/test.en"
    test.write_text(test.read_text().replace("cat", "dog"))
    made = run(recipe)[1]
    assert "corpus" in made and "parse test.en" in made
    assert not any(name.startswith(("train", "filter", "parse train")) for name in made)


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_kept_translations_are_scored_and_not_those_that_another_recipe_left(recipe):
    shutil.rmtree(recipe.parent / "runs/r/scores")  # they have the paths of what was scored
    work, _ = run(recipe, kept="kept.jsonl.gz")
    results = work.results()
    before = Work(Plan(load_recipe(recipe, {"kept": "kept.jsonl.gz"}), recipe))
    # Translations are kept also where the scores are not asked for.
    assert command(["run", str(recipe), "--set", "kept=kept.jsonl.gz", "--to", "translate", "--keep"]) == 0
    assert Kept.read(recipe.parent / "kept.jsonl.gz").runs.keys() == {str(run) for run in work.plan.runs}
    work.keep(results)
    for output in (work.plan.folder / "outputs").rglob("*.out"):
        output.write_text("a man\n" * 40)
    before.keep(Results({}, {}))
    assert len(Kept.read(recipe.parent / "kept.jsonl.gz").runs) == 4, "what was added since it began stays"
    again = Work(Plan(load_recipe(recipe, {"kept": "kept.jsonl.gz"}), recipe))
    again.keep(again.results())
    kept, made = run(recipe, kept="kept.jsonl.gz")
    assert len(kept.kept_runs) == 4 and "train base/1" not in made
    assert kept.results().reports == results.reports
    assert kept.kept.runs == again.kept.runs


OTHER = {"systems.other.train.lr": "0.2"}


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_results_of_earlier_settings_are_not_reported_as_those_of_the_recipe(recipe):
    """The checkpoints and translations of earlier settings are still there, and consistent with one another."""
    run(recipe)
    assert command(["run", str(recipe), "--set", "systems.other.train.lr=0.2", "--only", "base", "--seeds", "1"]) == 0
    report = (recipe.parent / "runs/r/report.md").read_text("utf-8")
    assert "Systems and their seeds: other 1, 2" in report and "| other |" not in report
    base = ["base/1", "base/2"]
    assert [str(run) for run in Work(Plan(load_recipe(recipe, OTHER), recipe)).finished()] == base
    for change in ({"pieces.size": "50"}, {"corpus.filter.max_length": "8"}, {"env.X": "1"}):
        assert Work(Plan(load_recipe(recipe, change), recipe)).finished() == [], change
    data = Work(Plan(load_recipe(recipe, {"parse.controls.random": "{make: random, seed: 2}"}), recipe))
    assert [str(run) for run in data.finished()] == base
    # What can no longer be compared, as the corpus has been moved, is taken as it is.
    (recipe.parent / "corpus").rename(recipe.parent / "elsewhere")
    assert len(Work(Plan(load_recipe(recipe), recipe)).finished()) == 4


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_kept_translations_replace_those_of_other_settings(recipe, capsys):
    shutil.rmtree(recipe.parent / "runs/r/scores")  # they have the paths of what was scored
    work, _ = run(recipe, kept="kept.jsonl.gz")
    results = work.results()
    work.keep(results)
    outputs = [work.plan.output(run, table) for run in work.plan.runs for table in work.plan.outputs(run)]
    before = [path.read_bytes() for path in outputs]
    run(recipe, **OTHER)
    assert [path.read_bytes() for path in outputs] != before
    again, made = run(recipe, kept="kept.jsonl.gz")
    assert made == ["score test"] and len(again.kept_runs) == 4
    assert again.results().reports == results.reports
    capsys.readouterr()
    assert command(["run", str(recipe), "--set", "kept=kept.jsonl.gz"]) == 0
    assert "kept.jsonl.gz: 4 of 4 runs" in capsys.readouterr().err, "who wants to train them is told how"
    # Data that are asked for are made: other recipes may use them.
    data = [stage.kind for stage in Work(again.plan, to="binarize").stages()]
    assert {"parse", "pieces", "binarize"} <= {*data} and "train" not in data


def kept_by(recipe: Path, changes: dict[str, str]) -> Path:
    """A file of results of all runs and tables of a recipe."""
    plan, kept, path = Plan(load_recipe(recipe, changes), recipe), Kept(), recipe.parent / "kept.jsonl.gz"
    facts = {"seconds": {}, "commands": [], "values": {}}
    for run in plan.runs:
        outputs = {str(table): [str(table)] * 40 for table in plan.outputs(run)}
        entry = {"run": str(run), "key": plan.key(run), "outputs": outputs, "facts": facts}
        kept.runs[str(run)] = {**entry, "text": plan.text_key()}
    runs = {str(run): plan.key(run) for run in plan.runs}
    for table in plan.tables():
        report = {"baseline": plan.baseline_of(table), "systems": []}
        entry = {"table": str(table), "key": plan.score_key(table), "runs": runs, "report": report}
        kept.scores[str(table)] = {**entry, "text": plan.text_key()}
    kept.write(path)
    return path


def test_kept_results_of_a_test_are_not_those_of_another_one(recipe):
    """Tests that are renamed, above all where two change their names."""
    two = {"corpus.tests": "{one: corpus/test, two: corpus/valid}"}
    kept = {"kept": str(kept_by(recipe, two))}

    def known(tests: str) -> tuple[int, int]:
        work = Work(Plan(load_recipe(recipe, {"corpus.tests": tests, **kept}), recipe))
        return len(work.kept_runs), len(work.results().reports)

    assert known(two["corpus.tests"]) == (4, 2)
    assert known("{two: corpus/test, one: corpus/valid}") == (0, 0)
    assert known("{one: corpus/test, three: corpus/valid}") == (0, 0)


def test_kept_results_are_not_those_of_other_text(recipe, capsys):
    """Of a file that changes under the same name; without the corpus, and where nothing is known, they are taken."""
    kept = kept_by(recipe, {})
    folder = recipe.parent / "corpus"

    def known() -> tuple[int, int]:
        work = Work(Plan(load_recipe(recipe, {"kept": str(kept)}), recipe))
        return len(work.kept_runs), len(work.results().reports)

    for name in ("train.en", "test.de"):
        before = (folder / name).read_text()
        (folder / name).write_text(before.replace("cat", "dog"))
        assert known() == (0, 0), name
        assert command(["run", str(recipe), "--set", f"kept={kept}", "--status", "--only", "base", "other/2"]) == 0
        assert "3 of the kept results" in capsys.readouterr().err
        # Translations of the new text are kept, and do not make the scores of the old one valid.
        work = Work(Plan(load_recipe(recipe, {"kept": str(kept)}), recipe))
        old = kept.read_bytes()
        work.keep(Results({}, {}))
        assert not Kept.read(kept).runs and not Kept.read(kept).scores
        kept.write_bytes(old)
        (folder / name).write_text(before)
        assert known() == (4, 1)
    (folder / "test.de").write_text("other text\n" * 40)
    folder.rename(recipe.parent / "elsewhere")
    assert known() == (4, 1), "scores are reported where the corpus is not"
    (recipe.parent / "elsewhere").rename(folder)
    older = Kept.read(kept)
    for entry in (*older.runs.values(), *older.scores.values()):
        del entry["text"]
    older.write(kept)
    assert known() == (4, 1)


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_the_page_of_kept_results_shows_no_others(recipe):
    run(recipe)
    page = recipe.parent / "PAGE.md"
    page.write_text("of kept results")
    recipe.write_text(recipe.read_text() + f"kept: kept.jsonl.gz\npage: {page}\n")
    assert command(["run", str(recipe), "--report", "--set", "kept=null"]) == 0
    assert page.read_text() == "of kept results"
    assert command(["run", str(recipe), "--report", "--set", "kept=null", f"page={page}"]) == 0
    assert page.read_text() != "of kept results"


def test_runs_that_cannot_be_scored_beside_kept_ones_are_named(recipe, capsys):
    """Since of the kept ones only the scores are there; before the training, and in the report."""
    path = kept_by(recipe, {})
    kept = Kept.read(path)
    del kept.runs["other/2"], kept.scores["test"]["runs"]["other/2"]
    kept.write(path)
    changes = {"kept": str(path)}
    work = Work(Plan(load_recipe(recipe, changes), recipe))
    assert work.unscored(work.chosen) == []
    for entry in kept.runs.values():
        entry["outputs"] = {}
    kept.write(path)
    work = Work(Plan(load_recipe(recipe, changes), recipe))
    assert [str(run) for run in work.unscored(work.chosen)] == ["other/2"]
    assert command(["run", str(recipe), "--set", f"kept={path}", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "other/2" in said.err and "3 of 4" in said.err and "train other/2" in said.out
    sections = page_sections(work.plan, Results({}, {}, unscored=work.unscored(work.chosen)))
    assert any("other 2" in block for section in sections if section.title == "Not scored" for block in section.blocks)
    # Scores of other metrics would need the translations, too.
    work = Work(Plan(load_recipe(recipe, {**changes, "score.metrics": "[chrf]"}), recipe))
    assert len(work.unscored(work.chosen)) == 4


def test_kept_results_are_not_those_of_another_checkpoint(recipe):
    """The best and the last one are of the same training; older results do not say of which checkpoint they are."""
    path = kept_by(recipe, {})
    for made, wanted, runs in (("best", "best", 4), ("last", "best", 0), (None, "last", 4)):
        kept = Kept.read(path)
        for entry in (*kept.runs.values(), *kept.scores.values()):
            entry |= {} if made is None else {"checkpoint": made}
            if made is None:
                entry.pop("checkpoint", None)
        kept.write(path)
        plan = Plan(load_recipe(recipe, {"kept": str(path), "translate.checkpoint": wanted}), recipe)
        work = Work(plan)
        assert (len(work.kept_runs), len(work.results().reports)) == (runs, runs // 4)
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(SyntaxDataError):
        Kept.read(path)


def test_kept_scores_are_those_against_the_baseline_of_the_variant(recipe):
    def variant(baseline: str) -> dict[str, str]:
        return {"translate.variants": f"{{greedy: {{options: {{beam: 1}}, baseline: {baseline}}}}}"}

    kept = {"kept": str(kept_by(recipe, variant("other")))}
    for baseline, tables in (("other", ["test", "test.greedy"]), ("base", ["test"])):
        work = Work(Plan(load_recipe(recipe, {**variant(baseline), **kept}), recipe))
        assert [str(table) for table in work.results().reports] == tables and len(work.kept_runs) == 4


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("started_at_once")
def test_a_report_is_written_although_a_value_is_missing(recipe, capsys):
    recipe.write_text(
        recipe.read_text().replace("score: {", "score: {values: {n: {file: '{run}/n.json', key: 0}}, ")
        + """commands:
  count: {reason: test, each: run, run: 'test {system} = base && echo [7] > {run}/n.json',
          outputs: ["{run}/n.json"]}
"""
    )
    assert command(["run", str(recipe), "--to", "score"]) == 0, "commands for the report do not run yet"
    assert command(["run", str(recipe), "--seeds", "1"]) == 1
    said = capsys.readouterr()
    assert "failed: count other/1" in said.out and "error" not in said.err
    report = (recipe.parent / "runs/r/report.md").read_text("utf-8")
    assert "| base | 7.00 |" in report.partition("## Measured beside")[2], report


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("started_at_once")
def test_a_folder_with_a_space(recipe, tmp_path):
    recipe.write_text(
        recipe.read_text()
        + """commands:
  write: {reason: test, before: corpus, outputs: ["{folder}/1", "{folder}/2"],
          run: 'echo a > {folder}/1; cp "{folder}/1" {folder}/2'}
"""
    )
    folder = tmp_path / "a folder"
    run(recipe, folder=str(folder))
    assert (folder / "2").read_text() == "a\n"


def test_an_interruption_does_not_wait_for_another_process(tmp_path):
    stage = Stage("train", "name", (StageCommand(["true"]),), (tmp_path / "made",), tmp_path / "stage")
    held = FileLock(tmp_path / ".stage.lock", thread_local=False)
    held.acquire()
    timers = [threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)), threading.Timer(20, held.release)]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        Runner(tmp_path).run([stage])
    assert held.is_locked, "it waited"
    timers[1].cancel()
    held.release()


@run_here
@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_the_commands_can_be_typed(recipe, tmp_path, monkeypatch):
    work, _ = run(recipe)
    monkeypatch.chdir(tmp_path)
    elsewhere = Work(Plan(load_recipe(recipe, {"folder": str(tmp_path / "typed")}), recipe))
    lines = typed(elsewhere.all_stages(), elsewhere.variables)
    script = "\n".join(lines).replace("fairseq-syntax ", f"{sys.executable} -m fairseq_syntax ")
    for name in ("preprocess", "train", "generate"):
        script = script.replace(f"\nfairseq-{name} ", f"\n{sys.executable} -m fairseq_cli.{name} ")
    environment = {**os.environ, "PYTHONPATH": f"{QUICK}:{PACKAGE}"}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert content(tmp_path / "typed") == content(work.plan.folder)


def start(recipe: Path, python: Path) -> int:
    """The process of a run of a recipe whose commands that Python starts: a fork, as imports take longer than a run."""

    def run() -> int:
        sys.executable = str(python)
        os.environ["PYTHONPATH"] = str(PACKAGE)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            work = Work(Plan(load_recipe(recipe), recipe))
            failed = work.run(Runner(work.plan.folder, 2, work.variables))
            write_report(work.plan, work.results())
            return int(bool(failed))

    return forked(run)


def check_kills(recipe: Path, kills: int, models: int, python: Path) -> None:
    """Runs a recipe once undisturbed, and then in one folder through so many kills: bytes and table are the same."""

    def whole() -> None:
        assert ended(start(recipe, python)) == 0

    begun = time.monotonic()
    whole()
    seconds = time.monotonic() - begun
    folder = recipe.parent / "runs" / "r"
    expected, table = content(folder), scores(folder)
    assert "| other |" in table and len([name for name in expected if name.endswith("_last.pt")]) == models
    folder.rename(recipe.parent / "whole")
    draw = random.Random(7)
    for _ in range(kills):
        pid = start(recipe, python)
        time.sleep(draw.uniform(0.05, 0.25) * seconds)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    whole()
    assert content(folder) == expected
    assert scores(folder) == table


@of_half_a_minute
@pytest.mark.slow
def test_twenty_kills_leave_the_same_bytes_and_the_same_table(recipe, quick):
    check_kills(recipe, examples(20), models=4, python=quick)


@of_half_a_minute
@pytest.mark.slow
def test_kills_of_real_trainings_leave_the_same_parameters(recipe, warm, tmp_path):
    """With fairseq itself, and an average: three kills and one seed; as many as ``KILLS`` says, with both seeds."""
    kills = int(os.environ.get("KILLS", "3"))
    seeds = [1] if kills == 3 else [1, 2]
    sizes = [f"{side}-{name}" for side in ("encoder", "decoder") for name in ("embed-dim", "ffn-embed-dim")]
    heads = [f"{side}-{name}" for side in ("encoder", "decoder") for name in ("layers", "attention-heads")]
    size = {**dict.fromkeys(sizes, 16), **dict.fromkeys(heads, 1)}
    train = "{lr: 0.01, optimizer: adam, max-tokens: 400, max-epoch: 3, validate-interval: 1, save-interval: 1}"
    text = RECIPE.replace(f"{QUICK}:{PACKAGE}", str(PACKAGE))
    text = re.sub(r"^train: .*$", f"train: {train}", text, flags=re.M)
    recipe.write_text(
        text.replace("seeds: [1, 2]", f"seeds: {seeds}") + f"size: {size}\ntranslate: {{checkpoint: average-2}}\n"
    )
    check_kills(recipe, kills, models=2 * len(seeds), python=warm.put(tmp_path) / "python")


READER = """
from fairseq_syntax.corpus.readers import Split

def read(data, source, target):
    (data / "notes").mkdir(exist_ok=True)
    (data / "notes" / f"{target}.txt").write_text("written by the reader")
    for name in ("train", "valid", "test"):
        texts = [(data / f"{name}.{lang}").read_text().splitlines() for lang in (source, target)]
        yield Split(name, list(zip(*texts)))
"""


@pytest.mark.slow
def test_a_change_in_a_linked_folder_of_the_corpus(tmp_path):
    for name in ("corpus", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "elsewhere")
    stage = Stage("corpus", "name", (), (), tmp_path / "stage", listed=(tmp_path / "corpus",))
    before = stage.step().made_from
    (tmp_path / "elsewhere" / "train.en").write_text("a\n")
    assert stage.step().made_from != before


@run_here
def test_a_reader_that_writes_next_to_the_corpus(recipe, tmp_path, started_at_once):
    """Its files make neither the corpus another one nor the runs unfinished, nor do those of another language."""
    (tmp_path / "reader.py").write_text(READER)
    text = RECIPE.replace("train: corpus/train, valid: corpus/valid, tests: {test: corpus/test}", "reader: reader.py, "
                          "data: corpus, tests: {test: test}")  # fmt: skip
    recipe.write_text(text)
    work, made = run(recipe)
    assert len(work.finished()) == 4 and any("corpus" in name for name in made)
    assert run(recipe)[1] == []
    (tmp_path / "corpus" / "notes" / "fr.txt").write_text("written by a reader of another language")
    assert len(Work(Plan(load_recipe(recipe, {}), recipe)).finished()) == 4
