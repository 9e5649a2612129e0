"""Contrastive evaluation: every layout, the published programs' counts, and the statistics by their formulas."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from data_errors import data_error, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.cli import contrast as contrast_command
from fairseq_syntax.cli import main as command
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring import contrast
from fairseq_syntax.lab.scoring.contrast_sets import ContrastItem, joined, read_set
from fairseq_syntax.lab.scoring.significance import holm

LINGEVAL = [
    {
        "source": f"source {number}",
        "reference": f"right {number}",
        "origin": "x.1",
        "errors": [
            {"type": kind, "contrastive": f"{kind} {number}", **({} if kind == "polarity" else {"distance": distance})}
            for kind, distance in (("np", number), ("verb", str(2 * number)), ("polarity", 0))[: number % 4]
        ],
    }
    for number in range(30)
]


def write(path, value) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def counted(actual: contrast.ContrastSet, scores: list[float], kind: str) -> dict[str, tuple[int, int]]:
    report = contrast.evaluate_contrast(actual, {"a": contrast.decisions(actual, scores)})
    entries = report["groups"][kind]
    return {group: (e["systems"]["a"]["right"], e["systems"]["a"]["items"]) for group, e in entries.items()}


def test_a_byte_order_mark_is_no_part_of_a_set(tmp_path):
    plain, marked = tmp_path / "set.json", tmp_path / "marked" / "set.json"
    marked.parent.mkdir()
    assert read_set(write(plain, LINGEVAL)) == read_set(write(marked, "\ufeff" + json.dumps(LINGEVAL)))


@given(st.lists(st.sampled_from([-3.0, -2.5, -2.0, -1.0]), min_size=100, max_size=100))
@settings(max_examples=examples(30))
def test_lingeval97_is_counted_as_its_own_program_counts(tmp_path_factory, scores):
    actual = read_set(write(tmp_path_factory.mktemp("set") / "lingeval97.json", LINGEVAL))
    scores = scores[: len(actual.rows)]
    assert [text for _, text in actual.rows] == [
        text for entry in LINGEVAL for text in (entry["reference"], *(e["contrastive"] for e in entry["errors"]))
    ]
    # the program reads the scores one after the other
    stream = iter(scores)
    by_kind, by_distance = Counter(), Counter()
    for entry in LINGEVAL:
        reference = next(stream)
        for error in entry["errors"]:
            better = reference > next(stream)
            by_kind[error["type"], better] += 1
            if "distance" in error:
                distance = int(error["distance"])
                by_distance["> 15" if distance > 15 else str(distance), better] += 1
    expected = {
        kind: (by_kind[kind, True], by_kind[kind, True] + by_kind[kind, False]) for kind in ("np", "polarity", "verb")
    }
    assert counted(actual, scores, "category") == expected
    for distance, (right, items) in counted(actual, scores, "distance").items():
        assert (right, items) == (
            by_distance[distance, True],
            by_distance[distance, True] + by_distance[distance, False],
        )


def test_parallel_files_and_ties(tmp_path):
    for name, lines in (("s", "a b\nc\nd\n"), ("tgt.correct", "A\nB\nC\n"), ("tgt.incorrect", "X\nY\nZ\n")):
        write(tmp_path / f"agree.mt.{name}.gz", lines)
    text = ",".join(f"{tmp_path}/agree.mt.{name}.gz" for name in ("s", "tgt.correct", "tgt.incorrect"))
    actual = read_set(text)
    assert actual.name == "agree.mt" and read_set(f"other={text}").name == "other"
    # DistilLingEval: first the scores of all correct ones, and a tie is right
    assert actual.rows == [(0, "A"), (1, "B"), (2, "C"), (0, "X"), (1, "Y"), (2, "Z")]
    scores = [-1.0, -2.0, -3.0, -2.0, -2.0, -1.0]
    assert contrast.decisions(actual, scores).tolist() == [True, False, False]
    assert contrast.decisions(actual, scores, ties_right=True).tolist() == [True, True, False]
    assert contrast.ties(actual, scores) == 1
    for name in ("s", "tgt.correct", "tgt.incorrect"):
        (tmp_path / "np").mkdir(exist_ok=True)
        write(tmp_path / "np" / f"{name}.de", "a\n")
    folder = ",".join(f"{tmp_path}/np/{name}.de" for name in ("s", "tgt.correct", "tgt.incorrect"))
    assert read_set(folder).name == "np"


def test_tsv_and_several_sets(tmp_path):
    table = "\ufeffid\tsource\tcorrect\tincorrect\tdistance\tcategory\n1\ts\tc\ti\t\tnp\n2\ts t\tc c\ti i\t0\t\n"
    actual = read_set(write(tmp_path / "mine.tsv", table))
    assert actual.sources == ["s", "s t"] and [text for _, text in actual.rows] == ["c", "i", "c c", "i i"]
    assert [(i.category, i.distance) for i in actual.items] == [("np", None), ("mine", 0)]
    both = joined([actual, read_set("b=" + write(tmp_path / "b.json", LINGEVAL[:4]))])
    assert both.rows[4:6] == [(2, "right 0"), (3, "right 1")] and len(both.items) == 2 + 6
    assert {i.category for i in both.items} == {"mine: np", "mine", "b: np", "b: verb", "b: polarity"}
    for item in both.items:
        assert len({both.rows[row][0] for row in (item.correct, item.incorrect)}) == 1


def test_an_empty_source_is_told_and_read(tmp_path, caplog):
    path = write(tmp_path / "a.tsv", "source\tcorrect\tincorrect\nx\ty\tz\n \ty\tz\n\ty\tz\n")
    actual = read_set(path)
    assert (
        len(actual.items) == 3
        and contrast.sources_of(actual).tolist()[0] not in contrast.sources_of(actual).tolist()[1:]
    )
    assert [record.getMessage() for record in caplog.records if "line 3" in record.getMessage()]


def test_a_set_that_cannot_be_read_is_not_called_something_else(tmp_path):
    with data_error(path="none.json"):
        read_set("none.json")
    (actual,) = read_set(write(tmp_path / "a.tsv", "source\tcorrect\tincorrect\nx\ty\tz\n\n")).items
    assert actual.distance is None


@pytest.mark.parametrize(
    ("name", "text", "line", "names"),
    [
        ("a.tsv", "source\tcorrect\n", 1, ["incorrect"]),
        ("a.tsv", "source\tcorrect\tincorrect\tsource\nx\ty\tz\tx\n", 1, ["source"]),
        ("a.tsv", "source\tcorrect\tincorrect\n\nx\ty\tz\n", 2, []),
        ("a.tsv", "source\tcorrect\tincorrect\nx\ty\n", 2, []),
        ("a.tsv", "source\tcorrect\tincorrect\tdistance\nx\ty\tz\t1.5\n", 2, ["'1.5'"]),
        ("a.tsv", "source\tcorrect\tincorrect\n", None, []),
        ("a.json", "{", None, ["a.json: Invalid JSON"]),
        ("a.json", "{}", None, ["a.json: Input should be a valid array, not {}"]),
        ("a.json", '[{"source": "x"}]', None, ["entry 1", "'reference'"]),
        ("a.json", '[{"source": "x", "reference": "y", "errors": [{}]}]', None, ["entry 1", "'errors'"]),
        (
            "a.json",
            '[{"source": "x", "reference": "y", "errors": [{"contrastive": "z", "distance": -1}]}]',
            None,
            ["entry 1", "-1"],
        ),
        ("a.txt", "x", None, [".json", ".tsv"]),
    ],
)
def test_what_is_no_set_is_named(tmp_path, name, text, line, names):
    with data_error(*names, path=name, line=line) as error:
        read_set(write(tmp_path / name, text))
    assert error.value.line == line


@given(st.integers(0, 60), st.integers(1, 60))
def test_wilsons_interval_solves_its_equation(right, total):
    """Its ends are the p for which the observed share is 1.96 standard errors (of p) away."""
    right = min(right, total)
    actual = contrast.accuracy(np.arange(total) < right, np.arange(total))
    assert actual["effective"] == actual["sources"] == total
    for end, sign in ((actual["low"], 1), (actual["high"], -1)):
        error = 1.959964 * math.sqrt(max(end * (1 - end), 0) / total)
        assert end + sign * error == pytest.approx(right / total, abs=1e-6)


@given(st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=examples(40))
def test_with_an_item_a_source_the_test_is_mcnemars(gained, lost):
    baseline = np.array([False] * gained + [True] * lost + [True, False])
    system = np.array([True] * gained + [False] * lost + [True, False])
    actual = contrast.compare_decisions(baseline, system, np.arange(len(system)))
    n = gained + lost
    chance = [Fraction(math.comb(n, k), 2**n) for k in range(n + 1)]
    assert actual["p"] == pytest.approx(float(sum(p for p in chance if p <= chance[gained])))
    assert (actual["gained"], actual["lost"]) == (gained, lost)
    assert actual["difference"] == pytest.approx((gained - lost) / (n + 2))


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 7)), min_size=1, max_size=30))
@settings(max_examples=examples(60))
def test_the_p_of_random_signs_by_enumeration(items):
    baseline, system, sources = (np.array(column) for column in zip(*items))
    differences = Counter()
    for was, now, source in items:
        differences[source] += int(now) - int(was)
    observed = abs(sum(differences.values()))
    sums = [
        sum(sign * d for sign, d in zip(signs, differences.values()))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    expected = sum(abs(one) >= observed for one in sums) / len(sums)
    assert contrast.compare_decisions(baseline, system, sources)["p"] == pytest.approx(expected)


def test_the_p_of_many_sources_is_that_of_a_normal_sum():
    rng = np.random.default_rng(1)
    differences = rng.integers(-6, 7, 20000)
    differences[:300] += 1
    z = abs(differences.sum()) / math.sqrt((differences**2).sum())
    assert contrast.sign_flips(differences) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.01)


def of_alike(rng, sources: int, errors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decisions of two systems that are alike: a source's reference has one score, its errors their own."""
    right = [
        (rng.normal(size=(sources, 1)) > rng.normal(-0.5, 0.7, size=(sources, errors))).reshape(-1) for _ in range(2)
    ]
    return right[0], right[1], np.repeat(np.arange(sources), errors)


