"""Evaluation as in the papers: scores over several seeds, tests against a baseline, scores by length and syntax.

:func:`evaluate` returns the JSON report as a dictionary; :func:`score_tables` converts it to tables.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu, text_of
from fairseq_syntax.corpus.parsed_line import is_parse_of, why_other
from fairseq_syntax.errors import SyntaxDataError, meant, quoted
from fairseq_syntax.lab.scoring.by_property import by_length, by_syntax, length_table, syntax_tables
from fairseq_syntax.lab.scoring.metrics import UNKNOWN, Scorer, beer, distinct_1
from fairseq_syntax.lab.scoring.names import DISTINCT_KEY, USUAL, is_too_low, too_low
from fairseq_syntax.lab.scoring.outputs import Translations, check_parallel, read_translations
from fairseq_syntax.lab.scoring.properties import Property
from fairseq_syntax.lab.scoring.shares import drawn_from, shares, units_drawn
from fairseq_syntax.lab.scoring.significance import (
    LEAST_SENTENCES,
    SEED,
    Resampled,
    enough_sentences,
    holm,
    randomization_test,
    seed_test,
    sentence_tests,
)
from fairseq_syntax.lab.scoring.tables import DETECTABLE, Table, number, over_seeds, p_value
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.named_files import check_distinct, named_files

logger = logging.getLogger(__name__)
__all__ = ["ScoreOptions", "ScoredSystem", "evaluate", "read_parses", "read_system", "score_tables"]

FORMAT = 2  # the version of the report and of its computation
DISTINCT = "distinct-1"
# The headers of the tests, by the keys of ``holm``.
TESTS = {
    "bootstrap": "bootstrap",
    "randomization": "randomization",
    "t_test": "t-test",
    "ks": "KS",
    "seeds": "seeds",
}


@dataclass
class ScoredSystem:
    """A system under evaluation: its name and one run per seed."""

    name: str
    runs: list[Translations]


@dataclass
class ScoreOptions:
    """What to compute; the fields are the options of ``fairseq-syntax score``."""

    metrics: Sequence[str] = USUAL
    tokenize: str = "13a"
    lowercase: bool = False
    resamples: int = 1000
    trials: int = 10000
    by_length: int | None = None
    beer: str | None = None
    by: Sequence[Property] = field(default_factory=list)
    controls: Sequence[str] = ()
    controls_by: Sequence[Property] = field(default_factory=list)


def read_system(text: str) -> ScoredSystem:
    """Read ``[NAME=]FILE[,FILE…]``, with one file per seed; the default name is the first file's."""
    name, paths = named_files(text)
    return ScoredSystem(name, [read_translations(path) for path in paths])


def read_parses(path: str | os.PathLike[str], sentences: int, sources: Sequence[str] | None = None) -> list[ParsedLine]:
    """Read the parse of each line of a test set, and warn of lines without one.

    Args:
        sources: the lines of the test set, if known

    Raises:
        SyntaxDataError: the number of parses is wrong, or most parses differ from the sources in their text. (Some may
            differ because of tokenization or lowercasing.)
    """
    parses = list(read_conllu(path, n_lines=sentences))
    others = [(line, text) for line, text in zip(parses, sources or ()) if not is_parse_of(line, text)]
    if len(others) > len(parses) / 2:
        line, text = others[0]
        message = f"is the parse of other sentences: it says {quoted(text_of(line))}, and the source {quoted(text)}"
        raise SyntaxDataError(message, path=path, line=line.file_line, hint=why_other(line, text))
    if without := sum(not line.words for line in parses):
        logger.warning("%s: %d of %d lines have no parse and are in no interval", path, without, len(parses))
    return parses


