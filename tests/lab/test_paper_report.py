"""A paper's figures beside ours: by metric and test, means over tests, gains by length in numbers and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fairseq_syntax.lab.recipes.layout import Run, Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import Results, main_table, pictures, published, write_report
from fairseq_syntax.lab.recipes.schema import Recipe

GROUPS = ("short", "long")


def recipe(**score) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "paper",
            "corpus": {"source": "zh", "target": "en", "reader": "moses", "data": "x", "tests": {g: g for g in GROUPS}},
            "systems": {"base": {"arch": "lstm"}, "DLAA": {"arch": "dlaa_lstm"}},
            "score": {"metrics": ["bleu", "ribes"], **score},
            "published": [
                {"source": "P (2019), T2", "test": "short", "figures": {"base": 9.52, "DLAA": 8.96, "other": 7.0}},
                {"source": "P (2019), T2", "test": "long", "metric": "RIBES", "figures": {"base": 70.0, "DLAA": 71.0}},
                {"source": "P (2019), T2", "metric": "mean BLEU of the tests", "figures": {"base": 3.98, "DLAA": 4.01}},
                {"source": "P (2019), T3", "metric": "BEER", "figures": {"DLAA": 0.5}, "note": "a program"},
                {"source": "P (2019), T4", "figures": {"DLAA": 9.0}},
            ],
        }
    )


def scored(base: float, dlaa: float, **more) -> dict:
    systems = [
        {"name": name, "runs": [{}], "mean": {"BLEU": score, "RIBES": 10 * score}, "sd": {"BLEU": None, "RIBES": None}}
        for name, score in (("base", base), ("DLAA", dlaa))
    ]
    return {"systems": systems, "signatures": {"BLEU": "s", "RIBES": "s"}, "sentences": 10, "format": 2, **more}


@pytest.fixture
def results() -> Results:
    return Results({Scored("short"): scored(4.0, 5.0), Scored("long"): scored(1.0, 2.5)}, {})


def test_means_are_of_all_tests(results, tmp_path):
    plan = Plan(recipe(mean=True), tmp_path / "paper.yaml")
    table = main_table(plan, results, list(results.reports))
    by_name = {row[0]: row for row in table.rows}
    mean = table.header.index("mean of the tests")
    assert by_name["base"][mean] == "2.50" and by_name["DLAA"][mean] == "3.75"
    lone = Results({Scored("short"): results.reports[Scored("short")], Scored("long"): scored(1.0, 2.0)}, {})
    lone.reports[Scored("long")]["systems"].pop()
    rows = {row[0]: row for row in main_table(plan, lone, list(lone.reports)).rows}
    assert rows["DLAA"][mean] == "–", "no mean of a part of the tests"


def test_the_table_has_the_recipes_first_metric_whatever_the_order_of_the_report(results, tmp_path):
    plan = Plan(recipe(metrics=["ribes", "bleu"]), tmp_path / "paper.yaml")
    table = main_table(plan, results, list(results.reports))
    assert table.header[1].startswith("RIBES") and {row[0]: row[1] for row in table.rows}["DLAA"] == "50.00"


def test_a_gain_that_is_significant_in_another_metric_is_noted(results, tmp_path):
    """A table of one metric would hide that another one decides otherwise."""

    def tests(*figures: tuple[float, float]) -> dict:
        return {
            metric: {"difference": difference, "holm": {"bootstrap": p}}
            for metric, (difference, p) in zip(("BLEU", "RIBES"), figures)
        }

    def notes(*figures: tuple[float, float]) -> str:
        results.reports[Scored("long")]["systems"][1]["tests"] = tests(*figures)
        plan = Plan(recipe(), tmp_path / "paper.yaml")
        return "; ".join(note for note in main_table(plan, results, list(results.reports)).notes if "RIBES" in note)

    assert "RIBES, long" in notes((1.5, 0.3), (2.0, 0.01)) and "DLAA (better)" in notes((1.5, 0.3), (2.0, 0.01))
    assert "DLAA (worse)" in notes((1.5, 0.01), (-2.0, 0.01))
    assert not notes((1.5, 0.01), (2.0, 0.01)) and not notes((1.5, 0.3), (-2.0, 0.3))
    long = results.reports[Scored("long")]
    long["signatures"]["TER"] = "s"
    long["systems"][1]["tests"]["TER"] = {"difference": -2.0, "holm": {"bootstrap": 0.01}}
    table = main_table(Plan(recipe(), tmp_path / "paper.yaml"), results, list(results.reports))
    assert any("TER" in note and "DLAA (better)" in note for note in table.notes), "lower is better"


def test_translations_of_another_length_are_noted(results, tmp_path):
    plan = Plan(recipe(), tmp_path / "paper.yaml")

    def notes(base: float | None, other: float | None) -> list[str]:
        for system, length in zip(results.reports[Scored("long")]["systems"], (base, other)):
            system["length"] = length
        return [note for note in main_table(plan, results, list(results.reports)).notes if "length" in note]

    assert notes(95.5, 89.25) == ["length of the translations, long: base 96 %, DLAA 89 %"]
    assert notes(95.5, 94.0) == notes(None, 89.25) == notes(95.5, None) == []


def test_a_papers_table_has_ours_beside_its_figures(results, tmp_path):
    first, second, third = published(Plan(recipe(), tmp_path / "paper.yaml"), results)
    assert first.title == "P (2019), T2" and second.header == ["system", "BEER"] and second.notes
    assert third.header == ["system", "BLEU"] and "does not name the test set" in third.notes[0]
    assert not any("test set" in note for note in (*first.notes, *second.notes))
    by_name = {row[0]: dict(zip(first.header, row)) for row in first.rows}
    assert by_name["DLAA"]["BLEU, short"] == "8.96" and by_name["DLAA"]["BLEU, short: ours"] == "5.00"
    assert by_name["base"]["RIBES, long"] == "70.00" and by_name["base"]["RIBES, long: ours"] == "10.00"
    assert by_name["other"]["BLEU, short: ours"] == "–"
    assert by_name["DLAA"]["mean BLEU of the tests"] == "4.01"
    assert by_name["DLAA"]["mean BLEU of the tests: ours"] == "3.75"


def test_a_papers_table_names_the_systems_of_fewer_seeds(results, tmp_path):
    """As after ``--only DLAA --seeds 1``."""

    def notes() -> str:
        return " ".join(published(Plan(recipe(), tmp_path / "paper.yaml"), results)[0].notes)

    for run in (Run("base", 1), Run("base", 2), Run("DLAA", 1)):
        results.facts[run] = {}
    assert "seeds 1, 2" in notes() and "DLAA 1" in notes() and "base 1" not in notes()
    results.facts[Run("DLAA", 2)] = {}
    assert "seeds 1, 2" in notes() and "DLAA" not in notes()


def test_a_papers_figures_keep_their_digits_and_stand_beside_ours_of_their_variant(results, tmp_path):
    values = recipe().model_dump(exclude_unset=True)
    values["translate"] = {"variants": {"ten-best": {}}}
    one = {"source": "T5", "test": "short", "metric": "RIBES", "variant": "ten-best", "figures": {"base": 0.231}}
    values["published"] = [{**one, "figures": {"base": 0.231, "DLAA": 0.228}}]
    results.reports[Scored("short", "ten-best")] = scored(0.0251, 0.0252)
    (table,) = published(Plan(Recipe.model_validate(values), tmp_path / "paper.yaml"), results)
    assert [row[1:] for row in table.rows] == [["0.231", "0.251"], ["0.228", "0.252"]]
    values["published"] = [{**one, "variant": "other"}]
    with pytest.raises(ValueError):
        Recipe.model_validate(values)


def test_scores_too_low_to_compare_are_called_so_in_the_main_table(tmp_path):
    """BLEU 0.17 against 0.35, which a bootstrap finds significant."""

    def shown(base: float, other: float) -> tuple[str, str]:
        report = scored(base, other, baseline="base")
        report["systems"][1]["tests"] = {"BLEU": {"difference": other - base, "holm": {"bootstrap": 0.001}}}
        results = Results({Scored("short"): report}, {})
        table = main_table(Plan(recipe(), tmp_path / "paper.yaml"), results, [Scored("short")])
        return table.rows[1][-1], " ".join(table.notes)

    assert shown(17.0, 35.0)[0] == "yes" and "too low" not in shown(17.0, 35.0)[1]
    assert shown(0.17, 0.35)[0] == "too low" and "too low to compare" in shown(0.17, 0.35)[1]


def test_comparisons_are_those_that_were_tested(tmp_path):
    """Older results have systems without tests, which Holm's correction did not count."""
    report = scored(17.0, 35.0, baseline="base")
    tests = {"BLEU": {"difference": 18.0, "holm": {"bootstrap": 0.001}}}
    (report["systems"][1]["tests"], more) = tests, report["systems"][1]
    report["systems"] += [{**more, "name": "third", "tests": tests}, {**more, "name": "untested", "tests": {}}]
    table = main_table(
        Plan(recipe(), tmp_path / "paper.yaml"), Results({Scored("short"): report}, {}), [Scored("short")]
    )
    assert any("2 comparisons" in note for note in table.notes)


