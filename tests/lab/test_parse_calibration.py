"""The calibration report: its figures by loops, a temperature that is known, and the command."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from data_errors import data_error, refused
from parse_models import conllu, models, sentences

from fairseq_syntax.cli import main
from fairseq_syntax.corpus.conllu import ParsedLine, parse_conllu_block
from fairseq_syntax.lab.scoring import attachment, calibration
from fairseq_syntax.lab.scoring.calibration import Choices

GOLD = """1	a	_	_	_	_	2	det	_	_
2	b	_	_	_	_	0	root	_	_
3	c	_	_	_	_	2	obj	_	_
"""
PARSED = """1	a	_	_	_	_	2	det	_	Arcs=2:det:0.6,2:amod:0.1,3:det:0.2
2	b	_	_	_	_	0	root	_	Arcs=0:root:0.9
3	c	_	_	_	_	1	obj	_	Arcs=1:obj:0.5,2:dep:0.3,2:obj:0.15
"""


def test_attachment_is_that_of_the_shared_task_apart_from_subtypes():
    rng = random.Random(4)

    def parse(labels: list[str]) -> ParsedLine:
        heads = [rng.randrange(number) if number else 0 for number in range(30)]
        return ParsedLine.of_words(
            [f"w{i}" for i in range(30)], [h + 1 if i else 0 for i, h in enumerate(heads)], labels
        )

    labels = rng.choices(["a", "a:b", "a:c", "d"], k=30)
    gold, parsed = parse(labels), parse([label if rng.random() < 0.6 else "a" for label in labels])
    parsed.heads[:20] = gold.heads[:20]
    parsed.arcs = [(word, head, label, 1.0) for word, (head, label) in enumerate(zip(parsed.heads, parsed.deprels))]
    for subtypes in (True, False):
        if not subtypes:
            gold.deprels, parsed.deprels = ([label[:1] for label in line.deprels] for line in (gold, parsed))
        actual = calibration.calibration_report(calibration.compare_parses([gold], [parsed]), 10, None)
        scores = attachment.score_trees(*(attachment.collect_words([line], "x") for line in (gold, parsed)))
        assert actual["uas"] == pytest.approx(scores["UAS"].f1) and 0.6 < actual["uas"] < 1
        assert actual["las"] < scores["LAS"].f1 if subtypes else actual["las"] == pytest.approx(scores["LAS"].f1)


def softmaxes(n: int, size: int, temperature: float) -> tuple[np.ndarray, Choices]:
    """[n, size] scores, and their softmaxes, of which the right choices were drawn at another temperature."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(n, size)) * 3
    drawn = (scores / temperature + random.gumbel(size=scores.shape)).argmax(1)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    right = np.arange(size) == drawn[:, None]
    return scores, Choices(n, np.repeat(np.arange(n), size), p.ravel(), right.ravel())


def test_a_small_parse_word_by_word():
    sample = calibration.compare_parses([parse_conllu_block(GOLD)], [parse_conllu_block(PARSED)])
    confidence, correct = sample.heads.best()
    assert np.allclose(confidence, [0.7, 0.9, 0.5]) and correct.tolist() == [True, True, False]
    joint, both = sample.arcs.best()
    assert np.allclose(joint, [0.6, 0.9, 0.5]) and both.tolist() == [True, True, False]
    assert np.allclose(sample.labels.best()[0], [6 / 7, 1.0, 2 / 3])
    assert sample.labels.best()[1].tolist() == [True, True, False]
    assert np.allclose(sample.tree_p, [0.7, 0.9, 0.5]) and sample.tree_right.tolist() == [True, True, False]
    assert abs(sample.heads.log_loss() + (np.log(0.7) + np.log(0.9) + np.log(0.45)) / 3) < 1e-12
    assert calibration.kept_mass(sample.arcs, [0.2]) == [(0.2, pytest.approx(5 / 3), pytest.approx(2.5 / 3))]


def test_a_gold_arc_that_was_not_kept_is_an_error_of_the_parser():
    parsed = parse_conllu_block(PARSED.replace("0:root:0.9", "1:dep:0.9"))
    sample = calibration.compare_parses([parse_conllu_block(GOLD)], [parsed])
    assert sample.heads.best()[1].tolist() == [True, False, False]
    assert sample.labels.n == 2 and sample.tree_p[1] == 0.0
    assert np.isfinite(sample.heads.log_loss())


