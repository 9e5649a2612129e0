"""Scores in the intervals of a property of the sentences, to show where a system gains.

Each interval is scored as a test set of its own. The results and their tables are those of ``fairseq-syntax score``:
``by_length``, ``by_syntax``, and the part ``by`` of ``shares``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.metrics import Scorer, with_unknown_words
from fairseq_syntax.lab.scoring.names import is_too_low, too_low
from fairseq_syntax.lab.scoring.properties import Property, interval_label
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES, Resampled, bounds, correct, enough_sentences
from fairseq_syntax.lab.scoring.tables import DETECTABLE, Table, corrected, number, p_value
from fairseq_syntax.runtime.console import progress

logger = logging.getLogger(__name__)
Runs = Mapping[str, Sequence[Sequence[str]]]  # for each system, the translations of each seed


def by_length(
    runs: Runs,
    references: Sequence[Sequence[str]],
    width: int,
    sources: Sequence[str] | None = None,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict[str, Any]:
    """Corpus BLEU of the sentences in each interval of length, as in the papers' figures.

    The intervals are (0, w], (w, 2w], …, of the ``width`` w in tokens. The length is the number of tokens of the
    source, if given, otherwise of the first reference, by BLEU's tokenizer.

    Returns:
        ``{"of": "source" or "reference", "width", "buckets": [{"over", "to", "sentences", "BLEU": {system: score}}]}``;
        empty intervals are left out
    """
    scorer = Scorer("bleu", references, tokenize, lowercase)
    tokenizer = BLEU(tokenize=tokenize).tokenizer
    of_lines = with_unknown_words(references[0] if sources is None else sources)
    lengths = np.array([len(tokenizer(line).split()) for line in of_lines])
    # An empty line belongs to no interval; it is counted in the first.
    bucket = np.maximum(np.ceil(lengths / width).astype(int) - 1, 0)
    buckets = []
    for k in np.unique(bucket).tolist():
        chosen = np.flatnonzero(bucket == k).tolist()
        scores = Resampled(scorer, runs, 0, subset=chosen).score
        buckets.append({"over": k * width, "to": (k + 1) * width, "sentences": len(chosen), "BLEU": scores})
    return {"of": "reference" if sources is None else "source", "width": width, "buckets": buckets}


def by_property(
    parses: Sequence[ParsedLine], properties: Sequence[Property], measure: Callable[[list[int]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What ``measure`` returns for the sentences, by their numbers, of each interval of each property of the parses.

    A sentence without a parse has no property, so it is in no interval.

    Returns:
        for each property ``{"property", "intervals"}``, and for each interval what was measured and ``{"over", "to",
        "sentences", "mean"}``: its lower (exclusive) and upper (inclusive) bound, and the mean of the property

    Raises:
        SyntaxDataError: no sentence has a parse
    """
    numbers = np.array([number for number, parse in enumerate(parses) if parse.words], dtype=np.int64)
    if properties and not len(numbers):
        raise SyntaxDataError("none of the sentences to score has a parse", option="--conllu")
    parts = []
    for prop in properties:
        values = prop.values([parses[number] for number in numbers])
        # Any string may be a label or tag, so a misspelt one is not an error but matches no word.
        if "=" in prop.name and not values.any():
            logger.warning("--by %s: no word of these sentences has it", prop.name)
        intervals = []
        for one in progress(prop.intervals(values), of=f"by {prop.name}", unit="intervals"):
            about = {"over": one.over, "to": one.to, "sentences": len(one.lines)}
            about["mean"] = float(values[one.lines].mean())
            intervals.append(about | measure(numbers[one.lines].tolist()))
        parts.append({"property": prop.name, "intervals": intervals})
    return parts


