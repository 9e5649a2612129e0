"""The atlas: word order against scipy's Kendall's tau, what is kept of runs, and the page, held to its results."""

import copy
import gzip
import itertools
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from matrix_part import of_ten_seconds
from scipy import stats
from toy_data import fairseq

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.layout import Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.recipes.smoke import smoke
from fairseq_syntax.lab.scoring.intervals import shown_estimate as _shown
from fairseq_syntax.lab.scoring.intervals import survivors

ATLAS = Path(__file__).resolve().parents[2] / "examples" / "atlas"
sys.path.insert(0, str(ATLAS))
try:
    import agreement
    import attachment
    import by_language
    import from_models
    import length_penalty
    import measure
    import page
    import plans
    import relative
    import shared
    import word_order
finally:
    sys.path.remove(str(ATLAS))


def by_loops(links):
    """Crossing pairs, and pairs of different words and pieces."""
    pairs = [(a, b) for a, b in itertools.combinations(set(links), 2) if a[0] != b[0] and a[1] != b[1]]
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs), len(pairs)


def test_crossings_of_a_permutation_are_kendalls_distance():
    rng = random.Random(1)
    for n in range(2, 12):
        order = rng.sample(range(n), n)
        crossing, pairs = word_order.crossings(list(enumerate(order)))
        assert pairs == n * (n - 1) // 2
        assert crossing / pairs == pytest.approx((1 - stats.kendalltau(range(n), order).statistic) / 2)


def test_crossings_by_loops():
    rng = random.Random(2)
    for _ in range(100):
        links = [(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randrange(9))]
        assert word_order.crossings(links) == by_loops(links)


def test_crossings_within_sentences_and_of_neighbours():
    # two sentences: the first reversed, with a word of two pieces; the second in order, moved before the first
    words = [f"w{number}" for number in range(6)]
    parse = ParsedLine(words, [0] * 6, ["d"] * 6, words, words, [], None, [(0, 3), (3, 6)], 0)
    links = [(0, 6), (0, 7), (1, 5), (2, 4), (3, 0), (5, 2)]
    assert word_order.of_sentences(links, parse.sentences) == [[(0, 6), (0, 7), (1, 5), (2, 4)], [(3, 0), (5, 2)]]
    actual = word_order.measure([parse], [links])
    assert actual == {"crossing": 5 / 6, "neighbours": 3 / 4, "aligned": 5 / 6, "lines": 1}
    with pytest.raises(ValueError):  # eflomal left out a line: those after it are of other sentences
        word_order.measure([parse, parse], [links])


EXAMPLES = ATLAS.parent
KEPT = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if re.search("^kept:", path.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_a_recipe_finds_all_results_that_are_stored_with_it(path, tmp_path):
    """A change of the program or of a recipe must not make stored results unreadable without a word."""
    work = Work(Plan(load_recipe(path, {"folder": str(tmp_path)}), path))
    assert {str(run) for run in work.kept_runs} == set(work.kept.runs)
    assert {str(table) for table in work.results().reports} == set(work.kept.scores)


def test_what_is_kept_of_a_run_is_of_the_recipe_as_it_is(tmp_path):
    recipe = yaml.safe_load((ATLAS / "atis-parser.yaml").read_text()) | {"kept": str(tmp_path / "kept.jsonl.gz")}
    (tmp_path / "atis.yaml").write_text((ATLAS / "atis.yaml").read_text())
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(recipe))
    plan = measure.plan(path)
    run = plan.runs[0]
    entry = {"run": str(run), "key": plan.key(run), "outputs": {"test": ["ein\u2028Satz", ""]}, "facts": {}}
    Kept({str(run): entry}).write(tmp_path / "kept.jsonl.gz")
    assert measure.runs_of(plan, "test") == {run.system: [["ein\u2028Satz", ""]]}
    recipe["train"] = {"dropout": 0.5}
    path.write_text(yaml.safe_dump(recipe))
    assert measure.runs_of(measure.plan(path), "test") == {}


def test_attachment():
    assert measure.attachment([[0, 0, 1], [0]], [[0, 2, 1], [0]]) == 75.0


def test_an_unknown_word_is_one_character_of_a_texts_length():
    assert measure.characters(["ein <unk>", "ab"]) == 7