def test_the_calibration_error_by_loops():
    random = np.random.default_rng(1)
    confidence = random.uniform(size=500)
    confidence[:2] = 0.0, 1.0
    correct = random.uniform(size=500) < confidence**2
    for bins in (1, 7, 10):
        total = 0.0
        for b in range(bins):
            inside = [
                i for i, p in enumerate(confidence) if b / bins <= p < (b + 1) / bins or (b + 1 == bins and p == 1)
            ]
            if inside:
                accuracy = sum(bool(correct[i]) for i in inside) / len(inside)
                total += abs(accuracy - sum(confidence[i] for i in inside) / len(inside)) * len(inside) / 500
        assert abs(calibration.calibration_error(confidence, correct, bins) - total) < 1e-12


def test_a_probability_at_the_bound_of_a_bin_is_in_the_upper_one():
    confidence = np.array([0.7 + 0.1, 0.85])  # 0.7999999999999999
    assert calibration.reliability(confidence, np.array([True, False])) == [(pytest.approx(0.825), 0.5, 2)]
    hundredths = np.arange(101) / 100
    counts = [count for *_, count in calibration.reliability(hundredths, hundredths > 0.5, 100)]
    assert counts == [1] * 99 + [2]


def test_a_temperature_on_probabilities_is_one_on_scores():
    scores, choices = softmaxes(50, 6, 1.0)
    for temperature in (0.5, 1.0, 2.5):
        expected = np.exp(scores / temperature) / np.exp(scores / temperature).sum(1, keepdims=True)
        assert np.allclose(choices.at(temperature).p, expected.ravel(), atol=1e-6)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_a_known_temperature_is_found(temperature):
    _, choices = softmaxes(20_000, 8, temperature)
    actual = calibration.fit_temperature(choices)
    assert abs(actual - temperature) < 0.05 * temperature
    before = calibration.calibration_error(*choices.best())
    after = calibration.calibration_error(*choices.at(actual).best())
    assert after < 0.015 and (before > 0.03 or temperature == 1.0)
    assert abs(calibration.held_out_error(choices) - after) < 0.01


@pytest.mark.parametrize(
    "parsed",
    [
        PARSED.replace("\ta\t", "\tx\t"),  # other words
        GOLD,  # no distributions
    ],
)
def test_what_cannot_be_compared(parsed):
    with data_error("line 1"):
        calibration.compare_parses([parse_conllu_block(GOLD)], [parse_conllu_block(parsed)])
    with data_error():
        calibration.compare_parses([], [])


def test_the_command_reports_on_a_parse_and_on_a_parser(tmp_path, capsys):
    gold, parsed = tmp_path / "gold.conllu", tmp_path / "parsed.conllu"
    gold.write_text(GOLD)
    parsed.write_text(PARSED)
    report = tmp_path / "report.json"
    assert main(["calibrate", "--gold", str(gold), "--parsed", str(parsed), "--json", str(report)]) == 0
    assert "3 words: UAS 66.67, LAS 66.67" in capsys.readouterr().out
    assert json.loads(report.read_text())["curves"]["heads"] == [
        [0.5, 0.0, 1],
        [pytest.approx(0.7), 1.0, 1],
        [0.9, 1.0, 1],
    ]
    gold.write_text(conllu(sentences(20, seed=3), seed=3))
    picture = tmp_path / "reliability.png"
    toy = ["--lang", "xx", "--model-dir", str(models())]
    for more in ([], ["--structured"]):
        command = ["calibrate", "--gold", str(gold), "--json", str(report), "--picture", str(picture), *toy, *more]
        assert main(command) == 0
        actual = json.loads(report.read_text())
        assert ("temperature" in actual) is not bool(more)
        assert actual["words"] == sum(len(line.split()) for line in sentences(20, seed=3))
        assert actual["kept"][-1]["mass"] > 0.9
        assert picture.read_bytes().startswith(b"\x89PNG")
    parsed.write_text(PARSED)
    before = gold.read_text()
    for more, about in (
        ([], {}),  # no distributions
        (["--json", gold], {"path": gold}),
        (["--picture", tmp_path / "x.jpg"], {"path": "x.jpg"}),
        (["--json", tmp_path / "x.svg", "--picture", tmp_path / "x.svg"], {"path": "x.svg"}),
    ):
        refused(["calibrate", "--gold", gold, "--parsed", parsed, *more], **about)
    assert gold.read_text() == before


