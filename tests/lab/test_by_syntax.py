"""Scores by properties of the parse: properties by their definitions, intervals as test sets of their own, tests by
enumeration and by formulas."""

from __future__ import annotations

import itertools
import json
import math
from random import Random

import numpy as np
import pytest
from data_errors import data_error, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu, text_of, write_conllu
from fairseq_syntax.lab.control_trees import random_tree
from fairseq_syntax.lab.scoring import properties, significance
from fairseq_syntax.lab.scoring.by_property import by_syntax, syntax_tables
from fairseq_syntax.lab.scoring.evaluation import ScoreOptions, evaluate, read_system, score_tables
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.properties import Property, interval_label
from fairseq_syntax.lab.scoring.tables import p_value

TEXT = "the a small red dog cat house tree river runs sees under over fast slowly"
WORDS = TEXT.split()


def random_parse(rng: Random, number: int, sentences: int = 2) -> ParsedLine:
    line = ParsedLine(line_number=number)
    for _ in range(rng.randint(1, sentences)):
        start, n = len(line.words), rng.randint(1, 9)
        line.heads += [head + start for head in random_tree(n, rng)]
        line.words += ["w"] * n
        line.sentences.append((start, start + n))
    line.deprels = [rng.choice(["nsubj", "punct", "acl", "acl:relcl"]) for _ in line.words]
    line.upos = [rng.choice(["NOUN", "VERB"]) for _ in line.words]
    line.xpos = ["_"] * len(line.words)
    return line


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(100))
def test_properties_by_loops(seed):
    line = random_parse(Random(seed), 0)
    n = len(line.words)

    def climb(word: int) -> int:
        return 0 if line.heads[word] == word else 1 + climb(line.heads[word])

    assert Property.of("length").value(line) == n
    assert Property.of("depth").value(line) == max(climb(word) for word in range(n))
    distances = [
        abs(word - line.heads[word]) for word in range(n) if line.heads[word] != word and line.deprels[word] != "punct"
    ]
    assert Property.of("dependency-length").value(line) == pytest.approx(np.mean(distances) if distances else 0)
    assert Property.of("longest-dependency").value(line) == max(distances, default=0)
    crossings = 0
    for a, b in itertools.combinations([word for word in range(n) if line.heads[word] != word], 2):
        inside = [min(a, line.heads[a]) < end < max(a, line.heads[a]) for end in (b, line.heads[b])]
        shares = {a, line.heads[a]} & {b, line.heads[b]}
        crossings += inside[0] != inside[1] and not shares
    assert Property.of("crossing").value(line) == crossings
    assert Property.of("label=acl").value(line) == sum(label.startswith("acl") for label in line.deprels)
    assert Property.of("label=acl:relcl").value(line) == line.deprels.count("acl:relcl")
    assert Property.of("upos=VERB").value(line) == line.upos.count("VERB")
    assert all(f(ParsedLine()) == 0 for f in properties.PROPERTIES.values())


def test_intervals_hold_every_line_once():
    values = np.array([0, 3, 1, 2, 7, 7, 7, 9], dtype=float)
    for text, expected in (
        ("length@2,7", {"≤ 2": [0, 2, 3], "(2, 7]": [1, 4, 5, 6], "> 7": [7]}),
        ("length", {"≤ 1": [0, 2], "(1, 3]": [1, 3], "(3, 7]": [4, 5, 6], "> 7": [7]}),
        ("crossing", {"0": [0], "1": [2], "> 1": [1, 3, 4, 5, 6, 7]}),
        ("upos=X@4,20", {"≤ 4": [0, 1, 2, 3], "(4, 20]": [4, 5, 6, 7]}),
    ):
        of = Property.of(text)
        intervals = {(one.over, one.to): one.lines.tolist() for one in of.intervals(values)}
        actual = {interval_label(of.name, *bounds): lines for bounds, lines in intervals.items()}
        assert actual == expected
    assert interval_label("depth", None, None) == "all" and interval_label("depth", 1.5, 2.5) == "(1.5, 2.5]"
    assert interval_label("dependency-length", 2, 3) == "(2, 3]", "a mean of 2.5 is in it"


@pytest.mark.parametrize("text", ["hight", "label=", "length@", "length@3,2", "length@a", "label", "length@1,inf"])
def test_what_is_no_property(text):
    with data_error(text.partition("@")[2] or text.partition("=")[0]):
        Property.of(text)