@pytest.fixture
def results():
    return json.loads((ATLAS / "results.json").read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_results(tmp_path, monkeypatch):
    """The pictures by what is written in them."""
    (tmp_path / "figures").mkdir()
    monkeypatch.setattr(sys, "argv", ["page.py", "--output", str(tmp_path)])
    assert page.main() == 0
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")}
    assert len(made) == 3
    for path in made:
        now, kept = ((folder / path).read_text(encoding="utf-8") for folder in (tmp_path, page.DOCS))
        if path.suffix == ".svg":
            now, kept = (re.findall("<!-- (.*) -->", text) for text in (now, kept))
        assert now and now == kept, path


def flat(of):
    """The numbers of an estimate, or of all estimates of a row."""
    if isinstance(of, dict):
        return [number for one in of.values() for number in flat(one)]
    return of if isinstance(of, list) else []


def test_the_figures_of_the_first_paragraphs_are_those_of_the_results(results):
    """They are written by hand; what has been run since, they must say, too."""
    text = page.page(results)
    first, rest = (" ".join(part.split()) for part in text.partition("\n\n")[2].partition("**How to")[0].split("![", 1))
    claim = f"{first} {rest}"
    main, numbers = results["tuned"], ("no", "one", "two", "three", "four", "five", "six")
    mean = {metric: shared.row_of(rows, "PSH")["gain"] for metric, rows in main["mean"]["metrics"].items()}
    of_each = {lang: relative.beside(main["languages"][lang]["relative"], "PSH") for lang in main["mean"]["languages"]}
    assert f"mean of {numbers[len(of_each)]} languages" in claim
    gains = {lang: row["gain"][0] for lang, row in of_each.items()}
    for lang in (max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)):
        assert f"{lang} ({gains[lang]:+.2f})" in claim
    placebos = {lang: twin for lang, row in of_each.items() if (twin := shared.twin_of(row, shared.PLACEBO))}
    assert placebos.keys() == of_each.keys()
    placebo = shared.twin_of(shared.row_of(main["mean"]["metrics"]["BLEU"], "PSH"), shared.PLACEBO)["gain"]
    assert f"{placebo[0]:+.2f} BLEU ({placebo[1]:+.2f} to {placebo[2]:+.2f})" in first, "before the picture"
    losses = [-twin["gain"][0] for twin in placebos.values()]
    assert f"loses in each language ({min(losses):.1f} to {max(losses):.1f})" in claim
    for metric, estimate in mean.items():
        assert "{:+.2f} to {:+.2f}".format(*estimate[1:3]) in first and f"{estimate[0]:+.2f}" in first, metric
    assert f"is {mean['BLEU'][4]:.1f} BLEU" in first, "the power"
    tuning = [
        main["languages"][lang]["relative"]["metrics"]["BLEU"]["relative"]
        - of["relative"]["metrics"]["BLEU"]["relative"]
        for lang, of in results["languages"].items()
        if lang in of_each
    ]
    least, most = round(min(tuning), 1) or 0.0, round(max(tuning), 1)  # and no -0.0
    assert f"{least} to {most} BLEU" in claim
    controls = [{"gain": placebo}, *(control for row in of_each.values() for control in row["controls"].values())]
    sample = relative.over_languages(main, "PSH", "BLEU")
    assert "{:+.2f} to {:+.2f}".format(*sample[1:3]) in claim and f"p = {sample[3]:.2f}" in claim
    allowed = {least, *gains.values(), *sample, *(number for of in (*mean.values(), *controls) for number in flat(of))}
    stated = [float(number) for number in re.findall(r"[+-]\d+\.\d+", claim)]
    assert all(min(abs(number - one) for one in allowed) < 0.0051 for number in stated), "a figure of no result"
    chains = [shared.twin_of(relative.beside(of["relative"], "PSH"), "linear") for of in results["languages"].values()]
    weaker = shared.row_of(results["mean"]["metrics"]["BLEU"], "PSH")
    lost = [-shared.twin_of(weaker, "linear")["gain"][0], -min(twin["gain"][0] for twin in chains)]
    assert f"chains cost {lost[0]:.2f} BLEU in the mean, and {lost[1]:.2f} in" in " ".join(text.split())
    readme = " ".join((ATLAS.parents[1] / "README.md").read_text("utf-8").split())
    assert f"{mean['BLEU'][0]:+.2f} BLEU in the mean of {numbers[len(of_each)]} languages" in readme
    assert f"other sentences by {placebo[0]:+.2f}" in readme
    positions = [of["relative"]["metrics"]["BLEU"]["gain"][0] for of in results["languages"].values()]
    assert f"{min(positions):.1f} to {max(positions):.1f} BLEU" in readme
    assert "Pham, Macháček and Bojar (2019), [" in " ".join(text.split()), "who introduced the control"


def test_languages_that_gain_significantly_are_those_in_bold(results):
    """In the first paragraph, and where the advice names them: with the correction of the table that is beside them."""
    tuned = relative.corpora_of({"languages": results["tuned"]["languages"]})
    table = relative.relative_table(tuned, "PSH", [shared.PLACEBO, "linear"])
    gaining = {row[0] for row in table.rows if row[2].startswith("**+")}
    claim = " ".join(page.page(results).partition("**How to")[0].split())
    named = re.search(r"((?:\w+ \([+-][\d.]+\)[, and]*)+)gains? significantly", claim)
    assert named is None or set(re.findall(r"[A-Z]\w+(?= \()", named[1])) == gaining
    both = [
        [relative.beside(of["relative"], "PSH")["gain"][0] for of in one["languages"].values()]
        for one in (results, results["tuned"])
    ]
    text = " ".join(page.page(results).split())
    for listed, least in re.findall(r"([\w, ]+) gain most in both, and (\w+) least", text):
        most = re.findall(r"[A-Z]\w+", listed)
        for gains in both:
            order = [name for _, name in sorted(zip(gains, SIX, strict=True), reverse=True)]
            assert set(order[: len(most)]) == set(most) and order[-1] == least
    labels = [row for row in by_language.others_table(results["languages"], "").rows if row[1] == "S&H"]
    run = {row[0] for row in labels if row[3] != shared.NOT_RUN}
    better = {row[0] for row in labels if row[3].startswith("**+")}
    advice = (ATLAS.parents[1] / "docs/which-system.md").read_text("utf-8")
    (line,) = [line for line in advice.splitlines() if "sinusoidal positions alone" in line]
    numbers = ("no", "one", "two", "three", "four", "five", "six")
    said = re.search(r"significantly better than sinusoidal positions alone in ([^,]*), of \[(\w+) languages", line)
    assert said and set(said[1].split(" and ")) == better and numbers.index(said[2]) == len(run)
    planted = [run for run in Work(measure.plan(plans.TUNED_OTHERS)).kept_runs if "tree_planting" in run.system]
    assert ("tree planting has not been run on real text" in advice) == (not planted)