def test_the_level_is_kept_where_sources_have_several_items():
    rng, trials = np.random.default_rng(2), 600
    grouped = alone = 0
    for _ in range(trials):
        baseline, system, sources = of_alike(rng, 60, 4)
        grouped += contrast.compare_decisions(baseline, system, sources)["p"] < 0.05
        alone += contrast.compare_decisions(baseline, system, np.arange(len(system)))["p"] < 0.05
    assert grouped / trials < 0.07 < 0.1 < alone / trials, "items as if independent"


@pytest.mark.parametrize("sources", [8, 60])
@pytest.mark.parametrize("several", [False, True], ids=["as many items each", "of unequal sizes"])
def test_intervals_hold_the_accuracy_where_items_share_a_source(sources, several):
    rng, trials, share = np.random.default_rng(3), 600, 0.7
    grouped = alone = 0
    for _ in range(trials):
        sizes = rng.integers(1, 8, sources) if several else np.full(sources, 4)
        of = np.repeat(np.arange(sources), sizes)
        right = rng.random(len(of)) < rng.beta(share, 1 - share, sources)[of]  # half of the variance is the source's
        actual = contrast.accuracy(right, of)
        grouped += actual["low"] <= share <= actual["high"]
        actual = contrast.accuracy(right, np.arange(len(of)))
        alone += actual["low"] <= share <= actual["high"]
    assert grouped / trials > 0.92 > 0.85 > alone / trials, "items as if independent"


