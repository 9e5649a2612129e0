"""The bootstrap over sentences and seeds: draws by sacrebleu, variance by formulas, errors by simulation."""

import itertools
import math
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring import intervals
from fairseq_syntax.lab.scoring.evaluation import ScoredSystem, ScoreOptions, evaluate
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.outputs import Translations
from fairseq_syntax.lab.scoring.significance import (
    BLOCK,
    Difference,
    Resampled,
    randomization_test,
    seed_test,
    sentence_tests,
)
from tools.coverage import Mean, alike

WORDS = list("abcdefghijklm")
REFERENCES = [" ".join(random.Random(n).choices(WORDS, k=12)) for n in range(30)]


def noisy(share: float, seed: int) -> list[str]:
    """The references with this share of the words replaced."""
    rng = random.Random(seed)
    return [" ".join(w if rng.random() > share else "x" for w in line.split()) for line in REFERENCES]


def test_draws_take_the_same_sentences_for_all_systems():
    systems = {"one": [noisy(0.2, 1)], "same": [noisy(0.2, 1)], "other": [noisy(0.2, 2)]}
    resampled = Resampled(Scorer("bleu", [REFERENCES]), systems, 40)
    assert resampled.difference("one", "same") == Difference(0, 0, 0, 1, 0)
    assert resampled.difference("one", "other").low < resampled.difference("one", "other").high


def test_a_draw_is_the_score_of_its_sentences():
    lines = noisy(0.3, 1)
    resampled = Resampled(Scorer("bleu", [REFERENCES]), {"a": [lines]}, 5, seed=3)
    counts = np.random.default_rng(3).multinomial(30, np.full(30, 1 / 30), size=5)
    for k, row in enumerate(counts):
        chosen = np.repeat(np.arange(30), row)
        expected = sacrebleu.corpus_bleu([lines[i] for i in chosen], [[REFERENCES[i] for i in chosen]]).score
        assert resampled.scores["a"][k] == pytest.approx(expected)


def test_a_draw_of_groups_is_the_score_of_all_their_sentences():
    lines = noisy(0.3, 1)
    groups = [f"document {random.Random(line).randrange(8)}" for line in range(30)]
    names = list(dict.fromkeys(groups))
    resampled = Resampled(Scorer("bleu", [REFERENCES]), {"a": [lines]}, 5, seed=3, groups=groups)
    counts = np.random.default_rng(3).multinomial(len(names), np.full(len(names), 1 / len(names)), size=5)
    for k, row in enumerate(counts):
        drawn = [name for name, count in zip(names, row) for _ in range(count)]
        chosen = [i for name in drawn for i in range(30) if groups[i] == name]
        expected = sacrebleu.corpus_bleu([lines[i] for i in chosen], [[REFERENCES[i] for i in chosen]]).score
        assert resampled.scores["a"][k] == pytest.approx(expected)


def test_the_mean_of_test_sets_draws_the_same_sentences_in_each():
    """Of a metric that is a mean, it is that of the sentences' means; systems that a part lacks are left out."""
    rng = np.random.default_rng(7)
    first, second = ({name: rng.normal(size=(1, 40)) for name in names} for names in (("a", "b", "c"), ("a", "b")))
    parts = [Resampled(Mean(), {n: of.tolist() for n, of in part.items()}, 200) for part in (first, second)]
    of_mean = Resampled(Mean(), {n: ((first[n] + second[n]) / 2).tolist() for n in second}, 200)
    whole = Resampled.mean(parts)
    assert list(whole.score) == ["a", "b"] and whole.score == pytest.approx(of_mean.score)
    np.testing.assert_allclose(whole.scores["a"], of_mean.scores["a"])


def test_groups_of_one_sentence_are_sentences():
    systems, groups = {"a": [noisy(0.3, 1)], "b": [noisy(0.2, 2)]}, [str(number) for number in range(30)]
    for subset in (None, [1, 4, 5, 9, 20, 22]):
        plain, grouped = (
            Resampled(Scorer("chrf", [REFERENCES]), systems, 20, subset=subset, groups=given)
            for given in (None, groups)
        )
        assert (plain.scores["a"] == grouped.scores["a"]).all()
        assert plain.difference("a", "b") == grouped.difference("a", "b")