def evaluate(
    systems: Sequence[ScoredSystem],
    references: Sequence[Sequence[str]],
    options: ScoreOptions,
    *,
    baseline: str | None = None,
    also_against: Sequence[str] = (),
    sources: Sequence[str] | None = None,
    parses: Sequence[ParsedLine] | None = None,
    groups: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Score the systems, and test them against the baseline (default: the first system).

    The bootstrap (:class:`.significance.Resampled`) uses all seeds of both systems. The randomization test compares
    pairs of runs: the system's seeds are paired with the baseline's in the given order, starting again with the
    baseline's first seed if the system has more. Tests over sentences use a sentence's mean score over the seeds; the
    test over seeds (Welch's) uses corpus scores.

    Args:
        references: one list of sentences per reference translation
        sources: the source sentences; if given, ``by_length`` counts source tokens instead of the first reference's
        parses: the parses of the source lines, for the properties in ``options``
        also_against: further systems with which the others are compared
        groups: the group of each sentence, such as its document, if the bootstrap should resample groups. Tests that
            assume independent sentences (randomization, t-test, KS) are then left out.

    Returns:
        the report: ``sentences``, ``signatures`` by metric, ``systems`` (``name``, ``runs`` of ``file`` and
        ``scores``, ``mean``, ``sd``, ``length`` by BLEU's tokens in percent of the references', ``unknown``, the mean
        number of ``<unk>`` in a run; but for the baseline ``tests`` by metric: ``difference``, ``bootstrap`` with
        ``low``, ``high`` and ``p``, ``detectable``, ``runs`` with the randomization test of each pair, ``t_test``,
        ``ks``, ``seeds``, and ``holm`` with each test's p corrected for all comparisons of a metric), ``also_against``
        (by baseline and system the same tests), ``by_length``, ``by_syntax``, ``shares``

    Raises:
        SyntaxDataError: line counts differ, a name occurs twice, or the baseline does not exist
    """
    names = [system.name for system in systems]
    check_distinct(names)
    bases = list(dict.fromkeys([baseline or names[0], *also_against]))
    for name in bases:
        if name not in names:
            raise SyntaxDataError(f"no system is called {name}", hint=meant(name, names))
    if options.resamples == 1:
        raise SyntaxDataError("one draw has no standard deviation", option="--resamples", hint="0 or at least 2")
    keys = [key for key in options.metrics if key != DISTINCT_KEY]
    scorers = [Scorer(key, references, options.tokenize, options.lowercase) for key in keys]
    if (options.by or options.controls_by) and parses is None:
        raise SyntaxDataError("the source's parse is needed for its properties", option="--conllu")
    if options.by and not scorers:
        raise SyntaxDataError("none has scores of sentences to sort by a property of the parse", option="--metrics")
    files = [(f"reference {i + 1}", lines) for i, lines in enumerate(references)]
    files += [(run.path, run.lines) for system in systems for run in system.runs]
    others = {"the source": sources, "the parse": parses, "the groups": groups}
    counts = [(name, len(lines)) for name, lines in (*files, *others.items()) if lines is not None]
    report: dict[str, Any] = {"format": FORMAT, "sentences": check_parallel(counts), "references": len(references)}
    if groups is not None:
        report["groups"] = len(set(groups))
    bar = progress(systems, of="scores", unit="systems")
    report["systems"] = [_score(system, scorers, references, options) for system in bar]
    report["signatures"] = {scorer.name: scorer.signature for scorer in scorers}
    if DISTINCT_KEY in options.metrics:
        report["signatures"][DISTINCT] = f"tok:{options.tokenize}|over:every hypothesis, n-best lists included"
    if options.beer:
        report["signatures"]["BEER"] = f"program:{options.beer}"
    runs = {system.name: [run.lines for run in system.runs] for system in systems}
    if len(systems) > 1:
        tests = _tests(scorers, runs, bases, options, groups)
        report["baseline"] = bases[0]
        for entry in report["systems"]:
            if entry["name"] != bases[0]:
                entry["tests"] = tests[bases[0]][entry["name"]]
        if bases[1:]:
            report["also_against"] = {base: tests[base] for base in bases[1:]}
    if options.by_length:
        report["by_length"] = by_length(
            runs, references, options.by_length, sources, tokenize=options.tokenize, lowercase=options.lowercase
        )
    if options.by and parses is not None:
        report["by_syntax"] = by_syntax(
            runs, scorers, parses, options.by, baseline=bases[0], resamples=options.resamples, groups=groups
        )
    if options.controls:
        by = options.controls_by
        report["shares"] = shares(scorers, runs, bases[0], options.controls, parses or [], by, groups)
    return report


def _score(system: ScoredSystem, scorers: Sequence[Scorer], references, options: ScoreOptions) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    for run in system.runs:
        scores = {scorer.name: scorer.corpus(run.lines) for scorer in scorers}
        if DISTINCT_KEY in options.metrics:
            scores[DISTINCT] = distinct_1([line for lines in run.nbest for line in lines], options.tokenize)
        if options.beer:
            scores["BEER"] = beer(options.beer, run.lines, references)
        runs.append({"file": run.path, "scores": scores})
    columns = {name: [run["scores"][name] for run in runs] for name in runs[0]["scores"]}
    lengths = [length for run in system.runs if (length := _length(scorers, run.lines)) is not None]
    return {
        "name": system.name,
        "runs": runs,
        "length": float(np.mean(lengths)) if lengths else None,
        "unknown": float(np.mean([sum(line.count(UNKNOWN) for line in run.lines) for run in system.runs])),
        "mean": {name: float(np.mean(values)) for name, values in columns.items()},
        # the sample standard deviation over seeds, which one seed does not have
        "sd": {name: float(np.std(values, ddof=1)) if len(values) > 1 else None for name, values in columns.items()},
    }


def _length(scorers: Sequence[Scorer], lines: Sequence[str]) -> float | None:
    """The length of the translations by the first metric that has one."""
    return next((length for scorer in scorers if (length := scorer.length(lines)) is not None), None)


def _tests(
    scorers: Sequence[Scorer],
    runs: Mapping[str, Sequence[Sequence[str]]],
    bases: Sequence[str],
    options: ScoreOptions,
    groups: Sequence[str] | None,
) -> dict[str, dict[str, dict[str, dict]]]:
    """The tests by baseline, system and metric, with ``holm`` over the comparisons (one per system) of a metric."""
    tests: dict[str, dict[str, dict]] = {base: {name: {} for name in runs if name != base} for base in bases}
    enough = enough_sentences(range(len(next(iter(runs.values()))[0])), groups)
    over = "sentences" if groups is None else "groups"
    of_seeds = " and seeds" if any(len(of_system) > 1 for of_system in runs.values()) else ""
    signature = f"over:{over}{of_seeds}|sides:2|n:{options.resamples}|seed:{SEED}"
    with progress(total=len(bases) * (len(runs) - 1) * len(scorers), of="tests", unit="tests") as bar:
        for scorer in scorers:
            resampled = Resampled(scorer, runs, options.resamples if enough else 0, groups=groups)
            for base, others in tests.items():
                for name, of_metrics in others.items():
                    one: dict[str, Any] = {"difference": resampled.score[name] - resampled.score[base]}
                    one["seeds"] = seed_test(resampled.of_seeds[base], resampled.of_seeds[name])
                    one |= _of_sentences(scorer, runs[name], runs[base], options.trials if enough else 0, groups)
                    if resampled.scores:
                        found = resampled.difference(name, base)
                        one["bootstrap"] = {"low": found.low, "high": found.high, "p": found.p, "signature": signature}
                        one["detectable"] = found.detectable
                    of_metrics[scorer.name] = one
                    bar.update()
                _add_holm([of_metrics[scorer.name] for of_metrics in others.values()])
    return tests


def _of_sentences(
    scorer: Scorer,
    system: Sequence[Sequence[str]],
    base: Sequence[Sequence[str]],
    trials: int,
    groups: Sequence[str] | None,
) -> dict[str, Any]:
    """The tests that assume independent sentences; none with groups."""
    if groups is not None:
        return {"runs": [{} for _ in system]}
    pairs = list(zip(itertools.cycle(base), system))
    runs = [{"randomization": randomization_test(scorer, *pair, trials)} if trials else {} for pair in pairs]
    means = [np.mean([scorer.sentences(run) for run in each], axis=0) for each in (base, system)]
    return {"runs": runs, **sentence_tests(*means)}


def _add_holm(family: Sequence[dict[str, Any]]) -> None:
    """Add ``holm``, the corrected p value of each test; for tests of pairs of runs, the largest."""
    raw = []
    for one in family:
        p = {name: one[name] for name in ("t_test", "ks", "seeds") if one.get(name) is not None}
        if "bootstrap" in one:
            p["bootstrap"] = one["bootstrap"]["p"]
        if "randomization" in one["runs"][0]:
            p["randomization"] = max(run["randomization"]["p"] for run in one["runs"])
        raw.append(p)
        one["holm"] = {}
    for test in TESTS:
        # A test without a result, such as that over seeds with a single seed, is not a comparison.
        having = [(one, p[test]) for one, p in zip(family, raw) if test in p]
        for (one, _), adjusted in zip(having, holm([p for _, p in having])):
            one["holm"][test] = adjusted


# ------------------------------------------------------------------------------------------------------------ tables


def score_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """The report's tables: scores, tests against the baseline, BLEU by length, scores by properties of the parse."""
    names = [system["name"] for system in report["systems"]]  # stored reports sort other scores by name
    baseline = report.get("baseline")
    yield _score_table(report)
    if baseline is not None:
        tested = {system["name"]: system["tests"] for system in report["systems"] if "tests" in system}
        for base, of in {baseline: tested, **report.get("also_against", {})}.items():
            yield _test_table(report, base, of)
    if "by_length" in report:
        yield length_table(report["by_length"], names, report["sentences"], baseline)
    if "by_syntax" in report:
        yield from syntax_tables(report["by_syntax"], baseline or names[0], units_drawn(report), report)


def _score_table(report: Mapping[str, Any]) -> Table:
    several = any(len(system["runs"]) > 1 for system in report["systems"])
    rows = []
    for system in report["systems"]:
        row = [system["name"]] + ([str(len(system["runs"]))] if several else [])
        for metric, mean in system["mean"].items():
            row.append(over_seeds(mean, system["sd"][metric], 3 if metric in (DISTINCT, "BEER") else 2))
        rows.append(row)
    header = ["system", *(["seeds"] if several else []), *report["systems"][0]["mean"]]
    notes = ["mean ± standard deviation over the seeds"] if several else []
    lengths = [system.get("length") for system in report["systems"]]  # not in older reports
    if None not in lengths:
        header.append("length")
        for row, length in zip(rows, lengths):
            row.append(f"{length:.1f} %")
        notes.append("length: BLEU's tokens in percent of the references', which BLEU's brevity penalty depends on")
    unknown = [f"{one['name']} {one['unknown']:,.0f}" for one in report["systems"] if one.get("unknown")]
    notes += [f"{UNKNOWN}, which counts as one token: {', '.join(unknown)}"] if unknown else []
    notes += [f"{metric}: {signature}" for metric, signature in report["signatures"].items()]
    in_groups = f" in {report['groups']} groups" if "groups" in report else ""
    return Table(f"Scores of {report['sentences']} sentences{in_groups}", header, rows, notes)


def _test_table(report: Mapping[str, Any], baseline: str, tested: Mapping[str, Mapping[str, Any]]) -> Table:
    entries = [(name, metric, tests) for name, of in tested.items() for metric, tests in of.items()]
    present = [name for name in TESTS if any(name in tests["holm"] for _, _, tests in entries)]
    detectable = any("detectable" in tests for _, _, tests in entries)
    low = {metric for _, metric, _ in entries if is_too_low(report, metric)}
    rows = []
    for system, metric, tests in entries:
        power = [number(tests.get("detectable"))] if detectable else []
        cells = [p_value(tests["holm"].get(name), star=metric not in low) for name in present]
        rows.append([system, metric, f"{tests['difference']:+.2f}", *power, *cells])
    header = ["system", "metric", "difference"] + (["MDD"] if detectable else []) + [TESTS[name] for name in present]
    holm_of = f", with Holm's correction for the {len(tested)} comparisons of a metric" if len(tested) > 1 else ""
    notes = [f"p of each test{holm_of}; * below 0.05", *map(too_low, sorted(low))]
    if detectable:
        notes.append(DETECTABLE)
    if "bootstrap" in present:
        notes.append(f"bootstrap: {entries[0][2]['bootstrap']['signature']}")
    if "randomization" in present:
        notes.append(f"randomization: {entries[0][2]['runs'][0]['randomization']['signature']}")
        if any(len(tests["runs"]) > 1 for *_, tests in entries):
            notes.append("randomization: the largest p over pairs of seeds")
    if drawn_from(report) < LEAST_SENTENCES:
        notes.append(f"no bootstrap and randomization for fewer than {LEAST_SENTENCES} {units_drawn(report)}")
    if "seeds" in present:
        notes.append("seeds: Welch's t-test over the seeds' corpus scores")
    return Table(f"Against {baseline}", header, rows, notes)
