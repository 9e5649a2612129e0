"""How much of a gain is syntax: the figures against sacrebleu, the bootstrap's spread, and the page in words."""

import random
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.schema import Recipe
from fairseq_syntax.lab.recipes.verdict import verdict
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


# -- in words --------------------------------------------------------------------------------------------------------


def words(bleu: dict, chrf: dict | None = None, *, tests: dict | None = None, control: str = "S.linear") -> str:
    """What is said of a system S, given its rows in two scores; or in BLEU of several tests."""
    systems = {name: {"arch": "transformer"} for name in ("base", "S")}
    recipe = Recipe.model_validate(
        {
            "name": "toy",
            "corpus": {"source": "en", "target": "de", "train": "a", "valid": "b", "tests": {"test": "c"}},
            "parse": {"source": {}, "controls": {"linear": "linear"}},
            "systems": systems | {control: {"arch": "transformer", "parse": "linear"}},
        }
    )
    shown = {"baseline": "base", "controls": ["linear"], "draws": 10, "own": {"BLEU": 0.25, "chrF": None}}
    rows = tests or {"test": {"BLEU": bleu, "chrF": chrf}}
    shares = {
        test: {**shown, "metrics": {metric: [{"system": "S", **of}] for metric, of in metrics.items()}}
        for test, metrics in rows.items()
    }
    said, how = verdict(Plan(recipe, Path("toy.yaml")), shares)
    assert "0.2 (BLEU on " in how[-1]
    return "\n".join(said)


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


def test_the_words_are_those_of_the_intervals():
    both = words(row(3, 2), row(2, 0.5))
    assert "against base: +3.00 BLEU and +2.00 chrF on test: significant." in both
    assert "*linear*: +2.00 BLEU and +0.50 chrF on test: significant in BLEU on test; the rest" in both
    assert "with *linear* it keeps 33 to 75 % of its gain." in both
    assert "Part of the gain is syntax that *linear* parses lack, in BLEU on test." in both and "One seed" not in both
    neither = words(row(3, 0.5), row(2, 0.5))
    assert "No part of the gain is shown to need more than what *linear* parses have." in neither
    one = words(row(3, 2), row(0.5, 2))
    assert "against base: +3.00 BLEU and +0.50 chrF on test: significant in BLEU on test; the rest is not" in one
    assert "it keeps 33 % of its gain." in one
    assert "lack, in BLEU on test." in one, "in chrF there is no gain of which syntax could be a part"
    nothing = words(row(0.5, 2), row(-3, 0))
    assert "a significant loss in chrF on test; the rest is not significant." in nothing
    assert "No gain is shown" in nothing and "Part of the gain" not in nothing and "keeps" not in nothing
    worse = words(row(3, -2), row(3, -2))
    assert "*linear*: -2.00 BLEU and -2.00 chrF on test: a significant loss" in worse
    assert "No part of the gain" in worse


def test_the_words_say_what_is_not_known_yet():
    assert "The control *linear* is not finished." in words(row(3), row(3))
    assert "One seed of S:" in words(row(3, 2, seeds=1), row(3, 2, seeds=1))
    assert "One seed of S.linear:" in words(row(3, 2, twins=1), row(3, 2, twins=1))
    other = {"control": "T.linear"}
    assert "No control is planned for it: what of its gain is syntax is open." in words(row(3), row(3), **other)
    assert "No control" not in words(row(0.5), row(0.5), **other), "there is nothing to ask it of"


def test_a_control_that_one_test_has_and_another_has_not_yet():
    """A run that was interrupted between two tests has written the control's figures for the first alone."""
    said = words({}, tests={"one": {"BLEU": row(3, 2)}, "two": {"BLEU": row(3)}})
    assert "*linear*: +2.00 BLEU on one: significant" in said
    assert "syntax that *linear* parses lack, in BLEU on one. The control *linear* is not finished." in said
