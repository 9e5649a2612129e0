"""The papers' figures: sentence scores, scores by length and by the parse, training curves, reliability diagram.

Each function returns a matplotlib figure; :func:`save_figure` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.scoring.logs import Curves
from fairseq_syntax.lab.scoring.properties import interval_label
from fairseq_syntax.runtime.files import atomic_open_binary
from fairseq_syntax.use.pages.fonts import any_script, plain

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = [
    "bleu_by_length",
    "box_plot",
    "diversity_curves",
    "reliability_diagram",
    "save_figure",
    "score_by_property",
    "training_curves",
]

# Okabe and Ito's palette, which is safe for colour-blind readers; markers and hatches help in greyscale.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
FORMATS = (".png", ".svg", ".pdf")


@any_script()
def box_plot(scores: Mapping[str, np.ndarray], metric: str) -> Figure:
    """Box plot of sentence scores [N] per system, each score a dot (Figure 3 of the LDD paper).

    The box shows the quartiles, its line the median, the diamond the mean; whiskers extend up to 1.5 times the box.
    """
    figure, axes = _axes(width=1.6 + 1.2 * len(scores), height=4.2)
    values = list(scores.values())
    places = np.arange(1, len(values) + 1)
    # dots with a random horizontal offset; the fixed seed makes the picture reproducible
    random = np.random.default_rng(0)
    for place, one, (_, color, _) in zip(places, values, _looks(scores)):
        shown = one if len(one) <= 2000 else random.choice(one, 2000, replace=False)
        axes.scatter(place + random.uniform(-0.28, 0.28, len(shown)), shown, s=4, color=color, alpha=0.25, linewidths=0)
    axes.boxplot(
        values,
        positions=places,
        widths=0.62,
        showmeans=True,
        showfliers=False,
        medianprops={"color": "black", "linewidth": 1.6},
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5},
    )
    axes.set_xticks(places, map(plain, scores))
    axes.set_ylabel(f"{metric} of a sentence")
    return figure


@any_script()
def bleu_by_length(table: Mapping, baseline: str | None = None) -> Figure:
    """BLEU per interval of length, a bar per system, with the share of the sentences below.

    As in Figure 4 of the LDD paper; with a baseline, gains over it as in Figure 2 of the PASCAL paper.

    Args:
        table: the ``by_length`` part of a score report

    Raises:
        SyntaxDataError: the baseline does not exist, or there is no other system
    """
    buckets = table["buckets"]
    systems = buckets[0]["BLEU"]
    names = [name for name in systems if name != baseline]
    if not names or (baseline is not None and baseline not in systems):
        raise SyntaxDataError(f"no gain over {baseline} can be drawn", hint=meant(str(baseline), systems))
    figure, (axes, below) = _axes(width=_width(buckets, names, 0.3), height=4.6, rows=2, ratios=(3, 1))
    looks = zip(_looks(systems), cycle(HATCHES))  # a system looks the same with and without a baseline
    shown = [(name, color, hatch) for (name, color, _), hatch in looks if name != baseline]
    for offset, (name, color, hatch) in zip(_offsets(len(names), 0.8), shown):
        bars = [bucket["BLEU"][name] - (bucket["BLEU"][baseline] if baseline else 0.0) for bucket in buckets]
        look = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(np.arange(len(bars)) + offset, bars, 0.8 / len(names) * 0.92, label=plain(name), **look)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel(f"ΔBLEU over {plain(baseline)}" if baseline else "BLEU")
    axes.set_xticks(range(len(buckets)), [""] * len(buckets))
    sentences = np.array([bucket["sentences"] for bucket in buckets])
    below.bar(range(len(buckets)), 100 * sentences / sentences.sum(), 0.8, color="gray")
    below.set_ylabel("% of sentences")
    below.set_xticks(range(len(buckets)), [f"({b['over']}, {b['to']}]\n{b['sentences']:,}" for b in buckets])
    below.set_xlabel(f"tokens of the {table['of']}; sentences below")
    _legend(figure)
    return figure


@any_script()
def score_by_property(part: Mapping, metric: str) -> Figure:
    """A metric per interval of a property of the parse, with 95 % intervals and the numbers of sentences below.

    Args:
        part: an element of ``by_syntax`` in a score report
        metric: the printed name of a metric in it

    Raises:
        SyntaxDataError: the report does not contain the metric
    """
    intervals = part["intervals"]
    if metric not in intervals[0]["scores"]:
        raise SyntaxDataError(f"no scores by {metric}", hint=meant(metric, intervals[0]["scores"]))
    names = list(intervals[0]["scores"][metric])
    figure, axes = _axes(width=_width(intervals, names, 0.5), height=3.6)
    places = np.arange(len(intervals))
    for offset, (name, color, mark) in zip(_offsets(len(names), 0.6), _looks(names)):
        scores = [interval["scores"][metric][name] for interval in intervals]
        middle = np.array([one["score"] for one in scores])
        # in small intervals, a score may lie slightly outside the percentiles of its draws
        ends = np.array([[one.get("low", np.nan), one.get("high", np.nan)] for one in scores])
        errors = np.maximum([middle - ends[:, 0], ends[:, 1] - middle], 0.0)
        bare = np.isnan(ends[:, 0])
        look = {"fmt": mark, "color": color, "markersize": 5, "capsize": 3, "label": plain(name)}
        axes.errorbar(places + offset, middle, errors, **look)
        axes.plot(places[bare] + offset, middle[bare], mark, color=color, markerfacecolor="white", markersize=5)
    labels = [interval_label(part["property"], interval["over"], interval["to"]) for interval in intervals]
    axes.set_xticks(places, [f"{plain(label)}\n{one['sentences']:,}" for label, one in zip(labels, intervals)])
    bounded = ["low" in one for interval in intervals for one in interval["scores"][metric].values()]
    hollow = "; hollow: too few for an interval" if any(bounded) and not all(bounded) else ""
    axes.set_xlabel(f"{plain(part['property'])}; sentences below{hollow}")
    axes.set_ylabel(metric)
    _legend(figure)
    return figure


@any_script()
def training_curves(runs: Mapping[str, Curves], metrics: Sequence[str], since: int = 0) -> Figure:
    """One panel per metric over updates: validation as solid lines, means of training epochs as dashed ones.

    Further validation subsets (``--valid-subset``) are dotted lines, and then all are named in the legend. If a log has
    no means of epochs, the means within epochs (``train_inner``) are drawn.

    Args:
        since: the first update to draw, since the values of the first updates would flatten the curves

    Raises:
        SyntaxDataError: no run has logged one of the metrics, or not from that update on
    """
    from matplotlib.lines import Line2D

    subsets = dict.fromkeys(kind for curves in runs.values() for kind in curves if not kind.startswith("train"))
    styles: dict[str, Any] = dict(zip(subsets, chain("-", cycle((":", "-.")))))
    figure, panels = _axes(width=0.8 + 4.2 * len(metrics), height=3.6, columns=len(metrics))
    for axes, metric in zip(np.atleast_1d(panels), metrics):
        drawn = False
        for name, color, mark in _looks(runs):
            curves = runs[name]
            train = "train" if metric in curves.get("train", {}) else "train_inner"
            for kind in curves:
                points = [point for point in curves[kind].get(metric, ()) if point[0] >= since]
                if points and (kind == train or kind in styles):
                    x, y = zip(*points)
                    axes.plot(x, y, styles.get(kind, "--"), color=color, marker=mark, markersize=4, linewidth=1.4)
                    drawn = True
        if not drawn:
            logged = sorted({name for curves in runs.values() for names in curves.values() for name in names})
            hint = None if metric in logged else meant(metric, logged)
            raise SyntaxDataError(f"no log contains {metric} from update {since:,} on", hint=hint)
        axes.set_xlabel("updates")
        axes.set_ylabel(metric)
        axes.grid(axis="x", alpha=0.3)
    handles = [
        Line2D([], [], color=color, marker=mark, markersize=4, label=plain(name)) for name, color, mark in _looks(runs)
    ]
    named: dict[str, Any] = styles if len(styles) > 1 else {"validation": "-"}
    for subset, style in named.items():
        handles.append(Line2D([], [], color="gray", linestyle=style, label=plain(subset)))
    handles.append(Line2D([], [], color="gray", linestyle="--", label="training"))
    _legend(figure, handles)
    return figure


@any_script()
def reliability_diagram(curves: Mapping[str, Sequence[tuple[float, float, int]]]) -> Figure:
    """Accuracy against predicted probability, with the share of the predictions below.

    Args:
        curves: for each name, ``(mean probability, accuracy, count)`` of each non-empty bin
    """
    figure, (axes, below) = _axes(width=4.6, height=5.4, rows=2, ratios=(3, 1))
    axes.plot([0, 1], [0, 1], color="gray", linewidth=1, linestyle=":", label="perfect")
    for name, color, mark in _looks(curves):
        p, accuracy, count = (np.array(column, dtype=float) for column in zip(*curves[name]))
        error = float((count * np.abs(p - accuracy)).sum() / count.sum())
        axes.plot(p, accuracy, f"{mark}-", color=color, markersize=4, label=f"{plain(name)} (ECE {100 * error:.1f}%)")
        below.plot(p, count / count.sum(), f"{mark}-", color=color, markersize=3)
    axes.set_ylabel("accuracy")
    for panel in (axes, below):
        panel.set_xlim(0, 1)
        panel.grid(axis="x", alpha=0.3)
    axes.set_ylim(0, 1)
    below.set_yscale("log")  # most probabilities are near 1
    below.set_ylabel("share")
    below.set_xlabel("probability")
    axes.legend(frameon=False, loc="upper left")
    return figure


@any_script()
def diversity_curves(rows: Sequence[Mapping]) -> Figure:
    """BLEU and distinct-1 over the edit distance of the tags, each with its own axis (Figure 3 of the LaSyn paper).

    Args:
        rows: as from :func:`fairseq_syntax.lab.scoring.diversity.measure_diversity`
    """
    figure, axes = _axes(width=5.2, height=3.6)
    distances = [row["distance"] for row in rows]
    panels = zip((axes, axes.twinx()), ("bleu", "distinct1"), _looks(["BLEU", "distinct-1"]))
    for panel, key, (name, color, mark) in panels:
        panel.plot(distances, [row[key] for row in rows], color=color, marker=mark)
        panel.set_ylabel(name, color=color)
        panel.tick_params(axis="y", colors=color)
    axes.set_xlabel("edit distance from the most likely tags")
    axes.set_xticks(distances)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, SVG or PDF, according to the file extension; the output is reproducible.

    Raises:
        SyntaxDataError: the extension is unknown, or the file cannot be written
    """
    ending = check_ending(path)
    import matplotlib

    # without a salt, ids in SVG files are random; the metadata would contain the time
    with any_script(), matplotlib.rc_context({"svg.hashsalt": "fairseq_syntax"}):
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[ending]
        with atomic_open_binary(path) as file:
            figure.savefig(file, format=ending[1:], dpi=160, metadata=metadata)