def test_the_figures_on_heads_and_contrastive_pairs_are_those_of_the_results(results):
    text = " ".join(page.page(results).split())
    prose = text.partition("## Do the heads learn")[2].partition("## The same with more dropout")[0]
    points = from_models.runs_with(results["attachment"], "PSH")
    uas, gains = zip(*points)
    languages = results["attachment"]["languages"].values()
    own = [run["uas"] for runs in languages for name, run in runs.items() if name.startswith("relative/")]
    assert f"of {min(uas):.0f} to {max(uas):.0f} % of the words" in prose
    assert f"gain from {min(gains):+.2f} to {max(gains):+.2f} BLEU" in prose
    next_words = results["attachment"]["controls"]["next word"]
    assert (
        f"finds {min(own):.0f} to {max(own):.0f} %, where the next word alone would be right in {next_words:.0f} %"
        in prose
    )
    assert f"There are {len(points)} runs" in prose
    assert f"(n = {len(points)})" in prose
    rows = {(row["set"], row.get("distance")): row for row in results["agreement"]["rows"]}
    (chance,) = {rows["subj_verb_agreement", None]["accuracy"][name][0] < 60 for name in ("relative", "relative+PSH")}
    assert chance, "little better than chance"
    assert not any(survivors([estimate for row in rows.values() for estimate in row["against"].values()]))
    wholes = [row["against"] for (_, distance), row in rows.items() if distance is None]
    parse, placebo = zip(*([each[f"relative+{name}"][0] for name in ("PSH", "PSH.shuffled")] for each in wholes))
    assert [one > 0 for one in parse] == [one > 0 for one in placebo], "the placebo goes where the parse goes"
    assert f"({rows['subj_verb_agreement', 'over 5 words']['pairs']} over five words)" in prose
    sizes = [row["pairs"] for (name, distance), row in rows.items() if name == "subj_verb_agreement"]
    assert sizes[0] == sum(sizes[1:])


def test_tables_of_models_say_what_has_not_been_run():
    """Without any results, and with a language whose control has no baseline of its seed."""
    assert shared.NOT_RUN in from_models.agreement_table({}).render()
    assert shared.NOT_RUN in from_models.attachment_table({}, "PSH", ["shuffled"]).render()
    runs = {"relative/1": {"uas": 20.25, "gain": None}, "relative+PSH/1": {"uas": 90.0, "gain": 0.5}}
    runs["relative+PSH.shuffled/2"] = {"uas": 30.0, "gain": None}
    table = from_models.attachment_table(
        {"languages": {"Czech": runs}, "controls": {"shuffled": 25.0}}, "PSH", ["shuffled"]
    )
    planned = {"Czech": [1, 2, 3], "Slovak": [3]}
    rest = from_models.attachment_table({"languages": {"Czech": runs}}, "PSH", ["shuffled"], planned).rows[2:]
    assert rest == [["Czech, Slovak", "3", *["not measured"] * 5]]
    first, second = table.rows
    assert first == ["Czech", "1", "20.2", "90.0", "+0.50", shared.NOT_RUN, shared.NOT_RUN]
    assert second == ["Czech", "2", *[shared.NOT_RUN] * 3, "30.0", shared.NOT_RUN]
    assert any("*shuffled* 25.0" in note for note in table.notes) and not any("correlation" in n for n in table.notes)
    points = [(1.0, 3.0), (2.0, 2.5), (4.0, 2.75)]
    assert from_models.correlation(points) == pytest.approx(-0.5)


def test_the_mean_of_the_placebo_is_that_of_the_languages_that_have_it(monkeypatch):
    parse, placebo = "relative+PSH", "relative+PSH.shuffled"
    run = dict(zip(SIX, [["relative", parse, placebo]] * 2 + [["relative", parse]] * 2 + [["relative"], []]))
    run["German-others"] = ["relative+PASCAL"]
    monkeypatch.setattr(measure, "runs_of", lambda of, test: {name: [[]] for name in run[of.recipe.name]})
    monkeypatch.setattr(measure, "beside_relative", lambda of, runs: {"run": list(runs)})
    monkeypatch.setattr(measure, "mean_of_languages", lambda plans: [of.recipe.name for of in plans])
    tuned = measure.tuned()
    assert tuned["mean"] == [*SIX[:4]] and tuned["with_placebo"] == [*SIX[:2]]
    assert tuned["others"] == {"run": ["relative", "relative+PASCAL"]}, "beside the baseline of the same language"
    assert [tuned["languages"][name] for name in SIX] == [
        {"relative": {"run": run[name]} if run[name] else {}} for name in SIX
    ]


def parse_of(rows):
    """A parse of one sentence from WORD/HEAD/LABEL, with heads as in CoNLL-U."""
    words, heads, labels = zip(*(row.split("/") for row in rows.split()))
    return ParsedLine.of_words(words, list(map(int, heads)), labels)


@pytest.mark.parametrize(
    "rows, expected",
    [
        ("The/2/det lists/5/nsubj of/4/case names/2/nmod end/0/root", 3),
        ("The/2/det lists/5/nsubj have/5/aux been/5/aux:pass sorted/0/root", 1),
        ("Are/4/cop the/3/det lists/4/nsubj long/0/root", 2),
        ("Close/0/root the/3/det list/1/obj", None),
        ("Lists/2/nsubj:pass sorted/0/root if/5/mark they/5/nsubj end/2/advcl", None),
    ],
)
def test_the_distance_between_subject_and_verb(rows, expected):
    """The verb is what agrees: the first auxiliary or copula."""
    assert agreement.distance(parse_of(rows)) == expected


def test_each_pair_is_in_one_group_of_distances():
    distances = [1, 2, 3, 5, 6, None, 40, 2]
    groups = dict(agreement.by_distance(distances))
    names = ["1 word", "2 to 5 words", "over 5 words", "several subjects, or none"]
    assert groups == dict(zip(names, [[0], [1, 2, 3, 7], [4, 6], [5]]))


def test_differences_of_accuracies_are_of_sources():
    """Wider where several pairs share a source, whose decisions are equal."""
    rng = np.random.default_rng(3)
    baseline, system = rng.random(200) < 0.5, rng.random(200) < 0.7
    alone = agreement.difference(baseline, system, np.arange(200))
    assert alone[0] == pytest.approx(100 * (system.mean() - baseline.mean()))
    expected = 1.96 * 100 * (system.astype(float) - baseline).std() / 200**0.5
    assert (alone[2] - alone[1]) / 2 == pytest.approx(expected, rel=0.05) and alone[1] < alone[0] < alone[2]
    shared_sources = np.arange(200).repeat(4)
    four = agreement.difference(baseline.repeat(4), system.repeat(4), shared_sources)
    assert four[:3] == pytest.approx(alone[:3], abs=0.5)
    assert agreement.difference(baseline, baseline, np.arange(200))[3] == 1


