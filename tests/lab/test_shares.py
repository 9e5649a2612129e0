"""How much of a gain is syntax: the figures against sacrebleu, the bootstrap's spread, and the page in words."""

import json
import random
import shutil
from argparse import Namespace

import numpy as np
import pytest
import sacrebleu
from data_errors import data_error

from fairseq_syntax.cli import experiment as command
from fairseq_syntax.lab.experiments.grid import Grid
from fairseq_syntax.lab.experiments.plan_file import load
from fairseq_syntax.lab.experiments.verdict import verdict_page
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.properties import Property
from fairseq_syntax.lab.scoring.shares import by_table, measure, measure_by
from fairseq_syntax.lab.scoring.significance import Resampled

WORDS = list("abcdefghijklm")
REFERENCES = [" ".join(random.Random(n).choices(WORDS, k=12)) for n in range(30)]


def noisy(share: float, seed: int) -> list[str]:
    """The references with this share of the words replaced."""
    rng = random.Random(seed)
    return [" ".join(w if rng.random() > share else "x" for w in line.split()) for line in REFERENCES]


def runs(**shares: float) -> dict[str, list[list[str]]]:
    return {name.replace("_", "."): [noisy(share, 7 * n) for n in (1, 2, 3)] for name, share in shares.items()}


@pytest.mark.parametrize("key", ["bleu", "chrf"])
def test_figures_are_those_of_sacrebleu(key):
    systems = runs(base=0.4, S=0.1, S_linear=0.2, T=0.3, U_linear=0.2)  # U is not finished
    rows = measure(Resampled(Scorer(key, [REFERENCES]), systems, 50), "base", ["linear", "random"])

    def corpus(name: str) -> float:
        score = sacrebleu.corpus_bleu if key == "bleu" else sacrebleu.corpus_chrf
        return float(np.mean([score(lines, [REFERENCES]).score for lines in systems[name]]))

    assert [row["system"] for row in rows] == ["S", "T"]
    named_so = measure(
        Resampled(Scorer(key, [REFERENCES]), runs(base=0.4, linear=0.1, S=0.2, S_linear=0.3), 5), "base", ["linear"]
    )
    assert [row["system"] for row in named_so] == ["linear", "S"], "a system may be called as a control is"
    gain, with_it = corpus("S") - corpus("base"), corpus("S.linear") - corpus("base")
    assert rows[0]["gain"][0] == pytest.approx(gain)
    assert list(rows[0]["controls"]) == ["linear"], "of the random control there is no run"
    found = rows[0]["controls"]["linear"]
    assert found["gain"][0] == pytest.approx(with_it)
    assert found["syntax"][0] == pytest.approx(gain - with_it)
    assert found["kept"][0] == pytest.approx(with_it / gain)
    assert rows[1]["controls"] == {}
    for row in rows:
        assert row["gain"][1] < row["gain"][0] < row["gain"][2]


def test_a_subset_of_the_sentences():
    systems = runs(base=0.4, S=0.1)
    chosen = [1, 4, 9, 16, 25]
    found = measure(Resampled(Scorer("bleu", [REFERENCES]), systems, 5, subset=chosen), "base", [])[0]["gain"][0]
    part = {n: [[lines[i] for i in chosen] for lines in found] for n, found in systems.items()}
    scorer = Scorer("bleu", [[REFERENCES[i] for i in chosen]])
    assert found == pytest.approx(measure(Resampled(scorer, part, 5), "base", [])[0]["gain"][0])