def test_the_effective_number_of_items():
    of = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    for right in ([1] * 8, [0] * 8):
        assert contrast.effective(np.array(right, bool), of) == 4, "as if a source were right in all or in none"
    assert contrast.effective(np.array([True, True, False]), np.zeros(3, int)) == 1
    unequal = np.array([0, 0, 0, 1])
    assert contrast.effective(np.ones(4, bool), unequal) == pytest.approx(16 / 10)
    # by loops: the variance of a ratio over the sources, against that of independent items, and the two quantiles
    right = np.array([1, 1, 1, 1, 0, 0, 1, 0], bool)
    spread = sum((sum(right[of == s]) - 5 / 8 * 2) ** 2 for s in range(4)) * 4 / 3 / 8**2
    independent = sum((r - 5 / 8) ** 2 for r in right) / 7 / 8
    quantiles = 2.364624 / 3.182446  # Student's, of 7 and 3 degrees of freedom
    assert contrast.effective(right, of) == pytest.approx(8 / (spread / independent) * quantiles**2, rel=1e-5)
    alternating = np.array([1, 0] * 4, bool)  # sources less unlike than chance would have it: they count no more for it
    assert contrast.effective(alternating, of) == pytest.approx(8 * quantiles**2, rel=1e-5)


def test_items_are_of_one_source_where_its_text_is_the_same(tmp_path, capsys):
    table = "source\tcorrect\tincorrect\n" + "".join(f"s{i // 2}\tc\ti{i}\n" for i in range(12))
    sets = [f"{name}={write(tmp_path / f'{name}.tsv', table)}" for name in "ab"]
    both = joined([read_set(text) for text in sets])
    assert [list(contrast.sources_of(both)).count(source) for source in range(6)] == [4] * 6
    scores = write(tmp_path / "right", "1\n0\n" * 24), write(tmp_path / "wrong", "0\n1\n" * 24)
    argv = ["contrast", "--scores", f"x={scores[0]}", f"y={scores[1]}", "--json", f"{tmp_path}/r.json", "--set"]
    assert command([*argv, *sets]) == 0
    printed = capsys.readouterr().out
    assert "Wilson's 95% interval, for the effective number of items, as some share a source" in printed
    assert "exact test of random signs over sources; Holm" in printed and "McNemar" not in printed
    whole = json.loads((tmp_path / "r.json").read_text())["groups"]["all"]["all"]
    assert whole["tests"]["y"]["p"] == pytest.approx(2 / 2**6), "six sources, not 24 items"
    assert (whole["systems"]["x"]["sources"], whole["systems"]["x"]["effective"]) == (6, 6)
    alone = write(tmp_path / "one.tsv", "source\tcorrect\tincorrect\nx\ty\tz\nu\ty\tz\n")
    scores = write(tmp_path / "right", "1\n0\n" * 2), write(tmp_path / "wrong", "0\n1\n" * 2)
    assert command([*argv, alone]) == 0
    printed = capsys.readouterr().out
    assert "Wilson's 95% interval\n" in printed and "McNemar's exact test; Holm" in printed