def test_a_sample_of_a_set_has_its_lines_side_by_side(tmp_path):
    for side in agreement.SIDES:
        (tmp_path / f"a.mt.{side}.gz").write_bytes(
            gzip.compress("".join(f"{side} {number}\n" for number in range(50)).encode())
        )
    paths, total = agreement.sampled(tmp_path, "a", 20, tmp_path)
    columns = [[line.rpartition(" ") for line in measure.text_of(path)] for path in paths]
    assert total == 50 and [column[0][0] for column in columns] == [*agreement.SIDES]
    (first, *others) = [[int(number) for *_, number in column] for column in columns]
    assert len(set(first)) == 20 and sorted(first) == first and others == [first, first]
    assert len(measure.text_of(agreement.sampled(tmp_path, "a", 99, tmp_path)[0][0])) == 50


def test_chains_to_the_next_word_end_with_their_sentence():
    line = ParsedLine(words=["w"] * 5, heads=[1, 2, 2, 4, 3], sentences=[(0, 3), (3, 5)])
    assert attachment.next_words(line) == [1, 2, 2, 4, 4]


def test_only_runs_with_other_settings_are_measured_again(monkeypatch, tmp_path):
    """Each beside the baseline of its own seed."""
    of = measure.plan("tuned")
    names = ["relative/1", "relative/2", "relative+PSH/1", "relative+PSH/2", "relative+PSH.shuffled/3"]
    made = [run for name in names for run in of.runs if str(run) == name]
    lines = {str(run): [f"{run} {number} of the lines that are here" for number in range(20)] for run in made}
    references = [line.replace("PSH/1", "PSH/2") for line in lines["relative+PSH/1"]]
    translated = {}
    for run in made:
        translated.setdefault(run.system, []).append(lines[str(run)])
    monkeypatch.setattr(Work, "finished", lambda work: made)
    monkeypatch.setattr(Plan, "checkpoint", lambda plan, run: tmp_path)
    monkeypatch.setattr(attachment, "runs_of", lambda of, test: translated)
    monkeypatch.setattr(attachment, "text_of", lambda path: references)
    monkeypatch.setattr(attachment, "trees", lambda of, run: {"uas": 50.0 + run.seed})
    before = {name: {"key": of.key(run), "uas": 1.0} for name, run in zip(names, made)}
    before["relative+PSH/1"]["key"] = "of other settings"
    actual = attachment.measured(of, before)
    assert {name: one["uas"] for name, one in actual.items()} == dict.fromkeys(names, 1.0) | {"relative+PSH/1": 51.0}
    scorer = measure.scorers([references], of)["BLEU"]
    expected = scorer.corpus(lines["relative+PSH/2"]) - scorer.corpus(lines["relative/2"])
    assert actual["relative+PSH/2"]["gain"] == pytest.approx(expected)
    assert actual["relative/1"]["gain"] is None and actual["relative+PSH.shuffled/3"]["gain"] is None


def test_bold_figures_survive_the_correction_of_their_table():
    """Of two tables with the same interval, that with more tests has none in bold."""
    estimate = [1.0, 0.1, 1.9, 0.02, 1.2]
    few, many = (shared.table("", ["a"], [[estimate]] * count).render("markdown") for count in (2, 3))
    assert few.count("**") == 4 and "**" not in many
    assert "2 tests" in few and "3 tests" in many


PLANNED = {"PSH": ["linear", "random"], "sennrich_haddow": ["relabelled"], "PASCAL": ["linear"]}
NOTHING = {"order": None, "baseline": "transformer", "systems": PLANNED}
SIX = ("German", "French", "Hungarian", "Turkish", "Chinese", "Japanese")


def test_a_page_of_other_numbers_of_runs(results):
    """With nothing run, and with a language, each row with its seeds and each control beside the baseline."""
    empty = {"multi30k": results["multi30k"], "amounts": {}, "parse_quality": None, "longer": {}}
    empty["languages"] = dict.fromkeys(SIX, NOTHING)
    empty["tuned"] = {"languages": {name: {} for name in SIX}, "mean": {}}
    assert shared.NOT_RUN in page.page(empty)
    row = {"system": "PSH", "gain": [2.5, 1.0, 4.0, 0.001], "controls": {}}
    for number, control in enumerate(("linear", "random")):
        row["controls"][control] = {"gain": [1.5 + number, 0.5, 2.5, 0.6], "syntax": [-1.25, -2.5, 0.5, 0.4]}
    seeds = {"transformer": 3, "PSH": 2, "PSH.linear": 1, "PSH.random": 1}
    measured = {"BLEU": {"scores": {"transformer": 8.0}, "rows": [row], "signature": "tok:13a"}}
    chrf = {**row, "gain": [-2.0, -3.0, -1.0, 0.3]}
    measured["chrF"] = {"scores": {"transformer": 30.0}, "rows": [chrf]}
    full = copy.deepcopy(empty)
    full["languages"]["Turkish"] = {**NOTHING, "order": {"crossing": 0.3}, "sentences": 99, "groups": 9, "seeds": seeds,
                                    "metrics": measured, "lengths": {"transformer": 95.5, "PSH": 89.25}}  # fmt: skip
    of_turkish = next(row for row in by_language.languages_table(full["languages"], "").rows if row[0] == "Turkish")
    assert of_turkish[1:4] == ["30 %", "8.00", "**+2.50 (+1.00\u00a0to\u00a0+4.00)**"]
    assert [cell[:5] for cell in of_turkish[4:8]] == ["+1.50", "-1.25", "+2.50", "-1.25"]
    assert of_turkish[8] == "3 (plain), 2 (the parse), 1 (linear, random)"
    others = by_language.other_metrics(full["languages"])
    assert "-2.00" in others and f"| Turkish | length, % | 95.5 | -6.2 | {shared.NOT_RUN} |" in others
    text = page.page(full)
    assert "**+2.50" in text and "| Turkish |" in text
    without = next(row for row in by_language.others_table(full["languages"], "").rows if row[1] == "S&H")
    assert all(language in without[0] for language in SIX) and without[3] == shared.NOT_RUN
    relative.draw_gains(full, "PSH")