def test_intervals_of_a_property():
    """Each interval is measured as a test set of its own."""
    systems = runs(base=0.4, S=0.1, S_linear=0.2)
    parses = [Namespace(words=["w"] * (2 if n < 10 else 5)) for n in range(30)]
    scorer = Scorer("chrf", [REFERENCES])
    (found,) = measure_by(scorer, systems, "base", ["linear"], parses, [Property.of("length@3")], draws=10)
    assert [i["sentences"] for i in found["intervals"]] == [10, 20]
    resampled = Resampled(scorer, systems, 10, subset=range(10))
    assert found["intervals"][0]["rows"] == measure(resampled, "base", ["linear"])
    groups = [str(n // 3) for n in range(30)]
    grouped = Resampled(scorer, systems, 10, subset=range(10), groups=groups)
    options = {"draws": 10, "groups": groups}
    (of_groups,) = measure_by(scorer, systems, "base", ["linear"], parses, [Property.of("length@3")], **options)
    assert of_groups["intervals"][0]["rows"] == measure(grouped, "base", ["linear"])
    assert of_groups["intervals"][0]["rows"] != found["intervals"][0]["rows"]
    table = by_table("chrF", found)
    assert table.header == ["", "≤ 3", "> 3"] and len(table.rows) == 3


def test_no_share_of_a_gain_that_may_be_nothing():
    systems = {"base": [noisy(0.3, 1)], "S": [noisy(0.3, 2)], "S.linear": [noisy(0.3, 3)]}
    row = measure(Resampled(Scorer("bleu", [REFERENCES]), systems, 100), "base", ["linear"])[0]
    assert row["gain"][1] <= 0 and row["controls"]["linear"]["kept"] is None


# -- in an experiment ------------------------------------------------------------------------------------------------

TEMPLATE = r"""
name: toy
workdir: work
record: toy.jsonl
table: TOY.md
seeds: [1, 2]
systems:
  base: {share: 4}
  S: {share: 1}
  S.linear: {share: 2}
  T: {share: 4}
prepare:
  - name: text
    run: |
      for i in 1 2 3 4 5 6 7 8 9; do echo one two three four $i six seven eight; done > ref.txt
      for i in 1 2 3 4 5 6 7 8 9; do
        label=$([ $i -lt 5 ] && echo acl || echo obj)
        echo; printf "1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n2\tb\t_\t_\t_\t_\t1\t$label\t_\t_\n"
      done | tail -n +2 > ref.conllu
steps:
  - name: train
    run: |
      echo {system}/{seed} >> ran.txt
      sed "{seed}~{share}s/four/x/;3s/two/y/;$(({seed} + 4))s/seven/{share}/" ref.txt > {dir}/test.txt
    outputs: ["{dir}/test.txt"]
results:
  test:
    {ref: ref.txt, parse: ref.conllu, by: [depth], sys: "{dir}/test.txt", baseline: base, metrics: [bleu],
     resamples: 20, trials: 20}
keep: {folder: kept, files: ["{dir}/test.txt"]}
shares: {page: VERDICT.md, baseline: base, controls: {linear: a chain}, by: [label=acl]}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TEMPLATE)
    return path


def run(recipe, *options) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args([str(recipe), *options]))


def ran(recipe) -> list[str]:
    path = recipe.parent / "work/ran.txt"
    return path.read_text().split() if path.exists() else []


def test_a_grid_goes_on_where_its_work_directory_is_gone(recipe, capsys):
    assert run(recipe, "--only", "base", "S/1") == 0
    assert ran(recipe) == ["base/1", "S/1", "base/2"]
    page = (recipe.parent / "VERDICT.md").read_text()
    assert "| base | 1, 2 | none |" in page and "| S.linear | none | 1, 2 |" in page
    assert "*linear* is not finished" in page and "One seed of S:" in page
    assert "Not finished: S 2; S.linear 1, 2; T 1, 2." in (recipe.parent / "TOY.md").read_text()
    shutil.rmtree(recipe.parent / "work")
    capsys.readouterr()
    assert run(recipe, "--only", "base/1", "S") == 0
    said = capsys.readouterr().out
    assert "base/1: kept from before" in said and "S/1: kept from before" in said
    assert ran(recipe) == ["S/2"]
    run(recipe, "--list")
    assert "kept\tbase/2\ttrain" in capsys.readouterr().out
    # a file that is gone, and a command that has changed, are trained again
    (recipe.parent / "kept/base/1/test.txt").unlink()
    shutil.rmtree(recipe.parent / "work")
    recipe.write_text(TEMPLATE.replace("S: {share: 1}", "S: {share: 3}"))
    assert run(recipe, "--only", "base", "S/1") == 0
    assert ran(recipe) == ["base/1", "S/1"]


def test_a_file_of_a_step_for_some_systems_is_kept_of_those(recipe, capsys):
    more = """  - name: tags
    run: cp {dir}/test.txt {dir}/tags.txt; echo tags >> ran.txt
    outputs: ["{dir}/tags.txt"]
    only: [S]
results:"""
    template = TEMPLATE.replace("results:", more).replace(
        'files: ["{dir}/test.txt"]', 'files: ["{dir}/test.txt", "{dir}/tags.txt"]'
    )
    recipe.write_text(template)
    assert run(recipe, "--only", "base/1", "S/1") == 0
    kept = recipe.parent / "kept"
    assert sorted(str(p.relative_to(kept)) for p in kept.rglob("*.txt")) == [
        "S/1/tags.txt", "S/1/test.txt", "base/1/test.txt"
    ]  # fmt: skip
    shutil.rmtree(recipe.parent / "work")
    assert run(recipe, "--only", "base/1", "S/1") == 0
    assert ran(recipe) == []
    (kept / "S/1/tags.txt").unlink()
    shutil.rmtree(recipe.parent / "work")
    assert run(recipe, "--only", "base/1", "S/1") == 0
    assert ran(recipe) == ["S/1", "tags"]


def test_a_file_in_a_folder_of_a_step_for_some_systems_is_kept_of_those(recipe):
    more = """  - name: trees
    run: mkdir -p {dir}/trees; cp {dir}/test.txt {dir}/trees/t.json
    outputs: ["{dir}/trees"]
    only: [S]
results:"""
    files = 'files: ["{dir}/test.txt"'
    recipe.write_text(TEMPLATE.replace("results:", more).replace(files, files + ', "{dir}/trees/t.json"'))
    assert run(recipe, "--only", "base/1", "S/1") == 0
    kept = recipe.parent / "kept"
    assert (kept / "S/1/trees/t.json").is_file() and (kept / "base/1/test.txt").is_file()
    shutil.rmtree(recipe.parent / "work")
    assert run(recipe, "--only", "base/1", "S/1") == 0 and ran(recipe) == []


def test_the_page_is_written_from_the_record_alone(recipe):
    assert run(recipe) == 0
    page = (recipe.parent / "VERDICT.md").read_text()
    assert "**S** against base: -" in page and "a loss that is more" in page and "| T | 1, 2 | none |" in page
    assert "The parse against the control *linear*" in page and "*linear*, a chain" in page
    assert "are in [TOY.md](TOY.md)" in page
    table = (recipe.parent / "TOY.md").read_text()
    assert "BLEU by label=acl" in table and "| sentences | 5 | 4 |" in table and "| S, syntax against linear |" in table
    assert "BLEU by depth" in table
    record = [json.loads(line) for line in (recipe.parent / "toy.jsonl").read_text().splitlines()]
    assert [e["draws"] for e in record if e["kind"] == "shares"] == [10_000]
    shutil.rmtree(recipe.parent / "work")
    (recipe.parent / "VERDICT.md").unlink()
    assert run(recipe, "--table") == 0
    assert (recipe.parent / "VERDICT.md").read_text() == page


def test_scores_of_other_commands_are_in_no_table(recipe):
    """Of a table that is written again before anything has run, too."""
    assert run(recipe) == 0
    recipe.write_text(TEMPLATE.replace("s/four/x/", "s/four/z/"))
    assert run(recipe, "--table") == 0
    assert "BLEU" not in (recipe.parent / "TOY.md").read_text()
    assert "Nothing can be said before" in (recipe.parent / "VERDICT.md").read_text()
    assert run(recipe, "--only", "base") == 0
    page = (recipe.parent / "TOY.md").read_text()
    assert "| base | 2 |" in page and "| S | 2 |" not in page
    recipe.write_text(TEMPLATE)
    lines = [json.loads(line) for line in (recipe.parent / "toy.jsonl").read_text().splitlines()]
    (recipe.parent / "toy.jsonl").write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "cells"}) + "\n" for line in lines)
    )
    assert run(recipe, "--table") == 0
    assert "| base | 2 |" in (recipe.parent / "TOY.md").read_text(), "a record of an earlier version holds"


def test_gains_over_another_baseline_are_measured_anew(recipe):
    assert run(recipe) == 0
    recipe.write_text(TEMPLATE.replace("page: VERDICT.md, baseline: base", "page: VERDICT.md, baseline: T"))
    assert run(recipe, "--table") == 0
    page = (recipe.parent / "VERDICT.md").read_text()
    assert "Nothing can be said before a run of T is finished." in page, "gains over base are none over T"
    assert run(recipe) == 0
    page = (recipe.parent / "VERDICT.md").read_text()
    assert "**base** against T" in page and "**T** against" not in page


def test_what_other_code_did_is_done_again_where_it_was_kept_too(recipe, capsys):
    assert run(recipe, "--only", "base/1") == 0
    shutil.rmtree(recipe.parent / "work")
    record = recipe.parent / "toy.jsonl"
    assert run(recipe, "--only", "base/1", "--check-code") == 0
    assert "base/1: kept from before" in capsys.readouterr().out
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    record.write_text("".join(json.dumps({**line, "code": "of another day"}) + "\n" for line in lines))
    assert run(recipe, "--only", "base/1") == 0 and ran(recipe) == []
    assert run(recipe, "--only", "base/1", "--check-code") == 0
    assert ran(recipe) == ["base/1"]


CONTINUING = (
    TEMPLATE.replace(
        "      echo {system}/{seed} >> ran.txt\n",
        "      echo {system}/{seed} >> ran.txt; echo update >> {dir}/model\n",
    )
    .replace(
        'outputs: ["{dir}/test.txt"]\n',
        """outputs: ["{dir}/model"]
  - name: translate
    run: cp {dir}/model {dir}/log; sed "{seed}~{share}s/four/x/;3s/two/y/" ref.txt > {dir}/test.txt
    outputs: ["{dir}/test.txt"]
""",
    )
    .replace('keep: {folder: kept, files: ["{dir}/test.txt"]}\n', "")
)


def test_other_code_does_not_go_on_from_what_there_was(recipe):
    """A training finds the model that other code has finished, and would end at once."""
    recipe.write_text(CONTINUING)
    assert run(recipe, "--only", "base/1") == 0
    work = recipe.parent / "work/base/1"
    mark = work / ".done/train.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "code": "of another day"}))
    assert run(recipe, "--only", "base/1") == 0
    assert ran(recipe) == ["base/1"] and (work / "model").read_text() == "update\n"
    assert run(recipe, "--only", "base/1", "--check-code") == 0
    assert ran(recipe) == 2 * ["base/1"] and (work / "model").read_text() == "update\n"


def test_what_was_begun_by_other_code_does_not_go_on(recipe):
    recipe.write_text(CONTINUING)
    recipe.write_text(CONTINUING.replace("      sed", "      test -e go; sed", 1))
    assert run(recipe, "--only", "base/1") == 1
    work = recipe.parent / "work/base/1"
    begun = work / ".done/train.attempts"
    assert run(recipe, "--only", "base/1", "--check-code") == 1
    assert (work / "model").read_text() == 2 * "update\n", "this code's own attempt goes on"
    begun.write_text(json.dumps({**json.loads(begun.read_text()), "code": "of another day"}))
    (recipe.parent / "work/go").touch()
    assert run(recipe, "--only", "base/1", "--check-code") == 0
    assert (work / "model").read_text() == "update\n"


def test_a_later_step_that_was_begun_does_not_go_on_after_one_that_is_done_again(recipe):
    seen = CONTINUING.replace("cp {dir}/model {dir}/log;", "cat {dir}/model >> {dir}/seen; test -e go;")
    recipe.write_text(seen.replace('outputs: ["{dir}/test.txt"]\n', 'outputs: ["{dir}/test.txt", "{dir}/seen"]\n'))
    assert run(recipe, "--only", "base/1") == 1
    work = recipe.parent / "work/base/1"
    (work / "model").unlink()
    (work / ".done/train.json").unlink()
    (recipe.parent / "work/go").touch()
    assert run(recipe, "--only", "base/1") == 0
    assert (work / "seen").read_text() == "update\n", "what was made of the first model is gone"


def test_what_an_earlier_version_had_begun_with_other_options_does_not_go_on(recipe):
    recipe.write_text(
        CONTINUING.replace("      sed", "      false; sed").replace(" >> {dir}/model\n", " >> {dir}/model; false\n", 1)
    )
    assert run(recipe, "--only", "base/1") == 1
    begun = recipe.parent / "work/base/1/.done/train.attempts"
    found = json.loads(begun.read_text())
    begun.write_text(f"{found['fingerprint']} {found['started']}\n")
    recipe.write_text(CONTINUING)
    assert run(recipe, "--only", "base/1") == 0
    assert (recipe.parent / "work/base/1/model").read_text() == "update\n"


def test_what_another_command_left_is_not_scored_for_what_was_kept(recipe):
    assert run(recipe, "--only", "base/1") == 0
    kept = (recipe.parent / "kept/base/1/test.txt").read_text()
    recipe.write_text(
        TEMPLATE.replace("s/four/x/", "s/four/z/").replace("> {dir}/test.txt\n", "> {dir}/test.txt; false\n")
    )
    assert run(recipe, "--only", "base/1") == 1
    ours = recipe.parent / "work/base/1/test.txt"
    assert " z " in ours.read_text()
    recipe.write_text(TEMPLATE)
    assert run(recipe, "--only", "base/1") == 0
    assert ours.read_text() == kept


def test_kept_by_other_code(recipe):
    """--check-code was killed between the new record of a step and the new files in the place of the old."""
    assert run(recipe, "--only", "base/1") == 0
    shutil.rmtree(recipe.parent / "work")
    record = recipe.parent / "toy.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    lines = [{**line, "code": "of another day"} if line["kind"] == "kept" else line for line in lines]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(recipe, "--only", "base/1") == 0 and ran(recipe) == []
    assert run(recipe, "--only", "base/1", "--check-code") == 0 and ran(recipe) == ["base/1"]


def test_a_system_without_steps_keeps_nothing(recipe):
    recipe.write_text(
        TEMPLATE.replace("  - name: train\n", "  - name: train\n    only: [base, S, S.linear]\n").replace(
            "baseline: base, metrics", "baseline: base, only: [base, S, S.linear], metrics"
        )
        + "values:\n  BLEU of the paper: {published: {T: 30.14}}\n"
    )
    assert run(recipe, "--list") == 0 and run(recipe) == 0
    assert "30.14" in (recipe.parent / "TOY.md").read_text()


def test_steps_after_one_that_is_done_again_are_done_again(recipe):
    recipe.write_text(CONTINUING)
    assert run(recipe, "--only", "base/1", "S/1") == 0
    work = recipe.parent / "work/base/1"
    (work / "model").unlink()
    (work / "log").unlink()
    assert run(recipe, "--only", "base/1", "S/1") == 0
    assert ran(recipe) == ["base/1", "S/1", "base/1"]
    assert (work / "log").read_text() == "update\n", "the translation is of the new model"


def test_files_that_another_command_made_are_not_kept_for_this_one(recipe, monkeypatch):
    """The program is killed after a step's new record, and before its files are in the place of the old ones."""
    assert run(recipe, "--only", "base/1") == 0
    changed = TEMPLATE.replace("s/four/x/", "s/four/z/")
    recipe.write_text(changed)
    with monkeypatch.context() as patch:
        patch.setattr(Grid, "_exchange_kept", lambda self, system, seed: None)
        assert run(recipe, "--only", "base/1") == 0
    assert " x " in (recipe.parent / "kept/base/1/test.txt").read_text()
    shutil.rmtree(recipe.parent / "work")
    assert run(recipe, "--only", "base/1") == 0
    assert ran(recipe) == ["base/1"], "what was kept is no work of the new command"
    assert " z " in (recipe.parent / "kept/base/1/test.txt").read_text()
    shutil.rmtree(recipe.parent / "work")
    assert run(recipe, "--only", "base/1") == 0 and ran(recipe) == []
    (recipe.parent / "kept/base/1/test.txt").write_text("something else\n" * 9)
    assert run(recipe, "--only", "base/1") == 0 and ran(recipe) == ["base/1"]


def test_records_of_earlier_versions_hold_for_what_was_kept(recipe, monkeypatch):
    assert run(recipe, "--only", "base/1") == 0
    shutil.rmtree(recipe.parent / "work")
    record = recipe.parent / "toy.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    lines = [{k: v for k, v in line.items() if k != "to_keep"} for line in lines if line["kind"] != "kept"]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(recipe, "--only", "base/1") == 0 and ran(recipe) == []
    # and what such a version has kept is not the work of a command that was killed before its own was
    recipe.write_text(TEMPLATE.replace("s/four/x/", "s/four/z/"))
    with monkeypatch.context() as patch:
        patch.setattr(Grid, "_exchange_kept", lambda self, system, seed: None)
        assert run(recipe, "--only", "base/1") == 0
    shutil.rmtree(recipe.parent / "work")
    assert run(recipe, "--only", "base/1") == 0 and ran(recipe) == ["base/1"]
    assert " z " in (recipe.parent / "kept/base/1/test.txt").read_text()


def test_a_folder_cannot_be_kept_and_the_other_cells_go_on(recipe, capsys):
    recipe.write_text(
        TEMPLATE.replace('files: ["{dir}/test.txt"]', 'files: ["{dir}/model", "{dir}/test.txt"]')
        .replace('outputs: ["{dir}/test.txt"]', 'outputs: ["{dir}/test.txt", "{dir}/model"]')
        .replace("echo {system}", "[ {seed} = 2 ] && echo x > {dir}/model || mkdir {dir}/model; echo {system}")
    )
    assert run(recipe, "--only", "base", "--workers", "2") == 1
    said = capsys.readouterr().out
    assert "base/1: FAILED to keep its files: " in said and "base/1/model: keep.files: not a file" in said
    assert "failed: base/1\n" in said and sorted(ran(recipe)) == ["base/1", "base/2"]
    assert (recipe.parent / "kept/base/2/model").read_text() == "x\n"
    assert run(recipe, "--only", "base/2") == 0, "what cannot be kept of one does not stop another"
    assert "base/1: FAILED to keep its files: " in capsys.readouterr().out


def test_what_the_tables_read_is_to_be_kept(recipe):
    more = TEMPLATE.replace('outputs: ["{dir}/test.txt"]', 'outputs: ["{dir}/test.txt", "{dir}/log"]')
    recipe.write_text(more.replace('files: ["{dir}/test.txt"]', 'files: ["{dir}/log"]'))
    with data_error("test.txt", path="toy.yaml"):
        load(recipe)
    recipe.write_text(more.replace('files: ["{dir}/test.txt"]', 'files: ["{system}/{seed}/test.txt"]'))
    assert load(recipe).keep.files == ("{system}/{seed}/test.txt",), "the same file by another name"


def words(recipe, bleu: dict, chrf: dict, base: int = 2) -> str:
    """What the page says of a system S, given its rows in two scores."""
    metrics = {"BLEU": [{"system": "S", **bleu}], "chrF": [{"system": "S", **chrf}]}
    seeds = {"base": [1, 2][:base], "S": [1, 2]}
    entry = {"kind": "shares", "test": "test", "draws": 10, "seeds": seeds, "metrics": metrics}
    entry["own"] = {"BLEU": 0.25, "chrF": None}
    page = verdict_page(load(recipe), [entry])
    assert page.endswith("give to a seed's score: 0.2 (BLEU on test).\n")
    return page[page.index("**S**") : page.index("## test")]


def row(gain: float, syntax: float | None = None, *, width: float = 1.0, seeds: int = 2, twins: int = 2) -> dict:
    """A system's figures whose intervals reach so far to either side, without its control or with it."""

    def around(value: float) -> list[float]:
        return [value, value - width, value + width]

    found: dict = {"gain": around(gain), "seeds": seeds, "controls": {}}
    if syntax is not None:
        kept = around(1 - syntax / gain) if gain > width else None
        left = {"gain": around(gain - syntax), "syntax": around(syntax), "kept": kept, "seeds": twins}
        found["controls"]["linear"] = left
    return found


def test_the_words_are_those_of_the_intervals(recipe):
    both = words(recipe, row(3, 2), row(2, 0.5))
    assert "against base: +3.00 BLEU and +2.00 chrF on test: more than chance." in both
    assert "*linear*: +2.00 BLEU and +0.50 chrF on test: more than chance in BLEU on test; the rest" in both
    assert "with *linear* it keeps 33 to 75 % of its gain." in both
    assert "Part of the gain is syntax that *linear* parses lack, in BLEU on test." in both and "One seed" not in both
    neither = words(recipe, row(3, 0.5), row(2, 0.5))
    assert "No part of the gain is shown to need more than what *linear* parses have." in neither
    one = words(recipe, row(3, 2), row(0.5, 2))
    assert "against base: +3.00 BLEU and +0.50 chrF on test: more than chance in BLEU on test; the rest may be" in one
    assert "it keeps 33 % of its gain." in one
    assert "lack, in BLEU on test." in one, "in chrF there is no gain of which syntax could be a part"
    nothing = words(recipe, row(0.5, 2), row(-3, 0))
    assert "a loss that is more than chance in chrF on test; the rest may be chance." in nothing
    assert "No gain is shown" in nothing and "Part of the gain" not in nothing and "keeps" not in nothing
    worse = words(recipe, row(3, -2), row(3, -2))
    assert "*linear*: -2.00 BLEU and -2.00 chrF on test: a loss that is more than chance" in worse
    assert "No part of the gain" in worse


def test_the_words_say_what_is_not_known_yet(recipe):
    assert "The control *linear* is not finished." in words(recipe, row(3), row(3))
    assert "One seed of S:" in words(recipe, row(3, 2, seeds=1), row(3, 2, seeds=1))
    assert "One seed of S.linear:" in words(recipe, row(3, 2, twins=1), row(3, 2, twins=1))
    assert "One seed of base and S.linear:" in words(recipe, row(3, 2, twins=1), row(3, 2), base=1)
    recipe.write_text(TEMPLATE.replace("  S.linear: {share: 2}", "  T.linear: {share: 2}"))
    assert "No control is planned for it: what of its gain is syntax is open." in words(recipe, row(3), row(3))
    assert "No control" not in words(recipe, row(0.5), row(0.5)), "there is nothing to ask it of"


def test_a_control_that_one_test_has_and_another_has_not_yet(recipe):
    """A run that was interrupted between two tests has written the control's figures for the first alone."""
    test = TEMPLATE[TEMPLATE.index("  test:\n") : TEMPLATE.index("keep:")]
    recipe.write_text(TEMPLATE.replace(test, test.replace("test:", "one:") + test.replace("test:", "two:")))
    entries, seeds = [], {"base": [1, 2], "S": [1, 2]}
    for name, found in (("one", row(3, 2)), ("two", row(3))):
        metrics = {"BLEU": [{"system": "S", **found}]}
        entries.append({"kind": "shares", "test": name, "draws": 10, "seeds": seeds, "metrics": metrics})
    page = verdict_page(load(recipe), entries)
    assert "*linear*: +2.00 BLEU on one: more than chance" in page
    assert "syntax that *linear* parses lack, in BLEU on one. The control *linear* is not finished." in page


@pytest.mark.parametrize(
    "old, new, name",
    [
        ("baseline: base, controls", "baseline: bass, controls", "bass"),
        ("{linear: a chain}", "{flat: a star}", "SYSTEM.flat"),
        ("  S: {share: 1}\n", "", "S.linear"),
        ("by: [label=acl]", "by: [depths]", "shares.by"),
        ("by: [depth]", "by: [depths]", "results.test.by"),
        ("parse: ref.conllu, ", "", "results.test"),
        ("files: [", "wrong: [", "files"),
        ('files: ["{dir}/test.txt"]', "files: []", "keep.files"),
        ('files: ["{dir}/test.txt"]', 'files: ["{dir}/log"]', "/log"),
        ("{dir}/test.txt", "/tmp/{dir}/test.txt", "keep.files"),
        ("{dir}/test.txt", "../{dir}/test.txt", ""),
        ("record: toy.jsonl", "record: .", "record"),
        ("metrics: [bleu]", "metrics: [ter]", ""),
        ('files: ["{dir}/test.txt"]', 'files: ["{dirr}/test.txt"]', "dirr"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(recipe, old, new, name):
    assert old in TEMPLATE
    recipe.write_text(TEMPLATE.replace(old, new))
    with data_error(name, path=recipe):
        load(recipe)
