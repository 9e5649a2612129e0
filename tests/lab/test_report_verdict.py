"""What a report says first: who is ahead, whether that can be told, what was run, and sentences side by side."""

from __future__ import annotations

import shlex

import numpy as np
import pytest

from fairseq_syntax.lab.recipes.layout import Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import Results, _in_other_metrics
from fairseq_syntax.lab.recipes.side_by_side import chosen, differences
from fairseq_syntax.lab.recipes.smoke import smoke
from fairseq_syntax.lab.recipes.verdict import caption, changes, command, sentence
from fairseq_syntax.lab.scoring.names import is_too_low

PAPER = """
corpus: {source: en, target: de, train: t, valid: v, tests: {test: s}}
parse: {source: {parser: stanza}}
train: {lr: 0.004, max-update: 4000}
systems: {plain: {arch: transformer}, PASCAL: {arch: pascal_transformer}}
published: [{source: Table 1, figures: {plain: 20}}]
"""


def scored(plain: float, pascal: float, p: float | None = None, seeds: int = 3) -> dict:
    tests = {} if p is None else {"BLEU": {"difference": pascal - plain, "holm": {"bootstrap": p}, "detectable": 0.75}}
    systems = [
        {"name": name, "runs": [{}] * seeds, "mean": {"BLEU": score}}
        for name, score in (("plain", plain), ("PASCAL", pascal))
    ]
    systems[1]["tests"] = tests
    return {"systems": systems}


@pytest.mark.parametrize(
    "report, said, not_said",
    [
        (scored(20.0, 21.5, 0.01), ["1.50 better", "is significant", "3 seeds"], ["One seed"]),
        (scored(20.0, 18.5, 0.01), ["1.50 worse", "is significant"], []),
        (scored(20.0, 20.25, 0.4, seeds=1), ["not significant", "0.75", "1 seed", "One seed"], []),
        (scored(20.0, 21.5), ["not tested"], ["significant"]),
        (scored(0.17, 0.35, 0.001), ["too low"], ["significant", "better"]),
    ],
)
def test_a_sentence_says_who_is_ahead_and_whether_that_can_be_told(report, said, not_said):
    text = sentence(report, "BLEU", "plain", "test")
    assert all(one in text for one in ("PASCAL", "plain", *said)) and not any(one in text for one in not_said)
    assert is_too_low(report, "BLEU") == ("too low" in text)


@pytest.mark.parametrize("score, notes", [(40.0, 1), (8.0, 0)])
def test_no_other_metric_is_named_in_which_scores_are_too_low(score, notes):
    report = scored(0.17, 0.35, 0.3)
    for system in report["systems"]:
        system["mean"]["chrF"] = score
    report["systems"][1]["tests"]["chrF"] = {"difference": 1.0, "holm": {"bootstrap": 0.001}}
    table = Scored("test")
    results = Results({table: {**report, "signatures": {"BLEU": "", "chrF": ""}}}, {})
    assert len(list(_in_other_metrics(results, [table], "BLEU"))) == notes


def test_no_sentence_of_a_baseline_alone():
    assert sentence({"systems": scored(20.0, 21.0)["systems"][:1]}, "BLEU", "plain", "test") == ""


def test_a_report_names_what_differs_from_the_recipe_and_from_the_papers(tmp_path):
    """By ``--set``, by extending a recipe that has the paper's figures; not by what results do not depend on."""
    paper, changed = tmp_path / "paper.yaml", tmp_path / "own.yaml"
    paper.write_text(PAPER)
    changed.write_text("extends: paper.yaml\nfolder: elsewhere\ntrain: {lr: 0.001}\nsize: {encoder-layers: 2}\n")

    def plan(path, **changes):
        return Plan(load_recipe(path, {key.replace("__", "."): value for key, value in changes.items()}), path)

    assert changes(plan(paper)).values == [] == changes(plan(paper, folder="x", parse__source__models="y")).values
    small = plan(paper, train__max_update="100", parse__source__parser="supar")
    assert set(changes(small).values) == {"train.max-update=100", "parse.source.parser=supar"}
    assert (
        "--set" in command(small) and "train.max-update=100" in command(small) and "--set" not in command(plan(paper))
    )
    assert set(changes(plan(changed)).values) == {"train.lr=0.001", "size.encoder-layers=2"}
    assert changes(plan(changed)).file == "paper.yaml" and "--set" not in command(plan(changed))
    assert changes(plan(paper, score__tokenize="intl", score__resamples="9")).values == ["score.tokenize=intl"]
    assert caption(small, 2500, [1, 2]) == "2,500 training pairs, en parsed by supar, seeds 1, 2"


def test_a_report_names_the_command_that_made_it(tmp_path):
    """All of it: the changes of a recipe that extends the paper's, many changes, those that a shell splits, --smoke."""
    paper, own = tmp_path / "paper.yaml", tmp_path / "own.yaml"
    paper.write_text(PAPER)
    own.write_text("extends: paper.yaml\nfolder: elsewhere\ntrain: {lr: 0.001}\n")
    few, many = {"train.lr": "0.005"}, {f"train.option-{number}": str(number) for number in range(12)}
    for changed in (few, many, {"train.adam-betas": "(0.9, 0.98)"}):
        actual = shlex.split(command(Plan(load_recipe(own, changed), own)))
        assert actual[:4] == ["fairseq-syntax", "run", "own.yaml", "--set"]
        assert set(actual[4:]) == {f"{key}={value}" for key, value in changed.items()}
    small = Plan(smoke(load_recipe(own)), own)
    assert command(small) == "fairseq-syntax run own.yaml --smoke"
    small = Plan(smoke(load_recipe(own, few)), own)
    assert command(small) == "fairseq-syntax run own.yaml --smoke --set train.lr=0.005"


def test_null_on_the_command_line_is_the_default(tmp_path):
    path = tmp_path / "paper.yaml"
    path.write_text(PAPER + "commands: {one: {reason: r, run: r, outputs: [o]}}\n")
    assert load_recipe(path).commands and not load_recipe(path, {"commands": "null"}).commands
    assert load_recipe(path, {"published": "null", "train.lr": "null"}).train == {"max-update": "4000"}
    system = load_recipe(path, {"systems.plain.train.lr": "null"}).systems["plain"]
    assert system.train == {"lr": None}, "which takes it from the recipe's options"


def test_what_differs_is_marked_by_words_or_characters():
    first, second = differences("the old man saw it", "the man saw him")
    assert [part.strip() for part, marked in first if marked] == ["old", "it"]
    assert [part.strip() for part, marked in second if marked] == ["him"]
    for marked, text in ((first, "the old man saw it"), (second, "the man saw him")):
        assert "".join(part for part, _ in marked).split() == text.split()
    assert [part for part, marked in differences("我看见他", "我看她", by_character=True)[1] if marked] == ["她"]


def test_ten_sentences_the_most_different_and_others():
    apart = np.array([0, 9, 0, 8, 7, 0, 6, 5, 4, 3, 0, 0, 0], dtype=float)
    numbers = list(chosen(apart))
    assert numbers[:5] == [1, 3, 4, 6, 7] and len(set(numbers)) == 10 and numbers == list(chosen(apart))
    assert len(chosen(np.zeros(3))) == 3