def test_a_page_of_one_system():
    languages = {"Czech": {**NOTHING, "systems": {"GCN": []}}}
    text = page.page({"languages": languages})
    assert "| Czech |" in text and "GCN" in text and "PASCAL" not in text and "Other systems" not in text
    relative.draw_gains({"languages": languages}, "GCN")


OWN = """
extends: {atlas}/libreoffice.yaml
name: {name}
folder: {folder}/{name}
corpus: {{source: {source}, target: {target}, reader: null, data: null, options: null, train: text/train,
  valid: text/valid, tests: {{test: text/test}}, references: {{test: {references}}}}}
pieces: {{size: {{de: null}}}}
score: {{groups: {groups}, by: [depth]}}
commands: null
seeds: [1]
"""


@of_ten_seconds
def test_the_same_page_of_other_corpora(tmp_path, monkeypatch):
    """Of translations that the recipes made, or that are kept with them; without word order."""
    words = ["ein", "Hund", "sieht", "den", "kleinen", "Mann", "am", "Tor"]
    references = [" ".join(random.Random(number).sample(words, 8)) for number in range(60)]
    parse = "".join(
        "".join(f"{n}\t{word}\t_\tNOUN\t_\t_\t{n - 1}\tobj\t_\t_\n" for n, word in enumerate(line.split(), 1)) + "\n"
        for line in references
    )
    recipes = []
    # One has two references, the other documents: each of six sentences, of which plain translates two badly, PSH one.
    there = {"source": "en", "target": "xx", "references": 2, "groups": "null"}
    back = {"source": "xx", "target": "en", "references": 1, "groups": "'{recipe}/documents'"}
    (tmp_path / "documents").write_text("".join(f"{number // 6}\n" for number in range(60)))
    for name, values in {"there": there, "back": back}.items():
        recipes.append(tmp_path / f"{name}.yaml")
        recipes[-1].write_text(OWN.format(atlas=ATLAS, name=name, folder=tmp_path, **values))
        of = measure.plan(recipes[-1])
        source, target = of.langs
        # Of plain, PSH and PSH.linear, the second makes the fewest mistakes; relative positions make none.
        every = {"transformer": 3, "PSH": 6, "PSH.linear": 3, "relative": len(references) + 1}
        every |= {"relative+PSH": 9, "relative+PSH.linear": 4}
        names = [f"{name}/1" for name in every]
        monkeypatch.setattr(Work, "finished", lambda work, names=names: [r for r in work.plan.runs if str(r) in names])
        for path in (of.text("test", target), of.parse("test", source), *map(of.model, of.runs)):
            path.parent.mkdir(parents=True, exist_ok=True)
        of.text("test", target).write_text("\n".join(references) + "\n")
        of.parse("test", source).write_text(parse)
        for run in (run for run in reversed(of.runs) if str(run) in names):
            (output := of.output(run, Scored("test"))).parent.mkdir(parents=True, exist_ok=True)
            lines = ["Hund ein" if n % every[run.system] == 0 else line for n, line in enumerate(references, 1)]
            output.write_text("\n".join(lines) + "\n")
        for second in of.references("test")[1:]:
            second.write_text("\n".join(lines) + "\n")  # PSH.linear's translations, as plain's
    results = tmp_path / "results.json"
    monkeypatch.setattr(sys, "argv", ["measure.py", *map(str, recipes), "--output", str(results)])
    assert measure.main() == 0
    monkeypatch.setattr(sys, "argv", ["page.py", "--results", str(results), "--output", str(tmp_path / "page")])
    assert page.main() == 0
    text = (tmp_path / "page" / "what-syntax-gives.md").read_text(encoding="utf-8")
    actual = json.loads(results.read_text())["languages"]
    assert actual["there"]["metrics"]["BLEU"]["scores"]["transformer"] == 100, "its translations are a reference"
    (gain, lengths) = actual["back"]["metrics"]["BLEU"]["rows"][0]["gain"], actual["back"]["lengths"]
    alone = measure.Resampled(measure.scorers([references], of)["BLEU"], measure.runs_of(of, "test"), 1000)
    of_relative = actual["back"]["relative"]["metrics"]["BLEU"]
    assert of_relative["gain"][1] > 0 > of_relative["parse"][2] > of_relative["control"][2]
    assert of_relative["gain"][0] + of_relative["parse"][0] == pytest.approx(gain[0], abs=3e-4)
    (beside,) = of_relative["beside"]
    linear = beside["controls"]["linear"]
    assert beside["system"] == "PSH" and beside["gain"][2] < 0 < linear["syntax"][1]
    assert beside["gain"][0] - linear["gain"][0] == pytest.approx(linear["syntax"][0], abs=3e-4)
    assert "relative" not in actual["back"]["seeds"]
    # On ATIS, the usual parse has a name in those of the systems.
    runs = measure.runs_of(of, "test")
    of_gold = {f"{name}.gold" if name.endswith("PSH") else name: each for name, each in runs.items()}
    usual, gold = (
        measure.against_relative(of, some, system, ["PSH.linear"])["metrics"]
        for some, system in ((runs, "PSH"), (of_gold, "PSH.gold"))
    )
    assert usual == gold
    assert [one["property"] for one in actual["back"]["metrics"]["BLEU"]["by"]] == ["depth"], "the recipe's"
    of_sentences = alone.difference("PSH", "transformer")
    assert actual["back"]["groups"] == 10 and gain[2] - gain[1] < (of_sentences.high - of_sentences.low) / 2
    assert 100 > lengths["PSH"] > lengths["transformer"] == lengths["PSH.linear"]
    assert gain[1] > 0 and _shown(gain, "\u00a0to\u00a0") in text
    assert all(f"| {name} | {shared.NOT_RUN} |" in text for name in ("there", "back"))
    mean = json.loads(results.read_text())["mean"]
    of_mean = {row["system"]: row["gain"][0] for row in mean["metrics"]["BLEU"]}
    of_each = [row["gain"][0] for one in actual.values() for row in one["relative"]["metrics"]["BLEU"]["beside"]]
    assert mean["languages"] == ["there", "back"] and of_mean["PSH"] == pytest.approx(np.mean(of_each), abs=3e-4)
    assert not re.search("LibreOffice|Multi30k|ATIS|German|six", text)
    assert (tmp_path / "page" / "figures" / "atlas-languages.svg").exists()