@given(st.lists(st.floats(0.001, 1) | st.just(0.02), min_size=1, max_size=5))
@settings(max_examples=examples(40))
def test_holm_is_the_closed_test_of_bonferroni(p):
    """A hypothesis falls when every set of hypotheses with it falls by Bonferroni's bound (Marcus et al. 1976)."""
    sets = [s for size in range(1, len(p) + 1) for s in itertools.combinations(range(len(p)), size)]
    expected = [max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in range(len(p))]
    assert significance.holm(p) == pytest.approx(expected)


def test_holm_leaves_out_what_is_not_there():
    actual = significance.holm([0.03, math.nan, 0.02])
    assert actual[0] == pytest.approx(0.04) and math.isnan(actual[1]) and actual[2] == pytest.approx(0.04)


def texts(n: int, seed: int) -> tuple[list[str], list[list[str]]]:
    rng = Random(seed)
    refs = [" ".join(rng.choices(WORDS, k=rng.randint(3, 15))) for _ in range(n)]
    runs = [
        [" ".join(w if rng.random() > noise else rng.choice(WORDS) for w in ref.split()) for ref in refs]
        for noise in (0.3, 0.25, 0.1)
    ]
    return refs, runs


@pytest.mark.parametrize("key", ["bleu", "chrf", "ter", "ribes"])
def test_an_interval_is_scored_and_resampled_as_a_file_of_its_own(key):
    refs, (base, first, second) = texts(60, 1)
    parses = [random_parse(Random(i), i) for i in range(60)]
    prop = Property.of("length@5")
    actual = by_syntax(
        {"base": [base], "ours": [first, second]},
        [Scorer(key, [refs])],
        parses,
        [prop],
        baseline="base",
        resamples=6,
    )
    lengths = [len(parse.words) for parse in parses]
    for interval, chosen in zip(
        actual[0]["intervals"],
        ([i for i, n in enumerate(lengths) if n <= 5], [i for i, n in enumerate(lengths) if n > 5]),
    ):
        scorer = Scorer(key, [[refs[i] for i in chosen]])
        part = {name: [run[i] for i in chosen] for name, run in (("base", base), ("1", first), ("2", second))}
        (scores,) = interval["scores"].values()
        assert interval["sentences"] == len(chosen)
        assert scores["base"]["score"] == pytest.approx(scorer.corpus(part["base"]))
        mean = (scorer.corpus(part["1"]) + scorer.corpus(part["2"])) / 2
        assert scores["ours"]["score"] == pytest.approx(mean)
        # the same draws, by writing out the resampled files
        rng = np.random.default_rng(significance.SEED)
        drawn = {name: [] for name in part}
        for _ in range(6):
            times = rng.multinomial(len(chosen), [1 / len(chosen)] * len(chosen))
            lines = [i for i, count in enumerate(times) for _ in range(count)]
            resampled = Scorer(key, [[refs[chosen[i]] for i in lines]])
            for name, text in part.items():
                drawn[name].append(resampled.corpus([text[i] for i in lines]))
        ours = (np.array(drawn["1"]) + drawn["2"]) / 2
        seeds = np.array([scorer.corpus(part["1"]), scorer.corpus(part["2"])])
        of_sentences = np.var(np.array(drawn["1"]) - drawn["2"], ddof=1) / 2
        assert seeds.var(ddof=1) > of_sentences, "the seeds are to differ by more than the sentences"
        rng = np.random.default_rng([significance.SEED, *b"ours"])
        taken = rng.integers(2, size=(1, 6))[0]
        ours += (seeds[taken] - seeds.mean()) * (1 - of_sentences / seeds.var(ddof=1)) ** 0.5
        differences = ours - drawn["base"]
        (tests,) = interval["differences"].values()
        test = tests["ours"]
        assert (scores["ours"]["low"], scores["ours"]["high"]) == pytest.approx((min(ours), max(ours)))
        assert (test["low"], test["high"]) == pytest.approx((min(differences), max(differences)))
        further = sum(abs(d - test["difference"]) >= abs(test["difference"]) for d in differences)
        assert test["p"] == pytest.approx((further + 1) / 7)
        assert test["detectable"] == pytest.approx(2.8016 * np.std(differences, ddof=1), rel=1e-3)
    tests = [
        differences["ours"] for interval in actual[0]["intervals"] for differences in interval["differences"].values()
    ]
    assert [test["p_holm"] for test in tests] == significance.holm([test["p"] for test in tests])


