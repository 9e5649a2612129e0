"""What a later stage would refuse is told before the first stage starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from data_errors import run
from matrix_part import in_a_process

from fairseq_syntax import cli
from fairseq_syntax.cli.command import check_line
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.checks import problems
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.runner import Runner

pytestmark = pytest.mark.usefixtures("composed")
CHAIN = "fairseq_syntax.corpus.parsing.chain"
RECIPE = f"""\
corpus:
  source: en
  target: de
  train: corpus/train
  valid: corpus/valid
  tests: {{test: corpus/test}}
parse: {{source: {{parser: {CHAIN}}}}}
pieces: {{size: 60}}
size: {{encoder-layers: 1, decoder-layers: 1, encoder-embed-dim: 16, decoder-embed-dim: 16, encoder-attention-heads: 4}}
train:
  lr: 0.001
  optimizer: adam
  max-tokens: 1000
systems:
  model: {{arch: pascal_transformer, options: {{pascal-heads: 2}}}}
translate:
  beam: 2
score:
  metrics: [bleu]
"""
# What replaces what, and what the error is about: a text on the line that it names, or a file; and a word of it.
OF_THE_FILE = [
    ("  lr: 0.001", "  lr:", "lr:", "null"),
    ("train:\n  lr: 0.001\n  optimizer: adam", "train: {lr: 0,004, optimizer: adam}\nenv:\n  A: b", "004", "decimals"),
    ("metrics: [bleu]", "metrics: [blue]", "blue", "bleu"),
    ("metrics: [bleu]", "baseline: modle", "modle", "model"),
    ("metrics: [bleu]", "trees: [modle]", "modle", "model"),
    ("arch: pascal_transformer, ", "extends: modl, ", "extends", "modl"),
    ("{pascal-heads: 2}", "{pascal-heads: 2}, parse: linear", "linear", "parse"),
    ("  valid: corpus/valid\n", "", "corpus:", "valid"),
]
OF_SUBCOMMANDS = [
    ("metrics: [bleu]", "tokenize: 13b", "tokenize", "13a"),
    ("metrics: [bleu]", "by: [deepth]", "score:", "depth"),
    ("metrics: [bleu]", "beer: no-such-program -l de", "beer", "no-such-program"),
    ("metrics: [bleu]", "groups: documents", "/documents", "score"),
    ("corpus/test}", "corpus/tset}", "/corpus/tset.en", "corpus"),
    ("train: corpus/train", "train: corpus/tran", "/corpus/tran.en", "corpus"),
    ("corpus/test}", "corpus/test}\n  words: {de: no-such-program -x}", "words", "no-such-program"),
    ("corpus/test}", "corpus/test}\n  filter: {languages: true}\nenv:\n  A: b", "filter", "xx"),
    (CHAIN, "no_such_module", "no_such_module", "no_such_module"),
    (CHAIN, "stanza, models: no-models", "no-models", "en"),
    (CHAIN, "math", "math", "load"),
    (CHAIN, f"{CHAIN}, min_prob: 0.1", "min_prob", "distributions"),
    (CHAIN, f"{CHAIN}, tokenizer: stanza", "tokenizer", "stanza"),
    (CHAIN, f"{CHAIN}, tokenizer: spaces, split_sentences: true", "split_sentences", "single"),
    (CHAIN, f"{CHAIN}, files: 'parses/{{split}}.conllu'", "/parses/train.conllu", "filter"),
    ("train:\n", "device: cuda\ntrain:\n", "device", "cuda"),
    ("pieces: {size: 60}", "pieces: {models: {en: segmentation.en.json}}", "/segmentation.en.json", "pieces"),
]
OF_FAIRSEQ = [
    ("lr: 0.001", "lr: 0,004", "lr:", "decimals"),
    ("lr: 0.001", "lr: 1e-3x", "lr:", "1e-3x"),
    ("attention-heads: 4", "attention-heads: 5", "attention-heads", "divisible"),
    ("optimizer: adam", "optimizer: adan", "adan", "adam"),
    ("  optimizer: adam", "  optimizer: adam\n  fp16: true", "fp16", "GPU"),
    ("  optimizer: adam", "  optimizer: adam\n  bf16: true", "bf16", "TPU"),
    ("  optimizer: adam", "  optimizer: adam\n  adam-betas: (0.9,", "adam-betas", "(0.9,"),
    ("  optimizer: adam", "  optimizer: adam\n  lr-scheduler: polynomial_decay", "lr-sch", "total-num-update"),
    ("  optimizer: adam", "  optimizer: adam\n  dropuot: 0.1", "dropuot", "dropout"),
    ("  optimizer: adam", "  optimizer: adam\n  dropuot: null", "dropuot", "dropout"),
    ("  optimizer: adam", "  optimizer: adam\n  dropout: 1.5", "dropout", "between"),
    ("  optimizer: adam", "  optimizer: adam\n  share-all-embeddings: true", "share-all", "joined"),
    ("  optimizer: adam", "  optimizer: adam\n  best-checkpoint-metric: chrf", "best-checkpoint", "ppl"),
    ("  optimizer: adam", "  optimizer: adam\n  restore-file: lost.pt", "restore-file", "lost.pt"),
    ("arch: pascal_transformer", "arch: pascall_transformer", "pascall", "pascal_transformer"),
    ("pascal-heads: 2", "pascal-heads: two", "two", "two"),
    ("pascal-heads: 2", "pascal-heads: 9", "model", "heads"),
    ("pascal-heads: 2", "encoder-syntax: pasca", "pasca", "pascal"),
    ("pascal-heads: 2", "pascal-variance: 0", "variance", "0.001"),
    ("  optimizer: adam", "  optimizer: adam\n  task: syntax_translatio", "task", "syntax_translation"),
    ("pascal_transformer, options: {pascal-heads: 2}", "ldd_transformer", "model", "distributions"),
    ("pascal_transformer, options: {pascal-heads: 2}", "lisa_transformer", "model", "criterion"),
    ("parse: {source:", "parse: {target:", "model", "parse"),
    ("  metrics: [bleu]", "  trees: [model]", "trees", "parents"),
    ("  beam: 2", "  beem: 2", "beem", "beam"),
    ("  beam: 2", "  beam: 0", "beam", "at least 1"),
    ("  beam: 2", "  variants: {bare: {without_parse: true, options: {sampling: true}}}", "bare", "null"),
    ("  beam: 2", "  beam: 2\n  diverse-beam-groups: 3", "diverse", "divisible"),
]


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch) -> Callable[..., Path]:
    """Writes the recipe with changes, next to its corpus, and returns its path."""
    (tmp_path / "corpus").mkdir()
    for split in ("train", "valid", "test"):
        for lang in ("en", "de"):
            (tmp_path / "corpus" / f"{split}.{lang}").write_text("a b\n" * 20)
    monkeypatch.setattr(Runner, "run", lambda *args: pytest.fail("a stage has started"))

    def write(*changes: tuple[str, str]) -> Path:
        text = RECIPE
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def first_problem(path: Path) -> SyntaxDataError:
    try:
        plan = Plan(load_recipe(path), path)
        return next(problems(plan, [*plan.stages(plan.runs), plan.score(plan.tables()[0], plan.runs)], check_line))
    except SyntaxDataError as error:
        return error


def check_told(wrong, monkeypatch, before, after, place, meant):
    if meant == "xx":  # a language that the identifier does not know
        path = wrong(("target: de", "target: xx"), (before, after))
        for split in ("train", "valid", "test"):
            (path.parent / "corpus" / f"{split}.xx").write_text("a b\n" * 20)
    else:
        path = wrong((before, after))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # for `device`
    error = first_problem(path)
    assert meant in str(error), (after, error)
    if place.startswith("/"):
        assert error.path == path.parent / place[1:], (after, error)
    else:
        assert error.path == path and place in path.read_text().split("\n")[error.line - 1], (after, error)


@pytest.mark.parametrize("kind", [OF_THE_FILE, OF_SUBCOMMANDS], ids=["file", "subcommands"])
def test_a_wrong_recipe_is_told_with_its_line(wrong, monkeypatch, kind):
    for row in kind:
        check_told(wrong, monkeypatch, *row)


@pytest.mark.matrix(8)
@pytest.mark.parametrize("row", OF_FAIRSEQ, ids=lambda row: row[1].split("\n")[-1].strip())
def test_a_wrong_option_of_fairseq_is_told_with_its_line(wrong, monkeypatch, row):
    check_told(wrong, monkeypatch, *row)


def test_all_problems_are_told_at_once_and_nothing_is_started(wrong, capsys):
    path = wrong(("corpus/test}", "corpus/tset}"), ("lr: 0.001", "lr: 0,004"), ("metrics: [bleu]", "tokenize: 13b"))
    for more in ((), ("--dry-run",)):
        assert cli.main(["run", str(path), *more]) == 1
        said = capsys.readouterr()
        assert all(word in said.err for word in ("tset.en", "tset.de", "0,004", "13b"))
        assert [line.split(": ")[1] for line in said.err.splitlines()] == ["error", "also", "also", "also"]
    assert cli.main(["run", str(wrong(("metrics: [bleu]", "tokenize: 13b")))]) == 1  # where no stage would fail at once


@in_a_process
@pytest.mark.slow
def test_importing_the_checks_does_not_import_fairseq():
    """It would print fairseq's notices of packages that are not installed."""
    program = "import sys, fairseq_syntax.lab.recipes.checks; assert 'fairseq' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_too_little_space_is_told(wrong, monkeypatch):
    """For Adam's moments, too, and the best and the last checkpoint of each seed."""
    path = wrong(("systems:", "seeds: [1, 2, 3]\nsystems:"))
    plan, told = Plan(load_recipe(path), path), []
    for free in (1 << 40, 0):
        monkeypatch.setattr(
            "fairseq_syntax.lab.recipes.checks.disk_usage", lambda path, free=free: SimpleNamespace(free=free)
        )
        told.append([*problems(plan, plan.stages(plan.runs), check_line)])
    assert told[0] == [] and "3 models" in str(told[1][0]) and told[1][0].option == "--output"