def test_interval_and_p_are_those_of_all_samples_of_five_sentences():
    refs, base, ours = (lines[:5] for lines in (REFERENCES, noisy(0.3, 1), noisy(0.25, 4)))

    def gain(chosen) -> float:
        texts = [[lines[i] for i in chosen] for lines in (refs, base, ours)]
        return sacrebleu.corpus_bleu(texts[2], [texts[0]]).score - sacrebleu.corpus_bleu(texts[1], [texts[0]]).score

    samples = list(itertools.combinations_with_replacement(range(5), 5))
    gains = np.array([gain(chosen) for chosen in samples])
    ways = [math.factorial(5) / math.prod(map(math.factorial, Counter(chosen).values())) for chosen in samples]
    chances, observed = np.array(ways) / 5**5, gain(range(5))
    mean = float(gains @ chances)
    expected = chances[abs(gains - observed) >= abs(observed)].sum()
    actual = Resampled(Scorer("bleu", [refs]), {"a": [base], "b": [ours]}, 8000).difference("b", "a")
    assert actual.difference == pytest.approx(observed)
    assert 0.05 < expected < 0.95 and actual.p == pytest.approx(expected, abs=0.02)
    assert actual.detectable == pytest.approx(2.8016 * ((gains - mean) ** 2 @ chances) ** 0.5, rel=0.03)
    for bound, share in ((actual.low, 0.025), (actual.high, 0.975)):
        below, up_to = (chances[gains < bound + shift].sum() for shift in (-1e-6, 1e-6))
        assert below - 0.006 < share < up_to + 0.006


def test_p_of_a_metric_of_few_values_does_not_depend_on_which_sentences_differ():
    """Of 100 sentences, one system translates four exactly, the other none: a draw has 0, 4 or 8 of them, or others."""
    by_hand = stats.binom.pmf(0, 100, 0.04) + stats.binom.sf(7, 100, 0.04)
    scorer = Scorer("exact", [["right"] * 100])
    wrong = ["wrong"] * 100
    for start in range(0, 100, 10):
        better = ["right" if start <= line < start + 4 else "wrong" for line in range(100)]
        actual = Resampled(scorer, {"a": [wrong], "b": [better]}, 2000).difference("b", "a")
        assert actual.p == pytest.approx(by_hand, abs=0.02) and actual.p > 0.05


def test_equal_differences_have_no_variance_to_test():
    base = np.array([10.0, 20.0, 30.0])
    assert sentence_tests(base, base + 0.1)["t_test"] is None
    assert sentence_tests(base[:1], base[:1] + 1)["t_test"] is None
    assert seed_test([1.0, 1.0 + 1e-15], [2.0, 2.0]) is None, "equal up to rounding"
    assert sentence_tests(base, base + np.array([1.0, 1.0, 2.0]))["t_test"] is not None


def test_a_table_marks_what_survives_holms_correction_of_all_its_tests():
    by_rank = [0.009, 0.012, 0.03, 0.02]  # times 5, 4, 2, 3 of five tests, made non-decreasing
    rows = [["a", [1.0, 0.5, 1.5, by_rank[0]], None], ["b", *([1.0, 0.5, 1.5, p] for p in by_rank[1:3])]]
    rows += [["c", [1.0, 0.5, 1.5, by_rank[3]], [-1.0, -2.0, 0.5, 0.6]], ["few", [1.0], [1.0, 0.5, 1.5]]]
    texts, notes = intervals.cells(rows, missing="not run")
    marked = [[cell.endswith("*") for cell in row[1:]] for row in texts]
    assert marked == [[True, False], [True, False], [False, False], [False, False]]
    assert texts[0][1:] == ["+1.00 (+0.50 to +1.50)*", "not run"] and texts[3] == [
        "few",
        "+1.00",
        "+1.00 (+0.50 to +1.50)",
    ]
    assert " 5 tests" in notes[0] and len(notes) == 2, "one of them is not tested"
    assert intervals.cells([["few", [1.0]]])[1] == []


def test_the_variance_of_a_mean_over_groups_of_unequal_sizes():
    """That of a ratio of two totals over the groups, sum of scores and number of sentences (Cochran 1977)."""
    rng = np.random.default_rng(5)
    sizes = rng.geometric(0.2, size=80)
    groups = np.repeat(np.arange(80), sizes)
    scores = rng.normal(size=80)[groups] + rng.normal(size=len(groups))
    resampled = Resampled(Mean(), {"a": [scores.tolist()]}, 4000, groups=groups.tolist())
    totals = np.bincount(groups, weights=scores)
    expected = ((totals - scores.mean() * sizes) ** 2).sum() / len(scores) ** 2
    assert resampled.scores["a"].var() == pytest.approx(expected, rel=0.1)
    assert expected > 2 * scores.var() / len(scores), "sentences drawn alone would vary less"


