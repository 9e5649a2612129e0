#!/usr/bin/env python3
"""Writes docs/what-syntax-gives.md and its pictures from results.json, which measure.py made.

    python examples/atlas/page.py
    python examples/atlas/page.py --results mine/results.json --output mine

The tables are put into page.txt, whose sentences are written by hand; a test compares the figures of its first
paragraphs with the results. The tables say what has not been run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from by_language import languages_table, length_penalties, other_metrics, others_table, planned, where
from from_models import agreement_table, attachment_table
from plans import (
    BASELINES,
    LANGUAGES,
    TUNED,
    TUNED_OTHERS,
    Planned,
    planned_seeds,
    seeds_of_recipes,
    setting,
    systems_of,
    validated,
)
from relative import corpora_of, draw_gains, mean_table, others_beside, over_languages, plain_table, relative_table
from shared import (
    MARKERS,
    NOT_RUN,
    PLACEBO,
    SYSTEMS,
    WIDTH,
    Cell,
    counted,
    folded,
    new_figure,
    row_of,
    table,
    twin_of,
    with_zero,
)

from fairseq_syntax.lab.figures.plot import COLORS, save_figure
from fairseq_syntax.lab.scoring.tables import DETECTABLE, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"

METRICS = ("BLEU", "chrF")
# What was planned; a row that has not been run is shown empty.
MULTI30K_CONTROLS = {
    "PSH": ("linear", "random"),
    "CSH+PSH": ("linear", "random"),
    "sennrich_haddow": ("relabelled", "linear"),
    "PASCAL": ("linear", "random"),
    "LDD": ("random",),
    "UDD": (),
}
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
    """Gains after 8,000 updates with the parse and with control parses, on both tests."""
    rows: list[list[Cell]] = []
    for system, controls in MULTI30K_CONTROLS.items():
        of_tests = [row_of(metrics.get(metric, []), system) for metrics in tests.values()]
        rows.append([SYSTEMS[system], "the parse − plain", *(row.get("gain") for row in of_tests), seeds_in(*of_tests)])
        for control in controls:
            twins = [twin_of(row, control) for row in of_tests]
            rows.append(["", f"*{control}* − plain", *(twin.get("gain") for twin in twins), seeds_in(*twins)])
            rows.append(["", f"the parse − *{control}*", *(twin.get("syntax") for twin in twins), ""])
    years = [name.replace("test_", "test of ") for name in tests]
    title = f"{metric}, Multi30k English–German, 8,000 updates"
    return table(title, ["system", "difference", *years, "seeds"], rows)


def seeds_in(*rows: Mapping[str, Any]) -> str:
    """The number of seeds of rows of several tests."""
    return "/".join(dict.fromkeys(str(row.get("seeds", 0)) for row in rows))


# -- the amount of data ------------------------------------------------------------------------------------------------

AMOUNT_ROWS = {"PSH": ("linear",), "sennrich_haddow": (), "PASCAL": ()}
PAIRS = {"tenth": "2,900", "third": "9,667"}


def amounts_table(amounts: Mapping[str, Any], whole: Mapping[str, Any], metric: str = "BLEU") -> Table:
    """What systems gain with a tenth, a third and all of the pairs, on both tests."""
    parts = {**{part: amounts.get(part, {}) for part in PAIRS}, "all": whole}
    rows: list[list[Cell]] = []
    for system, controls in AMOUNT_ROWS.items():
        titles = {f"{SYSTEMS[system]} − plain": ("", "gain")}
        for control in controls:
            titles[f"{SYSTEMS[system]}, *{control}* − plain"] = (control, "gain")
            titles[f"{SYSTEMS[system]}, the parse − *{control}*"] = (control, "syntax")
        for title, (control, kind) in titles.items():
            for test in whole:
                of_parts = [row_of(of_part.get(test, {}).get(metric, []), system) for of_part in parts.values()]
                found = [twin_of(row, control) if control else row for row in of_parts]
                seeds = "/".join(str(row.get("seeds", 0)) for row in found)
                rows.append([title, test.replace("test_", ""), *(row.get(kind) for row in found), seeds])
    head = ["difference", "test", *(f"{pairs} pairs" for pairs in PAIRS.values()), "29,000 pairs", "seeds"]
    return table(f"{metric}, Multi30k English–German", head, rows, ["29,000 pairs: 8,000 updates"])


def longer_table(longer: Mapping[str, Any]) -> Table:
    """French after twice as many updates."""
    rows: list[list[Cell]] = []
    for updates, part in {"4,000": longer.get("before", {}), "8,000": longer}.items():
        row = row_of(part.get("rows", []), "PSH")
        plain = f"{part['scores']['transformer']:.2f}" if part else NOT_RUN
        twin = twin_of(row, "linear")
        rows.append([updates, plain, row.get("gain"), twin.get("gain"), twin.get("syntax"), seeds_in(row)])
    head = ["updates", "plain", "PSH − plain", "*linear* − plain", "the parse − *linear*", "seeds"]
    return table("BLEU, French, the same seeds", head, rows)


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
    rows: list[list[Cell]] = []
    for parse, title in PARSES.items():
        accuracy = quality["attachment"].get(parse, quality["attachment"].get(f"{parse}.sharp"))
        names = [name_of(system, parse) for system in PARSE_SYSTEMS]
        estimates = [_gain(quality, name, metric) for name in names]
        unsure: Cell = _gain(quality, name_of("LDD", parse, sure=False), metric) if parse.startswith("wrong") else ""
        seeds = {name: row["seeds"] for name, row in quality["rows"].items()}
        of_seeds = counted(seeds, dict(zip(PARSE_SYSTEMS, names)))
        rows.append([title, NOT_RUN if accuracy is None else f"{accuracy:.0f}", *estimates, unsure, of_seeds])
    notes = [f"{metric} over the plain Transformer, 95 % intervals over sentences and seeds"]
    if plain := quality["rows"].get("transformer"):
        notes.insert(0, f"the plain Transformer has {plain['score'][metric]:.2f} {metric}; seeds: {plain['seeds']}")
    for against, title in (("gain", "the plain Transformer"), ("to_gold", "the same system with gold trees")):
        if (smallest := detectable(quality, against, metric)) is not None:
            notes.append(f"{DETECTABLE}; from {title}: {smallest:.1f} {metric} (median of the rows)")
    head = ["trained and tested on", "UAS", *PARSE_SYSTEMS, "LDD, unsure", "seeds"]
    return table(f"ATIS English–Turkish, {quality['sentences']} sentences", head, rows, notes)


def _gain(quality: Mapping[str, Any], name: str, metric: str) -> Cell:
    row = quality["rows"].get(name)
    return row["gain"][metric] if row and row["gain"] else None


def detectable(quality: Mapping[str, Any], against: str, metric: str = "BLEU") -> float | None:
    """The median of the smallest differences that these sentences and seeds can show.

    Args:
        against: ``gain``, from the plain Transformer, or ``to_gold``, from the same system with gold trees
    """
    values = [row[against][metric][4] for row in quality["rows"].values() if row[against]]
    return median(values) if values else None


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


# -- the baseline ------------------------------------------------------------------------------------------------------


def baselines_table() -> Table:
    """What was tried for the baseline, on the validation set, and what its recipes have besides."""
    of_each = {recipe: validated(recipe) for recipe in BASELINES.values()}
    rows: list[list[Cell]] = []
    for system in systems_of(next(iter(of_each))):
        scores = [
            f"{of[system][metric]:.2f}" if system in of else None for of in of_each.values() for metric in METRICS
        ]
        rows.append([*setting(next(iter(of_each)), system), *scores])
    head = ["positions in the encoder", "dropout", "rate", "updates"]
    head += [f"{language}, {metric}" for language in BASELINES for metric in METRICS]
    chosen = setting(TUNED[0], systems_of(TUNED[0])[0])
    notes = [
        "validation set, last checkpoint, one seed; layer normalization before the sublayers",
        f"the tuned baseline has dropout {chosen[1]} and the rate {chosen[2]} in all languages",
    ]
    return table("Relative positions, tuned, and other positions", head, rows, notes)


# -- the page ----------------------------------------------------------------------------------------------------------


def in_both_metrics(table: Callable[[str], Table]) -> str:
    """A table in BLEU, and folded below it in chrF."""
    return f"{table('BLEU').render('markdown')}\n\n{folded('In chrF', table('chrF'))}"


def tuned_means(main: Mapping[str, Any], system: str, planned: int = 0) -> str:
    """The means of the main comparison: one table, or two where the placebo was run in fewer languages."""
    fewer, more = main.get("with_placebo"), []
    if "languages" in main and (n := len(main["mean"].get("languages", []))) > 1:
        gain, low, high, p = over_languages(main, system, "BLEU")
        more = [
            f"the languages as a sample (t-test, n = {n}): {gain:+.2f} ({low:+.2f} to {high:+.2f}) BLEU, p = {p:.2f}"
        ]
    parts = [(main["mean"], []), (fewer, [PLACEBO])] if fewer else [(main["mean"], [PLACEBO])]
    tables = [mean_table(mean, system, controls, more * (mean is main["mean"]), planned) for mean, controls in parts]
    return "\n\n".join(each.render("markdown") for each in tables)


def page(results: Mapping[str, Any]) -> str:
    """The page of the atlas, or of the languages alone where the results are those of other recipes."""
    languages = results["languages"]
    is_atlas = "multi30k" in results
    first, controls = next(iter(planned(languages).items()))
    corpora, mean = corpora_of(results), results.get("mean") or {}
    in_recipes: Planned = planned_seeds(*LANGUAGES) if is_atlas else {}
    in_all = {**in_recipes, "ATIS": planned_seeds("atis")["atis"]} if is_atlas else {}
    beside = others_beside(corpora, first, planned=in_all)
    title = "One English text in six languages, sinusoids" if is_atlas else "Gains by language"
    parts = {
        "mean": mean_table(mean, first, controls[:2]).render("markdown") if is_atlas or mean else "",
        "relative": in_both_metrics(lambda metric: relative_table(corpora, first, controls[:2], metric, in_all)),
        "plain": in_both_metrics(lambda metric: plain_table(corpora, first, controls, metric, in_all)),
        "beside": beside.render("markdown") if beside else "",
        "languages": languages_table(languages, title, in_recipes).render("markdown"),
        "others": others_table(languages, "Other systems", in_recipes).render("markdown")
        * (len(planned(languages)) > 1),
        "metrics": other_metrics(languages),
        "penalties": length_penalties(results.get("length_penalty", {})),
        "where": where(languages, in_recipes),
    }
    if is_atlas:
        tests, quality = results["multi30k"], results["parse_quality"]
        main = results["tuned"]
        of_main, in_main = corpora_of({"languages": main["languages"]}), planned_seeds(*TUNED)
        (of_others,) = planned_seeds(TUNED_OTHERS).values()
        language = next(iter(in_main))
        others = others_beside({language: main.get("others", {})}, first, planned={language: of_others})
        parts |= {
            "tuned_mean": tuned_means(main, first, max(in_main[language].values())),
            "tuned": in_both_metrics(
                lambda metric: relative_table(of_main, first, [PLACEBO, "linear"], metric, in_main)
            ),
            "tuned_others": others.render("markdown") if others else "",
            "baselines": baselines_table().render("markdown"),
            "attachment": attachment_table(
                results.get("attachment", {}), first, [PLACEBO, "linear"], seeds_of_recipes(*TUNED)
            ).render("markdown"),
            "agreement": agreement_table(results.get("agreement", {})).render("markdown"),
            "longer": longer_table(results["longer"]).render("markdown"),
            "amounts": in_both_metrics(lambda metric: amounts_table(results["amounts"], tests, metric)),
            "quality": in_both_metrics(lambda metric: parse_table(quality, metric)) if quality else "Not run yet.",
            "controls": in_both_metrics(lambda metric: controls_table(tests, metric)),
        }
    template = (HERE / ("page.txt" if is_atlas else "page-of-languages.txt")).read_text(encoding="utf-8")
    return re.sub(r"\n{3,}", "\n\n", template.format(**parts))  # parts may be empty


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
    first = next(iter(planned(results["languages"])))
    with rc_context({"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 9, "figure.labelsize": 9}):
        save_figure(draw_gains(results, first), args.output / "figures" / "atlas-languages.svg")
        if results.get("parse_quality"):
            save_figure(draw_quality(results["parse_quality"]), args.output / "figures" / "atlas-parse-quality.svg")
    print(args.output / "what-syntax-gives.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
