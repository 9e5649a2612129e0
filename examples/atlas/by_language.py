"""What syntax gives by language, or by corpus, over the recipes' baseline: the tables of the recipes' results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plans import Planned
from shared import NOT_RUN, Cell, counted, differences, differences_head, folded, of_planned, row_of, shown, table

from fairseq_syntax.lab.scoring.properties import interval_label
from fairseq_syntax.lab.scoring.shares import drawn_from, units_drawn
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES
from fairseq_syntax.lab.scoring.tables import Table


def planned(languages: Mapping[str, Any]) -> dict[str, list[str]]:
    """The systems of the recipes, without the baselines, and their control parses."""
    rows: dict[str, list[str]] = {}
    for of in languages.values():
        for system, controls in of["systems"].items():
            rows[system] = list(dict.fromkeys([*rows.get(system, []), *controls]))
    return rows


def row_in(of: Mapping[str, Any], system: str, metric: str = "BLEU") -> Mapping[str, Any]:
    """A system's row in a language, empty where it has not been run."""
    return row_of(of.get("metrics", {}).get(metric, {}).get("rows", []), system)


def languages_table(languages: Mapping[str, Any], title: str, in_recipes: Planned | None = None) -> Table:
    """Of each language its distance from English, the scores, and the gains of the first system."""
    system, controls = next(iter(planned(languages).items()))
    rows: list[list[Cell]] = []
    for lang, of in languages.items():
        names = {"plain": of["baseline"], "the parse": system, **{one: f"{system}.{one}" for one in controls}}
        order = f"{100 * of['order']['crossing']:.0f} %" if of["order"] else NOT_RUN
        estimates = differences(row_in(of, system), controls)
        of_seeds = counted(of.get("seeds", {}), names, (in_recipes or {}).get(lang))
        rows.append([lang, order, plain_score(of), *estimates, of_seeds])
    head = ["language", "crossing", "plain", *differences_head(system, controls, "plain"), "seeds"]
    notes = [
        "crossing: share of crossing word alignments of source and target",
        tokenizers(languages),
        f"95 % intervals over {drawn(languages)} and, where there are several, seeds",
    ]
    return table(title, head, rows, notes)


def plain_score(of: Mapping[str, Any], metric: str = "BLEU") -> str:
    """The baseline's score in a language."""
    scores = of.get("metrics", {}).get(metric, {}).get("scores", {})
    return f"{scores[of['baseline']]:.2f}" if of["baseline"] in scores else NOT_RUN


def tokenizers(languages: Mapping[str, Any]) -> str:
    """``BLEU by 13a, of Chinese by zh``."""
    of_tokenizer: dict[str, list[str]] = {}
    for lang, of in languages.items():
        if found := re.search(r"tok:(ja-mecab|[^|]+)", of.get("metrics", {}).get("BLEU", {}).get("signature", "")):
            of_tokenizer.setdefault(found[1], []).append(lang)
    most = max(of_tokenizer, key=lambda name: len(of_tokenizer[name]), default="13a")
    others = (f"of {', '.join(langs)} by {name}" for name, langs in of_tokenizer.items() if name != most)
    return ", ".join([f"BLEU by {most}", *others])


def drawn(languages: Mapping[str, Any]) -> str:
    """What the bootstrap draws: groups of sentences, such as pages, or single sentences."""
    return " and ".join(sorted({units_drawn(of) for of in languages.values() if "sentences" in of})) or "sentences"


def others_table(languages: Mapping[str, Any], title: str, in_recipes: Planned | None = None) -> Table:
    """What the other systems gain in each language, and on their controls."""
    rows: list[list[Cell]] = []
    for system, controls in list(planned(languages).items())[1:]:
        for lang, of in languages.items():
            row, control = row_in(of, system), controls[0] if controls else ""
            if row:
                names = {"the parse": system, control: f"{system}.{control}"}
                seeds = counted(of["seeds"], names, (in_recipes or {}).get(lang))
                rows.append([lang, shown(system), control, *differences(row, [control]), seeds])
        if without := [lang for lang, of in languages.items() if not row_in(of, system)]:
            most = max((in_recipes or {}).get(lang, {}).get(system, 0) for lang in without)
            seeds = of_planned(0, most) or "0"
            rows.append([", ".join(without), shown(system), ", ".join(controls), None, None, None, seeds])
    head = ["language", "system", "control", "the parse − plain", "control − plain", "the parse − control", "seeds"]
    return table(title, head, rows, ["BLEU and intervals as in the table before"])


