"""The papers' evaluation of any outputs: scores, tests against a baseline, scores by length, several seeds.

:func:`evaluate` gives one dictionary that is the JSON report; :func:`tables` turns it into tables.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from sacrebleu.metrics import BLEU

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu, text_of
from fairseq_syntax.corpus.parsed_line import is_parse_of, why_other
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.by_syntax import by_syntax, syntax_tables
from fairseq_syntax.lab.scoring.metrics import Scorer, beer, distinct_1
from fairseq_syntax.lab.scoring.names import DISTINCT_KEY, METRICS, USUAL
from fairseq_syntax.lab.scoring.outputs import Translations, check_parallel, read_translations
from fairseq_syntax.lab.scoring.properties import Property
from fairseq_syntax.lab.scoring.significance import (
    LEAST_SENTENCES,
    SEED,
    Resampled,
    holm,
    paired_tests,
    seed_test,
    sentence_tests,
)
from fairseq_syntax.lab.scoring.tables import Table, number, p_value
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.named_files import named_files

__all__ = ["Options", "System", "evaluate", "read_parses", "read_system", "tables"]

FORMAT = 2  # of the report, and of how it is computed: scores of another are computed anew
DISTINCT = "distinct-1"
KEYS = (*METRICS, DISTINCT_KEY)


@dataclass
class System:
    """A system under evaluation: its name and one run per seed."""

    name: str
    runs: list[Translations]


@dataclass
class Options:
    """What to compute; the fields are the options of ``fairseq-syntax score``."""

    metrics: Sequence[str] = USUAL
    tokenize: str = "13a"
    lowercase: bool = False
    resamples: int = 1000
    trials: int = 10000
    by_length: int | None = None
    beer: str | None = None
    by: Sequence[Property] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises SyntaxDataError, whose text begins with the field's name."""
        if isinstance(self.metrics, str) or not self.metrics or not set(self.metrics) <= set(KEYS):
            raise SyntaxDataError(f"metrics must be a list, not {self.metrics!r}", hint=f"of {', '.join(KEYS)}")
        if self.tokenize not in BLEU.TOKENIZERS:
            hint = f"one of {', '.join(BLEU.TOKENIZERS)}"
            raise SyntaxDataError(f"tokenize: sacrebleu has no tokenizer {self.tokenize}", hint=hint)
        if not isinstance(self.lowercase, bool):
            raise SyntaxDataError(f"lowercase must be true or false, not {self.lowercase!r}")
        for name, least in (("resamples", 0), ("trials", 0), ("by_length", 1)):
            value = getattr(self, name)
            if value is None and name == "by_length":
                continue
            if name == "resamples" and value == 1:
                raise SyntaxDataError("resamples must be 0 or at least 2, not 1", hint="one draw has no spread")
            if not isinstance(value, int) or value < least:
                raise SyntaxDataError(f"{name} must be a whole number from {least} on, not {value!r}")


def read_system(text: str) -> System:
    """Read ``[NAME=]FILE[,FILE…]``, one file per seed; without a name it is called as its first file."""
    name, paths = named_files(text)
    return System(name, [read_translations(path) for path in paths])


def read_parses(path: str | os.PathLike[str], sentences: int, sources: Sequence[str] | None = None) -> list[ParsedLine]:
    """The parse of each line of a test set.

    Args:
        sources: its lines, where they are known

    Raises:
        SyntaxDataError: fewer or more lines are parsed, or most parses are of other texts than the sources. (Some may
            differ, as sources are tokenized or lowercased otherwise.)
    """
    parses = list(read_conllu(path, n_lines=sentences))
    others = [(line, text) for line, text in zip(parses, sources or ()) if not is_parse_of(line, text)]
    if len(others) > len(parses) / 2:
        line, text = others[0]
        raise SyntaxDataError(
            f"is the parse of other sentences: it says {text_of(line)[:60]!r}, and the source {text[:60]!r}",
            path=path,
            line=line.file_line,
            hint=why_other(line, text),
        )
    return parses


