#!/usr/bin/env python3
"""Writes docs/what-syntax-gives.md and its pictures from results.json, which measure.py made.

    python examples/atlas/page.py
    python examples/atlas/page.py --results mine/results.json --output mine

Every figure of the page, in its sentences too, is put in from results.json. The tables say what has not been run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import correlation, median
from typing import TYPE_CHECKING, Any

from fairseq_syntax.lab.figures.plot import COLORS, save
from fairseq_syntax.lab.scoring.shares import drawn_from, units_drawn
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES
from fairseq_syntax.lab.scoring.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
SYSTEMS = {"PSH": "PSH", "CSH+PSH": "CSH+PSH", "sennrich_haddow": "S&H", "PASCAL": "PASCAL", "LDD": "LDD", "UDD": "UDD"}
# What was planned; a row that has not been run is shown empty.
MULTI30K_CONTROLS = {
    "PSH": ("linear", "random"),
    "CSH+PSH": ("linear", "random"),
    "sennrich_haddow": ("relabelled", "linear"),
    "PASCAL": ("linear", "random"),
    "LDD": ("random",),
    "UDD": (),
}
SAME_INPUT = ("sennrich_haddow", "linear")  # it reads labels alone, and linear trees have those of the parse
PARSE_SYSTEMS = ("PASCAL", "PSH", "LDD", "UDP", "GCN")
PARSES = {
    "gold": "gold trees",
    "wrong10": "10 % of the arcs wrong",
    "wrong30": "30 %",
    "wrong60": "60 %",
    "parser": "the parser's",
    "linear": "*linear*",
    "random": "*random*",
}
NOT_RUN = "not run"
SEEDS = 3  # of all rows, unless a table or a sentence says otherwise

Figures = Sequence[float]  # value, low, high, and of some the smallest that would be found


# -- words -------------------------------------------------------------------------------------------------------------


def is_significant(figures: Figures) -> bool:
    """Whether the 95 % interval excludes 0."""
    return figures[1] > 0 or figures[2] < 0


def interval(figures: Figures | None) -> str:
    """``+1.26 (+0.60 to +1.92)``, in bold where it is significant."""
    if figures is None:
        return NOT_RUN
    text = f"{figures[0]:+.2f} ({figures[1]:+.2f}\u00a0to\u00a0{figures[2]:+.2f})"  # in a narrow column, two lines
    return f"**{text}**" if is_significant(figures) else text


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def seeds_of(count: int) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{count} seed{'' if count == 1 else 's'}"


def low_to_high(values: Sequence[float], form: str = "{:.1f}") -> str:
    """``1.3 to 1.6``, or one figure where they do not differ."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


# -- Multi30k ----------------------------------------------------------------------------------------------------------


def controls_table(tests: Mapping[str, Any], metric: str = "BLEU") -> Table:
    """Gains after 8,000 updates, and what is left with control parses, on both tests."""
    rows = []
    for system, controls in MULTI30K_CONTROLS.items():
        of_tests = [row_of(metrics[metric], system) for metrics in tests.values()]
        rows.append([SYSTEMS[system], "the parse", *(interval(row.get("gain")) for row in of_tests)])
        for control in controls:
            twins = [twin_of(row, control) for row in of_tests]
            rows.append(["", f"*{control}*{fewer(*twins)}", *(interval(twin.get("gain")) for twin in twins)])
            rows.append(["", f"the parse − *{control}*", *(interval(twin.get("syntax")) for twin in twins)])
    years = [name.replace("test_", "test of ") for name in tests]
    notes = ["95 % intervals over sentences and seeds, three seeds; bold: significant"]
    title = f"{metric} gained over the plain Transformer, Multi30k English–German, 8,000 updates"
    return Table(title, ["system", "trained and tested on", *years], rows, notes)


def row_of(rows: Sequence[Mapping[str, Any]], system: str) -> Mapping[str, Any]:
    """The row of a system, empty where it has not been run."""
    return next((row for row in rows if row["system"] == system), {})


def twin_of(row: Mapping[str, Any], control: str) -> Mapping[str, Any]:
    """What a row says of a control, empty where that has not been run."""
    return row.get("controls", {}).get(control, {})


