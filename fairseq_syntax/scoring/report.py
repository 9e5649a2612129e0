"""The papers' evaluation of any outputs: scores, tests against a baseline, scores by length, several seeds.

:func:`evaluate` gives one dictionary that is the JSON report; :func:`tables` turns it into tables.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.scoring.metrics import METRICS, Scorer, beer, distinct_1
from fairseq_syntax.scoring.outputs import Translations, check_parallel, read_translations
from fairseq_syntax.scoring.significance import paired_tests, seed_test, sentence_tests
from fairseq_syntax.scoring.tables import Table, number, p_value

FORMAT = 1
DISTINCT = "distinct-1"


@dataclass
class System:
    """A system under evaluation: its name and one run per seed."""

    name: str
    runs: list[Translations]


@dataclass
class Options:
    """What to compute; the fields are the options of ``fairseq-syntax score``."""

    metrics: Sequence[str] = (*METRICS, "distinct1")
    tokenize: str = "13a"
    lowercase: bool = False
    resamples: int = 1000
    trials: int = 10000
    by_length: int | None = None
    beer: str | None = None


def read_system(text: str) -> System:
    """Read ``FILE``, ``NAME=FILE`` or ``NAME=FILE,FILE,…`` (one file per seed); a lone file's name is its path."""
    name, equals, files = text.partition("=")
    if os.path.exists(text) or not equals:
        name, files = text, text
        paths = [text]
    else:
        paths = [path for path in files.split(",") if path]
    if not name or not paths:
        raise SyntaxDataError(f"not a system: {text!r}", hint="FILE or NAME=FILE[,FILE…], one file per seed")
    return System(name, [read_translations(path) for path in paths])


def evaluate(
    systems: Sequence[System],
    references: Sequence[Sequence[str]],
    options: Options,
    *,
    baseline: str | None = None,
    sources: Sequence[str] | None = None,
) -> dict:
    """Score the systems and test them against the baseline (by name, or the first).

    A baseline of several seeds meets the other systems seed by seed, in the order given, where the numbers of seeds
    agree; otherwise its first seed meets all of theirs. Tests over sentences use the mean of a sentence's scores
    over the seeds; the test over seeds (Welch's) uses the corpus scores.

    Args:
        references: one list of sentences per reference translation
        sources: source sentences: ``by_length`` then counts source tokens in place of the first reference's

    Returns:
        the report: ``sentences``, ``signatures`` by metric, ``systems`` (``name``, ``runs`` of ``file`` and
        ``scores``, ``mean``, ``sd``; but for the baseline ``tests`` by metric), ``by_length``

    Raises:
        SyntaxDataError: line counts differ, names are double, or there is no such baseline
    """
    _check_names(systems, baseline)
    counts = [(f"reference {i + 1}", len(lines)) for i, lines in enumerate(references)]
    counts += [(run.path, len(run)) for system in systems for run in system.runs]
    if sources is not None:
        counts.append(("the source", len(sources)))
    sentences = check_parallel(counts)
    scorers = [Scorer(m, references, options.tokenize, options.lowercase) for m in options.metrics if m in METRICS]
    report: dict = {"format": FORMAT, "sentences": sentences, "references": len(references)}
    report["systems"] = [_score(system, scorers, references, options) for system in systems]
    report["signatures"] = {scorer.name: scorer.signature for scorer in scorers}
    if "distinct1" in options.metrics:
        report["signatures"][DISTINCT] = f"tok:{options.tokenize}|over:every hypothesis, n-best lists included"
    if options.beer:
        report["signatures"]["BEER"] = f"program:{options.beer}"
    if len(systems) > 1:
        names = [system.name for system in systems]
        base = systems[names.index(baseline)] if baseline else systems[0]
        report["baseline"] = base.name
        for system, entry in zip(systems, report["systems"]):
            if system is not base:
                base_entry = report["systems"][names.index(base.name)]
                entry["tests"] = _test(system, base, scorers, options, entry, base_entry)
    if options.by_length:
        report["by_length"] = by_length(systems, references, options, sources)
    return report


