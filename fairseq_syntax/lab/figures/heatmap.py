"""Attention heat maps for print: a grid of layers and heads for one sentence, with the parse above."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax.corpus.words import RIGHT_TO_LEFT, language_of
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.use.pages.exhibit import Exhibit, Tree
from fairseq_syntax.use.pages.fonts import any_script, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["heat_maps"]

_BESIDE = 4  # heads per row
_ARC, _TEXT = "#0b5cad", "#5b6570"


def arc_levels(arcs: Sequence[tuple[int, int]]) -> list[int]:
    """The height of each arc (from 1), above all shorter arcs that it overlaps."""
    spans = [(min(a), max(a)) for a in arcs]
    order = sorted(range(len(arcs)), key=lambda k: spans[k][1] - spans[k][0])
    levels = [1] * len(arcs)
    for n, k in enumerate(order):
        for other in order[:n]:
            if spans[other][0] < spans[k][1] and spans[other][1] > spans[k][0]:
                levels[k] = max(levels[k], levels[other] + 1)
    return levels


def heat_maps(
    exhibit: Exhibit,
    system: str,
    *,
    kind: str = "encoder",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tree: str | None = None,
    src: str = "",
) -> Figure:
    """A matplotlib figure with layers below each other, and up to four heads of a layer in a row.

    Args:
        system: the name of the system whose attention is drawn
        kind: ``encoder``, ``cross`` or ``decoder``
        layers, heads: 0-based; None for all; layer -1 is the top layer
        tree: the tree to draw above the source words (``parser``, ``gold``, …); None for the first one
        src: the code of the source language, which decides the writing direction

    Raises:
        SyntaxDataError: the kind, layer, head or tree does not exist
    """
    output = exhibit.outputs[system]
    if kind not in output.attention:
        raise SyntaxDataError(f"{system} has no {kind} attention", hint=meant(kind, output.attention))
    weights = output.attention[kind]
    layers = _existing("layer", layers and [len(weights) - 1 if n == -1 else n for n in layers], len(weights))
    heads = _existing("head", heads, max(len(weights[layer]) for layer in layers))
    if tree is not None and tree not in exhibit.trees:
        raise SyntaxDataError(f"sentence {exhibit.number} has no tree {tree}", hint=meant(tree, exhibit.trees))
    trees = [] if kind == "decoder" else [exhibit.trees[tree]] if tree else list(exhibit.trees.values())
    maps = {layer: {head: weights[layer][head] for head in heads if head < len(weights[layer])} for layer in layers}
    read = [*output.pieces[-1:], *output.pieces[:-1]]  # by the decoder: </s> and the pieces before each step
    rows, columns = {
        "encoder": (exhibit.pieces, exhibit.pieces),
        "cross": (output.pieces, exhibit.pieces),
        "decoder": (read, read),
    }[kind]
    flip = language_of(src) in RIGHT_TO_LEFT and kind != "decoder"
    with any_script(src if kind != "decoder" else None):
        return _grid(exhibit, maps, columns, rows, next(iter(trees), None), flip)


def _existing(what: str, wanted: Sequence[int] | None, count: int) -> Sequence[int]:
    """The wanted numbers of layers or heads, all by default, which must exist."""
    for number in wanted or ():
        if not 0 <= number < count:
            raise SyntaxDataError(f"no {what} {number}: there are {count}, counted from 0")
    return range(count) if wanted is None else wanted


def _grid(exhibit: Exhibit, maps: dict, columns, rows, parse: Tree | None, flip: bool) -> Figure:
    """Draw ``maps[layer][head]`` [rows, columns], and the parse above each column of pictures."""
    from matplotlib.figure import Figure

    grid = []
    for layer, of_layer in maps.items():
        pictures = [(f"layer {layer}, head {head}", shown) for head, shown in of_layer.items()]
        grid += [pictures[at : at + _BESIDE] for at in range(0, len(pictures), _BESIDE)]
    across = max(map(len, grid))
    # The size of a cell in inches and of the text in points, smaller for several rows of heads.
    cell, size = (0.2, 8) if sum(map(len, grid)) <= _BESIDE else (0.13, 6)
    wide, high = max(1.6, cell * len(columns)), max(1.6, cell * len(rows))
    pairs = [] if parse is None else [(i, h) for i, h in enumerate(parse.heads) if i != h]
    above = 0.0 if parse is None else 0.35 + 0.24 * (max(arc_levels(pairs), default=0) + 1)
    labels = 0.085 * max(map(len, [*columns, *rows])) + 0.2  # the length of the longest piece in inches, at most
    height = len(grid) * (high + 0.35) + above + labels
    figure = Figure(figsize=(across * wide + labels + 0.6, height), layout="constrained")
    ratios = ([above + labels] if parse else []) + [high] * len(grid)
    axes = figure.subplots(len(ratios), across, squeeze=False, height_ratios=ratios, sharex="col")
    places = np.arange(len(columns))[::-1] if flip else np.arange(len(columns))
    # one scale for all, up to at least 0.25, so that uniform attention does not look strong
    top = max(0.25, *(float(shown.max()) for pictures in grid for _, shown in pictures))
    if parse:
        for panel in axes[0]:
            _draw_parse(panel, exhibit, parse, pairs, columns, places, size)
        axes = axes[1:]
    for r, pictures in enumerate(grid):
        for panel in axes[r][len(pictures) :]:
            panel.set_axis_off()
        for c, (panel, (title, shown)) in enumerate(zip(axes[r], pictures)):
            picture = panel.imshow(shown[:, ::-1] if flip else shown, cmap="Blues", vmin=0, vmax=top, aspect="auto")
            panel.set_title(title, fontsize=size + 1)
            panel.set_yticks(range(len(rows)), map(plain, rows) if c == 0 else [""] * len(rows), fontsize=size)
            panel.tick_params(length=0, labelbottom=False)
            # The pieces are drawn once, at the top, below the parse if there is one.
            if not parse and r == 0:
                panel.set_xticks(places, map(plain, columns), rotation=90, fontsize=size)
                panel.tick_params(labeltop=True)
    # All pictures have the same scale, so the last one serves for the colour bar.
    figure.colorbar(picture, ax=axes.ravel().tolist(), shrink=0.5, pad=0.01)
    return figure


def _draw_parse(axes: Axes, exhibit: Exhibit, parse: Tree, pairs, columns, places, size: float) -> None:
    """Draw arcs above the columns of a heat map, and the pieces of the columns below them."""
    ends = np.cumsum([0, *exhibit.counts])
    middles = [float(np.mean(places[start:end])) for start, end in pairwise(ends)]
    levels = arc_levels(pairs)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(0, max(levels, default=0) + 2)
    axes.set_axis_off()
    for (i, h), level in zip(pairs, levels):
        to, start = middles[i], middles[h] + 0.16 * np.sign(middles[i] - middles[h])
        axes.plot([start, start, to], [0, level, level], color=_ARC, linewidth=0.9, solid_joinstyle="round")
        _arrow(axes, to, level)
        _label(axes, (start + to) / 2, level, parse.labels[i], parse.p[i], size)
    for i, head in enumerate(parse.heads):
        if head == i:
            top = max(levels, default=0) + 1
            _arrow(axes, middles[i], top)
            _label(axes, middles[i], top, "root", parse.p[i], size)
    below: dict[str, Any] = {
        "textcoords": "offset points",
        "rotation": 90,
        "ha": "center",
        "va": "top",
        "fontsize": size,
    }
    for column, place in zip(columns, places):
        axes.annotate(plain(column), (place, 0), (0, -3), **below)


def _arrow(axes: Axes, x: float, top: float) -> None:
    style = {"arrowstyle": "-|>", "color": _ARC, "linewidth": 0.9, "mutation_scale": 6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x, 0), (x, top), arrowprops=style)


def _label(axes: Axes, x: float, y: float, label: str, p: float | None, size: float) -> None:
    text = f"{label} {p:.2f}".replace(" 0.", " .") if p is not None else label
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
    axes.text(x, y + 0.08, plain(text), ha="center", va="bottom", fontsize=size - 2, color=_TEXT, bbox=box)