def evaluate(
    systems: Sequence[System],
    references: Sequence[Sequence[str]],
    options: Options,
    *,
    baseline: str | None = None,
    also_against: Sequence[str] = (),
    sources: Sequence[str] | None = None,
    parses: Sequence[ParsedLine] | None = None,
    groups: Sequence[str] | None = None,
) -> dict:
    """Score the systems and test them against the baseline (by name, or the first).

    The bootstrap (:class:`.significance.Resampled`) takes all seeds of both systems. sacrebleu's two tests compare two
    runs: a system's seeds meet the baseline's one by one, in the order given, and those of a system that has more begin
    again at the baseline's first. Tests over sentences use the mean of a sentence's scores over the seeds; the
    test over seeds (Welch's) uses the corpus scores.

    Args:
        references: one list of sentences per reference translation
        sources: source sentences: ``by_length`` then counts source tokens in place of the first reference's
        parses: of the source lines, for the properties of ``options.by``
        also_against: further systems to test the others against
        groups: the group of each sentence, such as its document, for the bootstrap to draw; the tests that take
            sentences for independent (randomization, t-test, KS) are then left out

    Returns:
        the report: ``sentences``, ``signatures`` by metric, ``systems`` (``name``, ``runs`` of ``file`` and
        ``scores``, ``mean``, ``sd``; but for the baseline ``tests`` by metric: ``difference``, ``bootstrap`` with
        ``low``, ``high`` and ``p``, ``detectable``, ``runs`` with sacrebleu's tests of each pair, ``t_test``, ``ks``,
        ``seeds``, and ``holm`` with each test's p corrected for all comparisons of a metric), ``also_against`` (by
        baseline and system the same tests), ``by_length``, ``by_syntax``

    Raises:
        SyntaxDataError: line counts differ, names are double, or there is no such baseline
    """
    names = [system.name for system in systems]
    check_names(names)
    for name in (baseline, *also_against):
        if name is not None and name not in names:
            raise SyntaxDataError(f"no system is called {name}", hint=f"a baseline is one of {', '.join(names)}")
    counts = [(f"reference {i + 1}", len(lines)) for i, lines in enumerate(references)]
    counts += [(run.path, len(run)) for system in systems for run in system.runs]
    if sources is not None:
        counts.append(("the source", len(sources)))
    if options.by and parses is None:
        raise SyntaxDataError("scores by a property of the parse need the source's parse", hint="give --conllu")
    if options.by and not set(options.metrics) & set(METRICS):
        raise SyntaxDataError("no metric that is asked for has scores of sentences to sort by a property of the parse")
    if parses is not None:
        counts.append(("the parse", len(parses)))
    if groups is not None:
        counts.append(("the groups", len(groups)))
    sentences = check_parallel(counts)
    scorers = [Scorer(m, references, options.tokenize, options.lowercase) for m in options.metrics if m in METRICS]
    report: dict = {"format": FORMAT, "sentences": sentences, "references": len(references)}
    if groups is not None:
        report["groups"] = len(set(groups))
    bar = progress(systems, of="scores", unit="systems")
    report["systems"] = [_score(system, scorers, references, options) for system in bar]
    report["signatures"] = {scorer.name: scorer.signature for scorer in scorers}
    if DISTINCT_KEY in options.metrics:
        report["signatures"][DISTINCT] = f"tok:{options.tokenize}|over:every hypothesis, n-best lists included"
    if options.beer:
        report["signatures"]["BEER"] = f"program:{options.beer}"
    if len(systems) > 1:
        bases = list(dict.fromkeys([baseline or names[0], *also_against]))
        report["baseline"] = bases[0]
        independent = sentences if groups is None else len(set(groups))
        resamples = options.resamples if independent >= LEAST_SENTENCES else 0
        every = {system.name: [run.lines for run in system.runs] for system in systems}
        # of each baseline, system and metric; {} where no metric has any, too
        tests: dict[str, dict[str, dict]] = {b: {name: {} for name in names if name != b} for b in bases}
        with progress(total=len(bases) * (len(systems) - 1) * len(scorers), of="tests", unit="tests") as bar:
            for scorer in scorers:
                resampled = Resampled(scorer, every, resamples, groups=groups) if resamples else None
                for base, others in tests.items():
                    pair = [systems[names.index(base)], report["systems"][names.index(base)]]
                    for system, entry in zip(systems, report["systems"]):
                        if system.name != base:
                            tested = _test(system, pair[0], scorer, resampled, options, entry, pair[1], groups)
                            others[system.name][scorer.name] = tested
                            bar.update()
        for others in tests.values():
            _correct(list(others.values()))
        for entry in report["systems"]:
            if entry["name"] in tests[bases[0]]:
                entry["tests"] = tests[bases[0]][entry["name"]]
        if bases[1:]:
            report["also_against"] = {base: tests[base] for base in bases[1:]}
    if options.by_length:
        report["by_length"] = by_length(systems, references, options, sources)
    if options.by and parses is not None:
        runs = {system.name: [run.lines for run in system.runs] for system in systems}
        base_name = report.get("baseline", systems[0].name)
        report["by_syntax"] = by_syntax(
            runs, scorers, parses, options.by, baseline=base_name, resamples=options.resamples, groups=groups
        )
    return report