def test_a_length_penalty_only_orders_the_translations_of_a_beam(toy, trained, tmp_path):
    """Of each sentence the translation that fairseq finds with another penalty."""

    def generated(penalty, nbest):
        options = ["--task", "syntax_translation", "--path", trained, "--cpu", "--beam", 4, "--max-len-b", 12]
        out = fairseq("generate", toy.data, *options, "--lenpen", penalty, "--nbest", nbest)
        (tmp_path / "out").write_text(out, encoding="utf-8")
        return tmp_path / "out"

    beams = length_penalty.beams_of(generated(1, nbest=4))
    actual = {penalty: length_penalty.best(beams, penalty) for penalty in (0.0, 1.0, 2.5)}
    assert actual[0.0] != actual[2.5]
    for penalty, lines in actual.items():
        assert lines == measure.read_translations(generated(penalty, nbest=1)).lines


@pytest.mark.parametrize("beam", [None, 3])
def test_all_translations_of_a_beam_are_written_for_each_penalty(beam, tmp_path):
    """Also by a recipe that leaves the beam to fairseq, or has a length penalty of its own."""
    of = Plan(load_recipe(ATLAS / "atis.yaml", {"folder": str(tmp_path)}), ATLAS / "atis.yaml")
    of.recipe.translate.__pydantic_extra__.update({"beam": beam, "lenpen": 0.6})
    stage = length_penalty.stage(of, of.runs[0], "valid")
    (args,) = (command.arguments() for command in stage.commands)
    assert (
        args[args.index("--nbest") + 1] == str(beam or 5)
        and args[len(args) - 1 - args[::-1].index("--lenpen") + 1] == "1"
    )
    assert args[args.index("--gen-subset") + 1] == "valid" and of.binarized("valid", "gold")[0] in stage.reads
    assert not stage.is_done() and of.checkpoint(of.runs[0]) in stage.inputs, "another model is translated anew"


def test_what_was_measured_meanwhile_stays(tmp_path, monkeypatch):
    """Best penalties are added to the results as they are when these have been found."""
    results = tmp_path / "results.json"
    results.write_text('{"languages": "before"}')

    def tuned(of, seed):
        results.write_text('{"languages": "after"}')
        return {"seed": seed}

    monkeypatch.setattr(length_penalty, "tuned", tuned)
    command = ["length_penalty.py", str(ATLAS / "atis.yaml"), "--results", str(results), "--seed", "2"]
    monkeypatch.setattr(sys, "argv", command)
    assert length_penalty.main() == 0
    assert json.loads(results.read_text()) == {"languages": "after", "length_penalty": {"atis": {"seed": 2}}}
    results.unlink()
    with pytest.raises(SystemExit):
        length_penalty.main()


def test_gains_with_another_length_penalty():
    def of(gain, before):
        penalties = {"plain": {"best": 1.0, "test": [9.0, 10.0]}, "S": {"best": 0.2, "test": [0.0, 10.0 + before]}}
        row = {"system": "S", "seeds": 1, "gain": [gain, gain - 1, gain + 1], "controls": {}}
        metrics = {"BLEU": {"scores": {"plain": 10.0, "S": 10.0 + gain}, "signature": "tok:13a", "rows": [row]}}
        about = {"baseline": "plain", "systems": {"S": []}, "order": None, "seeds": {"plain": 1, "S": 1}}
        return {**about, "tried": [0.8, 1.0], "usual": 1.0, "penalties": penalties, "metrics": metrics}

    text = by_language.length_penalties({"A": of(0.5, -0.25)})
    assert re.search(r"\| A \| 1 / 0.2 \| 10.00 \| \+0.50 .* \| -0.25 \| 1 \|", text)
    assert by_language.length_penalties({}) == ""


def test_the_detectable_difference_is_the_median_of_the_rows():
    rows = {str(mdd): {"gain": {"BLEU": [0, 0, 0, 0.5, mdd]}, "to_gold": {}} for mdd in (3.0, 1.0, 8.0, 2.0)}
    assert page.detectable({"rows": rows}, "gain") == 2.5
    assert page.detectable({"rows": rows}, "to_gold") is None


def test_parts_that_have_not_been_run_are_said_to_be_so(results):
    row = {"system": "PSH", "seeds": 1, "gain": [2.5, 1.0, 4.0], "controls": {}}
    row["controls"]["linear"] = {"gain": [1, 0, 2], "syntax": [1.5, -1, 4], "seeds": 1}
    longer = {"scores": {"transformer": 30.25}, "rows": [row]}
    after = page.longer_table(longer).rows[1]
    assert after[1] == "30.25" and [cell[:5] for cell in after[2:5]] == ["+2.50", "+1.00", "+1.50"]
    assert page.longer_table({}).rows[1][1:4] == [shared.NOT_RUN] * 3
    part = {name: {"BLEU": [row]} for name in results["multi30k"]}
    rows = page.amounts_table({"tenth": part}, results["multi30k"]).rows
    assert rows[0][2].startswith("+2.50") and rows[0][3] == shared.NOT_RUN and rows[0][-1].startswith("1/0/")