def test_the_detectable_difference_is_that_of_the_formula():
    """RIBES is a mean over sentences: its standard error is known without resampling."""
    refs, (base, ours, _) = texts(120, 2)
    scorer = Scorer("ribes", [refs])
    difference = scorer.sentences(ours) - scorer.sentences(base)
    resampled = significance.Resampled(scorer, {"ours": [ours], "base": [base], "same": [ours]}, 3000)
    actual = resampled.difference("ours", "base")
    assert actual.difference == pytest.approx(float(difference.mean()))
    assert actual.detectable == pytest.approx((1.95996 + 0.84162) * difference.std() / math.sqrt(120), rel=0.05)
    same = resampled.difference("ours", "same")
    assert (same.low, same.high, same.p, same.detectable) == (0, 0, 1, 0)


def test_several_systems_are_corrected_in_the_table_and_raw_in_the_report(tmp_path):
    refs, runs = texts(50, 3)
    for name, lines in zip(("a", "b", "c"), runs):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    systems = [read_system(f"{name}={tmp_path / name}") for name in "abc"]
    report = evaluate(systems, [refs], ScoreOptions(metrics=["bleu"], resamples=100, trials=100))
    tests = [system["tests"]["BLEU"] for system in report["systems"][1:]]
    for name, raw in (
        ("bootstrap", [t["bootstrap"]["p"] for t in tests]),
        ("randomization", [t["runs"][0]["randomization"]["p"] for t in tests]),
        ("t_test", [t["t_test"] for t in tests]),
        ("ks", [t["ks"] for t in tests]),
    ):
        assert [t["holm"][name] for t in tests] == significance.holm(raw)
        assert all(a >= p for a, p in zip(significance.holm(raw), raw)) and significance.holm(raw) != raw
    assert all(t["detectable"] > 0 and "seeds" not in t["holm"] for t in tests)
    columns = {name: [*score_tables(report)][1].header.index(name) for name in ("bootstrap", "KS")}
    for name, key in (("bootstrap", "bootstrap"), ("KS", "ks")):
        shown = [row[columns[name]] for row in [*score_tables(report)][1].rows]
        assert shown == [p_value(test["holm"][key]) for test in tests]


def test_the_command(tmp_path, capsys, caplog):
    refs, runs = texts(80, 4)
    for name, lines in zip(("ref", "a", "b"), [refs, *runs]):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    with open(tmp_path / "p.conllu", "w") as file:
        file.write("# lines = 80\n\n")
        for number in range(80):
            write_conllu(file, random_parse(Random(number), number) if number != 7 else ParsedLine(line_number=7))
    common = ["--ref", f"{tmp_path}/ref", "--sys", f"a={tmp_path}/a", "--sys", f"b={tmp_path}/b"]
    argv = ["score", *common, "--conllu", f"{tmp_path}/p.conllu", "--by", "depth", "--by", "crossing", "label=acl"]
    argv += ["--metrics", "bleu", "chrf", "distinct1", "--resamples", "20", "--trials", "0"]
    assert command([*argv, "--json", f"{tmp_path}/r.json"]) == 0
    printed = capsys.readouterr().out
    for title in ("BLEU by depth", "chrF by label=acl, against a", "Holm: corrected for 4 comparisons"):
        assert title in printed
    report = json.loads((tmp_path / "r.json").read_text())
    assert [one["property"] for one in report["by_syntax"]] == ["depth", "crossing", "label=acl"]
    for one in report["by_syntax"]:
        assert sum(interval["sentences"] for interval in one["intervals"]) == 79, "one has no parse"
    assert "1 of 80 lines have no parse" in caplog.text
    assert command([*argv[:-4], "--resamples", "0", "--trials", "0"]) == 0
    assert "Holm" not in capsys.readouterr().out
    refused(["score", *common, "--by", "depth"], option="--conllu")
    refused(["score", *common, "--json", f"{tmp_path}/none/r.json"], path="r.json")
    texts_of = [text_of(line) for line in read_conllu(tmp_path / "p.conllu")]
    for name, lines in (("same", texts_of), ("other", [*reversed(texts_of)])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    assert command([*argv, "--src", f"{tmp_path}/same"]) == 0
    refused([*argv, "--src", f"{tmp_path}/other"], path="p.conllu")
    assert command([*argv, "--by", "label=acll"]) == 0
    assert "--by label=acll" in caplog.text
    capsys.readouterr()
    only = [*argv[: argv.index("--metrics")], "--metrics", "distinct1", "--trials", "0"]
    refused(only, option="--metrics")
    (tmp_path / "p.conllu").write_text("# lines = 3\n\n")
    refused(argv, path="p.conllu")
    with pytest.raises(SystemExit):
        command(["score", *common, "--resamples", "-1"])
    assert "--resamples" in capsys.readouterr().err
    refused(["score", *common, "--json", str(tmp_path)], path=tmp_path)


def test_a_sentence_without_a_parse_is_in_no_interval():
    """It would count as a sentence of no words, whatever its length."""
    refs, (base, ours, _) = texts(60, 6)
    parses = [random_parse(Random(i), i) for i in range(60)]
    without = set(range(0, 60, 7))
    some = [ParsedLine(line_number=i) if i in without else parse for i, parse in enumerate(parses)]
    kept = [i for i in range(60) if i not in without]

    def found(lines: list[int], parses: list[ParsedLine]) -> list[dict]:
        scorer = Scorer("chrf", [[refs[i] for i in lines]])
        runs = {name: [[run[i] for i in lines]] for name, run in (("a", base), ("b", ours))}
        of = [Property.of(text) for text in ("length@5", "depth", "label=acl")]
        return by_syntax(runs, [scorer], parses, of, baseline="a", resamples=10)

    assert found([*range(60)], some) == found(kept, [parses[i] for i in kept])
    with data_error(option="--conllu"):
        found([*range(60)], [ParsedLine(line_number=i) for i in range(60)])


@pytest.mark.parametrize("sentences", [1, 2, 9])
def test_a_few_sentences_are_not_tested(tmp_path, capsys, sentences):
    """Every resample of one sentence is that sentence: no bootstrap tells it from chance."""
    for name, text in (("ref", "a b c d e"), ("a", "a b x d e"), ("b", "a b c d e")):
        (tmp_path / name).write_text(f"{text}\n" * sentences)
    with open(tmp_path / "p.conllu", "w") as file:
        file.write(f"# lines = {sentences}\n\n")
        for number in range(sentences):
            write_conllu(file, random_parse(Random(number), number))
    files = ["--ref", f"{tmp_path}/ref", "--sys", f"a={tmp_path}/a", f"b={tmp_path}/b", "--conllu"]
    argv = ["score", *files, f"{tmp_path}/p.conllu", "--by", "depth@99", "--metrics", "chrf", "--resamples", "20"]
    assert command([*argv, "--trials", "20", "--json", f"{tmp_path}/r.json"]) == 0
    printed = capsys.readouterr().out
    assert "fewer than 10 sentences" in printed and "MDD" not in printed
    assert "[" not in printed.partition("chrF by depth")[2], "no interval"
    assert json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)["sentences"] == sentences