def test_groups_of_one_size_are_drawn_as_sentences_that_have_their_means():
    """Also where seeds differ by more than the groups explain."""
    rng = np.random.default_rng(6)
    scores = {name: rng.normal(size=(3, 1)) + rng.normal(size=(3, 40)) for name in ("a", "b")}
    groups = np.repeat(np.arange(10), 4).tolist()
    grouped = Resampled(Mean(), {name: of.tolist() for name, of in scores.items()}, 300, groups=groups)
    means = {name: of.reshape(3, 10, 4).mean(2).tolist() for name, of in scores.items()}
    of_means = Resampled(Mean(), means, 300)
    for name in scores:
        np.testing.assert_allclose(grouped.scores[name], of_means.scores[name])


@pytest.mark.parametrize("size", [1, 4, 10])
def test_the_variance_of_a_mean_over_groups(size):
    """Of groups of one size: the variance of the groups' means over their number."""
    rng = np.random.default_rng(size)
    of_groups = rng.normal(size=60)
    scores = np.repeat(of_groups, size) + 0.3 * rng.normal(size=60 * size)
    groups = np.repeat(np.arange(60), size)
    order = rng.permutation(len(scores))  # sentences of a group need not stand together
    resampled = Resampled(Mean(), {"a": [scores[order].tolist()]}, 6000, groups=groups[order].tolist())
    expected = scores.reshape(60, size).mean(1).var() / 60
    assert resampled.scores["a"].var() == pytest.approx(expected, rel=0.08)
    assert resampled.scores["a"].mean() == pytest.approx(scores.mean(), abs=0.01)