def test_differences_are_marked_by_the_corrected_p():
    """Six right of one system and none of the other: p is 2/64 in each of two categories, and twice as much in both."""
    items = [ContrastItem(number, number, "np" if number < 6 else "vp") for number in range(12)]
    sources, rows = [f"s{number}" for number in range(12)], [(number, "text") for number in range(12)]
    right = {"x": np.zeros(12, dtype=bool), "y": np.ones(12, dtype=bool)}
    report = contrast.evaluate_contrast(contrast.ContrastSet("s", sources, rows, items), right)
    *_, tests = contrast.contrast_tables(report)
    shown = {row[0]: row[-2:] for row in tests.rows}
    assert shown == {"np": ["0.031", "0.063"], "vp": ["0.031", "0.063"], "all": ["<0.001", "<0.001*"]}


def test_a_category_called_all_has_its_row_beside_that_of_all_items(tmp_path, capsys):
    rows = "".join(f"s{i}\tc\ti\t{'all' if i < 3 else 'np'}\n" for i in range(7))
    path = write(tmp_path / "set.tsv", "source\tcorrect\tincorrect\tcategory\n" + rows)
    scores = write(tmp_path / "scores", "1\n0\n" * 3 + "0\n1\n" * 4)
    assert command(["contrast", "--set", path, "--scores", f"a={scores}"]) == 0
    printed = [line.split()[:-2] for line in capsys.readouterr().out.splitlines()]
    assert (
        ["all", "3", "100.0"] in printed and ["np", "4", "0.0"] in printed and ["all", "items", "7", "42.9"] in printed
    )