@pytest.mark.parametrize("first, names", [("libreoffice", measure.LANGUAGES), ("tuned", measure.TUNED)])
def test_languages_differ_in_the_language_alone(first, names, results):
    recipes = {name: load_recipe(ATLAS / f"{name}.yaml") for name in names}
    assert len(recipes) == len({recipe.folder for recipe in recipes.values()})
    assert [recipe.name for recipe in recipes.values()] == list(results["languages"])
    german = recipes[first]
    for name, recipe in recipes.items():
        assert name in (first, f"{first}-{recipe.corpus.target}")
        assert (recipe.systems, recipe.train, recipe.size, recipe.seeds) == (
            german.systems,
            german.train,
            german.size,
            german.seeds,
        )
        assert set(recipe.pieces.size) == {"en", recipe.corpus.target}
        if first == "libreoffice":
            assert measure.planned(measure.plan(name)) == results["languages"][recipe.name]["systems"]


def test_the_rows_of_parse_quality_are_those_of_the_recipes():
    named = set(load_recipe(ATLAS / "atis.yaml").systems) | set(load_recipe(ATLAS / "atis-parser.yaml").systems)
    assert {*measure.without_relative(dict.fromkeys(named))} == {
        "transformer",
        *(page.name_of(*row) for row in page.parse_rows()),
    }


def test_no_intervals_over_a_few_documents(tmp_path):
    """All that the page says is by intervals, and those over so few would be too narrow."""
    values = {"name": "few", "source": "en", "target": "xx", "references": 1, "groups": "documents"}
    recipe = tmp_path / "few.yaml"
    recipe.write_text(OWN.format(atlas=ATLAS, folder=tmp_path, **values))
    of, lines = measure.plan(recipe), [f"Satz {number}" for number in range(20)]
    of.text("test", "xx").parent.mkdir(parents=True)
    of.text("test", "xx").write_text("\n".join(lines) + "\n")
    runs = {"transformer": [["Satz"] * 20], "PSH": [lines]}
    documents = tmp_path / "documents"
    documents.write_text("".join(f"{number // 2}\n" for number in range(20)))
    assert measure.scored(of, runs)["groups"] == 10
    documents.write_text("".join(f"{number // 3}\n" for number in range(20)))
    with pytest.raises(SyntaxDataError) as error:
        measure.scored(of, runs)
    assert error.value.path == documents


def test_relative_positions_against_what_needs_a_parse(results):
    """What they gain over plain, and supervised heads over them, is what supervised heads gain over plain."""
    for language in results["languages"].values():
        for metric, row in language.get("relative", {"metrics": {}})["metrics"].items():
            heads = shared.row_of(language["metrics"][metric]["rows"], "PSH")
            assert row["gain"][0] + row["parse"][0] == pytest.approx(heads["gain"][0], abs=3e-4)
            linear = shared.twin_of(heads, "linear")["gain"]
            assert row["gain"][0] + row["control"][0] == pytest.approx(linear[0], abs=3e-4)


def test_the_tables_of_relative_positions():
    row = {"system": "PSH", "gain": [-0.25, -1, 1, 0.5, 0.9], "controls": {}}
    row["controls"]["linear"] = {"gain": [-1.75, -2, -1, 0.001, 0.9], "syntax": [1.5, 1, 2, 0.001, 0.9]}
    other = {"system": "sennrich_haddow", "gain": [0.5, 0.25, 1, 0.02, 0.9], "controls": {}}
    bleu = {"plain": 20.25, "relative": 22.5, "gain": [2.25, 1, 3, 0.001, 0.9]}
    bleu |= {"parse": [-1.5, -2, -1], "control": [0.75, -1, 2]}
    metrics = {metric: {**bleu, "beside": [row, other]} for metric in ("BLEU", "chrF")}
    seeds = {"transformer": 3, "relative": 2, "relative+PSH.gold": 1, "relative+sennrich_haddow": 1}
    corpora = {"French": {}, "ATIS": {"seeds": seeds, "metrics": metrics}}
    french, atis = relative.relative_table(corpora, "PSH", ["shuffled", "linear"]).rows
    assert french[1:] == [shared.NOT_RUN] * 6 + ["0"]
    assert atis[1] == "22.50" and [cell[:5] for cell in atis[2:7]] == ["-0.25", "not r", "not r", "**-1.", "**+1."]
    assert atis[7] == "2 (relative), 1 (the parse)"
    assert relative.plain_table(corpora, "PSH", ["linear"]).rows[1][1] == "20.25"
    (of_labels,) = relative.others_beside(corpora, "PSH").rows
    assert of_labels[:2] == ["ATIS", "S&H"] and "+0.50" in of_labels[3] and of_labels[-1] == "1"
    assert relative.others_beside({"French": {}}, "PSH") is None
    mean = {"languages": ["French"], "seeds": {"PSH": 1}, "metrics": {"BLEU": [row]}}
    rows = relative.mean_table(mean, "PSH", ["shuffled", "linear"]).rows
    assert [row[1][:5] for row in rows] == ["-0.25", "not r", "not r", "**-1.", "**+1."] and rows[0][2:] == [
        "0.90",
        "1",
    ]
    two = page.tuned_means({"mean": mean, "with_placebo": {**mean, "languages": ["Turkish"]}}, "PSH")
    assert "shuffled" not in two.partition("Turkish")[0].partition("French")[0] and "*shuffled*" in two
    results = {"languages": {"French": {"relative": corpora["ATIS"]}}, "mean": mean}
    baseline, gains = relative.gains_by_language(results, "PSH")
    assert baseline == "relative positions" and list(gains) == [relative.MEAN, "French"]
    assert gains["French"] == {"the parse": row["gain"]}


