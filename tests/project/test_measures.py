"""What benchmarks and other programs that measure write down, and that a failure is none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import harness, serve
from bench.peers import __main__ as peers
from bench.peers import meter
from bench.peers import table as of_peers
from fairseq_syntax.corpus.conllu import ParsedLine
from tools import gpu, parsers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty file of results in a folder of its own."""
    path = tmp_path / "bench" / "results.jsonl"
    path.parent.mkdir()
    monkeypatch.setattr(harness, "RESULTS", path)
    harness.commit.cache_clear()
    yield path
    harness.commit.cache_clear()


def test_a_measure_says_when_and_of_which_commit_it_was(results, monkeypatch):
    """With a mark if programs were changed since, but not for the results themselves; outside a checkout of none."""
    program = results.parent.parent / "program.py"
    git = ["git", "-C", program.parent, "-c", "user.name=a", "-c", "user.email=a@b"]

    def recorded() -> dict:
        harness.commit.cache_clear()
        return harness.record("a/b", [2.0, 1.0, 4.0], unit="u")

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(program.parent.parent))
    assert recorded()["commit"] is None
    program.write_text("1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    actual = recorded()
    assert head.startswith(actual["commit"]) and len(actual["commit"]) >= 8 and actual["date"].count("-") == 2
    program.write_text("2\n")
    assert recorded()["commit"] == f"{actual['commit']}+"
    assert [row["commit"] for row in harness.records()] == [None, actual["commit"], f"{actual['commit']}+"]
    assert actual["ratio"] == 2.0 and json.loads(results.read_text().splitlines()[1]) == actual


def test_pages_take_the_last_measure_on_one_cpu_thread(results):
    rows = [
        {"name": "a", "threads": 1, "ratio": 1},
        {"name": "a", "threads": 1, "ratio": 2, "runs_on": "cpu"},
        {"name": "a", "threads": 2, "ratio": 3, "runs_on": "cpu"},
        {"name": "a", "threads": 1, "ratio": 4, "runs_on": "cuda"},
        {"name": "b", "threads": 2, "ratio": 5},
    ]
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {name: row["ratio"] for name, row in harness.on_one_thread().items()} == {"a": 2}


def test_loads_of_other_clients_and_input_are_other_measures(results, monkeypatch):
    @contextmanager
    def server(*args):
        yield 1, 2

    async def load(port, requests, clients, seconds):
        return serve.Load(seconds, right=clients)

    monkeypatch.setattr(serve, "server", server)
    monkeypatch.setattr(serve, "load", load)
    monkeypatch.setattr(serve, "resident", lambda pid: 1.0)
    monkeypatch.setattr(serve, "_requests", lambda *args: [])
    for clients, text in ((64, None), (200, None), (200, ["a"])):
        serve.run("model", "parser", text, clients=clients, seconds=1.0, pairs=1)
    assert [row["name"] for row in harness.records()] == [
        "serve/throughput@64",
        "serve/throughput@200",
        "serve/text@200",
    ]


def test_a_step_that_failed_costs_nothing_that_is_written(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "cluster")
    import costs

    monkeypatch.setattr("fairseq_syntax.cli.main", lambda words: int(words[0] == "binarize"))
    monkeypatch.setattr(costs.subprocess, "run", lambda *args, **kwargs: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit, match="binarize failed"):
        costs.rates(20, 5)


@pytest.mark.parametrize("outcomes, status", [(["passed", "skipped"], 0), (["passed", "failed"], 1), (["skipped"], 1)])
def test_a_run_on_a_gpu_without_a_test_that_passes_is_none(tmp_path, monkeypatch, capsys, outcomes, status):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(gpu.emulated_cuda, "installed", lambda: True)
    monkeypatch.setattr(gpu, "tests", lambda: dict(zip("ab", outcomes)))
    monkeypatch.setattr(gpu, "measures", lambda names, keep: [])
    assert gpu.main() == status
    assert '"commit"' in capsys.readouterr().out


def test_phrases_count_whatever_word_is_their_head():
    """The man saw the girl with the telescope: of UD, of a parser whose prepositions are heads, and of wrong ones."""

    def line(*heads: int) -> ParsedLine:
        labels = ["nsubj", "root", "obj", "case", "obl"]
        return ParsedLine.of_words(["man", "saw", "girl", "with", "telescope"], list(heads), labels)

    gold = line(2, 0, 2, 5, 2)
    for heads, right in (((2, 0, 2, 5, 2), 1), ((2, 0, 2, 2, 4), 1), ((2, 0, 2, 5, 3), 0), ((2, 0, 2, 3, 4), 0)):
        assert parsers.phrases([gold], [line(*heads)]) == right
    assert parsers.phrases([gold, gold], [gold, line(2, 0, 2, 5, 3)]) == 0.5


def test_what_a_parser_is_worth_is_interpolated_between_the_corpora_of_the_toy():
    exact = [float(parsers.toy(accuracy)) for accuracy in (0.6, 0.7, 0.8, 0.95)]
    assert exact == sorted(exact) and abs(exact[1] - (exact[0] + exact[2]) / 2) <= 1
    assert parsers.toy(0.5) == f"< {exact[0]:.0f}" and parsers.toy(0.99) == f"> {exact[-1]:.0f}"


def test_what_wrong_arcs_cost_is_interpolated_between_the_parses_of_atis():
    costs = [float(parsers.atis(share)) for share in (1.0, 0.9, 0.8, 0.7)]
    assert costs[0] == 0 and abs(costs[2] - (costs[1] + costs[3]) / 2) < 0.11 and costs == sorted(costs, reverse=True)


def test_parts_have_about_as_many_words_and_all_of_them():
    words = [["w"] * (1 + number % 7) for number in range(50)]
    parts = parsers.parts_of(words, 5)
    assert [sentence for part in parts for sentence in part] == words
    assert max(sum(map(len, part)) for part in parts) <= 48


def test_the_table_of_parsers_keeps_the_rows_of_others(tmp_path, monkeypatch, capsys):
    page, gold = tmp_path / "page.md", tmp_path / "gold.conllu"
    gold.write_text("1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    page.write_text(f"before\n{parsers.BEGIN}{parsers.HEADER}| old | 1 |\n| other | 2 |\n{parsers.END}after\n")
    monkeypatch.setattr(parsers, "rows", lambda *given: [("new", "| new | 3 |\n"), ("old", "| old | 4 |\n")])
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(sys, "argv", ["parsers.py", "--gold", str(gold), "--page", str(page), "old=spacy:x"])
    parsers.main()
    table = "| old | 4 |\n| other | 2 |\n| new | 3 |\n"
    assert page.read_text() == f"before\n{parsers.BEGIN}{parsers.HEADER}{table}{parsers.END}after\n"
    assert capsys.readouterr().out.endswith("| new | 3 |\n| old | 4 |\n")


def measured_in(*seconds: float, tokens: int = 3000) -> list[dict]:
    """Rounds of a peer, of two updates each."""
    of_process = {"version": "1.0", "torch": "2.0", "memory": 300 << 20}
    return [
        {work: {**of_process, "tokens": tokens, "seconds": spent} for work in ("training", "search")}
        for spent in seconds
    ]


def test_the_table_of_peers_has_medians_ratios_and_what_is_missing(tmp_path):
    about = {"run": "2", "rounds": 3, "warmup": 1, "updates": 2, "sentences": 20, "device": "a CPU", "date": "today"}
    about |= {"commit": "abc", "load": 1.5, "cores": 2}
    rows = [
        of_peers.record("plain", measured_in(1.0, 0.5, 0.8), about),
        of_peers.record("fairseq", measured_in(2.0, 1.0, 4.0), about),
        of_peers.record("eole", measured_in(1.0), about, "failed in search: a | b"),
        of_peers.record("joeynmt", measured_in(4.0, tokens=2000), about),
    ]
    kept = tmp_path / "peers.jsonl"
    kept.write_text("".join(json.dumps(row) + "\n" for row in ({**rows[0], "run": "1"}, *rows)))
    assert of_peers.records(kept) == rows
    assert rows[1]["tokens_per_second_of_rounds"] == [1500.0, 3000.0, 750.0] and rows[1]["tokens_per_update"] == 1500
    made = of_peers.table(rows)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in made.splitlines()[2:6]]
    assert [len(line) for line in lines] == [8] * 4
    assert [line[2:5] for line in lines] == [
        ["3,750 (3,000 to 6,000)", "2.00 (2.00 to 5.00)", "1,500"],
        ["1,500 (750 to 3,000)", "1.00", "1,500"],
        ["failed in search: a / b", "", ""],
        ["500", "0.33", "1,000"],
    ]
    assert lines[1][5:] == ["300 MB", "2.0 s (1.0 to 4.0)", "300 MB"]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{of_peers.BEGIN}old\n{of_peers.END}after\n")
    for _ in range(2):
        of_peers.renew(page, made)
        assert page.read_text() == f"before\n{of_peers.BEGIN}{made}{of_peers.END}after\n"


def test_a_peer_that_fails_says_why_and_one_that_ends_a_search_early_fails(tmp_path, monkeypatch):
    failing = tmp_path / "failing.py"
    failing.write_text("raise ValueError('no /home/me/model.pt')")
    monkeypatch.setattr(peers, "HERE", tmp_path)
    monkeypatch.setitem(peers.SYSTEMS, "eole", of_peers.System("eole", failing.name, ("eole",)))
    with pytest.raises(peers.Failed, match=r"^failed in train: ValueError: no model\.pt$"):
        peers.measured(Path(sys.executable), {"system": "eole", "work": "train", "folder": str(tmp_path)})
    assert "Traceback" in (tmp_path / "error.log").read_text()
    meter.check([15, 15], 15)
    with pytest.raises(ValueError, match="1 to 15 pieces instead of 15"):
        meter.check([15, 1], 15)
