"""The grid of an experiment: what runs, what is skipped, what a kill leaves, and what the table says."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from data_errors import data_error

from fairseq_syntax import cli
from fairseq_syntax.cli import experiment as command
from fairseq_syntax.lab.experiments import plan
from fairseq_syntax.lab.experiments.grid import Grid
from fairseq_syntax.lab.experiments.plan import Experiment, Keep, Shares, Step
from fairseq_syntax.lab.experiments.plan_file import load
from fairseq_syntax.lab.experiments.record import append, read
from fairseq_syntax.lab.experiments.results_table import results_table
from fairseq_syntax.lab.scoring.report import Options
from fairseq_syntax.runtime.files import file_sha256

TEMPLATE = """
name: toy
workdir: work
vars: {words: a b c d e f, out: "{dir}/{file}", file: test.out}
seeds: [1, 2]
systems:
  base: {last: x}
  better: {last: f}
prepare:
  - name: data
    run: "for i in 1 2 3 4; do echo {words}; done > ref.txt; echo prepared >> ran.txt"
    outputs: [ref.txt]
steps:
  - name: train
    run: |
      echo {system}/{seed}/train >> ran.txt
      echo '{{"loss": [{seed}.5]}}' > {dir}/loss.json
    outputs: ["{dir}/loss.json"]
  - name: translate
    run: "sed 's/f$/{last}/' ref.txt > {out}; echo {system}/{seed}/translate >> ran.txt"
    outputs: ["{out}"]
results:
  test: {ref: ref.txt, sys: "{out}", baseline: base, metrics: [bleu, chrf], resamples: 20, trials: 20}
values:
  loss: {file: "{dir}/loss.json", key: loss.0, digits: 1}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TEMPLATE)
    return path


