"""What syntax gives by language, or by corpus: the tables, sentences and picture of the recipes' results."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from statistics import correlation
from typing import TYPE_CHECKING, Any

from wording import (
    MARKERS,
    NOT_RUN,
    SEEDS,
    WIDTH,
    folded,
    interval,
    is_significant,
    listed,
    low_to_high,
    new_figure,
    row_of,
    seeds_of,
    shown,
    twin_of,
    with_zero,
)

from fairseq_syntax.lab.figures.plot import COLORS
from fairseq_syntax.lab.scoring.properties import interval_label
from fairseq_syntax.lab.scoring.shares import drawn_from, units_drawn
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES
from fairseq_syntax.lab.scoring.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def length_penalties(tuned: Mapping[str, Any]) -> str:
    """The first system's gains where each system has its best length penalty; empty if this was not measured."""
    if not tuned:
        return ""
    (system, controls), *_ = planned(tuned).items()
    rows, changed = [], []
    for lang, of in tuned.items():
        penalties, at = of["penalties"], of["tried"].index(of["usual"])
        before = penalties[system]["test"][at] - penalties[of["baseline"]]["test"][at]
        names = (of["baseline"], system, *(f"{system}.{control}" for control in controls))
        best = [f"{penalties[name]['best']:g}" for name in names]
        rows.append([lang, " / ".join(best), plain_score(of), *gains_of(of, system, controls), f"{before:+.2f}"])
        if before * row_of(of["metrics"]["BLEU"]["rows"], system)["gain"][0] < 0:
            changed.append(lang)
    tried, one = next(iter(tuned.values()))["tried"], shown(system)
    usual = listed(sorted({f"{of['usual']:g}" for of in tuned.values()}))
    counts = {count for of in tuned.values() for count in of["seeds"].values()}
    text = (
        f"All other tables have a length penalty of {usual}. With the penalty that is best for each system on the "
        f"validation set ({seeds_of(max(counts))}), the sign of {one}'s gain changes in "
        f"{named(changed, tuned) if changed else 'no language'}: it {where_significant(tuned, system)}."
    )
    if differences := against_controls(tuned, system):
        text += f" With the parse, it is {differences}."
    heading = " / ".join(["plain", one, *(f"*{control}*" for control in controls)])
    head = ["language", f"penalty: {heading}", "plain", *gains_head(system, controls), f"gain with {usual}"]
    notes = [f"tried: {tried[0]:g}, {tried[1]:g}, …, {tried[-1]:g}", "BLEU and intervals as in the table of all seeds"]
    return f"{text}\n\n{folded('With the best length penalty', Table('', head, rows, notes))}"


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
                between = interval_label(one["property"], interval_of["over"], interval_of["to"])
                lines = str(interval_of["sentences"])
                rows.append([one["property"], between, lines, interval(row.get("gain")), *less])
        if rows:
            head = ["property", "", "lines", *gains_head(system, controls[:1])]
            tables.append(folded(f"{lang}: where", Table("", head, rows, [])))
    return "\n\n".join(tables) or "Where in these languages the gain is, has not been measured yet."


def begun(languages: Mapping[str, Any], system: str, metric: str = "BLEU") -> dict[str, Any]:
    """A system's row in a metric, of the languages in which it has been run."""
    rows = {
        lang: row_of(of.get("metrics", {}).get(metric, {}).get("rows", []), system) for lang, of in languages.items()
    }
    return {lang: row for lang, row in rows.items() if row.get("gain")}


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def in_words(count: int) -> str:
    """``six``; from eleven on in digits."""
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def named(langs: Collection[str], of: Collection[str]) -> str:
    """The names of languages: ``German and French``, or ``all six languages`` of so many."""
    if len(langs) < len(of) or len(of) == 1:
        return listed(list(langs))
    return "both languages" if len(of) == 2 else f"all {in_words(len(of))} languages"


def where_significant(languages: Mapping[str, Any], system: str, metric: str = "BLEU") -> str:
    """``gains significantly in French and loses significantly in German``, or ``gains nowhere significantly``."""
    gains = {lang: row["gain"] for lang, row in begun(languages, system, metric).items()}
    parts = []
    for verb, sign in (("gains", 1), ("loses", -1)):
        if langs := [lang for lang, gain in gains.items() if is_significant(gain) and sign * gain[0] > 0]:
            parts.append(f"{verb} significantly in {named(langs, languages)}")
    return " and ".join(parts) or "gains nowhere significantly"


def languages_sentence(languages: Mapping[str, Any]) -> str:
    """Where the systems gain, and where they do better or worse with the parse than with controls."""
    gains, differences = [], []
    for system in planned(languages):
        rows, name = begun(languages, system), shown(system)
        if not rows:
            continue
        counts = seeds_of_rows(languages, system)
        fewest = "" if min(counts) >= SEEDS else f"; {seeds_of(min(counts))}"
        sizes = low_to_high([row["gain"][0] for row in rows.values()], "{:+.1f}")
        verdict, those = where_significant(languages, system), f" in {named(rows, languages)}"
        those = "" if verdict.endswith(those) else those  # said once
        gains.append(f"{name} {verdict} ({sizes} BLEU{those}{fewest})")
        if against := against_controls(languages, system):
            differences.append(f"{name} is {against}{fewest and f' ({seeds_of(min(counts))})'}")
    if not gains:
        return "What syntax gives in these languages has not been measured yet."
    return f"{'; '.join(gains)}." + (f" With the parse, {'; '.join(differences)}." if differences else "")


def more_about(languages: Mapping[str, Any]) -> str:
    """How far the languages are from the source, and what the first system gains in chrF; empty if nothing was run."""
    text = []
    orders = {lang: of["order"]["crossing"] for lang, of in languages.items() if of["order"]}
    if len(orders) > 1:
        near, far = (pick(orders, key=orders.__getitem__) for pick in (min, max))
        shares = [f"{100 * orders[lang]:.0f} %" for lang in (near, far)]
        text.append(f"Of the word alignments, {shares[0]} cross in {near} and {shares[1]} in {far}.")
    system = first_of(languages)
    if begun(languages, system, "chrF"):
        text.append(f"In chrF, {shown(system)} {where_significant(languages, system, 'chrF')}.")
    return " ".join(text)


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
    if len(rows) < 3:
        return ""
    gains = [row["gain"][0] for row in rows.values()]
    text = f"A regression over {in_words(len(rows))} points says little"
    if least := LEAST_CORRELATION.get(len(rows)):
        text += f": with {in_words(len(rows))} languages, a correlation has to be above {least} to be significant"
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