def by_syntax(
    runs: Runs,
    scorers: Sequence[Scorer],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    *,
    baseline: str,
    resamples: int = 1000,
    groups: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Scores in the intervals of each property, and tests against the baseline.

    Args:
        resamples: the number of bootstrap samples over sentences and seeds (:class:`.significance.Resampled`). With 0,
            or fewer than :data:`.significance.LEAST_SENTENCES` sentences, there are no confidence intervals and tests.
        groups: the group of each line, if the bootstrap should resample groups

    Returns:
        as :func:`by_property`, with ``scores[metric][system]``: ``score``, ``low`` and ``high`` (95 %); and
        ``differences[metric][system]``: the fields of :class:`.significance.Difference` and ``p_holm``. Holm's family
        is all systems and intervals of one property and metric.
    """

    def measure(lines: list[int]) -> dict[str, Any]:
        scores: dict[str, dict[str, Any]] = {}
        differences: dict[str, dict[str, Any]] = {}
        draws = resamples if enough_sentences(lines, groups) else 0
        for scorer in scorers:
            resampled = Resampled(scorer, runs, draws, subset=lines, groups=groups)
            scores[scorer.name], differences[scorer.name] = {}, {}
            for name, score in resampled.score.items():
                interval = dict(zip(("low", "high"), bounds(resampled.scores[name]))) if draws else {}
                scores[scorer.name][name] = {"score": score, **interval}
                if name != baseline:
                    tests = vars(resampled.difference(name, baseline)) if draws else {}
                    differences[scorer.name][name] = {"difference": score - resampled.score[baseline], **tests}
        return {"scores": scores, "differences": differences}

    parts = by_property(parses, properties, measure)
    for part in parts:
        for scorer in scorers:
            correct([one for _, _, one in _tested(part, scorer.name)])
    return parts


def _tested(part: Mapping[str, Any], metric: str) -> list[tuple[Mapping[str, Any], str, dict[str, Any]]]:
    """The tests of a property: interval, system and difference."""
    return [
        (interval, name, one)
        for interval in part["intervals"]
        for name, one in interval["differences"][metric].items()
        if "p" in one
    ]


def syntax_tables(
    parts: Sequence[Mapping[str, Any]],
    baseline: str,
    over: str = "sentences",
    report: Mapping[str, Any] | None = None,
) -> list[Table]:
    """For each property and metric, a table of scores and, for several systems, one of differences.

    Args:
        over: what the bootstrap drew, ``sentences`` or ``groups``
        report: the scores of all sentences, which may be too low to compare systems
    """
    return [
        table
        for part in parts
        for metric in part["intervals"][0]["scores"]
        for table in _syntax_tables(part, metric, baseline, over, report is not None and is_too_low(report, metric))
    ]


def _syntax_tables(part: Mapping[str, Any], metric: str, baseline: str, over: str, low: bool) -> list[Table]:
    name, intervals = part["property"], part["intervals"]
    systems = list(intervals[0]["scores"][metric])
    tested = len(_tested(part, metric))
    rows: list[list[str]] = []
    differences: list[list[str]] = []
    for entry in intervals:
        label, scores = interval_label(name, entry["over"], entry["to"]), entry["scores"][metric]
        rows.append([label, str(entry["sentences"]), *(_with_interval(scores[one], "score") for one in systems)])
        for system, one in entry["differences"][metric].items():
            differences.append([label, system, _with_interval(one, "difference", "+")])
            if tested:
                p, adjusted = p_value(one.get("p"), star=False), p_value(one.get("p_holm"), star=not low)
                differences[-1] += [number(one.get("detectable")), p, adjusted]
    resampled = sum("low" in entry["scores"][metric][systems[0]] for entry in intervals)
    notes = ["in brackets: 95 % bootstrap intervals"] if resampled else []
    if 0 < resampled < len(intervals):
        notes.append(f"no intervals and tests for fewer than {LEAST_SENTENCES} {over}")
    tables = [Table(f"{metric} by {name}", [name, "sentences", *systems], rows, notes)]
    if differences:
        header = [name, "system", "difference"] + (["MDD", "p", "Holm"] if tested else [])
        notes = [
            DETECTABLE,
            f"p of the bootstrap over {over}, and over seeds where there are several; {corrected(tested)}",
            *([too_low(metric)] if low else []),
        ]
        title = f"{metric} by {name}, against {baseline}"
        tables.append(Table(title, header, differences, notes if tested else []))
    return tables


def _with_interval(entry: Mapping[str, float], key: str, sign: str = "") -> str:
    text = f"{entry[key]:{sign}.2f}"
    return f"{text} [{entry['low']:{sign}.2f}, {entry['high']:{sign}.2f}]" if "low" in entry else text


def length_table(table: Mapping[str, Any], names: Sequence[str], sentences: int, baseline: str | None) -> Table:
    """The result of :func:`by_length` for the systems ``names``, with gains in brackets (Figure 2 of PASCAL)."""
    rows = []
    for bucket in table["buckets"]:
        share = 100 * bucket["sentences"] / sentences
        row = [f"({bucket['over']}, {bucket['to']}]", str(bucket["sentences"]), f"{share:.1f}%"]
        for name in names:
            score = bucket["BLEU"][name]
            gain = "" if baseline in (None, name) else f" ({score - bucket['BLEU'][baseline]:+.1f})"
            row.append(number(score, 1) + gain)
        rows.append(row)
    notes = [] if baseline is None else [f"in brackets the gain over {baseline}"]
    return Table(f"BLEU by length of the {table['of']}", ["tokens", "sentences", "share", *names], rows, notes)