def test_seeds_are_those_that_have_been_run_of_those_in_the_recipe():
    names, run = {"relative": "r", "the parse": "p", "linear": "p.linear"}, {"r": 3, "p": 2}
    assert shared.counted(run, names) == "3 (relative), 2 (the parse)", "where the recipe is not known"
    planned = {"r": 3, "p": 3, "p.linear": 3}
    assert shared.counted(run, names, planned) == "3 (relative), 2 of 3 (the parse), 0 of 3 (linear)"
    assert shared.counted(planned, names, planned) == "3" and shared.counted({}, names, planned) == "0 of 3"
    assert shared.counted({}, names) == "0"
    notes = [shared.table("", ["a", "seeds"], [["x", of]]).notes for of in ("3", "2 of 3")]
    assert notes == [[], [shared.OF_SEEDS]]


def test_tables_show_the_systems_of_the_recipes_that_have_not_been_run():
    names = ["transformer", "relative", "relative+A", "relative+A.linear", "relative+B", "A", "relative+C.gold"]
    assert plans.systems_in(names, "relative") == {"A": ["linear"], "B": [], "C.gold": []}
    row = {"system": "B", "gain": [0.5, 0.25, 1, 0.02, 0.9], "controls": {}}
    corpora = {"French": {"seeds": {"relative+B": 1}, "metrics": {"BLEU": {"beside": [row]}}}, "Czech": {}}
    planned = dict.fromkeys(corpora, dict.fromkeys(names, 3))
    rows = relative.others_beside(corpora, "C", planned=planned).rows
    gaps = [shared.NOT_RUN] * 3
    assert [one[:3] + one[-1:] for one in rows] == [
        ["French", "B", "", "1 of 3"],
        ["French, Czech", "A", "linear", "0 of 3"],
        ["Czech", "B", "", "0 of 3"],
    ]
    assert rows[0][3].startswith("**+0.50") and rows[1][3:6] == gaps == rows[2][3:6]


def test_what_has_not_been_run_of_the_main_comparison_stands_on_the_page(results):
    """Seeds, systems and positions: by the recipes and what is kept of them."""
    text = page.page(results)
    for name in plans.TUNED:
        plan = measure.plan(name)
        kept = Counter(run.system for run in Work(plan).kept_runs)
        language, seeds = plan.recipe.name, len(plan.recipe.seeds)
        assert results["tuned"]["languages"][language]["relative"]["seeds"] == kept
        row = re.search(rf"relative \| PSH − relative .*?\n\| ({language} \|.*)", text, re.DOTALL)[1].partition("\n")[0]
        for title, system in (("the parse", "relative+PSH"), ("shuffled", "relative+PSH.shuffled")):
            if kept[system] < seeds:
                assert re.search(rf"{kept[system]} of {seeds} \([^)]*{title}|\| {kept[system]} of {seeds} \|", row), row
    others = text.partition("## What this has to do")[0].rpartition("other systems with relative positions")[2]
    for system in plans.systems_in(plans.planned_seeds(plans.TUNED_OTHERS)["German-others"], "relative"):
        assert f"| {shared.shown(system)} |" in others
    table = page.baselines_table()
    for language, recipe in plans.BASELINES.items():
        scores, column = plans.validated(recipe), table.header.index(f"{language}, BLEU")
        for system, row in zip(plans.systems_of(recipe), table.rows, strict=True):
            assert row[column] == (f"{scores[system]['BLEU']:.2f}" if system in scores else shared.NOT_RUN), system
    kinds = {row[0] for row in table.rows}
    assert {"learned", "ALiBi, no others", "sinusoids, embeddings not scaled", "sinusoids"} <= kinds
    assert "8000" in [row[3] for row in table.rows]
    beside = Work(measure.plan(plans.TUNED_OTHERS)).kept_runs
    assert ("Only PSH has been trained beside the tuned baseline" in " ".join(text.split())) == (not beside)
    tried = "sinusoids-dropout-0.1" in plans.validated("baseline")
    assert ("with sinusoids, no other was tried" in " ".join(text.split())) == (not tried)


def test_an_interval_over_languages_is_students():
    languages = {
        name: {"relative": {"metrics": {"BLEU": {"beside": [{"system": "PSH", "gain": [gain, 0, 0, 1, 1]}]}}}}
        for name, gain in (("French", 1.0), ("Turkish", 2.0), ("Czech", 3.0), ("German", 9.0))
    }
    main = {"languages": languages, "mean": {"languages": ["French", "Turkish", "Czech"]}}
    # the deviation is 1, and 95 % of Student's t of two degrees of freedom are within 4.3027
    half = 4.3027 / 3**0.5
    mean, low, high, p = relative.over_languages(main, "PSH", "BLEU")
    assert (mean, low, high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-3) and 0.07 < p < 0.08


@of_ten_seconds
def test_the_bootstrap_draws_pages(capsys):
    assert command(["run", str(ATLAS / "libreoffice-tr.yaml"), "--dry-run"]) == 1  # the corpus is not here
    assert "pages/test.page" in capsys.readouterr().out


def test_a_smoke_test_needs_no_trees_of_all_sentences():
    recipe = smoke(load_recipe(ATLAS / "atis.yaml"))
    assert recipe.parse.source.files is None and recipe.corpus.subset is not None


def test_measuring_what_is_not_there_is_the_users_error(tmp_path, monkeypatch, capsys):
    """Kept results are there, but not the references to score them with."""
    recipe = tmp_path / "cs.yaml"
    kept = ATLAS / "kept/libreoffice.jsonl.gz"
    recipe.write_text(f"extends: {ATLAS}/libreoffice.yaml\nname: x\nfolder: out\nkept: {kept}\n")
    monkeypatch.setattr(sys, "argv", ["measure.py", str(recipe), "--output", str(tmp_path / "results.json")])
    with pytest.raises(SystemExit):
        measure.main()
    assert "test.de" in capsys.readouterr().err