def other_metrics(languages: Mapping[str, Any]) -> str:
    """The first system's gains in the other metrics, and in length, folded; empty where nothing has been run."""
    (system, controls), *_ = planned(languages).items()
    rows: list[list[Cell]] = []
    for lang, of in languages.items():
        for metric in of.get("metrics", {}):
            if metric != "BLEU":
                row = row_in(of, system, metric)
                rows.append([lang, metric, plain_score(of, metric), *differences(row, controls)])
        if system in (lengths := of.get("lengths", {})):

            def less(one: str, other: str, lengths: Mapping[str, float] = lengths) -> str:
                known = one in lengths and other in lengths
                return f"{round(lengths[one] - lengths[other], 1) + 0.0:+.1f}" if known else NOT_RUN

            twins = [f"{system}.{control}" for control in controls]
            of_twins = [text for twin in twins for text in (less(twin, of["baseline"]), less(system, twin))]
            plain = f"{lengths[of['baseline']]:.1f}"
            rows.append([lang, "length, %", plain, less(system, of["baseline"]), *of_twins])
    notes = [
        "length: characters of the translations in percent of the references'",
        "seeds as in the table by language",
    ]
    head = ["language", "metric", "plain", *differences_head(system, controls, "plain")]
    return folded("In other metrics", table("", head, rows, notes)) if rows else ""


def length_penalties(tuned: Mapping[str, Any]) -> str:
    """The first system's gains where each system has its best length penalty; empty if this was not measured."""
    if not tuned:
        return ""
    (system, controls), *_ = planned(tuned).items()
    rows: list[list[Cell]] = []
    for lang, of in tuned.items():
        penalties, at = of["penalties"], of["tried"].index(of["usual"])
        before = penalties[system]["test"][at] - penalties[of["baseline"]]["test"][at]
        names = (of["baseline"], system, *(f"{system}.{control}" for control in controls))
        best = " / ".join(f"{penalties[name]['best']:g}" for name in names)
        seeds = counted(of["seeds"], dict(zip(names, names)))
        estimates = differences(row_in(of, system), controls)
        rows.append([lang, best, plain_score(of), *estimates, f"{before:+.2f}", seeds])
    one = next(iter(tuned.values()))
    heading = " / ".join(["plain", shown(system), *(f"*{control}*" for control in controls)])
    head = ["language", f"penalty: {heading}", "plain", *differences_head(system, controls, "plain")]
    tried = one["tried"]
    notes = [f"tried: {tried[0]:g}, {tried[1]:g}, …, {tried[-1]:g}", "BLEU and intervals as in the table of all seeds"]
    found = table("", [*head, f"gain with {one['usual']:g}", "seeds"], rows, notes)
    return folded("With the length penalty that is best for each system on the validation set", found)


def where(languages: Mapping[str, Any], in_recipes: Planned | None = None) -> str:
    """What the first system gains by properties of the parse, a table for each language that has been run."""
    (system, controls), *_ = planned(languages).items()
    tables = []
    for lang, of in languages.items():
        names = {"plain": of["baseline"], "the parse": system, **{one: f"{system}.{one}" for one in controls[:1]}}
        rows: list[list[Cell]] = []
        for one in of.get("metrics", {}).get("BLEU", {}).get("by", []):
            for part in one["intervals"]:
                row = row_of(part["rows"], system)
                # The plain Transformer alone has been run, or the interval would be of too few pages.
                if row.get("gain") and drawn_from(part) >= LEAST_SENTENCES:
                    between = interval_label(one["property"], part["over"], part["to"])
                    estimates = differences(row, controls[:1])
                    rows.append([one["property"], between, str(part["sentences"]), *estimates])
        if rows:
            head = ["property", "", "lines", *differences_head(system, controls[:1], "plain")]
            seeds = f"seeds: {counted(of['seeds'], names, (in_recipes or {}).get(lang))}"
            tables.append(folded(f"{lang}: by properties of the parse", table("", head, rows, [seeds])))
    return "\n\n".join(tables)
