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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from by_language import (
    correlations,
    draw_languages,
    languages_sentence,
    languages_table,
    length_penalties,
    more_about,
    other_metrics,
    others_table,
    planned,
    where,
)
from relative import corpora_of, others_beside, relative_sentence, relative_table
from wording import (
    MARKERS,
    NOT_RUN,
    SEEDS,
    SYSTEMS,
    WIDTH,
    folded,
    interval,
    is_significant,
    listed,
    low_to_high,
    new_figure,
    row_of,
    seeds_of,
    twin_of,
    with_zero,
)

from fairseq_syntax.lab.figures.plot import COLORS, save
from fairseq_syntax.lab.scoring.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"

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
    significant = sum(map(is_significant, gains))
    where = "on no test" if not significant else f"on {significant} of {len(gains)} tests"
    return (
        f"With a tenth of the captions, PSH gains {low_to_high([gain[0] for gain in gains])} BLEU, "
        f"significantly {where}."
    )


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


# -- the page ----------------------------------------------------------------------------------------------------------


def in_both_metrics(table: Callable[[str], Table]) -> str:
    """A table in BLEU, and folded below it in chrF."""
    return f"{table('BLEU').render('markdown')}\n\n{folded('In chrF', table('chrF'))}"


def page(results: Mapping[str, Any]) -> str:
    """The page of the atlas, or of the languages alone where the results are those of other recipes."""
    languages = results["languages"]
    is_atlas = "multi30k" in results
    titles = ["One English text in six languages", "The same text: label embeddings and PASCAL"]
    others = others_table(languages, titles[1] if is_atlas else "Other systems")
    first, controls = next(iter(planned(languages).items()))
    corpora = corpora_of(results)
    beside = others_beside(corpora, first)
    parts = {
        "languages": languages_table(languages, titles[0] if is_atlas else "Gains by language").render("markdown"),
        "others": others.render("markdown") if len(planned(languages)) > 1 else "",
        "metrics": other_metrics(languages),
        "penalties": length_penalties(results.get("length_penalty", {})),
        "where": where(languages),
        "more": more_about(languages),
        "correlations": correlations(languages),
        "relative": in_both_metrics(lambda metric: relative_table(corpora, first, controls, metric)),
        "beside": beside.render("markdown") if beside else "",
    }
    sentences = [languages_sentence(languages), relative_sentence(corpora, first)]
    if is_atlas:
        tests, quality = results["multi30k"], results["parse_quality"]
        sentences = [
            gains_sentence(tests),
            syntax_sentence(tests),
            f"One English text in six languages: {sentences[0]}",
            sentences[1],
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