def _check_names(systems: Sequence[System], baseline: str | None) -> None:
    names = [system.name for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise SyntaxDataError(f"two systems are called {name}", hint="name them: --sys A=FILE B=FILE")
    if baseline is not None and baseline not in names:
        raise SyntaxDataError(f"no system is called {baseline}", hint=f"--baseline is one of {', '.join(names)}")


def _score(system: System, scorers: Sequence[Scorer], references, options: Options) -> dict:
    runs = []
    for run in system.runs:
        scores = {scorer.name: scorer.corpus(run.lines) for scorer in scorers}
        if "distinct1" in options.metrics:
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


def _test(system: System, base: System, scorers, options: Options, entry: dict, base_entry: dict) -> dict:
    one_by_one = len(system.runs) == len(base.runs)
    found = {}
    for scorer in scorers:
        tests: dict = {"difference": entry["mean"][scorer.name] - base_entry["mean"][scorer.name]}
        tests["runs"] = [
            paired_tests(
                scorer,
                base.runs[i if one_by_one else 0].lines,
                run.lines,
                resamples=options.resamples,
                trials=options.trials,
            )
            for i, run in enumerate(system.runs)
        ]
        ours, theirs = (np.mean([scorer.sentences(run.lines) for run in s.runs], axis=0) for s in (system, base))
        tests |= sentence_tests(theirs, ours)
        corpora = [[run["scores"][scorer.name] for run in e["runs"]] for e in (base_entry, entry)]
        tests["seeds"] = seed_test(*corpora)
        found[scorer.name] = tests
    return found


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
    width = options.by_length
    scorer = Scorer("bleu", references, options.tokenize, options.lowercase)
    tokenize = scorer.metric.tokenizer
    lengths = np.array([len(tokenize(line).split()) for line in (references[0] if sources is None else sources)])
    bucket = np.maximum(np.ceil(lengths / width).astype(int) - 1, 0)
    buckets = []
    for k in np.unique(bucket):
        chosen = np.flatnonzero(bucket == k).tolist()
        scores = {s.name: float(np.mean([scorer.corpus(run.lines, chosen) for run in s.runs])) for s in systems}
        buckets.append({"over": int(k) * width, "to": int(k + 1) * width, "sentences": len(chosen), "BLEU": scores})
    return {"of": "reference" if sources is None else "source", "width": width, "buckets": buckets}


def tables(report: dict) -> list[Table]:
    """The report's tables: scores, tests against the baseline, BLEU by length."""
    found = [_score_table(report)]
    if "baseline" in report:
        found.append(_test_table(report))
    if "by_length" in report:
        table = report["by_length"]
        names = [system["name"] for system in report["systems"]]
        rows = [
            [f"({b['over']}, {b['to']}]", str(b["sentences"]), *(number(b["BLEU"][name], 1) for name in names)]
            for b in table["buckets"]
        ]
        found.append(Table(f"BLEU by length of the {table['of']}", ["tokens", "sentences", *names], rows))
    return found


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
    return Table(f"Scores of {report['sentences']} sentences", header, rows, notes)


def _test_table(report: dict) -> Table:
    rows = []
    several = seeds = False
    present: set[str] = set()
    for system in report["systems"]:
        for metric, tests in system.get("tests", {}).items():
            several |= len(tests["runs"]) > 1
            seeds |= tests["seeds"] is not None
            present |= set(tests["runs"][0])
            worst = [
                max((run[name]["p"] for run in tests["runs"] if name in run), default=None)
                for name in ("bootstrap", "randomization")
            ]
            cells = [p_value(p) for p in (*worst, tests["t_test"], tests["ks"], tests["seeds"])]
            rows.append([system["name"], metric, f"{tests['difference']:+.2f}", *cells])
    header = ["system", "metric", "difference", "bootstrap", "randomization", "t-test", "KS", "seeds"]
    unused = [i for i, name in enumerate(header) if name in ("bootstrap", "randomization") and name not in present]
    unused += [] if seeds else [header.index("seeds")]
    header, *rows = [[cell for i, cell in enumerate(row) if i not in unused] for row in (header, *rows)]
    notes = ["p of each test; * below 0.05"]
    if present:
        first = next(s for s in report["systems"] if "tests" in s)["tests"]
        run = next(iter(first.values()))["runs"][0]
        notes += [f"{name}: {run[name]['signature']}" for name in run]
    if several and present:
        notes.append("bootstrap, randomization: the largest p over the seeds")
    if seeds:
        notes.append("seeds: Welch's t-test over the seeds' corpus scores")
    return Table(f"Against {report['baseline']}", header, rows, notes)