def gains_sentence(tests: Mapping[str, Any]) -> str:
    """Which systems gain on Multi30k."""
    gaining, others, of_gaining = [], [], []
    for system in MULTI30K_CONTROLS:
        rows = [row for metrics in tests.values() if (row := row_of(metrics["BLEU"], system))]
        if len(rows) < len(tests):
            continue  # not run on both
        if all(is_significant(row["gain"]) and row["gain"][0] > 0 for row in rows):
            gaining.append(SYSTEMS[system])
            of_gaining += [row["gain"][0] for row in rows]
        elif not any(is_significant(row["gain"]) for row in rows):
            others.append(SYSTEMS[system])
    return (
        f"On 29,000 captions, English to German, {listed(gaining)} gain {low_to_high(of_gaining)} BLEU over a plain "
        f"Transformer, significantly on both tests; the gains of {listed(others)} are not significant."
    )


def syntax_sentence(tests: Mapping[str, Any]) -> str:
    """What of the gains on Multi30k is kept with controls."""
    systems = {}
    for system, controls in MULTI30K_CONTROLS.items():
        rows = [row for metrics in tests.values() if (row := row_of(metrics["BLEU"], system))]
        telling = [control for control in controls if (system, control) != SAME_INPUT]
        if kept := [text for control in telling if (text := kept_with(control, rows))]:
            systems[SYSTEMS[system]] = listed(kept)
    if not systems:
        return "What of these gains is due to syntax has not been measured yet."
    parts = (f"{system} keeps of its gain {kept}" for system, kept in systems.items())
    return f"Trained and tested on control parses, {'; '.join(parts)}."