def check_names(names: Sequence[str], form: str = "--sys A=FILE B=FILE") -> None:
    """Raises SyntaxDataError where two systems have one name: the first would be lost."""
    for name in names:
        if names.count(name) > 1:
            raise SyntaxDataError(f"two systems are called {name}", hint=f"name them: {form}")


def _score(system: System, scorers: Sequence[Scorer], references, options: Options) -> dict:
    runs: list[dict[str, Any]] = []
    for run in system.runs:
        scores = {scorer.name: scorer.corpus(run.lines) for scorer in scorers}
        if DISTINCT_KEY in options.metrics:
            scores[DISTINCT] = distinct_1([line for lines in run.nbest for line in lines], options.tokenize)
        if options.beer:
            scores["BEER"] = beer(options.beer, run.lines, references)
        runs.append({"file": run.path, "scores": scores})
    columns = {name: [run["scores"][name] for run in runs] for name in runs[0]["scores"]}
    return {
        "name": system.name,
        "runs": runs,
        "mean": {name: float(np.mean(values)) for name, values in columns.items()},
        # the deviation over the seeds, of a sample; one seed has none
        "sd": {name: float(np.std(values, ddof=1)) if len(values) > 1 else None for name, values in columns.items()},
    }


def _test(
    system: System,
    base: System,
    scorer: Scorer,
    resampled: Resampled | None,
    options: Options,
    entry: dict,
    base_entry: dict,
    groups: Sequence[str] | None = None,
) -> dict:
    tests: dict = {"difference": entry["mean"][scorer.name] - base_entry["mean"][scorer.name]}
    enough = len(base.runs[0]) >= LEAST_SENTENCES and groups is None
    resamples, trials = (options.resamples, options.trials) if enough else (0, 0)
    tests["runs"] = [
        paired_tests(scorer, theirs.lines, run.lines, resamples=resamples, trials=trials)
        for run, theirs in zip(system.runs, itertools.cycle(base.runs))
    ]
    if groups is None:
        ours, theirs = (np.mean([scorer.sentences(run.lines) for run in s.runs], axis=0) for s in (system, base))
        tests |= sentence_tests(theirs, ours)
    corpora = [[run["scores"][scorer.name] for run in e["runs"]] for e in (base_entry, entry)]
    tests["seeds"] = seed_test(*corpora)
    if resampled is not None:
        difference = resampled.difference(system.name, base.name)
        tests["bootstrap"] = {"low": difference.low, "high": difference.high, "p": difference.p}
        over = "sentences" if groups is None else "groups"
        tests["bootstrap"]["signature"] = f"over:{over} and seeds|sides:2|n:{options.resamples}|seed:{SEED}"
        tests["detectable"] = difference.detectable
    return tests


