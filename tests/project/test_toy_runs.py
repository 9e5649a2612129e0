"""The toy table: corpora are prepared, systems trained and scored, and what each seed gave is kept."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import toy_data
from toy_scripts import TOY, generate, run, systems, table

from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.runtime import console
from fairseq_syntax.runtime.files import locked


@pytest.fixture
def in_process(monkeypatch):
    """Runs the table's commands in this process; returns their list."""
    commands = []

    def run_one(runner, command, log):
        words = [str(word) for word in command[1:]]
        commands.append(words)
        if words[0].endswith("generate.py"):
            monkeypatch.setattr(sys, "argv", words)
            assert generate.main() == 0
        elif words[1] == "fairseq_syntax":
            assert toy_data.syntax_command(*words[2:]) == 0
        else:
            at = words.index("--user-dir")
            more = ["--cpu"] if words[1] == "fairseq_cli.train" else []
            toy_data.fairseq(words[1].removeprefix("fairseq_cli."), *words[2:at], *words[at + 2 :], *more)
        return 1.0

    monkeypatch.setattr(run.Runner, "run", run_one)
    return commands


def test_a_bar_counts_the_epochs_in_the_logs(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(console, "DELAY", 0.0)
    system = systems.System("A row", "pascal_transformer", "parse", options="--max-epoch 3")
    log = tmp_path / "A_row" / "1" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text("x | end of epoch 1 (average)\ny\nx | end of epoch 2 (average)\n")
    with run.training_bar([(system, 1)], {system.corpus: tmp_path}):
        deadline = time.monotonic() + 20
        while "2/3" not in sys.stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert re.search(r"training: +67%.* 2/3 .* epochs/s|training: +67%.* 2/3 .*s/ epochs", sys.stderr.getvalue())


@pytest.mark.slow
def test_a_row_goes_through_the_whole_pipeline(tmp_path, in_process, monkeypatch):
    tiny = ["--train", "40", "--valid", "10", "--test", "40"]
    monkeypatch.setitem(run.CORPORA, "attachment", tiny)
    runner = run.Runner(tmp_path, 1)
    options = "--max-epoch 1 --warmup-updates 1"
    system = systems.System("A row", "pascal_transformer", "parse", options=options, generation="--max-len-b 9")
    row = run.train_and_translate(runner, system, run.prepare(runner, "attachment", 1), 1)
    assert row["possible"] == 100 and 0 <= row["exact"] <= 100 and row["ambiguous"] > 20
    line = table.table([table.over_seeds([row])]).splitlines()[-1]
    assert line.startswith("A row") and "100.0 % ± 0.0" in line
    # Once more: nothing is run again. With other options, training is; with another corpus, everything.
    count = len(in_process)
    assert run.train_and_translate(runner, system, run.prepare(runner, "attachment", 1), 1) == row
    assert len(in_process) == count
    options += " --criterion supervised_head"
    other = systems.System(
        "A row", "supervised_head_transformer", "text", options=options, generation="--max-len-b 9", tree=True
    )
    row = run.train_and_translate(runner, other, run.prepare(runner, "attachment", 1), 1)
    assert row["possible"] < 50 and 0 < row["uas"] < 100
    assert len(in_process) == count + 3
    monkeypatch.setitem(run.CORPORA, "attachment", [*tiny, "--lexical", "1"])
    run.train_and_translate(runner, other, run.prepare(runner, "attachment", 1), 1)
    assert len(in_process) == 2 * count + 4


def test_exact_match_counts_the_ambiguous_sentences(tmp_path):
    (tmp_path / "test.tgt").write_text("a\nb\nc\nd\n")
    (tmp_path / "test.open").write_text("2\n\n2 3\n2\n")
    (tmp_path / "info.json").write_text(json.dumps({"best": {"text": {"accuracy": 0.5, "error": 0.1}}}))
    (tmp_path / "out").write_text(
        "".join(f"D-{i}\t-0.1\t{word}\n" for i, word in ((3, "x"), (0, "a"), (1, "b"), (2, "c")))
    )
    row = run.score(tmp_path / "out", tmp_path, systems.System("s", "a", "text"))
    assert row["ambiguous"] == 3 and row["exact"] == pytest.approx(200 / 3) and row["unambiguous"] == 100
    assert row["possible"] == 50 and row["error"] == 10
    merged = table.over_seeds([{**row, "train_s": 1.0, "translate_s": 1.0}])
    assert merged["exact_error"] == pytest.approx(100 * (1 / 9) ** 0.5)  # variance of 1, 1, 0 is 1/3, of its mean 1/9
    assert merged["seeds"] == 1 and "right" not in merged and merged["exact"] == row["exact"]
    assert "66.7 % ± 66.7" in table.table([merged])


def test_the_error_over_seeds_holds_that_of_sentences_and_of_seeds():
    """Two seeds that agree on every sentence, and two that differ in half of them the other way round."""
    rest = {"unambiguous": 100.0, "bleu": 50.0, "train_s": 1.0, "translate_s": 1.0}
    rows = [{"exact": 50.0, "right": "1100", **rest}] * 2
    assert table.over_seeds(rows)["exact_error"] == pytest.approx(100 * (1 / 3 / 4) ** 0.5)
    rows = [{"exact": 75.0, "right": "1110", **rest}, {"exact": 25.0, "right": "0001", **rest}]
    merged = table.over_seeds(rows)
    assert merged["exact"] == 50 and merged["seeds"] == 2
    assert merged["exact_error"] == pytest.approx(
        100 * (0.5**2 / 2 / 2) ** 0.5
    )  # every sentence is right half the time


@pytest.mark.parametrize("between", [0.0, 0.15])
def test_the_error_over_seeds_is_right_on_average(between):
    """Tables are drawn again and again: their means vary by what one table says of itself, no more and no less."""
    rng = np.random.default_rng(1)
    seeds, sentences, means, variances = 3, 60, [], []
    for _ in range(800):
        easy = rng.beta(2, 2, size=sentences)
        better = rng.choice([-between, between], size=(seeds, 1))
        right = rng.random((seeds, sentences)) < easy + better
        rows = [
            {**dict.fromkeys(table.MEANS, 0.0), "exact": 100 * row.mean(), "right": "".join(map(str, row.astype(int)))}
            for row in right
        ]
        merged = table.over_seeds(rows)
        means.append(merged["exact"])
        variances.append(merged["exact_error"] ** 2)
    assert np.mean(variances) == pytest.approx(np.var(means, ddof=1), rel=0.12)


ROW = dict.fromkeys(("possible", "error", "exact", "unambiguous", "bleu", "train_s", "translate_s"), 1.0)
ROW |= {"corpus": "c", "knows": "text", "key": "k"}


def of_seed(system, seed, right="10", **rest):
    """A line of what one seed gave; of the ambiguous sentences, those with a 1 are right."""
    exact = 100 * right.count("1") / len(right)
    return {**ROW, "system": system, "seed": seed, "right": right, "exact": exact, "run": "here", **rest}


def test_a_table_holds_what_each_seed_gave_and_adds_the_next(tmp_path):
    """In the order of the systems, whatever the order of the runs; a run of another kind is numbered."""
    kept = table.Table(tmp_path / "t.md")
    assert kept.known("PASCAL", 1, "k") is None
    kept.add(of_seed("SE-NMT", 1))
    kept.add(of_seed("PASCAL", 2, "11", run="there", heads=[97.0, 98.25]))
    kept.add(of_seed("PASCAL", 1, "01", heads=[99.0, 98.25]))
    assert [table.identity(line) for line in kept.read()] == [("PASCAL", 1), ("PASCAL", 2), ("SE-NMT", 1)]
    rows = [line.split() for line in (tmp_path / "t.md").read_text().splitlines() if line.startswith(("PAS", "SE-"))]
    assert [(row[0], row[3], row[8], row[-1]) for row in rows] == [
        ("PASCAL", "2", "75.0", "1+2"),
        ("SE-NMT", "1", "50.0", "1"),
    ]
    assert " 98.0 / 98.2 " in (tmp_path / "t.md").read_text()
    assert (tmp_path / "t.md").read_text().split("```")[2].strip().startswith("1. Here.\n2. There.\n")
    assert kept.known("PASCAL", 3, "k") is None
    # What a run takes from the table is the result, not where and how it was made.
    taken = of_seed("PASCAL", 2, "11", heads=[97.0, 98.25])
    del taken["run"]
    assert kept.known("PASCAL", 2, "k") == taken
    # Once more, with the same options and then with others: what the others gave goes.
    kept.add(of_seed("PASCAL", 2, "00", heads=[97.0, 98.25]))
    assert [table.identity(line) for line in kept.read()] == [("PASCAL", 1), ("PASCAL", 2), ("SE-NMT", 1)]
    assert kept.known("PASCAL", 2, "k")["exact"] == 0 and kept.known("PASCAL", 2, "another key") is None
    kept.add(of_seed("PASCAL", 3, key="another key"))
    assert [table.identity(line) for line in kept.read()] == [("PASCAL", 3), ("SE-NMT", 1)]


def test_a_row_without_its_seeds_stands_until_as_many_are_there(tmp_path):
    whole = {**ROW, "system": "DLAA", "exact": 81.7, "exact_error": 18.0, "seeds": 2, "run": ["of old"]}
    gone = {**whole, "system": "a system of old"}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (gone, whole)))
    kept = table.Table(tmp_path / "t.md")
    for seed, exact in ((1, "81.7"), (2, "75.0")):
        kept.add(of_seed("DLAA", seed, "01" if seed == 1 else "11"))
        (row,) = table.rows_of(kept.read())
        assert row["seeds"] == 2 and f" {exact} % " in (tmp_path / "t.md").read_text()
    kept.add({**of_seed("DLAA", 1), "key": "another key"})
    (row,) = table.rows_of(kept.read())
    assert row["seeds"] == 1 and len(kept.read()) == 1