def kept_with(control: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """What a system keeps of its gains on the tests with a control; empty without such gains or such runs."""
    twins = [twin_of(row, control) for row in rows]
    if not twins or not all(twin.get("kept") for twin in twins):
        return ""
    significant = [is_significant(twin["syntax"]) for twin in twins]
    how = "significantly less" if all(significant) else "significantly less on one test" if any(significant) else ""
    shares = [100 * twin["kept"][0] for twin in twins]
    share = f"{low_to_high(shares, '{:.0f}')} %" if max(shares) > 0 else "nothing"
    return f"{share} with *{control}* trees ({how or 'not significantly less'}{fewer(*twins)})"


def fewer(*twins: Mapping[str, Any]) -> str:
    """``, 2 seeds`` where a control has fewer seeds than the systems."""
    seeds = min((twin["seeds"] for twin in twins if twin), default=SEEDS)
    return f", {seeds_of(seeds)}" if seeds < SEEDS else ""


# -- the amount of data ------------------------------------------------------------------------------------------------

AMOUNT_ROWS = {"PSH": ("linear",), "sennrich_haddow": (), "PASCAL": ()}
PAIRS = {"tenth": "2,900", "third": "9,667"}


def amounts_table(amounts: Mapping[str, Any], whole: Mapping[str, Any], metric: str = "BLEU") -> Table:
    """What systems gain with a tenth, a third and all of the pairs, on both tests."""
    parts = {**{part: amounts.get(part, {}) for part in PAIRS}, "all": whole}
    rows = []
    for system, controls in AMOUNT_ROWS.items():
        for kind in ("gain", *controls):
            title = SYSTEMS[system] if kind == "gain" else f"{SYSTEMS[system]} − *{kind}*"
            for test in whole:
                row = [title, test.replace("test_", "")]
                for of_part in parts.values():
                    gains = row_of(of_part.get(test, {}).get(metric, []), system)
                    row.append(interval(gains.get("gain") if kind == "gain" else twin_of(gains, kind).get("syntax")))
                rows.append(row)
    head = ["system", "test", *(f"{pairs} pairs" for pairs in PAIRS.values()), "29,000 pairs"]
    notes = ["95 % intervals over sentences and seeds; bold: significant", "29,000 pairs: 8,000 updates"]
    return Table(f"{metric} gained over the plain Transformer, Multi30k English–German", head, rows, notes)


def amounts_sentence(amounts: Mapping[str, Any]) -> str:
    """What a tenth of the pairs changes, for supervised heads."""
    rows = [
        row_of(of_test.get("BLEU", []), "PSH") for name, of_test in amounts.get("tenth", {}).items() if name != "seeds"
    ]
    gains = [row["gain"] for row in rows if row]
    if not gains:
        return "Whether syntax gives more where there is less to learn from has not been measured yet."
    significant = all(map(is_significant, gains))
    return (
        f"With a tenth of the captions, PSH gains {low_to_high([gain[0] for gain in gains])} BLEU, "
        f"{'significantly' if significant else 'not significantly on both tests'}."
    )


# -- languages ---------------------------------------------------------------------------------------------------------


def planned(languages: Mapping[str, Any]) -> dict[str, list[str]]:
    """The systems of the recipes, without the baselines, and their control parses."""
    rows: dict[str, list[str]] = {}
    for of in languages.values():
        for system, controls in of["systems"].items():
            rows[system] = list(dict.fromkeys([*rows.get(system, []), *controls]))
    return rows


def first_of(languages: Mapping[str, Any]) -> str:
    """The system that the sentences and the picture are about: the first one of the recipes."""
    return next(iter(planned(languages)))


def shown(system: str) -> str:
    """A system's name on the page."""
    return SYSTEMS.get(system, system)


def languages_table(languages: Mapping[str, Any], title: str) -> Table:
    """Of each language its distance from English, the scores, and the gains of the first system."""
    system, controls = next(iter(planned(languages).items()))
    rows = []
    for lang, of in languages.items():
        order, seeds = of["order"], of.get("seeds", {})
        row = [lang, f"{100 * order['crossing']:.0f} %" if order else NOT_RUN, plain_score(of)]
        rows.append([*row, *gains_of(of, system, controls), counted(seeds, system, {of["baseline"]: "plain"})])
    head = ["language", "crossing", "plain", *gains_head(system, controls), "seeds"]
    notes = [
        "crossing: share of crossing word alignments of source and target",
        tokenizers(languages),
        f"95 % intervals over {drawn(languages)} and seeds; bold: significant",
    ]
    return Table(title, head, rows, notes)


def plain_score(of: Mapping[str, Any], metric: str = "BLEU") -> str:
    """The baseline's score in a language."""
    scores = of.get("metrics", {}).get(metric, {}).get("scores", {})
    return f"{scores[of['baseline']]:.2f}" if of["baseline"] in scores else NOT_RUN


def gains_of(of: Mapping[str, Any], system: str, controls: Sequence[str], metric: str = "BLEU") -> list[str]:
    """What a system gains in a language, and how much of it is more than each control gains."""
    row = row_of(of.get("metrics", {}).get(metric, {}).get("rows", []), system)
    return [interval(row.get("gain")), *(interval(twin_of(row, control).get("syntax")) for control in controls)]


def gains_head(system: str, controls: Sequence[str]) -> list[str]:
    """The titles of these columns."""
    return [f"{shown(system)} gains", *(f"the parse − *{control}*" for control in controls)]


def tokenizers(languages: Mapping[str, Any]) -> str:
    """``BLEU by 13a, of Chinese by zh``."""
    of_tokenizer: dict[str, list[str]] = {}
    for lang, of in languages.items():
        if found := re.search(r"tok:(ja-mecab|[^|]+)", of.get("metrics", {}).get("BLEU", {}).get("signature", "")):
            of_tokenizer.setdefault(found[1], []).append(lang)
    most = max(of_tokenizer, key=lambda name: len(of_tokenizer[name]), default="13a")
    others = (f"of {listed(langs)} by {name}" for name, langs in of_tokenizer.items() if name != most)
    return ", ".join([f"BLEU by {most}", *others])


def drawn(languages: Mapping[str, Any]) -> str:
    """What the bootstrap draws: groups of sentences, such as pages, or single sentences."""
    return listed(sorted({units_drawn(of) for of in languages.values() if "sentences" in of})) or "sentences"


def counted(seeds: Mapping[str, int], system: str, more: Mapping[str, str] | None = None) -> str:
    """The number of seeds of a system and its controls: ``3``, or ``2 (PSH), 1 (linear)`` where they differ.

    Args:
        more: names of other systems that are counted
    """
    by_count: dict[int, list[str]] = {}
    for name, count in seeds.items():
        family, _, control = name.partition(".")
        if family == system or name in (more or {}):
            by_count.setdefault(count, []).append(control or (more or {}).get(name, shown(name)))
    if len(by_count) > 1:
        return ", ".join(f"{count} ({', '.join(names)})" for count, names in by_count.items())
    return str(*by_count) if by_count else "0"


def others_table(languages: Mapping[str, Any], title: str) -> Table:
    """What the other systems gain in each language, and what of it their controls do not."""
    head, rows = ["language"], [[lang] for lang in languages]
    for system, controls in list(planned(languages).items())[1:]:
        head += [*gains_head(system, controls), "seeds"]
        for row, of in zip(rows, languages.values()):
            row += [*gains_of(of, system, controls), counted(of.get("seeds", {}), system)]
    return Table(title, head, rows, ["BLEU and intervals as in the table before"])


def other_metrics(languages: Mapping[str, Any]) -> str:
    """The first system's gains in the other metrics, and in length, folded; empty where nothing has been run."""
    (system, controls), *_ = planned(languages).items()
    rows = []
    for lang, of in languages.items():
        for metric in of.get("metrics", {}):
            if metric != "BLEU":
                rows.append([lang, metric, plain_score(of, metric), *gains_of(of, system, controls, metric)])
        if system in (lengths := of.get("lengths", {})):
            others = (of["baseline"], *(f"{system}.{control}" for control in controls))
            less = [
                f"{round(lengths[system] - lengths[one], 1) + 0.0:+.1f}" if one in lengths else NOT_RUN
                for one in others
            ]
            rows.append([lang, "length, %", f"{lengths[of['baseline']]:.1f}", *less])
    notes = ["length: characters of the translations in percent of the references'"]
    head = ["language", "metric", "plain", *gains_head(system, controls)]
    return folded("In other metrics", Table("", head, rows, notes)) if rows else ""


def folded(summary: str, table: Table) -> str:
    """A table that a click shows: who looks for one does not scroll through the others."""
    return f"<details><summary>{summary}</summary>\n\n{table.render('markdown')}\n\n</details>"


def where(languages: Mapping[str, Any]) -> str:
    """What the first system gains by properties of the parse, a table for each language that has been run."""
    (system, controls), *_ = planned(languages).items()
    tables = []
    for lang, of in languages.items():
        by = of.get("metrics", {}).get("BLEU", {}).get("by", [])
        rows = []
        for one in by:
            for interval_of in one["intervals"]:
                row = row_of(interval_of["rows"], system)
                # The plain Transformer alone has been run, or the interval would be of too few pages.
                if not row.get("gain") or drawn_from(interval_of) < LEAST_SENTENCES:
                    continue
                less = [interval(twin_of(row, control).get("syntax")) for control in controls[:1]]
                between = bounds(interval_of["over"], interval_of["to"], whole=one["property"] != "dependency-length")
                lines = str(interval_of["sentences"])
                rows.append([one["property"], between, lines, interval(row.get("gain")), *less])
        if rows:
            head = ["property", "", "lines", *gains_head(system, controls[:1])]
            tables.append(folded(f"{lang}: where", Table("", head, rows, [])))
    return "\n\n".join(tables) or "Where in these languages the gain is, has not been measured yet."


def bounds(over: float | None, to: float | None, *, whole: bool) -> str:
    """``11 to 20`` of whole numbers, ``> 10, ≤ 20`` of others; ``≤ 10`` or ``> 20`` where a bound is missing."""
    if over is None:
        return "0" if whole and to == 0 else f"≤ {to:g}"
    if to is None:
        return f"> {over:g}"
    if not whole:
        return f"> {over:g}, ≤ {to:g}"
    return f"{to:g}" if over + 1 == to else f"{over + 1:g} to {to:g}"


def begun(languages: Mapping[str, Any], system: str, metric: str = "BLEU") -> dict[str, Any]:
    """A system's row in a metric, of the languages in which it has been run."""
    rows = {
        lang: row_of(of.get("metrics", {}).get(metric, {}).get("rows", []), system) for lang, of in languages.items()
    }
    return {lang: row for lang, row in rows.items() if row.get("gain")}


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def named(langs: Collection[str], of: Collection[str]) -> str:
    """The names of languages: ``German and French``, or ``all six languages`` of so many."""
    if len(langs) < len(of) or len(of) == 1:
        return listed(list(langs))
    return f"all {NUMBERS[len(of)] if len(of) < len(NUMBERS) else len(of)} languages"


def where_significant(languages: Mapping[str, Any], metric: str) -> str:
    """``gains significantly in French and loses significantly in German``; empty if the first system does neither."""
    gains = {lang: row["gain"] for lang, row in begun(languages, first_of(languages), metric).items()}
    parts = []
    for verb, sign in (("gains", 1), ("loses", -1)):
        if langs := [lang for lang, gain in gains.items() if is_significant(gain) and sign * gain[0] > 0]:
            parts.append(f"{verb} significantly in {named(langs, languages)}")
    return " and ".join(parts)


def languages_sentence(languages: Mapping[str, Any]) -> str:
    """What the first system gains by language, and where it does better or worse with the parse than with controls."""
    orders = {lang: of["order"]["crossing"] for lang, of in languages.items() if of["order"]}
    text = ""
    if len(orders) > 1:
        near, far = (pick(orders, key=orders.__getitem__) for pick in (min, max))
        shares = [f"{100 * orders[lang]:.0f} %" for lang in (near, far)]
        text = f"{shares[0]} of the word alignments cross in {near} and {shares[1]} in {far}. "
    system = first_of(languages)
    rows = begun(languages, system)
    if not rows:
        return f"{text}What syntax gives in these languages has not been measured yet."
    gains = [row["gain"][0] for row in rows.values()]
    text += (
        f"{shown(system)} gains {low_to_high(gains, '{:+.1f}')} BLEU in {named(rows, languages)}; "
        f"it {where_significant(languages, 'BLEU') or 'gains nowhere significantly'}."
    )
    if differences := against_controls(languages, system):
        text += f" With the parse, it is {differences}."
    if in_chrf := where_significant(languages, "chrF"):
        text += f" In chrF, it {in_chrf}."
    counts = seeds_of_rows(languages, system)
    text += "" if min(counts) >= SEEDS else f" (Seeds per row: {low_to_high(counts, '{:.0f}')}.)"
    for other in list(planned(languages))[1:]:
        if differences := against_controls(languages, other):
            counts = seeds_of_rows(languages, other)
            fewest = "" if min(counts) >= SEEDS else f" ({seeds_of(min(counts))})"
            text += f" With the parse, {shown(other)} is {differences}{fewest}."
    return text


def against_controls(languages: Mapping[str, Any], system: str) -> str:
    """``significantly better than with *random* trees in French``; empty if no difference is significant."""
    rows, differences = begun(languages, system), []
    for control in reversed(planned(languages)[system]):
        added = {lang: twin_of(row, control).get("syntax") for lang, row in rows.items()}
        for word, sign in (("better", 1), ("worse", -1)):
            if langs := [lang for lang, one in added.items() if one and is_significant(one) and sign * one[0] > 0]:
                differences.append(f"significantly {word} than with *{control}* trees in {named(langs, languages)}")
    return ", and ".join(differences)


def seeds_of_rows(languages: Mapping[str, Any], system: str) -> list[int]:
    """The numbers of seeds of the baseline, of a system and of its controls, in the languages in which it was run."""
    names = (system, *(f"{system}.{control}" for control in planned(languages)[system]))
    return [
        count
        for lang in begun(languages, system)
        for name, count in languages[lang]["seeds"].items()
        if name in (*names, languages[lang]["baseline"])
    ]


# The smallest correlation that is significant (two-sided, 5 %, Student's t), by the number of points.
LEAST_CORRELATION = {4: 0.950, 5: 0.878, 6: 0.811, 7: 0.754, 8: 0.707, 9: 0.666, 10: 0.632}


def correlations(languages: Mapping[str, Any]) -> str:
    """How far the gain, and what the parse adds to the first control, go with the share of crossing alignments."""
    rows = {lang: row for lang, row in begun(languages, first_of(languages)).items() if languages[lang]["order"]}
    crossing = [languages[lang]["order"]["crossing"] for lang in rows]
    number = NUMBERS[len(rows)] if len(rows) < len(NUMBERS) else str(len(rows))
    if len(rows) < 3:
        return ""
    gains = [row["gain"][0] for row in rows.values()]
    text = f"A regression over {number} points says little"
    if least := LEAST_CORRELATION.get(len(rows)):
        text += f": with {number} languages, a correlation has to be above {least} to be significant"
    text += f". Here the share of crossing alignments correlates with the gain by {with_range(crossing, gains)}"
    for control in planned(languages)[first_of(languages)][:1]:
        added = [syntax[0] for row in rows.values() if (syntax := twin_of(row, control).get("syntax"))]
        if len(added) == len(rows):
            text += f", and with what the parse adds to *{control}* trees by {with_range(crossing, added)}"
    return f"{text}. In brackets: without any one of the languages; no correction is made for looking twice."


def with_range(x: Sequence[float], y: Sequence[float]) -> str:
    """A correlation, and in brackets its range if one point is left out: ``+0.80 (+0.71 to +0.95)``."""
    without = [correlation([*x[:i], *x[i + 1 :]], [*y[:i], *y[i + 1 :]]) for i in range(len(x))]
    return f"{correlation(x, y):+.2f} ({min(without):+.2f} to {max(without):+.2f})"


def longer_sentence(longer: Mapping[str, Any]) -> str:
    """Whether the gains are more than faster learning."""
    if not longer:
        return "Whether the gains are more than faster learning has not been measured: all models have 4,000 updates."
    before, seeds = longer["before"], longer["seeds"]
    after_row, before_row = (row_of(part["rows"], "PSH") for part in (longer, before))
    after, usual = (part["scores"]["transformer"] for part in (longer, before))
    text = (
        f"Are these gains only faster learning? With 8,000 updates instead of 4,000 (French, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}), the plain Transformer reaches {after:.2f} BLEU instead of {usual:.2f}, "
        f"and PSH gains {interval(after_row['gain'])} instead of {interval(before_row['gain'])}"
    )
    syntax, before_syntax = (twin_of(row, "linear").get("syntax") for row in (after_row, before_row))
    if syntax:
        text += f"; the parse − *linear* is {interval(syntax)} instead of {interval(before_syntax)}"
    return f"{text}."


# -- the quality of the parse ------------------------------------------------------------------------------------------


def name_of(system: str, parse: str, sure: bool = True) -> str:
    """The name of a row: LDD has two where arcs are wrong, by what its distributions say."""
    if parse.startswith("wrong"):
        return f"{system}.{parse}.{'sharp' if sure else 'hedged'}"
    return f"{system}.{parse}"


def parse_rows() -> list[tuple[str, str, bool]]:
    """System, parse, and whether its distributions are sure, of all rows that were planned."""
    rows = [(system, parse, True) for system in PARSE_SYSTEMS for parse in PARSES]
    hedged = [("LDD", parse, False) for parse in PARSES if parse.startswith("wrong")]
    return [*rows, *hedged]


def parse_table(quality: Mapping[str, Any], metric: str = "BLEU") -> Table:
    """What is gained over the plain Transformer, by system and parse."""
    rows = []
    for parse, title in PARSES.items():
        accuracy = quality["attachment"].get(parse, quality["attachment"].get(f"{parse}.sharp"))
        row = [title, NOT_RUN if accuracy is None else f"{accuracy:.0f}"]
        for system in PARSE_SYSTEMS:
            row.append(_cell(quality, name_of(system, parse), metric))
        row.append(_cell(quality, name_of("LDD", parse, sure=False), metric) if parse.startswith("wrong") else "")
        rows.append(row)
    plain = quality["rows"].get("transformer")
    notes = [
        f"{metric} over the plain Transformer, 95 % intervals over sentences and seeds; bold: significant; (n): seeds"
    ]
    if plain:
        notes.insert(0, f"the plain Transformer has {plain['score'][metric]:.2f} {metric} ({seeds_of(plain['seeds'])})")
    for against, title in (("gain", "the plain Transformer"), ("to_gold", "the same system with gold trees")):
        smallest = detectable(quality, against, metric)
        if smallest is not None:
            found = f"the smallest difference from {title} that would be found four times in five"
            notes.append(f"{found}: {smallest:.1f} {metric} (median of the rows)")
    return Table(
        f"ATIS English–Turkish, {quality['sentences']} sentences",
        ["trained and tested on", "UAS", *PARSE_SYSTEMS, "LDD, unsure"],
        rows,
        notes,
    )


def _cell(quality: Mapping[str, Any], name: str, metric: str) -> str:
    row = quality["rows"].get(name)
    return f"{interval(row['gain'][metric])} ({row['seeds']})" if row and row["gain"] else NOT_RUN


def detectable(quality: Mapping[str, Any], against: str, metric: str = "BLEU") -> float | None:
    """The median of the smallest differences that these sentences and seeds can show.

    Args:
        against: ``gain``, from the plain Transformer, or ``to_gold``, from the same system with gold trees
    """
    values = [row[against][metric][3] for row in quality["rows"].values() if row[against]]
    return median(values) if values else None


def quality_sentence(quality: Mapping[str, Any] | None) -> str:
    """What wrong arcs cost."""
    rows = (quality or {"rows": {}})["rows"]
    losses = {
        system: row["to_gold"]["BLEU"]
        for system in PARSE_SYSTEMS
        if (row := rows.get(f"{system}.random")) and row["to_gold"]
    }
    if not quality or not losses:
        return "What a parser's errors cost is being measured with gold trees."
    costly = [f"{system} {-figures[0]:.1f}" for system, figures in losses.items() if is_significant(figures)]
    seeds = min(rows[f"{system}.random"]["seeds"] for system in losses)
    smallest = detectable(quality, "to_gold")
    tested = f"Random trees in place of gold ones ({quality['attachment']['random']:.0f} % of the heads right)"
    power = f"; the smallest difference that {quality['sentences']} sentences would show is {smallest:.1f} BLEU"
    of_seeds = seeds_of(seeds)
    not_costly = [system for system in losses if not is_significant(losses[system])]
    parts = [
        f"cost {listed(costly)} BLEU" if costly else "",
        f"make no significant difference to {listed(not_costly)}" if not_costly else "",
    ]
    return f"{tested} {listed([part for part in parts if part])} ({of_seeds}){power}."


WIDTH = 4.3  # inches: on a phone, letters of 9 points are hardly smaller than the text around them
MARKERS = {"the parse": "o", "linear": "s", "random": "^", "parser": "D"}


def draw_quality(quality: Mapping[str, Any]) -> Figure:
    """BLEU gained over the plain Transformer against the share of right heads, a panel for each system."""
    figure = new_figure(WIDTH, 5.4)
    *panels, last = figure.subplots(3, 2, sharex=True, sharey=True).flat
    for axes, system in zip(panels, PARSE_SYSTEMS, strict=True):
        axes.set_title(system)
        with_zero(axes.axhline, axes)
        kinds = {True: list(PARSES), False: [p for p in PARSES if p.startswith("wrong")] * (system == "LDD")}
        for sure, parses in kinds.items():
            points = []
            for parse in parses:
                name = name_of(system, parse, sure)
                row = quality["rows"].get(name)
                accuracy = quality["attachment"].get(name.partition(".")[2])
                if row and row["gain"] and accuracy is not None:
                    points.append((accuracy, *row["gain"]["BLEU"][:3], parse))
            curve = sorted(point for point in points if point[4].startswith(("gold", "wrong")))
            color = COLORS[0] if sure else COLORS[1]
            axes.plot([p[0] for p in curve], [p[1] for p in curve], color=color, linewidth=1)
            for accuracy, value, low, high, parse in points:
                marker, errors = MARKERS.get(parse, "o"), [[value - low], [high - value]]
                axes.errorbar([accuracy], [value], yerr=errors, fmt=marker, color=color, markersize=4, linewidth=0.8)
        axes.set_xlim(0, 104)
    panels[-2].tick_params(labelbottom=True)  # nothing but the key is below it
    figure.supxlabel("UAS, %")
    figure.supylabel("BLEU over the plain Transformer")
    last.axis("off")
    key = {"o-": "gold, damaged", "D": "the parser's", "s": "linear", "^": "random"}
    for form, title in key.items():
        last.plot([], [], form, color=COLORS[0], markersize=4, linewidth=1, label=title)
    last.plot([], [], "o-", color=COLORS[1], markersize=4, linewidth=1, label="damaged, unsure")
    last.legend(loc="center", title="trees", frameon=False)
    return figure


def draw_languages(languages: Mapping[str, Any]) -> Figure:
    """The first system's gain with the parse and with control parses, a row for each language.

    Languages are ordered by the share of crossing alignments; those without this share are last.
    """

    def crossing(lang: str) -> float:
        order = languages[lang]["order"]
        return float(order["crossing"]) if order else 1.0

    ordered, rows = sorted(languages, key=crossing), begun(languages, first_of(languages))
    figure = new_figure(WIDTH, 1.2 + 0.5 * len(ordered))
    axes = figure.subplots()
    with_zero(axes.axvline, axes)
    for at, lang in enumerate(ordered):
        row = rows.get(lang)
        gains = {"the parse": row["gain"]} if row else {}
        gains |= {control: twin["gain"] for control, twin in row["controls"].items()} if row else {}
        for place, (kind, gain) in enumerate(gains.items()):
            marker = MARKERS.get(kind, "v")
            form: Any = {"fmt": marker, "color": COLORS[place], "markersize": 5, "label": kind}
            axes.errorbar([gain[0]], [at + 0.22 * place], xerr=[[gain[0] - gain[1]], [gain[2] - gain[0]]], **form)
        if not gains:
            axes.annotate(NOT_RUN, (0, at), xytext=(4, 0), textcoords="offset points", va="center")
    handles, labels = axes.get_legend_handles_labels()
    if unique := dict(zip(labels, handles)):
        at_top: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": len(unique), "frameon": False}
        axes.legend(unique.values(), unique.keys(), **at_top)
    titles = [f"{lang}, {100 * crossing(lang):.0f} %" if languages[lang]["order"] else lang for lang in ordered]
    axes.set_yticks(range(len(ordered)), titles)
    axes.set_ylim(len(ordered) - 0.4, -0.4)  # the first language on top
    axes.set_xlabel("BLEU over the plain Transformer")
    return figure


def with_zero(line: Any, axes: Axes) -> None:
    """A grid without a box around it, and a line at 0."""
    line(0, color="#8a939c", linewidth=0.8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def new_figure(width: float, height: float) -> Figure:
    """A white figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


# -- the page ----------------------------------------------------------------------------------------------------------


def in_both_metrics(table: Callable[[str], Table]) -> str:
    """A table in BLEU, and folded below it in chrF."""
    return f"{table('BLEU').render('markdown')}\n\n{folded('In chrF', table('chrF'))}"


def page(results: Mapping[str, Any]) -> str:
    """The page of the atlas, or of the languages alone where the results are those of other recipes."""
    languages = results["languages"]
    is_atlas = results.keys() > {"languages"}
    titles = ["One English text in six languages", "The same text: label embeddings and PASCAL"]
    others = others_table(languages, titles[1] if is_atlas else "Other systems")
    parts = {
        "languages": languages_table(languages, titles[0] if is_atlas else "Gains by language").render("markdown"),
        "others": others.render("markdown") if len(planned(languages)) > 1 else "",
        "metrics": other_metrics(languages),
        "where": where(languages),
        "correlations": correlations(languages),
    }
    sentences = [languages_sentence(languages)]
    if is_atlas:
        tests, quality = results["multi30k"], results["parse_quality"]
        sentences = [
            gains_sentence(tests),
            syntax_sentence(tests),
            f"One English text in six languages: {sentences[0]}",
            amounts_sentence(results["amounts"]),
            quality_sentence(quality),
        ]
        parts |= {
            "longer": longer_sentence(results["longer"]),
            "amounts": in_both_metrics(lambda metric: amounts_table(results["amounts"], tests, metric)),
            "quality": in_both_metrics(lambda metric: parse_table(quality, metric)) if quality else "Not run yet.",
            "controls": in_both_metrics(lambda metric: controls_table(tests, metric)),
        }
    template = (HERE / ("page.txt" if is_atlas else "page-of-languages.txt")).read_text(encoding="utf-8")
    text = template.format(definitions=DEFINITIONS, sentences="\n".join(f"- {one}" for one in sentences), **parts)
    return re.sub(r"\n{3,}", "\n\n", text)  # parts may be empty


DEFINITIONS = """\
*Significant*: the 95 % interval over sentences and seeds excludes 0; no correction for several comparisons. A *control*
is the same system on parses of the same form with less syntax: *linear* (each word attaches to the one before; the
labels stay), *random* (any tree), *relabelled* (the labels change places). The part of a gain that a control keeps is
not due to syntax."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results.json", metavar="FILE")
    parser.add_argument("--output", type=Path, default=DOCS, metavar="DIR", help="default: docs/")
    args = parser.parse_args()
    from matplotlib import rc_context

    results = json.loads(args.results.read_text(encoding="utf-8"))
    if args.output == DOCS and "multi30k" not in results:
        parser.error("for results of your own recipes, give --output DIR: docs/ has the page of the atlas")
    (args.output / "figures").mkdir(parents=True, exist_ok=True)
    (args.output / "what-syntax-gives.md").write_text(page(results), encoding="utf-8")
    with rc_context({"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 9, "figure.labelsize": 9}):
        save(draw_languages(results["languages"]), args.output / "figures" / "atlas-languages.svg")
        if results.get("parse_quality"):
            save(draw_quality(results["parse_quality"]), args.output / "figures" / "atlas-parse-quality.svg")
    print(args.output / "what-syntax-gives.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