def _p_values(tests: dict) -> dict[str, float]:
    """The p of each test there is; of a test of pairs of seeds, the largest."""
    p_values = {}
    if "bootstrap" in tests:
        p_values["bootstrap"] = tests["bootstrap"]["p"]
    elif "bootstrap" in tests["runs"][0]:  # a record of the first format
        p_values["bootstrap"] = max(run["bootstrap"]["p"] for run in tests["runs"])
    if "randomization" in tests["runs"][0]:
        p_values["randomization"] = max(run["randomization"]["p"] for run in tests["runs"])
    for name in ("t_test", "ks", "seeds"):
        if tests.get(name) is not None:
            p_values[name] = tests[name]
    return p_values


def _correct(tests: Sequence[dict]) -> None:
    """Adds ``holm``: p values corrected for the comparisons of a metric, one per system."""
    for metric in tests[0]:
        raw = [_p_values(system[metric]) for system in tests]
        for system in tests:
            system[metric]["holm"] = {}
        for name in {name: None for values in raw for name in values}:
            having = [i for i, values in enumerate(raw) if name in values]
            for i, adjusted in zip(having, holm([raw[i][name] for i in having])):
                tests[i][metric]["holm"][name] = adjusted


def by_length(
    systems: Sequence[System],
    references: Sequence[Sequence[str]],
    options: Options,
    sources: Sequence[str] | None = None,
) -> dict:
    """Corpus BLEU of the sentences in each interval of length, (0, w], (w, 2w], …, as in the papers' figures.

    Length is the number of tokens that BLEU's tokenizer makes of the source where there is one, else of the first
    reference. A system of several seeds has the mean of theirs.

    Returns:
        ``{"of": "source" or "reference", "width", "buckets": [{"over", "to", "sentences", "BLEU": {system: score}}]}``;
        empty intervals are left out
    """
    width = cast(int, options.by_length)  # who asks has looked
    scorer = Scorer("bleu", references, options.tokenize, options.lowercase)
    tokenize = cast(Any, scorer.metric).tokenizer
    lengths = np.array([len(tokenize(line).split()) for line in (references[0] if sources is None else sources)])
    bucket = np.maximum(np.ceil(lengths / width).astype(int) - 1, 0)
    buckets = []
    for k in np.unique(bucket):
        chosen = np.flatnonzero(bucket == k).tolist()
        scores = {s.name: float(np.mean([scorer.corpus(run.lines, chosen) for run in s.runs])) for s in systems}
        buckets.append({"over": int(k) * width, "to": int(k + 1) * width, "sentences": len(chosen), "BLEU": scores})
    return {"of": "reference" if sources is None else "source", "width": width, "buckets": buckets}


def tables(report: dict) -> list[Table]:
    """The report's tables: scores, tests against the baseline, BLEU by length, scores by properties of the parse."""
    result = [_score_table(report)]
    if "baseline" in report:
        tested = {system["name"]: system["tests"] for system in report["systems"] if "tests" in system}
        for base, of in {report["baseline"]: tested, **report.get("also_against", {})}.items():
            result.append(_test_table(report, base, of))
    if "by_length" in report:
        result.append(_length_table(report))
    if "by_syntax" in report:
        base_name = report.get("baseline", report["systems"][0]["name"])
        result += syntax_tables(report["by_syntax"], base_name, over_seeds=report["format"] > 1)
    return result


def _length_table(report: dict) -> Table:
    """BLEU by length; in brackets what each system gains over the baseline (Figure 2 of the PASCAL paper)."""
    table, base = report["by_length"], report.get("baseline")
    names = [system["name"] for system in report["systems"]]
    rows = []
    for bucket in table["buckets"]:
        share = 100 * bucket["sentences"] / report["sentences"]
        row = [f"({bucket['over']}, {bucket['to']}]", str(bucket["sentences"]), f"{share:.1f}%"]
        for name in names:
            score = bucket["BLEU"][name]
            gain = "" if base in (None, name) else f" ({score - bucket['BLEU'][base]:+.1f})"
            row.append(number(score, 1) + gain)
        rows.append(row)
    notes = [] if base is None else [f"in brackets the gain over {base}"]
    return Table(f"BLEU by length of the {table['of']}", ["tokens", "sentences", "share", *names], rows, notes)