def test_intervals_with_few_sentences_are_not_tested_beside_those_with_many():
    refs, (base, ours, _) = texts(40, 5)
    parses = [random_parse(Random(i), i) for i in range(40)]
    edge = sorted(len(parse.words) for parse in parses)[-5]
    prop = Property.of(f"length@{edge}")
    actual = by_syntax({"a": [base], "b": [ours]}, [Scorer("chrf", [refs])], parses, [prop], baseline="a", resamples=20)
    many, few = (interval["differences"]["chrF"]["b"] for interval in actual[0]["intervals"])
    assert few.keys() == {"difference"} and many["p_holm"] == many["p"], "one comparison"
    scores, tests = (table.render() for table in syntax_tables(actual, "a"))
    assert scores.count("[") == 2 and "fewer than 10 sentences" in scores
    assert "Holm: one comparison, nothing to correct" in tests and tests.splitlines()[-3].split()[-3:] == ["–"] * 3


def test_intervals_are_marked_by_the_corrected_p():
    """Two of which one survives the correction of both."""
    difference = {"difference": 1.0, "low": 0.5, "high": 1.5, "detectable": 0.7}
    intervals = [
        {"over": over, "to": None, "sentences": 50, "scores": {"BLEU": {"a": {"score": 20.0}, "b": {"score": 21.0}}},
         "differences": {"BLEU": {"b": {**difference, "p": p, "p_holm": p_holm}}}}
        for over, p, p_holm in ((None, 0.01, 0.02), (3.0, 0.04, 0.08))
    ]  # fmt: skip
    _, tests = syntax_tables([{"property": "depth", "intervals": intervals}], "a")
    assert ["*" in row[-1] for row in tests.rows] == [True, False] and not any("*" in row[-2] for row in tests.rows)


def test_intervals_of_scores_that_are_too_low_have_no_marks():
    refs, (_, ours, _) = texts(60, 5)
    parses = [random_parse(Random(i), i) for i in range(60)]
    runs, prop = {"a": [["x y z"] * 60], "b": [ours]}, Property.of("length@99")
    actual = by_syntax(runs, [Scorer("chrf", [refs])], parses, [prop], baseline="a", resamples=200)
    for score, marked in ((50.0, True), (14.0, False)):
        _, tests = syntax_tables(actual, "a", report={"systems": [{"mean": {"chrF": score}}]})
        assert ("*" in tests.rows[0][-1]) == marked and ("too low" in tests.render()) != marked