def _parse(*argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([*map(str, argv)])


def _ran(recipe) -> list[str]:
    path = recipe.parent / "work/ran.txt"
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


ALL = ["prepared"] + [f"{s}/{n}/{step}" for n in (1, 2) for s in ("base", "better") for step in ("train", "translate")]


def test_a_grid_runs_once_and_writes_its_table_from_the_results_file(recipe, capsys):
    assert command.main(_parse(recipe)) == 0
    assert _ran(recipe) == ALL
    table = (recipe.parent / "work/results.md").read_text()
    assert "| base | 2 |" in table and "| better | 2 | 100.00 ± 0.00 |" in table and "Against base" in table
    assert f"| base | 2.0 ± {statistics.stdev([1.5, 2.5]):.1f} |" in table
    assert "sed 's/f$/x/' ref.txt > base/1/test.out" in table, "the commands are the expanded ones"
    assert str(recipe.parent) not in table, "no path of the machine"
    record = recipe.parent / "work/results.jsonl"
    before = record.read_text()
    assert command.main(_parse(recipe)) == 0
    assert _ran(recipe) == []
    assert record.read_text() == before, "nothing ran, nothing is recorded"
    (recipe.parent / "work/results.md").unlink()
    assert command.main(_parse(recipe, "--table")) == 0
    assert (recipe.parent / "work/results.md").read_text() == table
    kinds = [entry["kind"] for entry in read(record)]
    assert kinds.count("step") == 9 and kinds.count("value") == 4 and kinds.count("test") == 1
    capsys.readouterr()
    command.main(_parse(recipe, "--list"))
    assert capsys.readouterr().out.count("done\t") == 9


def test_what_a_change_touches_runs_again_and_no_more(recipe):
    command.main(_parse(recipe))
    _ran(recipe)
    (recipe.parent / "work/better/2/test.out").unlink()
    command.main(_parse(recipe))
    assert _ran(recipe) == ["better/2/translate"], "an output that is gone"
    recipe.write_text(TEMPLATE.replace("better: {last: f}", "better: {last: e}"))
    command.main(_parse(recipe))
    assert _ran(recipe) == ["better/1/translate", "better/2/translate"], "the one command that uses the variable"
    assert "| better | 2 | 100.00" not in (recipe.parent / "work/results.md").read_text(), "and it is scored again"
    recipe.write_text(TEMPLATE.replace("[{seed}.5]", "[{seed}.75]"))
    command.main(_parse(recipe, "--only", "base/2"))
    assert _ran(recipe) == ["base/2/train", "base/2/translate"], "what comes after it, in this cell alone"
    command.main(_parse(recipe, "--set", "words=a b c d f"))
    assert _ran(recipe) == ALL, "prepare comes before everything"


def test_a_step_that_fails_stops_its_cell_only(recipe, capsys):
    recipe.write_text(
        TEMPLATE.replace("echo {system}/{seed}/train >> ran.txt", "test {system} != base; echo {system} >> ran.txt")
    )
    assert command.main(_parse(recipe, "--workers", "2")) == 1
    assert sorted(_ran(recipe)) == sorted(["prepared", "better", "better", "better/1/translate", "better/2/translate"])
    printed = capsys.readouterr().out
    assert "failed: base/1, base/2" in printed and "exit code 1" in printed
    assert "better" in (recipe.parent / "work/results.md").read_text()


def test_a_step_without_its_output_has_failed(recipe, capsys):
    recipe.write_text(TEMPLATE.replace("> {out}; echo", "> /dev/null; echo"))
    assert command.main(_parse(recipe)) == 1
    assert "it did not make base/1/test.out" in capsys.readouterr().out
    recipe.write_text(TEMPLATE.replace("> ref.txt; echo", "> /dev/null; echo"))
    with data_error(path="data.log"):
        command.main(_parse(recipe))


def test_a_changed_command_does_not_find_the_old_ones_outputs(recipe):
    command.main(_parse(recipe))
    _ran(recipe)
    (recipe.parent / "work/base/1/loss.json").write_text("{}")
    recipe.write_text(
        TEMPLATE.replace("echo {system}/{seed}/train", "ls {dir}/loss.json || echo {system}/{seed}/train")
    )
    command.main(_parse(recipe))
    assert _ran(recipe) == ALL[1:], "loss.json had been removed before"


def test_steps_of_some_systems_only(recipe):
    recipe.write_text(
        TEMPLATE.replace(
            'outputs: ["{out}"]\n',
            'outputs: ["{out}"]\n  - {name: extra, run: "echo {system}/{seed}/extra >> ran.txt", only: better}\n',
        )
    )
    command.main(_parse(recipe))
    assert _ran(recipe) == [
        x for x in ALL for x in ([x, x.replace("translate", "extra")] if "better" in x and "translate" in x else [x])
    ]


SLEEPY = """
name: sleepy
workdir: work
systems: {a: {}, b: {}}
steps:
  - name: first
    run: "echo {system} first >> ran.txt; echo 1 > {dir}/first"
    outputs: ["{dir}/first"]
  - name: second
    run: "echo {system} second $$ >> ran.txt; test -e go || sleep 1000; echo 2 > {dir}/second"
    outputs: ["{dir}/second"]
"""

RUN = """
import sys
from fairseq_syntax.lab.experiments.plan_file import load
from fairseq_syntax.lab.experiments.grid import Grid
Grid(load(sys.argv[1])).run(jobs=2)
"""


def _start(recipe) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", RUN, str(recipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _wait(condition, seconds: float = 240.0) -> None:
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "nothing happened"
        time.sleep(0.05)


def _pids(folder: Path) -> list[int]:
    path = folder / "ran.txt"
    return [int(line.split()[2]) for line in path.read_text().splitlines() if "second" in line] if path.exists() else []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def _unlocked(work: Path) -> bool:
    """Whether the last of the commands' processes is gone, and with it the lock."""
    with (work / ".lock").open() as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(tmp_path):
    recipe = tmp_path / "sleepy.yaml"
    recipe.write_text(SLEEPY)
    work = tmp_path / "work"
    # a polite signal takes the commands along
    process = _start(recipe)
    _wait(lambda: len(_pids(work)) == 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode != 0
    _wait(lambda: not any(map(_alive, _pids(work))))
    # a kill leaves orphans, and nothing may run beside them
    (work / "ran.txt").unlink()
    process = _start(recipe)
    _wait(lambda: len(_pids(work)) == 2)
    assert "first" not in (work / "ran.txt").read_text(), "the first steps were done"
    process.kill()
    process.communicate(timeout=120)
    grid = Grid(load(recipe), say=lambda line: None)
    with data_error(path=".lock"):
        grid.run()
    for pid in _pids(work):
        os.killpg(pid, signal.SIGKILL)
    _wait(lambda: _unlocked(work))
    (work / "go").touch()
    lines: list[str] = []
    assert Grid(load(recipe), say=lines.append).run() == []
    assert "a/1 first: done before" in lines and "a/1 second: started, attempt 3" in lines
    assert (work / "a/1/second").read_text() == "2\n"
    steps = [entry for entry in read(work / "results.jsonl") if entry["kind"] == "step"]
    assert sorted((e["cell"], e["step"], e["attempts"]) for e in steps) == [
        (c, s, n) for c in ("a/1", "b/1") for s, n in (("first", 1), ("second", 3))
    ]


def test_the_table_is_in_the_order_of_the_systems_and_without_those_that_are_gone(tmp_path):
    recipe = tmp_path / "t.yaml"
    recipe.write_text('name: t\nsystems: {a: {}, b: {}}\nsteps: [{name: s, run: "run {system}"}]\n')
    experiment = load(recipe)
    fingerprints = {system: experiment.cell_tasks(system, 1)[0].fingerprint for system in ("a", "b")}
    machine = {"cpus": 1, "memory_gib": 1, "system": "Linux", "machine": "x", "python": "3", "versions": {}}
    used = (("first", 1), ("second", 2), ("first", 1))
    entries = [{"kind": "environment", "cpu": name, "threads": threads, **machine} for name, threads in used]
    for system, seconds in (("b", 2.0), ("gone", 3.0), ("a", 1.0), ("b", 4.0)):
        step = {"kind": "step", "cell": f"{system}/1", "step": "s", "command": f"run {system}"}
        step["fingerprint"] = fingerprints.get(system, "of old")
        entries.append({**step, "seconds": seconds, "attempts": 1})
    table = results_table(experiment, entries)
    assert table.index("| a | 1.0 |") < table.index("| b | 4.0 |"), "the last of two entries counts"
    assert "gone" not in table
    assert table.count("CPU: first") == table.count("CPU: second") == 1


def test_what_no_longer_holds_is_in_no_table(recipe):
    """A seed that was trained by another command, a test and a seed that are gone, and numbers of them."""
    command.main(_parse(recipe))
    table = recipe.parent / "work/results.md"
    assert "| base | 2.0 ± 0.7 |" in table.read_text()
    recipe.write_text(TEMPLATE.replace("[{seed}.5]", "[{seed}.75]"))
    command.main(_parse(recipe, "--only", "base/1"))
    text = table.read_text()
    assert re.search(r"\| base \| 1\.\d \|", text), "the other seed's number is of another command"
    assert "Not finished: base 2; better 1, 2." in text and "| better |" not in text.partition("## Values")[2]
    recipe.write_text(TEMPLATE.replace("seeds: [1, 2]", "seeds: [1]").replace("  test: {ref", "  flickr: {ref"))
    command.main(_parse(recipe))
    text = table.read_text()
    assert "## flickr\n" in text and "## test\n" not in text and not re.search(r"\d ± \d", text)


def test_a_test_is_scored_again_when_what_it_reads_has_changed(recipe):
    """Its reference by content, its translations by content and by name, and what the table says of them."""
    recipe.write_text(TEMPLATE.replace('sys: "{out}"', 'sys: "{dir}/{pick}"').replace("out:", "pick: test.out, out:"))
    command.main(_parse(recipe))
    _ran(recipe)
    work = recipe.parent / "work"

    def scores() -> list[float]:
        last = [entry for entry in read(work / "results.jsonl") if entry["kind"] == "test"][-1]
        return [round(system["mean"]["BLEU"], 2) for system in last["report"]["systems"]]

    before = scores()
    for seed in (1, 2):
        (work / f"better/{seed}/other.out").write_text("a b c d e x\n" * 4)
        (work / f"base/{seed}/other.out").write_text("a b c d e f\n" * 4)
    command.main(_parse(recipe, "--set", "pick=other.out"))
    assert _ran(recipe) == [] and scores() == before[::-1], "other files of the same steps"
    (work / "ref.txt").write_text("a b c d e x\n" * 4)
    command.main(_parse(recipe))
    assert _ran(recipe) == [] and scores() == before[::-1], "another reference"


def test_half_a_line_in_the_results_file_is_passed_over(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, {"kind": "step", "n": 1})
    with path.open("a") as stream:
        stream.write('{"kind": "step", "n"')
    append(path, {"kind": "step", "n": 2})
    assert [entry["n"] for entry in read(path)] == [1, 2]


def test_variables(recipe):
    experiment = load(recipe)
    cell = experiment.variables("base", 2)
    assert experiment.fill("{out} {last} {{x}} ${HOME} {root}", cell) == "base/2/test.out x {x} ${HOME} .."
    assert load(recipe, {"last": "z"}).variables("base", 1)["last"] == "z"
    # }} is a brace, and within ${…} the end of two
    for text, filled in {
        "${A:-${B}}": "${A:-${B}}",
        "${A:-${B:-{last}}}}}": "${A:-${B:-x}}}",
        "${A}}}": "${A}}",
        "${A:-{{x}}}": "${A:-{x}}",
        "{{'a': {{'b': {last}}}}}": "{'a': {'b': x}}",
        "f() { echo; }": "f() { echo; }",
    }.items():
        assert experiment.fill(text, cell) == filled


@pytest.mark.parametrize(
    "old, new, name",
    [
        ("{last}/' ref", "{lst}/' ref", "lst"),
        ("file: test.out", 'file: "{out}"', "file"),
        ("file: test.out", "seed: 1", "vars.seed"),
        ("seeds: [1, 2]", "seeds: [1, 1]", ""),
        ("seeds: [1, 2]", "seeds: 3", "seeds"),
        ("seeds: [1, 2]", "sedes: [1, 2]", "sedes"),
        ("  better: {last: f}", "  base: {last: f}", "toy.yaml"),
        ("  better: {last: f}", "  ../x: {last: f}", ""),
        ("baseline: base", "baseline: bas", "bas"),
        ("name: translate", "name: train", "train"),
        ("outputs: [ref.txt]", "outputs: [[1]]", ""),
        (
            "name: translate\n",
            "name: translate\n    inputs: ['{dir}/loss.json']\n",
            "loss.json",
        ),
        ("outputs: [ref.txt]", "outputs: [.]", ""),
        ('["{dir}/loss.json"]', '["{dir}"]', ""),
        ('["{dir}/loss.json"]', '["{system}.json"]', "base.json"),
        ('["{dir}/loss.json"]', "[all.json]", "all.json"),
        ('["{dir}/loss.json"]', '["./{out}"]', "test.out"),
        (
            '["{dir}/loss.json"]',
            '["{dir}/a/b"]\n  - {name: c, run: c, outputs: ["{dir}/a"]}',
            "base/1/a",
        ),
        (
            '["{dir}/loss.json"]',
            '["x/{seed}"]\n  - {name: c, run: c, outputs: ["x/{seed}/1"], only: base}',
            "x/1",
        ),
        ("seeds: [1, 2]", "seeds: [yes, 2]", "seeds"),
        ("seeds: [1, 2]", "seeds: [1.5]", "seeds"),
        ("digits: 1", "digits: two", "values.loss.digits"),
        ("digits: 1", "digits: null", "values.loss.digits"),
        ("digits: 1", "digits: -1", "values.loss.digits"),
        ("ref: ref.txt", "ref: []", "results.test.ref"),
        ("ref: ref.txt", "ref: ref.txt, src: [x]", "results.test.src"),
        ("ref: ref.txt", "ref: ref.txt, parse: [x]", "results.test.parse"),
        ("workdir: work", "workdir:", "workdir"),
        ("workdir: work", "workdir: work\nrecord: a.md\ntable: ./a.md", "a.md"),
        ("run: |", "run: [echo, hi]\n    inputs: |", "steps.train.run"),
        ("base: {last: x}", "base: {last: x}\n  ? [x, y]\n  : {last: z}", ""),
        ("base: {last: x}", "~: {last: x}", ""),
        ("words: a b c d e f", "words: a b c d e f, ~: b", ""),
        ("workdir: work", "workdir: work\ntable: toy.yaml", "toy.yaml"),
        ("name: toy", 'name: "toy\0"', ""),
        ("metrics:", "metrix:", "metrix"),
        ("[bleu, chrf]", "[bleu, chrF]", "results.test.metrics"),
        ("[bleu, chrf]", "bleu", "results.test.metrics"),
        ("[bleu, chrf]", "[]", "results.test.metrics"),
        ("trials: 20", "trials: many", "results.test.trials"),
        ("trials: 20", "by_length: 0", "results.test.by_length"),
        ("trials: 20", "lowercase: 1", "results.test.lowercase"),
        ("trials: 20", "tokenize: klingon", "results.test.tokenize"),
        ("name: toy", "name: [toy", ""),
        ("steps:", "stops:", "steps"),
    ],
)
def test_mistakes_in_the_file_are_named(recipe, old, new, name):
    assert old in TEMPLATE
    recipe.write_text(TEMPLATE.replace(old, new))
    with data_error(name, path=recipe):
        load(recipe)


def test_texts_are_taken_as_they_are_written(recipe):
    """Norwegian is a language, a version a name and the time of a Slurm job no number of seconds."""
    recipe.write_text(
        TEMPLATE.replace("  better: {last: f}", "  no: {last: f}\n  1.10: {last: off}\n  1.1: {last: 010}").replace(
            "file: test.out", "file: test.out, time: 12:30:00, rate: 0.20, tgt: no"
        )
    )
    experiment = load(recipe)
    assert list(experiment.systems) == ["base", "no", "1.10", "1.1"] and experiment.seeds == [1, 2]
    assert [of["last"] for of in experiment.systems.values()] == ["x", "f", "off", "010"]
    assert [experiment.vars[name] for name in ("time", "rate", "tgt")] == ["12:30:00", "0.20", "no"]
    recipe.write_text(
        TEMPLATE.replace("  base:", "  1:")
        .replace(": base,", ": 1,")
        .replace("trials: 20", "trials: 20, lowercase: No")
    )
    test = load(recipe).tests[0]
    assert test.baseline == "1" and test.options["lowercase"] is False and test.options["trials"] == 20


def test_a_work_directory_that_cannot_be_made_is_named(recipe):
    (recipe.parent / "work").write_text("a file")
    with data_error(path="work"):
        Grid(load(recipe)).run()


def test_a_comparison_with_another_baseline_is_made_again(recipe):
    """Earlier versions compared with another system where the baseline was not finished."""
    assert command.main(_parse(recipe)) == 0
    path, table = recipe.parent / "work/results.jsonl", recipe.parent / "work/results.md"
    before, entries = table.read_text(), read(path)
    for entry in entries:
        if entry["kind"] == "test":
            entry["report"]["baseline"] = "better"
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert command.main(_parse(recipe)) == 0
    *_, last = (entry for entry in read(path) if entry["kind"] == "test")
    assert last["report"]["baseline"] == "base" and table.read_text() == before


def test_a_command_with_a_line_separator_is_a_line_of_the_record(recipe):
    recipe.write_text(TEMPLATE.replace("sed 's/f$", "sed 's/\\u2028\\x85//; s/f$"), encoding="utf-8")
    command.main(_parse(recipe))
    assert "## Commands" in (recipe.parent / "work/results.md").read_text("utf-8")
    steps = {entry["step"] for entry in read(recipe.parent / "work/results.jsonl") if entry["kind"] == "step"}
    assert steps == {"data", "train", "translate"}


def test_mistakes_on_the_command_line_are_named(recipe):
    for argv, name in (
        (["--only", "bas"], "bas"),
        (["--set", "words"], "words"),
        (["--set", "wrds=a"], "wrds"),
        (["--table"], ""),
    ):
        with data_error(name):
            command.main(_parse(recipe, *argv))


def test_a_value_that_is_not_there_is_named(recipe, capsys):
    recipe.write_text(TEMPLATE.replace("key: loss.0", "key: loss.7"))
    assert command.main(_parse(recipe)) == 1
    assert "base/1/loss.json" in capsys.readouterr().err
    assert "Against base" in (recipe.parent / "work/results.md").read_text(), "the rest is scored all the same"


@pytest.mark.slow
def test_the_demonstration_runs(tmp_path):
    demo = Path(__file__).parents[2] / "examples/experiment.yaml"
    copy = tmp_path / "examples/experiment.yaml"
    copy.parent.mkdir()
    copy.write_text(demo.read_text())
    assert command.main(_parse(copy, "--workers", "2")) == 0
    last = [json.loads(line) for line in (tmp_path / "runs/demo/results.jsonl").read_text().splitlines()][-1]
    scores = {system["name"]: system["mean"]["BLEU"] for system in last["report"]["systems"]}
    assert scores["careful"] > scores["careless"] + 10


def test_the_keys_are_described_by_a_file_that_can_be_read(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["experiment", "--keys"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    (tmp_path / "file.yaml").write_text(textwrap.dedent(text[text.index("    name:") : text.index("`extends:")]))
    experiment = load(tmp_path / "file.yaml")
    assert experiment.keep and experiment.shares and experiment.tests and experiment.values and experiment.prepare
    options = {"src", "parse", "baseline", "only", *(field.name for field in fields(Options))}
    keys = {field.name for kind in (Experiment, Step, Keep, Shares) for field in fields(kind)} - {
        "path",
        "tests",
        "known",
    }
    missing = {key for key in options | keys if not re.search(rf"\b{key}\b", text)}
    assert not missing


def test_published_figures_stand_beside_the_measured_ones(recipe):
    recipe.write_text(TEMPLATE + "  published loss: {published: {better: 1.25}}\n")
    assert command.main(_parse(recipe)) == 0
    table = (recipe.parent / "work/results.md").read_text()
    assert re.search(r"\| better \| 2\.0 ± 0\.7 \| 1\.25 \|", table)
    for figure in ("1.50", "1.25"):  # and back
        recipe.write_text(TEMPLATE + f"  published loss: {{published: {{better: {figure}}}}}\n")
        assert command.main(_parse(recipe)) == 0
        assert f"| {figure} |" in (recipe.parent / "work/results.md").read_text()
    for wrong in ("nobody: 1", "better: much"):
        recipe.write_text(TEMPLATE + f"  published loss: {{published: {{{wrong}}}}}\n")
        with data_error(path="toy.yaml"):
            load(recipe)


def test_a_file_extends_another(recipe):
    kept = "keep: {folder: kept, files: ['{out}', '{dir}/loss.json']}\n"
    recipe.write_text(TEMPLATE + kept)
    bigger = recipe.with_name("bigger.yaml")
    own = "extends: toy.yaml\nname: bigger\nworkdir: bigger\nvars: {words: g h}\nseeds: [3]\n"
    bigger.write_text(own + "keep: {folder: kept-bigger}\n")
    base, found = load(recipe), load(bigger)
    assert found.name == "bigger" and found.seeds == [3] and found.systems == base.systems
    assert found.vars == {**base.vars, "words": "g h"}
    assert found.keep.files == base.keep.files and found.keep.folder.name == "kept-bigger"
    bigger.write_text(own + "keep: null\n")
    assert load(bigger).keep is None
    recipe.write_text("extends: bigger.yaml\n" + TEMPLATE)
    with data_error(path="toy.yaml"):
        load(bigger)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("workdir", "workdir: work"),
        ("record", "record: toy.jsonl"),
        ("table", "table: TOY.md"),
        ("keep.folder", "keep: {folder: kept, files: ['{out}']}"),
        ("shares.page", "shares: {page: PAGE.md, baseline: base, controls: {}}"),
    ],
)
def test_a_file_that_extends_another_does_not_write_where_that_one_writes(recipe, place, line):
    """A changed command removes what the old one made, and the record would have two experiments' figures in it."""
    recipe.write_text("\n".join(x for x in TEMPLATE.splitlines() if not x.startswith("workdir")) + f"\n{line}\n")
    bigger = recipe.with_name("bigger.yaml")
    for repeated in ("", line):
        bigger.write_text(f"extends: toy.yaml\nname: bigger\n{repeated}\n")
        with data_error(f"{place}", "toy.yaml", path="bigger.yaml"):
            load(bigger)


@pytest.mark.parametrize(
    "own", ["", "workdir: runs/toy", "workdir: ./x/../runs/toy", "name: bigger\nworkdir: runs/toy"]
)
def test_a_file_that_extends_another_has_no_place_of_its_by_default_or_by_another_name(recipe, own):
    recipe.write_text("\n".join(x for x in TEMPLATE.splitlines() if not x.startswith("workdir")))
    bigger = recipe.with_name("bigger.yaml")
    bigger.write_text(f"extends: toy.yaml\n{own}\n")
    with data_error("toy.yaml", path="bigger.yaml"):
        load(bigger)
    bigger.write_text("extends: toy.yaml\nname: bigger\n")
    assert load(bigger).workdir.name == "bigger", "the default is by the name"


def test_without_its_baseline_a_test_set_has_scores_and_no_comparison(recipe):
    """With the first system that is finished in its place, every difference would be another one."""
    text = TEMPLATE.replace("  better: {last: f}", "  better: {last: f}\n  best: {last: g}")
    recipe.write_text(text.replace('run: "sed', 'run: "test {system} != base; sed'))
    assert command.main(_parse(recipe)) == 1
    page = (recipe.parent / "work/results.md").read_text("utf-8")
    assert "| best | 2 |" in page and "Against" not in page and "Not finished: base 1, 2" in page


def test_a_published_figure_has_no_deviation_and_the_list_says_what_will_run(recipe, capsys):
    recipe.write_text(TEMPLATE + "  paper: {published: {base: 30.10}, digits: 1}\n")
    command.main(_parse(recipe))
    assert "| base | 2.0 ± 0.7 | 30.1 |" in (recipe.parent / "work/results.md").read_text("utf-8")
    (recipe.parent / "work/base/1/loss.json").unlink()
    capsys.readouterr()
    command.main(_parse(recipe, "--list"))
    printed = capsys.readouterr().out
    assert "to do\tbase/1\ttrain\nto do\tbase/1\ttranslate\ndone\tbetter/1\ttrain" in printed


def test_the_list_is_of_what_was_chosen(recipe, capsys):
    command.main(_parse(recipe, "--list", "--only", "better/2"))
    assert capsys.readouterr().out == "to do\tprepare\tdata\nto do\tbetter/2\ttrain\nto do\tbetter/2\ttranslate\n"
    for asked in ("--list", "--table"):
        with data_error():
            command.main(_parse(recipe, asked, "--only", "x"))


WITH_INPUT = TEMPLATE.replace("    outputs: [ref.txt]", '    inputs: ["{root}/words.txt"]\n    outputs: [ref.txt]') + (
    'record: results.jsonl\ntable: RESULTS.md\nkeep: {folder: kept, files: ["{out}", "{dir}/loss.json"]}\n'
)


@pytest.mark.parametrize("gone", ["work", "input", "both"])
def test_what_is_gone_takes_no_results_away(recipe, gone, capsys):
    recipe.write_text(WITH_INPUT)
    words, table = recipe.parent / "words.txt", recipe.parent / "RESULTS.md"
    words.write_text("a b c")
    assert command.main(_parse(recipe)) == 0
    before = table.read_text()
    assert "Against base" in before and _ran(recipe) == ALL
    if gone != "input":
        shutil.rmtree(recipe.parent / "work")
    if gone != "work":
        words.unlink()
    assert command.main(_parse(recipe, "--table")) == 0
    assert table.read_text() == before
    capsys.readouterr()
    command.main(_parse(recipe, "--list"))
    listed = capsys.readouterr().out
    assert "to do" not in listed and listed.count("\n") == 9
    assert command.main(_parse(recipe)) == 0
    assert table.read_text() == before and _ran(recipe) == []
    # and another input is another experiment
    words.write_text("a b d")
    assert command.main(_parse(recipe)) == 0
    assert _ran(recipe) == ALL


def test_an_input_is_looked_at_where_the_work_directory_is_gone(recipe, capsys):
    recipe.write_text(WITH_INPUT)
    (recipe.parent / "words.txt").write_text("a b c")
    command.main(_parse(recipe))
    shutil.rmtree(recipe.parent / "work")
    (recipe.parent / "words.txt").write_text("a b d")
    capsys.readouterr()
    command.main(_parse(recipe, "--list"))
    assert capsys.readouterr().out.count("to do\t") == 9


def test_no_table_is_written_over_with_nothing(recipe):
    """Records of earlier versions do not say what the inputs held."""
    recipe.write_text(WITH_INPUT)
    (recipe.parent / "words.txt").write_text("a b c")
    command.main(_parse(recipe))
    record, table = recipe.parent / "results.jsonl", recipe.parent / "RESULTS.md"
    before = table.read_text()
    entries = [{k: v for k, v in entry.items() if k != "inputs"} for entry in read(record)]
    record.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (recipe.parent / "words.txt").unlink()
    with data_error(path="results.jsonl"):
        command.main(_parse(recipe, "--table"))
    assert table.read_text() == before


def test_inputs_are_read_once(recipe, monkeypatch):
    recipe.write_text(WITH_INPUT)
    words = recipe.parent / "words.txt"
    words.write_text("a b c")
    seen = []
    monkeypatch.setattr(plan, "file_sha256", lambda path: seen.append(path) or file_sha256(path))
    command.main(_parse(recipe))
    assert seen.count(words) == 1
    command.main(_parse(recipe, "--list"))
    assert seen.count(words) == 1
    words.write_text("a b c d")
    command.main(_parse(recipe))
    assert seen.count(words) == 2, "the file is another one"


def test_a_model_that_has_collapsed_and_a_test_that_cannot_be_scored_leave_the_rest(recipe, capsys):
    text = TEMPLATE.replace("'s/f$/{last}/'", "'{edit}'").replace("{last: x}", "{edit: s/f$/x/}")
    text = text.replace("{last: f}", "{edit: s/.*//}")
    recipe.write_text(text.replace("results:\n", 'results:\n  broken: {ref: ran.txt, sys: "{out}"}\n'))
    assert command.main(_parse(recipe)) == 1
    assert "not scored:" in capsys.readouterr().err
    table = (recipe.parent / "work/results.md").read_text()
    assert "| better | 2 | 0.00 ± 0.00 |" in table and "## broken" not in table


def test_nobody_who_stops_reading_stops_the_trainings(recipe):
    def say(text):
        raise BrokenPipeError

    assert Grid(load(recipe), say).run(jobs=2) == []
    assert sorted(_ran(recipe)) == sorted(ALL)


def test_figures_that_are_no_longer_published_are_in_no_table(recipe):
    recipe.write_text(TEMPLATE + "  paper: {published: {base: 30.10, better: 31.2}, digits: 1}\n")
    command.main(_parse(recipe))
    recipe.write_text(TEMPLATE + "  paper: {published: {better: 31.2}, digits: 1}\n")
    command.main(_parse(recipe))
    table = (recipe.parent / "work/results.md").read_text()
    assert "31.2" in table and "30.1" not in table


def test_a_step_that_fails_when_done_again_costs_nothing_behind_it(recipe):
    recipe.write_text(
        TEMPLATE.replace("      echo {system}/{seed}/train", "      test ! -e stop; echo {system}/{seed}/train")
    )
    assert command.main(_parse(recipe, "--only", "base/1")) == 0
    work = recipe.parent / "work"
    (work / "base/1/loss.json").unlink()
    (work / "stop").touch()
    assert command.main(_parse(recipe, "--only", "base/1")) == 1
    assert (work / "base/1/test.out").is_file()
    (work / "stop").unlink()
    (work / "base/1/test.out").write_text("of the old model")
    _ran(recipe)
    assert command.main(_parse(recipe, "--only", "base/1")) == 0
    assert _ran(recipe) == ["base/1/train", "base/1/translate"]
    assert "old" not in (work / "base/1/test.out").read_text()


def test_the_log_of_what_goes_on_goes_on(recipe):
    recipe.write_text(
        TEMPLATE.replace(
            "      echo {system}/{seed}/train", "      echo some updates; test -e go; echo {system}/{seed}/train"
        )
    )
    assert command.main(_parse(recipe, "--only", "base/1")) == 1
    (recipe.parent / "work/go").touch()
    assert command.main(_parse(recipe, "--only", "base/1")) == 0
    log = (recipe.parent / "work/base/1/logs/train.log").read_text()
    assert log.count("\nsome updates\n") == 2 and log.count("$ ") == 2


def test_a_file_system_without_locks(recipe, monkeypatch, capsys):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert Grid(load(recipe), print).run(["base/1"]) == []
    assert "the file system has no locks" in capsys.readouterr().out