def _digits(metric: str) -> int:
    return 3 if metric in (DISTINCT, "BEER") else 2


def _score_table(report: dict) -> Table:
    metrics = list(report["systems"][0]["mean"])
    seeds = any(len(system["runs"]) > 1 for system in report["systems"])
    rows = []
    for system in report["systems"]:
        row = [system["name"]] + ([str(len(system["runs"]))] if seeds else [])
        for metric in metrics:
            text = number(system["mean"][metric], _digits(metric))
            if system["sd"][metric] is not None:
                text += f" ± {number(system['sd'][metric], _digits(metric))}"
            row.append(text)
        rows.append(row)
    header = ["system"] + (["seeds"] if seeds else []) + metrics
    notes = [f"{metric}: {signature}" for metric, signature in report["signatures"].items()]
    if seeds:
        notes.insert(0, "mean ± standard deviation over the seeds")
    in_groups = f" in {report['groups']} groups" if "groups" in report else ""
    return Table(f"Scores of {report['sentences']} sentences{in_groups}", header, rows, notes)


def _test_table(report: dict, baseline: str, tested: dict[str, dict]) -> Table:
    columns = {"bootstrap": "bootstrap", "randomization": "randomization", "t_test": "t-test", "ks": "KS"}
    columns["seeds"] = "seeds"
    if not all("holm" in tests for of in tested.values() for tests in of.values()):
        _correct(list(tested.values()))  # a record from before there was a correction
    entries = [(name, metric, tests) for name, of in tested.items() for metric, tests in of.items()]
    present = [name for name in columns if any(name in tests["holm"] for _, _, tests in entries)]
    detectable = any("detectable" in tests for _, _, tests in entries)
    both_sides = any("bootstrap" in tests for _, _, tests in entries)
    if not both_sides:  # a record of the first format
        columns["bootstrap"] = "bootstrap, one-sided"
    rows = []
    for system, metric, tests in entries:
        power = [number(tests.get("detectable"))] if detectable else []
        cells = [p_value(tests["holm"].get(name)) for name in present]
        rows.append([system, metric, f"{tests['difference']:+.2f}", *power, *cells])
    header = ["system", "metric", "difference"] + (["MDD"] if detectable else []) + [columns[name] for name in present]
    notes = ["p of each test; * below 0.05"]
    if len(tested) > 1:
        notes = [f"p of each test, with Holm's correction for the {len(tested)} comparisons of a metric; * below 0.05"]
    if detectable:
        notes.append("MDD: the minimal detectable difference, found at the 5% level with a probability of 80%")
    first = entries[0][2]["runs"][0] if entries else {}
    signatures = {name: first[name]["signature"] for name in first}
    if both_sides:
        signatures["bootstrap"] = entries[0][2]["bootstrap"]["signature"]
    notes += [f"{name}: {signature}" for name, signature in signatures.items()]
    if any(len(tests["runs"]) > 1 for _, _, tests in entries):
        of_pairs = [name for name in first if name == "randomization" or not both_sides]
        if of_pairs:
            notes.append(f"{', '.join(of_pairs)}: the largest p over pairs of seeds")
    if report.get("groups", report["sentences"]) < LEAST_SENTENCES:
        kind = "groups" if "groups" in report else "sentences"
        notes.append(f"no bootstrap and no randomization of fewer than {LEAST_SENTENCES} {kind}")
    if "seeds" in present:
        notes.append("seeds: Welch's t-test over the seeds' corpus scores")
    return Table(f"Against {baseline}", header, rows, notes)
