"""How much of a gain is syntax: the figures against sacrebleu, the bootstrap's spread, and the tables."""

import itertools
import random
from argparse import Namespace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import sacrebleu

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.lab.scoring import names
from fairseq_syntax.lab.scoring import shares as scoring_shares
from fairseq_syntax.lab.scoring.evaluation import ScoredSystem, ScoreOptions, evaluate
from fairseq_syntax.lab.scoring.evaluation import score_tables as score_tables
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.outputs import Translations
from fairseq_syntax.lab.scoring.properties import Property
from fairseq_syntax.lab.scoring.shares import by_table, measure_by, measure_shares, share_table, shares_tables
from fairseq_syntax.lab.scoring.significance import Resampled
from tools.coverage import Mean

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
    rows = measure_shares(Resampled(Scorer(key, [REFERENCES]), systems, 50), "base", ["linear", "random"])

    def corpus(name: str) -> float:
        score = sacrebleu.corpus_bleu if key == "bleu" else sacrebleu.corpus_chrf
        return float(np.mean([score(lines, [REFERENCES]).score for lines in systems[name]]))

    assert [row["system"] for row in rows] == ["S", "T"]
    named_so = measure_shares(
        Resampled(Scorer(key, [REFERENCES]), runs(base=0.4, linear=0.1, S=0.2, S_linear=0.3), 5), "base", ["linear"]
    )
    assert [row["system"] for row in named_so] == ["linear", "S"], "a system may be called as a control is"
    gain, with_it = corpus("S") - corpus("base"), corpus("S.linear") - corpus("base")
    assert rows[0]["gain"][0] == pytest.approx(gain)
    assert list(rows[0]["controls"]) == ["linear"], "of the random control there is no run"
    actual = rows[0]["controls"]["linear"]
    assert actual["gain"][0] == pytest.approx(with_it)
    assert actual["syntax"][0] == pytest.approx(gain - with_it)
    assert actual["kept"][0] == pytest.approx(with_it / gain)
    assert rows[1]["controls"] == {}
    for row in rows:
        assert row["gain"][1] < row["gain"][0] < row["gain"][2]


def test_a_subset_of_the_sentences():
    systems = runs(base=0.4, S=0.1)
    chosen = [1, 4, 9, 16, 25]
    actual = measure_shares(Resampled(Scorer("bleu", [REFERENCES]), systems, 5, subset=chosen), "base", [])[0]["gain"][
        0
    ]
    part = {n: [[lines[i] for i in chosen] for lines in actual] for n, actual in systems.items()}
    scorer = Scorer("bleu", [[REFERENCES[i] for i in chosen]])
    assert actual == pytest.approx(measure_shares(Resampled(scorer, part, 5), "base", [])[0]["gain"][0])