def test_with_groups_only_tests_that_know_them():
    systems = [
        ScoredSystem(name, [Translations(name, noisy(share, 3), [])]) for name, share in (("a", 0.3), ("b", 0.2))
    ]
    groups = [str(number // 2) for number in range(30)]
    options = ScoreOptions(metrics=["bleu"], resamples=50, trials=50)
    report = evaluate(systems, [REFERENCES], options, groups=groups)
    tests = report["systems"][1]["tests"]["BLEU"]
    assert set(tests["holm"]) == {"bootstrap"} and report["groups"] == 15
    alone = evaluate(systems, [REFERENCES], options)["systems"][1]["tests"]["BLEU"]
    assert set(alone["holm"]) >= {"bootstrap", "randomization", "t_test", "ks"}
    few = evaluate(systems, [REFERENCES], options, groups=[str(number // 6) for number in range(30)])
    assert "bootstrap" not in few["systems"][1]["tests"]["BLEU"]
    with pytest.raises(SyntaxDataError):
        evaluate(systems, [REFERENCES], options, groups=groups[1:])


def test_draws_in_blocks_are_draws():
    """More draws than are in memory at a time: each block has other ones, and the first are those of fewer draws."""
    systems = {"a": [list(np.random.default_rng(1).normal(size=50))]}
    few, many = (Resampled(Mean(), systems, draws).scores["a"] for draws in (BLOCK, 2 * BLOCK + 7))
    assert len(many) == 2 * BLOCK + 7 == len(set(many)) and (many[:BLOCK] == few).all()


def test_a_systems_draws_do_not_depend_on_the_others():
    """Else the intervals of finished rows would change with every row that is added to a table."""
    rng = np.random.default_rng(1)
    a, b, c = ([list(rng.normal(mean, 1, size=40)) for mean in (0, 2, 5)] for _ in range(3))
    alone = Resampled(Mean(), {"a": a, "b": b}, 50)
    among = Resampled(Mean(), {"c": c, "b": b, "a": a}, 50)
    assert alone.difference("a", "b") == among.difference("a", "b")
    independent = alone.scores["a"] - alone.scores["b"]
    assert independent.std() > 0.5, "the seeds of two systems are drawn apart"


def test_the_spread_over_seeds_is_that_of_their_mean():
    """Three seeds whose sentences are all alike: only the seeds vary, with the variance s²/n of a mean."""
    reference = ["a b c d e f g h"] * 20
    seeds = [["a b c d e f g h"] * 20, ["a b c d e f x h"] * 20, ["a b c x e f g h"] * 20]
    scorer = Scorer("chrf", [reference])
    resampled = Resampled(scorer, {"a": seeds}, 4000)
    of_each = [scorer.corpus(lines) for lines in seeds]
    assert resampled.scores["a"].std() == pytest.approx(np.std(of_each, ddof=1) / 3**0.5, rel=0.05)


@pytest.mark.parametrize("seeds, of_seeds", [(2, 0.5), (3, 0.5), (5, 0.2), (3, 0.0)])
def test_the_variance_is_that_of_two_crossed_random_effects(seeds, of_seeds):
    """Of a mean over n seeds and N sentences: (seeds' variance)/n + (sentences')/N + (their interaction's)/(nN).

    The components are estimated by the mean squares of an analysis of variance (Searle, Casella and McCulloch 1992).
    """
    rng, n, size = np.random.default_rng(seeds), seeds, 300
    scores = rng.normal(size=size) + of_seeds * rng.normal(size=(n, 1)) + rng.normal(size=(n, size))
    of_rows, of_columns, mean = scores.mean(1, keepdims=True), scores.mean(0, keepdims=True), scores.mean()
    square_rows = size * ((of_rows - mean) ** 2).sum() / (n - 1)
    square_columns = n * ((of_columns - mean) ** 2).sum() / (size - 1)
    square_rest = ((scores - of_rows - of_columns + mean) ** 2).sum() / ((n - 1) * (size - 1))
    of_seeds = max(0, (square_rows - square_rest) / size)
    of_sentences = (square_columns - square_rest) / n
    expected = of_seeds / n + of_sentences / size + square_rest / (n * size)
    resampled = Resampled(Mean(), {"a": scores.tolist(), "alone": [scores[0].tolist()]}, 6000)
    drawn = resampled.scores["a"]
    assert drawn.var() == pytest.approx(expected, rel=0.08)
    assert drawn.mean() == pytest.approx(mean, abs=0.01)


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds, of_seeds, least, most",
    [(1, 0.0, 0.02, 0.09), (2, 0.0, 0.02, 0.09), (3, 0.0, 0.02, 0.09), (3, 0.5, 0.02, 0.09), (5, 1.0, 0.04, 0.13)],
)
def test_systems_that_are_alike_differ_as_seldom_as_is_said(seeds, of_seeds, least, most):
    """By the simulation of the table, with fewer draws and trials."""
    rng, trials = np.random.default_rng(2), 400
    actual = SimpleNamespace(outside=0, small=0, one_sided=0)
    for _ in range(trials):
        drawn = Resampled(Mean(), alike(rng, seeds, of_seeds), 200)
        difference = drawn.difference("b", "a")
        actual.outside += not difference.low <= 0 <= difference.high
        actual.small += difference.p < 0.05
        # what sacrebleu does: the draws that are further, on the side of the difference
        shifted = (drawn.scores["b"] - drawn.scores["a"]) * np.sign(difference.difference)
        actual.one_sided += (shifted - shifted.mean() > abs(difference.difference)).mean() < 0.05
    assert least < actual.outside / trials < most and least < actual.small / trials < most
    assert actual.one_sided > 1.5 * actual.small, "a p of one side would find twice as many"


@pytest.mark.slow
@pytest.mark.parametrize("key", ["bleu", "chrf"])
def test_one_seed_is_judged_as_by_randomization(key):
    """Approximate randomization asks the same by another way: swapped translations in place of drawn sentences."""
    references = [" ".join(random.Random(n).choices(WORDS, k=12)) for n in range(200)]
    scorer = Scorer(key, [references])

    def run(share: float, seed: int) -> list[str]:
        rng = random.Random(seed)
        return [" ".join(w if rng.random() > share else "x" for w in line.split()) for line in references]

    actual = []
    for seed in range(6):
        base, ours = run(0.22, seed), run(0.22 - 0.004 * seed, 100 + seed)
        p = randomization_test(scorer, base, ours, 2000)["p"]
        actual.append((p, Resampled(scorer, {"a": [base], "b": [ours]}, 2000).difference("b", "a").p))
    assert max(abs(one - other) for one, other in actual) < 0.05, actual
    assert min(p for p, _ in actual) < 0.1 < 0.5 < max(p for p, _ in actual), "likely and unlikely ones"


def test_pairs_of_seeds_begin_again_where_a_system_has_more():
    seeds = {name: [noisy(share, 10 * share + n) for n in (1, 2, 3)] for name, share in (("base", 0.3), ("ours", 0.2))}
    systems = [
        ScoredSystem("base", [Translations("", lines, [[line] for line in lines]) for lines in seeds["base"][:2]]),
        ScoredSystem("ours", [Translations("", lines, [[line] for line in lines]) for lines in seeds["ours"]]),
    ]
    report = evaluate(systems, [REFERENCES], ScoreOptions(metrics=["bleu"], resamples=20, trials=20))
    runs = report["systems"][1]["tests"]["BLEU"]["runs"]
    scorer = Scorer("bleu", [REFERENCES])
    for run, theirs, ours in zip(runs, (0, 1, 0), (0, 1, 2)):
        assert run["randomization"] == randomization_test(scorer, seeds["base"][theirs], seeds["ours"][ours], 20)