def test_two_runs_can_fill_one_table(tmp_path):
    """Each result is written as it comes, beside what others wrote in the meantime."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: table.Table(tmp_path / "t.md").add(of_seed("PASCAL", seed)), range(1, 13)))
    assert [line["seed"] for line in table.Table(tmp_path / "t.md").read()] == [*range(1, 13)]


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("none/t.md", None, "no such folder"),
        ("t.jsonl", None, "name the page"),
        ("t.md", '{"system": "PASCAL", "key": "k"}\n{"system": "PAS', "t.jsonl:2: is no result"),
        ("t.md", '{"system": "PASCAL", "seeds": 1, "run": "here"}\n', "begin another one"),
        ("t.md", "[1]\n", "t.jsonl:1: is no result"),
    ],
)
def test_a_table_that_cannot_be_kept_is_refused_before_anything_is_made(
    tmp_path, monkeypatch, capsys, name, text, says
):
    if text:
        (tmp_path / "t.jsonl").write_text(text)
    monkeypatch.setattr(run, "prepare", lambda *_: pytest.fail("a corpus is made"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--output", str(tmp_path), "--table", str(tmp_path / name)])
    assert run.main() == 1
    assert says in capsys.readouterr().err
    assert text is None or (tmp_path / "t.jsonl").read_text() == text


def test_what_a_table_has_is_not_trained_again(tmp_path, monkeypatch, capsys):
    """And what it has not is in it as soon as it is there, though a later one fails."""
    trained = []

    def train_and_translate(runner, system, corpus, seed):
        if seed == 3:
            raise run.StepError("no more")
        trained.append((system.name, seed))
        return of_seed(system.name, seed, key=run.key_of(system, corpus))

    def prepare(runner, name, seed):
        (tmp_path / "prepared.json").write_text('{"corpus": "its files"}')
        return tmp_path

    monkeypatch.setattr(run, "train_and_translate", train_and_translate)
    monkeypatch.setattr(run, "prepare", prepare)
    given = [
        "run.py",
        "--output",
        str(tmp_path),
        "--table",
        str(tmp_path / "t.md"),
        "--workers",
        "1",
        "--only",
        "PASCAL",
    ]
    for seeds, status, new in ((["1"], 0, 1), (["1", "2"], 0, 1), (["2", "1"], 0, 0), (["4", "3"], 1, 1)):
        monkeypatch.setattr(sys, "argv", [*given, "LDD (0.8)", "--seeds", *seeds])
        trained.clear()
        assert run.main() == status
        assert len(trained) == 2 * new
    lines = table.Table(tmp_path / "t.md").read()
    assert [table.identity(line) for line in lines] == [
        (name, seed) for name in ("PASCAL", "LDD (0.8)") for seed in (1, 2, 4)
    ]
    assert "as " in capsys.readouterr().out


def test_the_key_of_a_result_holds_all_that_it_hangs_on(tmp_path, monkeypatch):
    """And no path: a checkout elsewhere has the same."""
    (tmp_path / "prepared.json").write_text('{"corpus": "its files"}')
    groups = [tmp_path / name / "groups.txt" for name in "ab"]
    for path in groups:
        path.parent.mkdir()
        path.write_text("nsubj\n")
    ldd = [systems.replace(systems.ldd("LDD", "arcs", 0.8), options=f"--ldd-label-groups '{path}'") for path in groups]
    keys = [run.key_of(system, tmp_path) for system in ldd]
    assert keys[0] == keys[1]
    groups[0].write_text("nsubj obj\n")
    others = [run.key_of(ldd[0], tmp_path), run.key_of(systems.replace(ldd[1], generation="--beam 2"), tmp_path)]
    others.append(run.key_of(systems.replace(ldd[1], arch="transformer"), tmp_path))
    (tmp_path / "prepared.json").write_text('{"corpus": "other files"}')
    others.append(run.key_of(ldd[1], tmp_path))
    assert len({keys[0], *others}) == 5


@pytest.mark.checkout
def test_the_kept_table_is_that_of_its_results():
    """What is beside it was not edited by hand, and its rows are still asked for in the same way."""
    kept = table.Table(TOY / "TABLE.md")
    lines = kept.read()
    assert kept.page.read_text("utf-8") == table.markdown(table.rows_of(lines))
    known = {system.name: system for system in systems.SYSTEMS}
    for line in lines:
        assert (line["corpus"], line["knows"]) == (known[line["system"]].corpus, known[line["system"]].knows)
    for line in lines:
        if "seed" in line:
            assert line["exact"] == pytest.approx(100 * line["right"].count("1") / line["ambiguous"])


def test_a_corpus_of_control_parses_is_its_corpus_with_other_trees(tmp_path, monkeypatch, in_process):
    monkeypatch.setitem(run.CORPORA, "attachment", ["--train", "30", "--valid", "5", "--test", "20"])
    monkeypatch.setattr(run, "PIECES", {"src": 90, "tgt": 120})
    roots = [run.prepare(run.Runner(tmp_path, 1), name, 1) for name in ("attachment", "attachment.linear")]
    real, linear = (list(read_conllu(root / "corpus/test.src.conllu")) for root in roots)
    assert [text_of(line) for line in real] == [text_of(line) for line in linear]
    assert [line.heads for line in real] != [line.heads for line in linear]
    for line in linear:
        assert all(head in (word, word - 1) for word, head in enumerate(line.heads))
    infos = [json.loads((root / "corpus/info.json").read_text())["best"] for root in roots]
    assert infos[0] == infos[1]


def test_a_failed_command_shows_the_end_of_its_log(tmp_path):
    runner = run.Runner(tmp_path, 1)
    with pytest.raises(run.StepError, match="the reason"):
        runner.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], tmp_path / "log")
    assert runner.run([sys.executable, "-c", "pass"], tmp_path / "log") < 60


def test_a_run_that_is_told_to_end_takes_its_commands_with_it(tmp_path):
    """Of two commands at once and two that wait, those that run end, and the others never begin."""
    code = f"""if True:
        import sys
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        sys.path.insert(0, {str(TOY)!r})
        import run
        root = Path({str(tmp_path)!r})
        runner = run.Runner(root, 1)
        wait = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
        with run.on_termination(runner.stop), ThreadPoolExecutor(2) as pool:
            command = lambda i: runner.run([sys.executable, "-c", wait, root / f"{{i}}.pid"], root / f"{{i}}.log")
            list(pool.map(command, range(4)))
    """
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    pids = [tmp_path / "0.pid", tmp_path / "1.pid"]
    while not all(pid.exists() and pid.read_text() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert sorted(tmp_path.glob("*.pid")) == pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_two_runs_of_one_folder_follow_each_other(tmp_path):
    """The second waits, and can be ended while it does."""
    argv = [sys.executable, str(TOY / "run.py"), "--only", "PASCAL", "--output", str(tmp_path)]
    with locked(tmp_path / "results.json"):
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert "waiting for another process" in process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=20) == -signal.SIGTERM
    assert not (tmp_path / "attachment").exists()


def test_every_row_can_be_asked_for():
    names = [system.name for system in systems.SYSTEMS]
    assert len(set(names)) == len(names) and systems.SYSTEMS[: len(systems.DEMO)] == systems.DEMO
    assert {system.corpus for system in systems.SYSTEMS} <= {*systems.CORPORA, *systems.CONTROLS}
    # these controls tell nothing: their rows are to stay at what the text allows
    assert all(system.knows == "text" for system in systems.SYSTEMS if system.corpus in systems.CONTROLS)


def test_documented_checkpoints_are_where_runs_put_them():
    root = TOY.parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/*/*.md")]
    found = {
        path
        for page in pages
        for path in re.findall(r"runs/toy/[^\s`]*checkpoint[^\s`]*", page.read_text(encoding="utf-8"))
    }
    known = {f"runs/toy/{s.corpus}/{run.folder_name(s)}/1/checkpoint_last.pt" for s in systems.SYSTEMS}
    assert found and found <= known