def test_intervals_of_a_property():
    """Each interval is measured as a test set of its own."""
    systems = runs(base=0.4, S=0.1, S_linear=0.2)
    parses = [Namespace(words=["w"] * (2 if n < 10 else 5)) for n in range(30)]
    scorer = Scorer("chrf", [REFERENCES])
    (actual,) = measure_by(scorer, systems, "base", ["linear"], parses, [Property.of("length@3")], draws=10)
    assert [i["sentences"] for i in actual["intervals"]] == [10, 20]
    resampled = Resampled(scorer, systems, 10, subset=range(10))
    assert actual["intervals"][0]["rows"] == measure_shares(resampled, "base", ["linear"])
    groups = [str(n // 3) for n in range(30)]
    grouped = Resampled(scorer, systems, 10, subset=range(10), groups=groups)
    options = {"draws": 10, "groups": groups}
    (of_groups,) = measure_by(scorer, systems, "base", ["linear"], parses, [Property.of("length@3")], **options)
    assert of_groups["intervals"][0]["rows"] == measure_shares(grouped, "base", ["linear"])
    assert of_groups["intervals"][0]["rows"] != actual["intervals"][0]["rows"]
    assert [i["groups"] for i in of_groups["intervals"]] == [4, 7], "one is in both"
    assert "(" not in str(by_table("chrF", of_groups).rows), "too few groups for intervals, although not sentences"
    table = by_table("chrF", actual)
    assert table.header == ["", "≤ 3", "> 3"] and len(table.rows) == 4
    assert all("(" in cell for row in table.rows[1:] for cell in row[1:])


def test_the_interval_of_a_share_is_that_of_the_draws():
    """By hand: 200 draws, in five of which, 2.5 %, there is no gain to have a share of."""
    gains = np.linspace(0.5, 1.5, 200)
    gains[:5] = -0.1
    shares = np.random.default_rng(1).permutation(np.linspace(0.2, 0.8, 200))
    drawn = {"base": np.full(200, 20.0), "S": 20 + gains, "S.linear": 20 + gains * shares}
    difference = SimpleNamespace(estimate=[1.0, 0.4, 1.6, 0.01])
    resampled = SimpleNamespace(
        score={"base": 20.0, "S": 21.0, "S.linear": 20.5},
        scores=drawn,
        of_seeds={name: [0] for name in drawn},
        difference=lambda system, other: difference,
    )
    (row,) = measure_shares(cast(Resampled, resampled), "base", ["linear"])
    kept, low, high = row["controls"]["linear"]["kept"]
    finite = sorted(shares[5:])
    assert kept == pytest.approx(0.5) and low == pytest.approx(finite[5])
    assert high == pytest.approx(finite[-1]), "draws without a gain are above all others"


def test_the_interval_of_a_share_is_that_of_all_samples_of_six_sentences():
    rng = np.random.default_rng(4)
    base = rng.normal(size=6)
    systems = {"base": base, "S": base + rng.normal(2, 1, 6), "S.linear": base + rng.normal(1, 1, 6)}
    (row,) = measure_shares(
        Resampled(Mean(), {name: [of.tolist()] for name, of in systems.items()}, 8000), "base", ["linear"]
    )
    kept, low, high = row["controls"]["linear"]["kept"]
    samples = np.array(list(itertools.product(range(6), repeat=6)))
    means = {name: of[samples].mean(1) for name, of in systems.items()}
    shares = (means["S.linear"] - means["base"]) / (means["S"] - means["base"])
    assert (means["S"] > means["base"]).all()
    assert kept == pytest.approx((systems["S.linear"] - base).mean() / (systems["S"] - base).mean())
    for bound, share in ((low, 0.025), (high, 0.975)):
        assert (shares < bound - 1e-9).mean() - 0.006 < share < (shares < bound + 1e-9).mean() + 0.006


def test_no_share_of_a_gain_that_may_be_nothing():
    systems = {"base": [noisy(0.3, 1)], "S": [noisy(0.3, 2)], "S.linear": [noisy(0.3, 3)]}
    row = measure_shares(Resampled(Scorer("bleu", [REFERENCES]), systems, 100), "base", ["linear"])[0]
    assert row["gain"][1] <= 0 and row["controls"]["linear"]["kept"] is None
    table = share_table("BLEU", [row], "test", 30)
    few = share_table("BLEU", [row], "test", 9)
    assert "(" not in str(few.rows) and any("fewer than 10" in note for note in few.notes)
    assert (
        table.rows[0][-1] == ""
        and "(" in table.rows[0][1]
        and any("one seed of S, S.linear" in note for note in table.notes)
    )


def test_a_loss_has_no_share_and_is_not_called_a_gain():
    resampled = Resampled(Scorer("bleu", [REFERENCES]), runs(base=0.2, T=0.6, T_linear=0.4), 100)
    (row,) = measure_shares(resampled, "base", ["linear"])
    assert row["gain"][2] < 0 and row["controls"]["linear"]["kept"] is None
    notes = share_table("BLEU", [row], "test", 30).notes
    assert "no share is given of a loss" in notes and not any("gain that may be 0" in note for note in notes)


def test_a_control_that_does_harm_is_named():
    """The parse gains nothing, and looks useful beside a control that loses."""
    shares = {"base": 0.3, "S": 0.3, "S_linear": 0.6, "S_shuffled": 0.1}
    rows = measure_shares(Resampled(Scorer("bleu", [REFERENCES]), runs(**shares), 100), "base", ["linear", "shuffled"])
    assert rows[0]["controls"]["linear"]["syntax"][1] > 0
    notes = [note for note in share_table("BLEU", rows, "test", 30).notes if "worse than the baseline" in note]
    assert len(notes) == 1 and "S.linear" in notes[0] and "S.shuffled" not in notes[0]


@pytest.mark.parametrize("groups", [None, [str(number // 2) for number in range(30)]])
def test_notes_name_what_was_drawn_and_a_baseline_of_one_seed(groups, monkeypatch):
    monkeypatch.setattr(scoring_shares, "DRAWS", 100)
    monkeypatch.setattr(scoring_shares, "DRAWS_BY", 100)
    of = {**runs(S=0.1, S_linear=0.2), "base": [noisy(0.4, 1)]}
    systems = [ScoredSystem(name, [Translations("", lines, []) for lines in each]) for name, each in of.items()]
    parses = [ParsedLine(words=["w"] * (1 + number % 2)) for number in range(30)]
    by = [Property.of("length@1")]
    options = ScoreOptions(metrics=["bleu"], resamples=20, trials=0, by=by, controls=["linear"], controls_by=by)
    report = evaluate(systems, [REFERENCES], options, baseline="base", parses=parses, groups=groups)
    gains, by_length = shares_tables(report, "test")
    assert any(note.startswith("one seed of base:") for note in gains[0].notes)
    over = "sentences" if groups is None else "groups"
    notes = [note for table in (*gains, *by_length, *score_tables(report)) for note in table.notes]
    assert sum(f"over {over}, and over seeds" in note for note in notes) == 3
    assert not any(f"over {'groups' if groups is None else 'sentences'}, and" in note for note in notes)


def test_scores_that_are_too_low_have_no_marks(monkeypatch):
    """A bootstrap of BLEU 0.17 against 0.35 is sure, and says nothing of a system."""
    monkeypatch.setattr(scoring_shares, "DRAWS", 200)
    monkeypatch.setattr(scoring_shares, "DRAWS_BY", 50)
    of = {"S": [noisy(0.1, 1)], "S.linear": [noisy(0.3, 2)], "base": [noisy(0.6, 3)]}
    systems = [ScoredSystem(name, [Translations("", lines, []) for lines in each]) for name, each in of.items()]
    parses = [ParsedLine(words=["w"] * (1 + number % 2)) for number in range(30)]
    by = [Property.of("length@1")]
    options = ScoreOptions(metrics=["bleu"], resamples=200, trials=0, by=by, controls=["linear"], controls_by=by)
    report = evaluate(systems, [REFERENCES], options, baseline="base", parses=parses)

    def texts():
        (gains, by_length), scores = shares_tables(report, "test"), list(score_tables(report))
        return gains[0].render(), [table.render() for table in (*by_length, *scores)]

    shares, others = texts()
    assert "*" in shares.partition("significant")[0] and any("0.001*" in text or "0.005*" in text for text in others)
    monkeypatch.setitem(names.LEAST_SCORES, "BLEU", 101.0)
    shares, others = texts()
    assert "too low to compare" in shares and "significant" not in shares and "(" not in shares.partition("too low")[0]
    compared = [text for text in others if "; * below" in text]
    assert compared and all("too low to compare" in text and "0.001*" not in text for text in compared)
    assert not any("BLEU by length" in text and "S.linear, gain" in text for text in others)