def test_scores_from_elsewhere(tmp_path, capsys):
    path = write(tmp_path / "set.json", LINGEVAL)
    rows = sum(1 + len(entry["errors"]) for entry in LINGEVAL)
    costs = [float(i % 5) for i in range(rows)]
    write(tmp_path / "cost", "".join(f"{cost}\n" for cost in costs))
    argv = ["contrast", "--set", path, "--scores", f"a={tmp_path}/cost", "--lower-is-better"]
    assert command([*argv, "--json", f"{tmp_path}/r.json", "--write-scores", f"{tmp_path}/out"]) == 0
    assert "Wilson" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    actual = read_set(path)
    sources = contrast.sources_of(actual)
    expected = contrast.accuracy(contrast.decisions(actual, [-cost for cost in costs]), sources)
    assert report["groups"]["all"]["all"]["systems"]["a"] == expected
    assert (tmp_path / "out/a.scores").read_text().splitlines() == [repr(-cost) for cost in costs]
    # two systems: the tests of the two, corrected over the categories
    write(tmp_path / "other", "".join(f"{cost}\n" for cost in reversed(costs)))
    assert command([*argv, "--scores", f"b={tmp_path}/other", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    tests = [entry["tests"]["b"] for entry in report["groups"]["category"].values()]
    assert [test["p_holm"] for test in tests] == holm([test["p"] for test in tests])
    for more, about in (
        (["--scores", f"a={tmp_path}/cost"], {}),  # called a, too
        (["--baseline", "c"], {"option": "--baseline"}),
        (["--json", f"{tmp_path}/none/r.json"], {"path": "r.json"}),
        (["--scores", f"b={path}"], {"path": path, "line": 1}),
        (["--scores", f"b={write(tmp_path / 'nan', 'nan')}"], {"path": "nan", "line": 1}),
        (["--json", f"{tmp_path}/cost"], {"path": "cost"}),
        (["--json", path], {"path": path}),
        (["--set", path], {}),  # called set, too
        (["--write-scores", path], {"path": "set.json"}),
        (["--scores", f"b={tmp_path}/out/a.scores", "--write-scores", f"{tmp_path}/out"], {"path": "a.scores"}),
        (["--scores", f"b={write(tmp_path / 'few', '1')}"], {"path": "few"}),
    ):
        refused([*argv, *more], **about)
    both = ["--scores", f"m/a={tmp_path}/other", f"m_a={tmp_path}/other", "--write-scores", f"{tmp_path}/w"]
    refused([*argv, *both], "m_a.scores")
    refused(["contrast", "--set", path], option="--scores")
    for option in ("--conllu", "--parser", "--data", "--lang"):
        refused([*argv, option, "x"], option=option)
    model = write(tmp_path / "a.pt", "")
    refused(["contrast", model, "--set", path, "--lower-is-better"], option="--lower-is-better")


def test_scores_are_written_as_soon_as_a_model_has_them(tmp_path, monkeypatch):
    path = write(tmp_path / "set.tsv", "source\tcorrect\tincorrect\nx\ty\tz\n")

    def only_the_first(*given):
        yield "a", [1.0, 0.0]
        raise SyntaxDataError("b has no parse")

    monkeypatch.setattr(contrast_command, "_forced_scores", only_the_first)
    models = [f"{name}={write(tmp_path / name, '')}" for name in "ab"]
    argv = ["contrast", *models, "--set", path, "--write-scores", f"{tmp_path}/out"]
    refused([*argv, "--scores", f"c={write(tmp_path / 'few', '1')}"], f"{tmp_path}/few")
    assert not (tmp_path / "out").exists(), "ready scores are read before models score"
    refused(argv, "b has no parse")
    assert (tmp_path / "out/a.scores").read_text() == "1.0\n0.0\n"