def check_ending(path: str | os.PathLike[str]) -> str:
    """The format of a picture, one of :data:`FORMATS`, by its file extension.

    Raises:
        SyntaxDataError: the extension is unknown
    """
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in FORMATS:
        raise SyntaxDataError(f"cannot draw a {ending or 'file without an ending'}", path=path, hint=", ".join(FORMATS))
    return ending


def _axes(width: float, height: float, rows: int = 1, columns: int = 1, ratios: Sequence[float] | None = None):
    """Create a figure, outside pyplot's global state, and axes with horizontal grid lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # needed to measure the legend's text
    axes = figure.subplots(rows, columns, height_ratios=ratios)
    for one in np.atleast_1d(axes).flat:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.3)
        one.set_axisbelow(True)
    return figure, axes


def _width(intervals: Sequence, names: Sequence[str], room: float) -> float:
    """The width in inches of a figure with one bar or dot per system and interval."""
    return max(4.5, 1.2 + len(intervals) * (room + 0.22 * len(names)))


def _offsets(n: int, width: float) -> list[float]:
    """The centres of n equal parts of a width, centred on 0."""
    return [(i - (n - 1) / 2) * width / n for i in range(n)]


def _legend(figure: Figure, handles: Sequence[Artist] | None = None) -> None:
    """Draw the legend above all panels, in up to four columns."""
    for columns in (4, 3, 2, 1):
        entries = {} if handles is None else {"handles": handles}
        legend = figure.legend(**entries, loc="outside upper center", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _looks(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Pairs each name with a colour and a marker."""
    return list(zip(names, cycle(COLORS), cycle(MARKS)))
