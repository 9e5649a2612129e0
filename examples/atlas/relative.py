"""The first tables and the picture: what a system gains on its parse, and on a placebo, over relative positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from plans import Planned, systems_in
from scipy import stats
from shared import (
    MARKERS,
    NOT_RUN,
    PLACEBO,
    WIDTH,
    Cell,
    counted,
    differences,
    differences_head,
    new_figure,
    of_planned,
    row_of,
    shown,
    table,
    twin_of,
    with_zero,
)

from fairseq_syntax.lab.figures.plot import COLORS
from fairseq_syntax.lab.scoring.intervals import Estimate
from fairseq_syntax.lab.scoring.tables import DETECTABLE, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What measure.py says of relative positions, by corpus.
Corpora = Mapping[str, Mapping[str, Any]]
BASELINE = "relative"
MEAN = "mean"
WEAKER = "the parse, weaker baseline"


def corpora_of(results: Mapping[str, Any]) -> Corpora:
    """The corpora of a page, in which relative positions may not have been run."""
    corpora = {lang: of.get("relative", {}) for lang, of in results["languages"].items()}
    quality = results.get("parse_quality")
    return {**corpora, "ATIS": quality.get("relative", {})} if quality else corpora


def beside(corpus: Mapping[str, Any], system: str, metric: str = "BLEU") -> Mapping[str, Any]:
    """What a system with relative positions gains over these in a corpus; empty if it was not run."""
    return row_of(corpus.get("metrics", {}).get(metric, {}).get("beside", []), system)


def mean_table(
    mean: Mapping[str, Any], system: str, controls: Sequence[str], more: Sequence[str] = (), planned: int = 0
) -> Table:
    """What a system gains over relative positions in the mean of the languages: on its parse, and on controls.

    Args:
        more: further notes
        planned: the seeds in the recipes, if known
    """
    metrics, rows = mean.get("metrics", {}), []
    of_metric = {metric: row_of(found, system) for metric, found in metrics.items()} or {"BLEU": {}}
    kinds: dict[str, tuple[str | None, str]] = {f"{shown(system)}, the parse − relative positions": (None, "gain")}
    for control in controls:
        kinds[f"{shown(system)}, *{control}* − relative positions"] = (control, "gain")
        kinds[f"the parse − *{control}*"] = (control, "syntax")
    for title, (other, kind) in kinds.items():
        estimates = [(twin_of(row, other) if other else row).get(kind) for row in of_metric.values()]
        smallest = f"{estimates[0][4]:.2f}" if estimates[0] else ""
        rows.append([title, *estimates, smallest, of_planned(seeds_of(mean, system, other), planned) or "0"])
    head = ["mean of the languages", *of_metric, f"MDD, {next(iter(of_metric))}", "seeds"]
    languages = mean.get("languages", [])
    title = f"Mean of {len(languages)} languages, with relative positions in every row"
    notes = ["each draw of the bootstrap takes the same pages in all languages", DETECTABLE]
    return table(title, head, rows, [*([", ".join(languages)] if languages else []), *notes, *more])


def over_languages(main: Mapping[str, Any], system: str, metric: str) -> list[float]:
    """The mean gain of a system over the languages as a sample: mean, 95 % t-interval, p.

    The bootstrap over pages asks about other text in these languages; this asks about other languages.
    """
    languages = main["mean"]["languages"]
    gains = [beside(main["languages"][name]["relative"], system, metric)["gain"][0] for name in languages]
    tested = stats.ttest_1samp(gains, 0.0)
    interval = tested.confidence_interval()
    # the gains have four digits, and so has the mean in the table
    return [round(fmean(gains), 4), float(interval.low), float(interval.high), float(tested.pvalue)]


def seeds_of(mean: Mapping[str, Any], system: str, control: str | None) -> int:
    """The fewest seeds of a system on its parse, or on a control, in any of the languages."""
    return mean.get("seeds", {}).get(f"{system}.{control}" if control else system, 0)


def relative_table(
    corpora: Corpora, system: str, controls: Sequence[str], metric: str = "BLEU", planned: Planned | None = None
) -> Table:
    """By corpus: relative positions, what a system gains over them on its parse and on controls."""
    rows: list[list[Cell]] = []
    for name, corpus in corpora.items():
        found, seeds = corpus.get("metrics", {}).get(metric, {}), corpus.get("seeds", {})
        score = f"{found['relative']:.2f}" if found else NOT_RUN
        names = {BASELINE: BASELINE, "the parse": f"{BASELINE}+{system}"}
        names |= {control: f"{BASELINE}+{system}.{control}" for control in controls}
        known, in_recipe = (
            {n.replace(".gold", ""): count for n, count in of.items()} for of in (seeds, (planned or {}).get(name, {}))
        )
        row = beside(corpus, system, metric)
        rows.append([name, score, *differences(row, controls), counted(known, names, in_recipe)])
    head = ["corpus", "relative", *differences_head(system, controls, "relative"), "seeds"]
    return table(
        f"{metric}: {shown(system)} and relative positions", head, rows, ["relative: relative positions alone"]
    )


def plain_table(
    corpora: Corpora, system: str, controls: Sequence[str], metric: str = "BLEU", planned: Planned | None = None
) -> Table:
    """By corpus: what relative positions gain over sinusoids, and a system on sinusoids over relative positions."""
    rows: list[list[Cell]] = []
    for name, corpus in corpora.items():
        found, seeds = corpus.get("metrics", {}).get(metric, {}), corpus.get("seeds", {})
        plain = f"{found['plain']:.2f}" if found else NOT_RUN
        estimates = [found.get(kind) for kind in ("gain", "parse", *(["control"] if controls else []))]
        names = {"sinusoids": "transformer", BASELINE: BASELINE}
        rows.append([name, plain, *estimates, counted(seeds, names, (planned or {}).get(name))])
    head = ["corpus", "sinusoids", "relative − sinusoids", f"{shown(system)} with sinusoids − relative"]
    head += [f"{shown(system)}, *{controls[0]}*, with sinusoids − relative"] if controls else []
    return table(f"{metric}: sinusoids and relative positions", [*head, "seeds"], rows)


def others_beside(corpora: Corpora, system: str, metric: str = "BLEU", planned: Planned | None = None) -> Table | None:
    """What the other systems gain with relative positions, and on their controls; None if there are none.

    Args:
        system: the first system, which has tables of its own
        planned: the seeds of the systems in the recipes; those that have not been run share a row over the corpora
    """
    rows: list[list[Cell]] = []
    not_run: dict[tuple[str, str, str], list[str]] = {}
    for name, corpus in corpora.items():
        seeds, in_recipe = corpus.get("seeds", {}), (planned or {}).get(name, {})
        of_each = {row["system"]: row for row in corpus.get("metrics", {}).get(metric, {}).get("beside", [])}
        wanted = systems_in(in_recipe, BASELINE)
        for one in dict.fromkeys([*wanted, *of_each]):
            row = of_each.get(one, {})
            controls = dict.fromkeys([*wanted.get(one, []), *row.get("controls", {})]) or {"": None}
            for control in controls if one.removesuffix(".gold") != system else ():
                twin = twin_of(row, control)
                names = {"the parse": f"{BASELINE}+{one}", control: f"{BASELINE}+{one}.{control}"}
                of_seeds = counted(seeds, names, in_recipe)
                if row:
                    estimates = [row["gain"], twin.get("gain"), twin.get("syntax")]
                    rows.append([name, shown(one), control, *estimates, of_seeds])
                else:
                    not_run.setdefault((shown(one), control, of_seeds), []).append(name)
    rows += [[", ".join(names), one, control, *[None] * 3, count] for (one, control, count), names in not_run.items()]
    head = ["corpus", "system", "control", "the parse − relative", "control − relative", "the parse − control", "seeds"]
    title = f"{metric}: other systems with relative positions"
    return table(title, head, rows) if rows else None


def gains_by_language(results: Mapping[str, Any], system: str) -> tuple[str, dict[str, dict[str, Estimate]]]:
    """What the picture shows: the baseline, and by language the gains of the parse and of controls over it.

    The baseline is relative positions, or the recipes' own if relative positions have not been run with the system. In
    the atlas, the gain over the weaker baseline stands beside that over the tuned one.
    """
    before = _beside_relative(results, system)
    if "tuned" in results:
        found = _beside_relative(results["tuned"], system)
        for name, of in before.items():
            if "the parse" in of:
                found.setdefault(name, {})[WEAKER] = of["the parse"]
        return "relative positions", found
    if any(before.values()):
        return "relative positions", before
    found = {}
    for lang, of in results["languages"].items():
        row = row_of(of.get("metrics", {}).get("BLEU", {}).get("rows", []), system)
        found[lang] = {"the parse": row["gain"]} if row else {}
        found[lang] |= {control: twin["gain"] for control, twin in row.get("controls", {}).items()}
    return "the baseline", found


def _beside_relative(results: Mapping[str, Any], system: str) -> dict[str, dict[str, Estimate]]:
    """The gains of the parse and of the placebo over relative positions, in the mean and by language."""
    mean = row_of((results.get("mean") or {}).get("metrics", {}).get("BLEU", []), system)
    rows = {MEAN: mean, **{lang: beside(of.get("relative", {}), system) for lang, of in results["languages"].items()}}
    found: dict[str, dict[str, Estimate]] = {}
    for name, row in rows.items():
        found[name] = {"the parse": row["gain"]} if row else {}
        if twin := twin_of(row, PLACEBO):
            found[name][PLACEBO] = twin["gain"]
    return found


def draw_gains(results: Mapping[str, Any], system: str) -> Figure:
    """The gain of the parse and of the placebo, a row for each language; what has not been run is said."""
    baseline, gains = gains_by_language(results, system)
    kinds = {kind for of in gains.values() for kind in of} | {"the parse"}
    kinds |= {PLACEBO} if baseline == "relative positions" else set()
    expected = sorted(kinds, key=lambda kind: (kind == WEAKER, kind != "the parse", kind))
    figure = new_figure(WIDTH, 1.2 + (0.06 + 0.18 * len(expected)) * len(gains))
    axes = figure.subplots()
    with_zero(axes.axvline, axes)
    for at, of in enumerate(gains.values()):
        for place, kind in enumerate(expected):
            height = at + 0.25 * place
            if kind in of:
                value, low, high = of[kind][:3]
                form: Any = {"fmt": MARKERS.get(kind, "v"), "color": COLORS[place], "markersize": 5, "label": kind}
                axes.errorbar([value], [height], xerr=[[value - low], [high - value]], **form)
            else:
                where: Any = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
                axes.annotate(f"{kind}: {NOT_RUN}", (0, height), color=COLORS[place], **where)
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels())))
    if unique := {kind: by_label[kind] for kind in expected if kind in by_label}:
        columns = 1 if WEAKER in unique else len(unique)  # its name is long
        at_top: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": columns, "frameon": False}
        axes.legend(unique.values(), unique.keys(), **at_top)
    axes.set_yticks(range(len(gains)), list(gains))
    axes.set_ylim(len(gains) - 0.4, -0.4)  # the first on top
    axes.set_xlabel(f"BLEU of {shown(system)} over {baseline}")
    return figure
