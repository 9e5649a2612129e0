"""Scores against the commands and functions of the libraries that they come from, on the same files."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from data_errors import data_error, run
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.ribes_score import corpus_ribes, sentence_ribes, word_rank_alignment
from omegaconf import OmegaConf
from sacrebleu import corpus_bleu, sentence_bleu, sentence_chrf, sentence_ter
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from scipy import stats

from fairseq_syntax.cli import score
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.generation import warn_if_pieces_are_scored
from fairseq_syntax.lab.scoring import diversity, metrics, ribes, significance
from fairseq_syntax.lab.scoring.by_property import by_length
from fairseq_syntax.lab.scoring.evaluation import ScoredSystem, ScoreOptions, evaluate, read_system, score_tables
from fairseq_syntax.lab.scoring.outputs import Translations, read_text, read_translations
from fairseq_syntax.lab.scoring.tables import Table

beside_libraries = pytest.mark.matrix(1, of="scores beside those of libraries")
TEXT = "the a small red dog cat house, tree river runs sees under over 3.5 well-known isn't fast slowly ."
WORDS = TEXT.split()


def _corpus(n: int, seed: int) -> tuple[list[str], list[str], list[str]]:
    """References and two noisy copies of them."""
    rng = random.Random(seed)
    refs = [" ".join(rng.choices(WORDS, k=rng.randint(3, 30))) for _ in range(n)]

    def noisy(p: float) -> list[str]:
        lines = []
        for ref in refs:
            words = [w if rng.random() > p else rng.choice(WORDS) for w in ref.split() if rng.random() > p / 3]
            if len(words) > 4 and rng.random() < 0.5:
                words = words[3:] + words[:3]
            lines.append(" ".join(words))
        return lines

    return refs, noisy(0.25), noisy(0.2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    for name, lines in zip(("ref", "a", "b"), _corpus(150, 1)):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def report(files):
    out = files / "report.json"
    assert run("score", "--ref", files / "ref", "--sys", f"a={files / 'a'}", f"b={files / 'b'}", "--trials",
               "500", "--resamples", "200", "--by-length", "10", "--json", out) == 0  # fmt: skip
    return json.loads(out.read_text())


def _sacrebleu(*argv) -> str:
    run = [sys.executable, "-W", "ignore", "-m", "sacrebleu", *map(str, argv)]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


@beside_libraries
@pytest.mark.slow
def test_corpus_scores_and_signatures_are_those_of_sacrebleus_command(files, report):
    printed = json.loads(_sacrebleu(files / "ref", "-i", files / "a", "-m", "bleu", "chrf", "ter", "-w", "6"))
    ours = report["systems"][0]["mean"]
    for name, theirs in zip(("BLEU", "chrF", "TER"), printed):
        assert ours[name] == pytest.approx(theirs["score"], abs=1e-6)
        assert report["signatures"][name] == theirs["signature"]
    (ratio,) = re.findall(r"ratio = ([\d.]+)", printed[0]["verbose_score"])
    assert report["systems"][0]["length"] == pytest.approx(100 * float(ratio), abs=0.06)


@beside_libraries
@pytest.mark.slow
def test_randomization_is_that_of_sacrebleus_command(files, report):
    # as LaTeX, because its JSON fails on TER's float32
    argv = ["-i", files / "a", files / "b", "-m", "bleu", "chrf", "ter", "-w", "5", "-f", "latex", "-par", "-parn", 500]
    row = next(
        line for line in _sacrebleu(files / "ref", *argv).splitlines() if line.lstrip().startswith(f"{files / 'b'} ")
    )
    printed = re.findall(r"\(p = ([\d.]+)\)", row)
    assert len(printed) == 3
    for metric, p in zip(("BLEU", "chrF", "TER"), printed):
        actual = report["systems"][1]["tests"][metric]["runs"][0]["randomization"]
        assert f"{actual['p']:.4f}" == p


@beside_libraries
@pytest.mark.slow
def test_sentence_scores_and_their_tests_are_those_of_the_libraries(files, report):
    refs, a, b = (read_text(files / name) for name in ("ref", "a", "b"))
    for key, name, function in (
        ("bleu", "BLEU", sentence_bleu),
        ("chrf", "chrF", sentence_chrf),
        ("ter", "TER", sentence_ter),
    ):
        theirs = [np.array([function(line, [ref]).score for line, ref in zip(run, refs)]) for run in (a, b)]
        np.testing.assert_allclose(metrics.Scorer(key, [refs]).sentences(a), theirs[0], rtol=1e-12)
        tests = report["systems"][1]["tests"][name]
        assert tests["t_test"] == pytest.approx(stats.ttest_rel(theirs[1], theirs[0]).pvalue)
        assert tests["ks"] == pytest.approx(stats.ks_2samp(theirs[1], theirs[0]).pvalue)


def test_ribes_is_nltks_and_bleu1_is_unigram_precision_with_brevity(files, report):
    refs, a = ([Tokenizer13a()(line).split() for line in read_text(files / name)] for name in ("ref", "a"))
    assert report["systems"][0]["mean"]["RIBES"] == pytest.approx(100 * corpus_ribes([[r] for r in refs], a))
    matched = sum(min(hyp.count(w), ref.count(w)) for hyp, ref in zip(a, refs) for w in set(hyp))
    hyp_len, ref_len = sum(map(len, a)), sum(map(len, refs))
    brevity = min(1.0, np.exp(1 - ref_len / hyp_len))
    assert report["systems"][0]["mean"]["BLEU-1"] == pytest.approx(100 * brevity * matched / hyp_len)
    assert "order:1" in report["signatures"]["BLEU-1"]


def test_words_that_repeat_are_aligned_as_nltk_does():
    rng = random.Random(1)
    for _ in range(400):
        words = "abcdefgh"[: rng.choice((1, 2, 3, 8))]
        ref = rng.choices(words, k=rng.randint(1, 13))
        hyp = (
            rng.choices(words, k=rng.randint(1, 13))
            if rng.random() < 0.6
            else [*ref, rng.choice(words)][rng.randrange(2) :]
        )
        if not hyp:
            continue
        assert ribes.word_ranks(ref, hyp) == word_rank_alignment(ref, hyp)
        assert ribes.sentence_ribes([ref, ref[::-1]], hyp) == pytest.approx(sentence_ribes([ref, ref[::-1]], hyp))
    assert ribes.sentence_ribes([["a"]], []) == ribes.sentence_ribes([], ["a"]) == 0.0


def test_ribes_of_a_long_pair_is_a_matter_of_a_moment():
    """nltk takes half a minute for 800 tokens, and refuses more than 2000."""
    line = " ".join(random.Random(2).choices("ab", k=2001))
    assert metrics.Scorer("ribes", [[line]]).corpus([line]) == pytest.approx(100)


def test_an_empty_translation_has_a_ribes_of_zero():
    assert metrics.Scorer("ribes", [["a b", ""]]).sentences(["", ""]).tolist() == [0, 0]


def test_further_baselines_have_the_tests_that_they_have_as_the_baseline(tmp_path):
    refs, *sides = _corpus(60, 3)
    for name, side in zip("abc", [*sides, refs[1:] + refs[:1]]):
        (tmp_path / name).write_text("\n".join(side))
    systems = [read_system(f"{name}={tmp_path / name}") for name in "abc"]
    options = ScoreOptions(metrics=["bleu", "chrf"], resamples=50, trials=50)
    both = evaluate(systems, [refs], options, baseline="b", also_against=["a", "b"])
    for base in "ab":
        alone = evaluate(systems, [refs], options, baseline=base)
        expected = {system["name"]: system["tests"] for system in alone["systems"] if "tests" in system}
        actual = {s["name"]: s["tests"] for s in both["systems"] if "tests" in s} if base == "b" else None
        assert (actual or both["also_against"][base]) == expected
    assert list(both["also_against"]) == ["a"]
    assert [table.title for table in [*score_tables(both)][1:]] == ["Against b", "Against a"]
    with pytest.raises(SyntaxDataError):
        evaluate(systems, [refs], options, also_against=["d"])


def test_bleu_of_characters_is_sacrebleus_and_sees_no_spaces():
    references = ["我 爱 北京 天安门", "今天 天气 很 好 吗"]
    for lines in (["我爱 北京 天门", "今天天气好吗"], ["我爱北京天门", "今天 天 气 好 吗"]):
        scorer = metrics.Scorer("bleu_char", [references])
        assert scorer.corpus(lines) == pytest.approx(
            corpus_bleu([" ".join(line.replace(" ", "")) for line in lines],
                                  [[" ".join(line.replace(" ", "")) for line in references]], tokenize="none").score
        )  # fmt: skip
    assert "tok:char" in scorer.signature


@beside_libraries
@pytest.mark.slow
def test_bleu_by_length_scores_each_interval_as_a_file_of_its_own(files, report):
    refs, a = read_text(files / "ref"), read_text(files / "a")
    lengths = [len(Tokenizer13a()(line).split()) for line in refs]
    buckets = report["by_length"]["buckets"]
    assert sum(b["sentences"] for b in buckets) == len(refs)
    for b in buckets:
        chosen = [i for i, n in enumerate(lengths) if b["over"] < n <= b["to"]]
        assert b["sentences"] == len(chosen)
        assert b["BLEU"]["a"] == pytest.approx(
            metrics.Scorer("bleu", [[refs[i] for i in chosen]]).corpus([a[i] for i in chosen])
        )


def test_systems_of_repeated_options_add_up(files):
    parser = argparse.ArgumentParser()
    score.COMMAND.add_to(parser.add_subparsers(), "score")
    argv = ["--ref", str(files / "ref"), "--sys", "a", "b", "--sys", "c", "--metrics", "bleu", "--metrics", "chrf"]
    args = parser.parse_args(["score", *argv])
    assert (args.sys, args.metrics) == (["a", "b", "c"], ["bleu", "chrf"])


def test_length_is_the_sources_where_a_source_is_given(files):
    refs = read_text(files / "ref")
    source = ["w"] * 100 + ["w w w w w w"] * 50
    options = ScoreOptions(metrics=["bleu"], by_length=5)
    actual = evaluate([read_system(str(files / "a"))], [refs], options, sources=source)["by_length"]
    assert actual["of"] == "source"
    assert [(b["over"], b["to"], b["sentences"]) for b in actual["buckets"]] == [(0, 5, 100), (5, 10, 50)]


def test_several_seeds_have_a_mean_a_deviation_and_a_test(tmp_path):
    refs, *_ = _corpus(60, 3)
    for name in "ab":
        for seed in range(3):
            (tmp_path / f"{name}{seed}").write_text(
                "\n".join(_corpus(60, 3)[1 if name == "a" else 2][seed:] + refs[:seed])
            )
    systems = [read_system(f"{n}=" + ",".join(str(tmp_path / f"{n}{s}") for s in range(3))) for n in "ab"]
    report = evaluate(systems, [refs], ScoreOptions(metrics=["bleu", "chrf"], resamples=100, trials=0))
    a, b = ([run["scores"]["chrF"] for run in s["runs"]] for s in report["systems"])
    assert len(set(a)) == 3
    assert report["systems"][0]["mean"]["chrF"] == pytest.approx(sum(a) / 3)
    assert report["systems"][0]["sd"]["chrF"] == pytest.approx(stats.tstd(a))
    tests = report["systems"][1]["tests"]["chrF"]
    assert tests["seeds"] == pytest.approx(stats.ttest_ind(b, a, equal_var=False).pvalue)
    assert len(tests["runs"]) == 3 and "randomization" not in tests["runs"][0]
    scorer = metrics.Scorer("chrf", [refs])
    every = {system.name: [run.lines for run in system.runs] for system in systems}
    actual = significance.Resampled(scorer, every, 100).difference("b", "a")
    assert tests["holm"]["bootstrap"] == tests["bootstrap"]["p"] == actual.p
    assert (tests["bootstrap"]["low"], tests["bootstrap"]["high"]) == (actual.low, actual.high)
    assert tests["difference"] == pytest.approx(actual.difference)
    text = next(score_tables(report)).render()
    assert "±" in text and "seeds" in text
    few = ScoreOptions(metrics=["chrf"], resamples=20, trials=0)
    alone = evaluate([ScoredSystem(one.name, one.runs[:1]) for one in systems], [refs], few)
    over = [each["systems"][1]["tests"]["chrF"]["bootstrap"]["signature"].split("|")[0] for each in (report, alone)]
    assert over == ["over:sentences and seeds", "over:sentences"], "one seed is not several"


@pytest.mark.parametrize("tokenize", ["13a", "intl", "zh", "char", "none", "ja-mecab"])
def test_an_unknown_word_is_one_token(tokenize):
    """As a word that is in no reference: 13a, for one, would make three tokens of <unk>."""
    reference = ["ein Hund sieht den kleinen Mann am Tor ."]
    with_unknown, with_other = ([f"ein Hund sieht den {word} Mann am Tor ."] for word in ("<unk>", "ю"))
    for key in ("bleu", "chrf", "ter", "ribes"):
        scorer = metrics.Scorer(key, [reference], tokenize)
        assert scorer.corpus(with_unknown) == pytest.approx(scorer.corpus(with_other)), key
    assert metrics.distinct_1(with_unknown, tokenize) == metrics.distinct_1(with_other, tokenize)
    of_unknown = metrics.Scorer("bleu", [with_unknown], tokenize)  # such as a reference with its rare words replaced
    assert of_unknown.corpus(with_unknown) == pytest.approx(100) and of_unknown.length(with_other) == pytest.approx(100)
    # a reference's unknown word, as fairseq prints it, is one token that no translation has
    printed = metrics.Scorer("bleu", [[line.replace("<unk>", "<<unk>>") for line in with_unknown]], tokenize)
    assert printed.length(with_other) == pytest.approx(100) and printed.corpus(with_unknown) < 100
    assert printed.corpus(with_unknown) == pytest.approx(printed.corpus(with_other))


def test_an_unknown_word_is_one_token_of_a_sentences_length():
    """In the intervals of length, of references and of sources: 4 tokens are not 6."""
    lines = [["ein <unk> am Tor"] * 10]
    for sources in (None, lines[0]):
        (bucket,) = by_length({"a": lines}, lines, 5, sources)["buckets"]
        assert bucket["to"] == 5 and bucket["sentences"] == 10


@pytest.mark.parametrize(
    "scorer, kind, told",
    [
        ("sacrebleu", "words", "<unk>"),
        ("sacrebleu", "subword_nmt", ""),
        ("bleu", "words", ""),
        ("bleu", "moses", "pieces"),
    ],
)
def test_what_fairseqs_own_scorers_count_is_told(scorer, kind, told, caplog):
    cfg = OmegaConf.create({"scoring": {"_name": scorer}, "task": {"post_process": None}})
    warn_if_pieces_are_scored(cfg.task, SimpleNamespace(kind=kind))
    assert told in caplog.text and bool(caplog.text) == bool(told)


def test_a_report_counts_unknown_words():
    runs = [Translations("", ["ein <unk> sieht <unk>"] * 20, []), Translations("", ["ein Hund sieht <unk>"] * 20, [])]
    report = evaluate([ScoredSystem("a", runs)], [["ein Hund sieht es"] * 20], ScoreOptions(metrics=["bleu"]))
    assert report["systems"][0]["unknown"] == 30
    assert any("a 30" in note for note in next(score_tables(report)).notes)


def test_identical_systems_do_not_differ():
    refs, a, _ = _corpus(30, 5)
    scorer = metrics.Scorer("bleu", [refs])
    assert significance.randomization_test(scorer, a, a, 50)["p"] == 1.0
    scores = metrics.Scorer("chrf", [refs]).sentences(a)
    assert significance.sentence_tests(scores, scores) == {"t_test": 1.0, "ks": 1.0}
    # Systems that say nothing right are at 0 each, though they say other things.
    nothing = [["x"] * 30, ["y z"] * 30]
    assert significance.randomization_test(scorer, *nothing, 50)["p"] == 1.0
    assert significance.seed_test([1.0], [2.0, 3.0]) is None
    assert significance.seed_test([2.0, 2.0], [2.0, 2.0]) is None


def test_randomization_counts_trials_that_equal_the_observed_difference():
    refs, a, _ = _corpus(30, 5)
    better = [*refs[:2], *a[2:]]  # two sentences differ, so half of all trials give both to one system
    for key in ("bleu", "chrf", "ribes", "exact"):
        assert significance.randomization_test(metrics.Scorer(key, [refs]), a, better, 2000)["p"] > 0.45


def test_randomization_is_sacrebleus_where_no_trial_equals_the_observed_difference():
    from sacrebleu.significance import PairedTest

    refs, a, b = _corpus(40, 5)
    for key in ("bleu", "chrf"):
        scorer = metrics.Scorer(key, [refs])
        signatures, scores = PairedTest([("a", a), ("b", b)], {"": scorer.metric}, None, "ar", n_samples=300)()
        actual = significance.randomization_test(scorer, a, b, 300)
        (name,) = signatures
        assert actual == {"p": scores[name][1].p_value, "signature": str(signatures[name])}
        assert 1 / 301 < actual["p"] < 1


def test_means_of_the_same_seeds_in_another_order_do_not_differ():
    refs, a, b = _corpus(60, 5)
    scorer = metrics.Scorer("chrf", [refs])
    runs = [a, b, [one[: len(one) // 2] for one in a]]
    for orders in ((runs, runs[::-1]), ([a], [a] * 7), ([b], [b] * 7)):
        means = [np.mean([scorer.sentences(run) for run in each], axis=0) for each in orders]
        assert (means[0] != means[1]).any()
        assert significance.sentence_tests(*means) == {"t_test": 1.0, "ks": pytest.approx(1.0)}
    assert significance.Difference.of(1e-15, np.array([0.0, 1e-15, -1e-15, 0.0])).p == 1.0


def test_two_references(files):
    refs, b = read_text(files / "ref"), read_text(files / "b")
    printed = json.loads(_sacrebleu(files / "ref", files / "b", "-i", files / "a", "-w", "6"))
    report = evaluate([read_system(str(files / "a"))], [refs, b], ScoreOptions(metrics=["bleu", "ribes"]))
    assert report["systems"][0]["mean"]["BLEU"] == pytest.approx(printed["score"], abs=1e-6)
    one = evaluate([read_system(str(files / "a"))], [refs], ScoreOptions(metrics=["ribes"]))
    assert report["systems"][0]["mean"]["RIBES"] >= one["systems"][0]["mean"]["RIBES"]
    ratio = re.search(r"ratio = ([\d.]+)", printed["verbose_score"])[1]
    assert report["systems"][0]["length"] == pytest.approx(100 * float(ratio), abs=0.06)
    assert f"{report['systems'][0]['length']:.1f} %" in next(score_tables(report)).render("text")
    assert one["systems"][0]["length"] is None


def test_chinese_is_scored_by_its_tokenizer():
    scorer = metrics.Scorer("bleu", [["我喜欢红色的小猫。"]], tokenize="zh")
    assert scorer.corpus(["我喜欢红色的小猫。"]) == pytest.approx(100.0)
    assert "tok:zh" in scorer.signature
    assert metrics.distinct_1(["我我我好"], "zh") == 0.5
    ter = metrics.Scorer("ter", [["我喜欢猫。"]], tokenize="zh")
    assert ter.corpus(["我喜欢狗。"]) == pytest.approx(20.0) and "asian:yes" in ter.signature


@pytest.mark.parametrize(
    "line, tokenizer",
    [
        ("我喜欢红色的小猫，也喜欢狗。", "zh"),
        ("私は赤い子猫が好きです。犬も好きです。", "ja-mecab" if find_spec("MeCab") else "char"),
        ("ฉันชอบแมวสีแดงตัวเล็ก และชอบสุนัขตัวใหญ่", "char"),
        ("我 喜欢 红色 的 小猫 。", "zh"),  # which cuts words that are tokenized already as it cuts raw text
        ("Ich mag die rote Katze.", "13a"),
    ],
)
def test_raw_text_without_spaces_is_cut_by_a_tokenizer_that_can(tmp_path, capsys, line, tokenizer):
    (tmp_path / "ref").write_text(f"{line}\n" * 3)
    options = ["--metrics", "bleu", "--resamples", "0", "--trials", "0", "--json", str(tmp_path / "report")]
    run("score", "--ref", str(tmp_path / "ref"), "--sys", f"a={tmp_path / 'ref'}", *options)
    report = json.loads((tmp_path / "report").read_text())
    assert f"tok:{tokenizer}" in report["signatures"]["BLEU"]
    assert (tokenizer in capsys.readouterr().err) == (tokenizer != "13a")


def test_distinct_1_counts_all_hypotheses():
    assert metrics.distinct_1(["a b b", "b c"]) == 3 / 5
    assert metrics.distinct_1([""]) == 0.0


def test_bleu_and_distinct_1_of_varied_translations_are_those_of_each_distance():
    references = {0: "a b c d e f", 1: "g h i j k"}
    texts = [(0, 0, "a b c d e f"), (1, 0, "g h i j x"), (0, 2, "a b c x e f"), (0, 2, "a b c d"), (1, 2, "y")]
    actual = diversity.measure_diversity(
        [diversity.Variation(s, distance, (), text) for s, distance, text in texts], references
    )
    for row, distance in zip(actual, (0, 2), strict=True):
        group = [(text, references[s]) for s, d, text in texts if d == distance]
        lines, refs = map(list, zip(*group))
        words = " ".join(lines).split()
        assert (row["distance"], row["translations"]) == (distance, len(group))
        assert row["bleu"] == pytest.approx(corpus_bleu(lines, [refs]).score)
        assert row["distinct1"] == len(set(words)) / len(words)


GENERATED = """2026-01-01 | INFO | fairseq | loading
S-2\tdrei
T-2\tthree
H-2\t-0.5\tth@@ ree
D-2\t-0.5\tthree
P-2\t-0.5 -0.5
H-2\t-0.9\tthr@@ ee
D-2\t-0.9\tthree three
S-0\teins
D-0\t-0.25\tone D-1
S-1\t
H-1\t-inf\t
D-1\t-inf\t
Generate test with beam=5: BLEU4 = 1.0
"""


def test_generate_output_is_read_in_the_order_of_its_ids(tmp_path):
    path = tmp_path / "gen.out"
    path.write_text(GENERATED, encoding="utf-8")
    run = read_translations(path)
    assert run.lines == ["one D-1", "", "three"]
    assert run.nbest == [["one D-1"], [""], ["three", "three three"]]
    report = evaluate([read_system(str(path))], [["one D-1", "x", "three"]], ScoreOptions())
    assert report["systems"][0]["mean"]["distinct-1"] == 3 / 5


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1), min_size=1))
def test_any_text_is_read_line_by_line(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "text.gz"
    path.write_bytes(gzip.compress(("x\n" + "\n".join(lines) + "\n").encode()))
    assert read_text(path) == ["x"] + [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    "content, line",
    [
        (b"", None),
        ("ein\nzwölf\n".encode("latin-1"), 2),
        (b"H-0\t-0.5\ta@@ b\n", None),
        (b"D-0\t-0.5\ta\nD-2\t-0.5\tb\n", None),
        (b"D-0\t-0.5\ta\nD-1\tb\n", 2),
    ],
)
def test_bad_files_are_named(tmp_path, content, line):
    path = tmp_path / "run"
    path.write_bytes(content)
    with data_error(path=path, line=line):
        read_translations(path)


def test_other_numbers_of_lines_double_names_and_unknown_baselines_are_named(files, tmp_path):
    short = tmp_path / "short"
    short.write_text("one line\n")
    with data_error(path="short"):
        run("score", "--ref", files / "ref", "--sys", short)
    a = read_system(str(files / "a"))
    with data_error(str(files / "a"), "NAME=FILE"):
        evaluate([a, a], [read_text(files / "ref")], ScoreOptions())
    with data_error(str(files / "a")):
        evaluate([a], [read_text(files / "ref")], ScoreOptions(), baseline="c")
    with data_error(path="nowhere"):
        read_system("c=nowhere")
    (files / "a,b").write_text((files / "a").read_text(encoding="utf-8"), encoding="utf-8")
    assert read_system(f"c={files / 'a,b'}").runs[0].lines == a.runs[0].lines
    with data_error("klingon"):
        run("score", "--ref", files / "ref", "--sys", files / "a", "--tokenize", "klingon")


def test_the_command_prints_the_shares_of_gains(files, capsys):
    systems = [f"{name}={files / file}" for name, file in (("plain", "a"), ("S", "ref"), ("S.linear", "b"))]
    command = ["score", "--ref", files / "ref", "--sys", *systems, "--metrics", "chrf"]
    run(*command, "--controls", "linear")  # the baseline is the first system
    printed = capsys.readouterr().out
    assert "chrF, gains over plain" in printed and "kept with it" in printed and "S.linear" in printed
    with data_error("--controls", option="--controls-by"):
        run(*command, "--controls-by", "depth", "--conllu", files / "ref")


def test_only_lines_that_another_file_has_are_scored(files, tmp_path):
    refs = read_text(files / "ref")
    chosen, part = tmp_path / "chosen", {name: tmp_path / name for name in ("ref", "a")}
    chosen.write_text("".join("x\n" if number % 3 else " \n" for number in range(len(refs))))
    for name, path in part.items():
        path.write_text("".join(f"{line}\n" for number, line in enumerate(read_text(files / name)) if number % 3))
    actual = [tmp_path / "some.json", tmp_path / "part.json"]
    run("score", "--ref", files / "ref", "--sys", f"a={files / 'a'}", "--lines", chosen, "--json", actual[0])
    run("score", "--ref", part["ref"], "--sys", f"a={part['a']}", "--json", actual[1])
    some, alone = (json.loads(path.read_text()) for path in actual)
    assert some["systems"][0]["mean"] == alone["systems"][0]["mean"] and some["sentences"] == alone["sentences"]
    chosen.write_text("\n" * len(refs))
    with data_error(path="chosen", option="--lines"):
        run("score", "--ref", files / "ref", "--sys", files / "a", "--lines", chosen)


def test_beer_is_the_last_score_that_the_program_prints(tmp_path):
    program = tmp_path / "beer"
    program.write_text(
        "#!/bin/sh\n[ $1 = -s ] && [ $3 = -r ] || exit 1\n"
        'echo "sentence 1 BEER 0.25"; paste -d= "$2" "${4%%:*}" >&2; echo "total BEER 0.625"\n'
    )
    program.chmod(0o755)
    assert metrics.beer(str(program), ["a"], [["b"], ["c"]]) == 0.625
    seen = tmp_path / "seen"
    program.write_text(f"#!/bin/sh\ncat $2 $(echo $4 | tr : ' ') > {seen}; echo 0.5\n")
    metrics.beer(str(program), ["a <unk>"], [["b <unk>"], ["c"]])
    words = [line.split() for line in seen.read_text("utf-8").splitlines()]
    assert [*map(len, words)] == [2, 2, 1] and words[0][1] == words[1][1] and words[0][1].isalpha(), (
        "one word of letters"
    )
    with data_error("BEER", str(tmp_path / "missing")):
        metrics.beer(str(tmp_path / "missing"), ["a"], [["b"]])
    with data_error("BEER", "true"):
        metrics.beer("true", ["a"], [["b"]])


def test_tables_align_wide_letters_and_escape_what_the_style_needs():
    table = Table("a_b", ["system", "p|q"], [["猫", "1.0 ± 0.1"], ["x", "<0.001*"]], ["100%"])
    rows = table.render().splitlines()
    assert rows[3] == "猫      1.0 ± 0.1" and rows[4] == "x         <0.001*"
    assert r"p\|q" in table.render("markdown") and "|:--|--:|" in table.render("markdown")


def test_case_is_left_out_of_every_metric_where_that_is_asked_for(tmp_path, capsys):
    refs, lines, _ = _corpus(30, 2)
    for name, text in (("ref", refs), ("as_is", [line.upper() for line in lines]), ("lower", lines)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text))
    argv = ["--ref", tmp_path / "ref", "--sys", f"x={tmp_path / 'as_is'}", f"y={tmp_path / 'lower'}", "--json", "-"]
    argv += ["--metrics", "bleu", "bleu1", "chrf", "ter", "ribes", "--resamples", "0", "--trials", "0"]
    reports = []
    for more in ([], ["--lowercase"]):
        run("score", *argv, *more)
        reports.append(json.loads(capsys.readouterr().out))
    cased, uncased = ([system["mean"] for system in report["systems"]] for report in reports)
    assert uncased[0] == uncased[1] == cased[1], "the text is lower case already"
    assert all(cased[0][name] != cased[1][name] for name in cased[0] if name != "TER"), "TER has no case by default"
    assert "case:lc" in reports[1]["signatures"]["RIBES"] and "case:lc" in reports[1]["signatures"]["BLEU"]


def test_two_systems_and_no_score_to_test(files):
    systems = [read_system(f"{name}={files / name}") for name in "ab"]
    report = evaluate(systems, [read_text(files / "ref")], ScoreOptions(metrics=["distinct1"]))
    assert report["systems"][1]["tests"] == {}
    scores, tests = (table.render() for table in score_tables(report))
    assert "distinct-1" in scores and "Against a" in tests


def test_markdown_and_json_are_printed(files, capsys):
    argv = [
        "--ref",
        files / "ref",
        "--sys",
        f"a={files / 'a'}",
        f"b={files / 'b'}",
        "--metrics",
        "bleu",
        "--trials",
        "0",
    ]
    argv += ["--resamples", "20"]
    run("score", *argv, "--format", "markdown", "--baseline", "b")
    assert "**Against b**" in capsys.readouterr().out
    run("score", *argv, "--json", "-")
    assert json.loads(capsys.readouterr().out)["baseline"] == "a"


def test_what_cannot_be_scored_is_said_before_anything_is_lost(tmp_path):
    """A reference under the report's name, damaged data, a spread of one draw and a tokenizer that is not there."""
    (tmp_path / "ref").write_text("a b\n")
    damaged = bytearray(gzip.compress(b"a b\n" * 50))
    damaged[12] ^= 255
    (tmp_path / "bad.gz").write_bytes(damaged)
    ref = f"{tmp_path}/ref"
    for argv, name in (
        (["--sys", ref, "--json", ref], ref),
        (["--sys", f"x={tmp_path}/bad.gz"], "bad.gz"),
        (["--sys", ref, "--resamples", "1"], "resamples"),
        (["--sys", ref, "--tokenize", "klingon"], "klingon"),
    ):
        with data_error(name):
            run("score", "--ref", ref, *argv)
    assert (tmp_path / "ref").read_text() == "a b\n"


def test_the_output_of_two_runs_is_no_run(tmp_path):
    run = "S-0\ta\nH-0\t-1\tb\nD-0\t-1\tb\n"
    (tmp_path / "two.out").write_text(run * 2)
    with data_error(path="two.out", line=4):
        read_translations(tmp_path / "two.out")