def fitted(capsys, *arguments) -> tuple[float, float]:
    """The temperatures that the command prints."""
    assert main(["calibrate", *map(str, arguments)]) == 0
    actual = re.search(r"--temperature (\S+) --label-temperature (\S+);", capsys.readouterr().out)
    return float(actual[1]), float(actual[2])


def test_a_fit_is_of_the_scores_whatever_they_were_divided_by(tmp_path, capsys):
    gold, text, parsed = tmp_path / "gold.conllu", tmp_path / "text", tmp_path / "parsed.conllu"
    gold.write_text(conllu(sentences(60, seed=3), seed=3))
    text.write_text("".join(f"{line}\n" for line in sentences(60, seed=3)))
    toy = ["--lang", "xx", "--model-dir", models()]
    plain = fitted(capsys, "--gold", gold, *toy)
    divided = ["--temperature", 1.5, "--label-temperature", 0.8]
    assert fitted(capsys, "--gold", gold, *toy, *divided) == pytest.approx(plain, rel=0.02)
    command = ["parse", "--input", text, "--output", parsed, *toy, "--pretokenized", "--distributions", *divided]
    assert main([*map(str, command), "--min-prob", "1e-5"]) == 0
    assert fitted(capsys, "--gold", gold, "--parsed", parsed) == pytest.approx(plain, rel=0.02)


def test_a_parse_of_marginals_has_no_temperature_and_a_title_may_say_anything(tmp_path, capsys):
    gold, parsed = tmp_path / "gold.conllu", tmp_path / "parsed.conllu"
    gold.write_text(GOLD)
    parsed.write_text('# parsed_with = {"structured": true}\n' + PARSED)
    assert main(["calibrate", "--gold", str(gold), "--parsed", str(parsed)]) == 0
    assert "--temperature" not in capsys.readouterr().out
    parsed.write_text('# parsed_with = {"temperature": 2.0, "control": ["linear"]}\n' + PARSED)
    assert main(["calibrate", "--gold", str(gold), "--parsed", str(parsed)]) == 0
    assert "--temperature" not in capsys.readouterr().out, "it would be relative to what the control made"
    parsed.write_text(PARSED)
    plain = fitted(capsys, "--gold", gold, "--parsed", parsed)
    parsed.write_text('# parsed_with = {"temperature": "hot", "structured": 0}\n' + PARSED)
    assert fitted(capsys, "--gold", gold, "--parsed", parsed) == plain


@pytest.mark.parametrize("option", [["--temperature", "2"], ["--structured"], ["--model-dir", "x"], ["--lang", "de"]])
def test_options_of_a_parser_where_there_is_none(tmp_path, option):
    gold, parsed = tmp_path / "gold.conllu", tmp_path / "parsed.conllu"
    gold.write_text(GOLD)
    parsed.write_text(PARSED)
    refused(["calibrate", "--gold", str(gold), "--parsed", str(parsed), *option], option=option[0])


def test_flat_distributions_keep_their_mass_at_any_temperature():
    flat = Choices.of([[(0.1, True)] + [(0.03, False)] * 30])
    for temperature in (0.1, 0.15, 0.3, 3.0, 10.0):
        powers = flat.p ** (1 / temperature)
        assert flat.at(temperature).p == pytest.approx(powers / powers.sum())
    assert calibration.fit_temperature(flat) < 0.101


def test_without_gold_heads_there_is_no_temperature_to_fit():
    wrong = iter(("3:det:0.6", "3:root:0.5", "1:obj:0.4"))
    parsed = re.sub(r"Arcs=\S+", lambda match: f"Arcs={next(wrong)}", PARSED)
    sample = calibration.compare_parses([parse_conllu_block(GOLD)], [parse_conllu_block(parsed)])
    assert not sample.labels.n
    report = calibration.calibration_report(sample, 10, (2.0, 1.5))
    assert report["temperature"] == {"head": None, "label": None}
    (words, *_) = calibration.calibration_tables(report)
    assert not any("best fit" in note for note in words.notes) and len(words.notes) == 2


def test_without_gold_labels_there_is_a_temperature_of_heads_alone():
    parsed = re.sub(r":[a-z]+:", ":other:", PARSED)
    report = calibration.calibration_report(
        calibration.compare_parses([parse_conllu_block(GOLD)], [parse_conllu_block(parsed)]), 10, (2, 1)
    )
    assert report["temperature"]["head"] > 0 and report["temperature"]["label"] is None
    (words, *_) = calibration.calibration_tables(report)
    assert re.match(r"best fit: --temperature \S+; heads", words.notes[0]) and "--label-temperature" in words.notes[1]