def test_a_right_recipe_has_no_problems(wrong, capsys):
    path = wrong(("pascal_transformer", "pascal_transformer, train: {dropout: null, max-update: 5000, max-epoch: 3}"))
    assert run("run", path, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "fairseq-train" in said
    # how much there is to compute
    assert "\n# to parse with fairseq_syntax.corpus.parsing.chain, on cpu: 60 lines of en, 120 words\n" in said
    assert "\n# to train, on cpu: 1 of 5,000 updates or 3 epochs at most\n" in said


def test_the_precision_of_a_gpu_is_not_judged_on_a_machine_without_one(wrong):
    """Where stages run on a cluster, the machine that starts them need not have what they use."""
    path = wrong(("train:\n", "device: cuda\ntrain:\n  fp16: true\n"))
    plan = Plan(load_recipe(path), path)
    assert list(problems(plan, plan.stages(plan.runs), check_line, here=False)) == []


def test_label_groups_are_not_judged_before_the_text_is_parsed(wrong):
    """The labels are those of a parser that has not run: the groups of LDD's paper are for Stanford's."""
    one = "{arch: ldd_transformer, options: {ldd-label-groups: stanford}}"
    other = "{extends: model, options: {ldd-label-groups: ud}}"
    path = wrong(
        (CHAIN, f"{CHAIN}, distributions: true"),
        ("attention-heads: 4", "attention-heads: 16"),
        ("{arch: pascal_transformer, options: {pascal-heads: 2}}", f"{one}\n  other: {other}"),
    )
    plan = Plan(load_recipe(path), path)
    assert list(problems(plan, plan.stages(plan.runs), check_line)) == []


@pytest.mark.parametrize("name", ["12:30", "a, b"])
def test_a_folder_whose_name_fairseq_splits_is_told(wrong, tmp_path, monkeypatch, name):
    path, folder = wrong(), tmp_path / name

    def told() -> list[SyntaxDataError]:
        plan = Plan(load_recipe(path, {"folder": json.dumps(str(folder))}), path)
        return list(problems(plan, plan.stages([]), check_line))

    assert [error.path for error in told()] == [folder]
    folder.mkdir()
    monkeypatch.chdir(folder)  # where it is no part of the names that fairseq gets
    assert told() == []