def test_a_papers_table_says_what_differs_from_its_recipe(results, tmp_path):
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump(recipe().model_dump(exclude_unset=True)))
    results.facts |= {Run("base", 1): {"pairs": 2500}, Run("DLAA", 1): {"pairs": 2500}}
    as_written, small = (
        " ".join(published(Plan(load_recipe(path, changed), path), results)[0].notes)
        for changed in ({}, {"size.encoder-embed-dim": "64"})
    )
    assert "2,500 training pairs" in as_written and "size" not in as_written
    assert "2,500 training pairs" in small and "size.encoder-embed-dim=64" in small


def test_pictures_lie_beside_the_report_and_in_its_page(tmp_path):
    buckets = [{"over": 0, "to": 10, "sentences": 4, "BLEU": {"base": 1.0, "DLAA": 2.0}}]
    table = {"of": "source", "width": 10, "buckets": buckets}
    results = Results({Scored("short"): scored(1.0, 2.0, by_length=table, baseline="base")}, {})
    plan = Plan(recipe(by_length=10), tmp_path / "paper.yaml")
    (section,) = pictures(plan, results)
    assert [Path(picture.path).exists() for picture in section.blocks] == [True, True]
    markdown, page = write_report(plan, results)
    for picture in section.blocks:
        assert f"]({picture.path.relative_to(plan.folder).as_posix()})" in markdown.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8").count("<figure>") == 2


def test_a_test_set_called_training_keeps_its_pictures(tmp_path):
    buckets = [{"over": 0, "to": 10, "sentences": 4, "BLEU": {"base": 1.0, "DLAA": 2.0}}]
    table = {"of": "source", "width": 10, "buckets": buckets}
    results = Results({Scored("training"): scored(1.0, 2.0, by_length=table)}, {})
    results.curves[Run("base", 1)] = {"valid": {"ppl": [(1, 9.0), (2, 4.0)]}}
    sections = list(pictures(Plan(recipe(), tmp_path / "paper.yaml"), results))
    titles = [picture.title for section in sections for picture in section.blocks]
    assert titles == ["BLEU by length", "Perplexity of the validation data"]
