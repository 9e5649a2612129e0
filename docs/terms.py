"""Draws what each system makes of one parse, by the system's own code.

No trained model is needed: a factor, a distance, a target or a block follows from the parse alone. The sentence is that
of the picture at the top of the README, read as "he used the telescope", a piece a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.packing import pack
from fairseq_syntax.lab.figures.heatmap import arc_levels
from fairseq_syntax.lab.figures.plot import COLORS, save_figure
from fairseq_syntax.use.pages.fonts import any_script

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS = ["the", "man", "saw", "the", "girl", "with", "the", "telescope", "."]
HEADS = [1, 2, 2, 4, 2, 7, 7, 2, 2]  # a root is its own head
LABELS = ["det", "nsubj", "root", "det", "obj", "case", "det", "obl", "punct"]
TAGS = ["DET", "NOUN", "VERB", "DET", "NOUN", "ADP", "DET", "NOUN", "PUNCT"]
UNSURE = {2: ("obl", 0.6), 4: ("nmod", 0.4)}  # what a parser may think of "telescope"
TARGET_WORDS = ["</s>", "der", "Mann", "sah", "das", "Mädchen", "mit", "dem", "Fernrohr", "."]  # the decoder's input
INK, ARC = "#1f2328", "#6b7c8d"
TREE = 0.75  # inches


@dataclass
class Panel:
    """A matrix over words: what it is, and how its cells are written (None: colours alone)."""

    title: str
    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    text: Callable[[float], str] | None = None
    parse: bool = True


@dataclass
class Drawing:
    """The panels of a system, and the sentence that stands below them on its page."""

    panels: list[Panel]
    caption: str


def batch() -> SyntaxBatch:
    """The sentence as a batch of one, with the distribution of its arcs."""
    ids = {label: i for i, label in enumerate(dict.fromkeys([*LABELS, "nmod"]))}
    arcs = [(i, h, ids[label], 1.0) for i, (h, label) in enumerate(zip(HEADS, LABELS)) if i != 7]
    arcs += [(7, h, ids[label], p) for h, (label, p) in UNSURE.items()]
    size = len(WORDS)
    sentence = StoredSentence([1] * size, HEADS, [ids[label] for label in LABELS], [0] * size, [0] * size, arcs)
    flat = MemoryStore([sentence]).fetch(np.array([0]), arcs=True)
    return SyntaxBatch(pack(flat), torch.arange(4, 4 + size + 1)[None], pad=1)


def parsed_line() -> ParsedLine:
    """The sentence as a parser gives it."""
    line = ParsedLine(line_number=0, words=list(WORDS), heads=list(HEADS), deprels=list(LABELS), upos=list(TAGS))
    line.xpos = ["_"] * len(WORDS)
    line.sentences = [(0, len(WORDS))]
    return line


def words_only(matrix: Tensor) -> np.ndarray:
    """A [T, T] tensor without the row and the column of ``</s>``."""
    return matrix[: len(WORDS), : len(WORDS)].double().numpy()


def over_words(title: str, matrix: Tensor, text: Callable[[float], str] | None = None) -> Panel:
    return Panel(title, words_only(matrix), WORDS, WORDS, text)


def two_digits(value: float) -> str:
    return "1" if value == 1 else f"{value:.2f}".removeprefix("0") if value >= 0.005 else ""


def signed(value: float) -> str:
    return f"{value:+.0f}" if value else "0"


# --- one function a system ---


def pascal() -> Drawing:
    from fairseq_syntax.systems.pascal import gaussian

    syntax = batch()
    factor = gaussian(syntax.parent_middle[0, :, None], syntax.offset_in_sentence[0], 1.0)
    return Drawing(
        [over_words("D: the factor on the scores", factor, two_digits)],
        "The factor $D$ for one parse: a row's scores are scaled by how near a key is to the row's parent. From the "
        "equation alone; below it, what a trained model makes of it.",
    )


def ldd() -> Drawing:
    from fairseq_syntax.systems.ldd import labelled_factors, unlabelled_factors

    syntax = batch()
    names = list(dict.fromkeys([*LABELS, "nmod"]))
    group = torch.tensor([{"nsubj": 0, "obj": 1, "obl": 2, "nmod": 2}.get(name, -1) for name in names])
    dense = labelled_factors(syntax, group, -1, 3, best=False).dense()[0]
    every = unlabelled_factors(syntax, 1, best=False).dense()[0, 0]
    return Drawing(
        [
            over_words("L of a head for modifiers (obl, nmod)", dense[2], two_digits),
            over_words("UDD: all labels, for every head", every, two_digits),
        ],
        "The factor $L$ for a parser that gives “telescope” the head “saw” with 0.6 and “girl” with 0.4. Everything "
        "white is 0, and is never computed. From the equation, not from a trained model.",
    )


def supervised_heads() -> Drawing:
    from fairseq_syntax.systems.supervised_heads import child_matrix, parent_matrix

    syntax = batch()
    return Drawing(
        [
            over_words("A of the children: the child head's target", child_matrix(syntax)[0], two_digits),
            over_words("A of the parents: the parent head's target", parent_matrix(syntax)[0], two_digits),
        ],
        "What the two heads are trained towards for one parse; a leaf attends to itself. From the equation, not from a "
        "trained model.",
    )


def tree_planting() -> Drawing:
    from fairseq_syntax.systems.tree_planting import supervision

    return Drawing(
        [over_words("S: the head's target", supervision(batch())[0], two_digits)],
        "What the head is trained towards for one parse: the nearer two words are in the tree, the more. From the "
        "equation, not from a trained model.",
    )


def lisa() -> Drawing:
    from fairseq_syntax.systems.supervised_heads import parent_matrix

    return Drawing(
        [over_words("P with a perfect parser: the head's own weights", parent_matrix(batch())[0], two_digits)],
        "What $P$ is trained towards for one parse, and what the head attends with if it is right. From the equation, "
        "not from a trained model.",
    )


def dbsa() -> Drawing:
    from fairseq_syntax.systems.dbsa import source_targets, target_targets

    syntax = batch()
    source, target = source_targets(syntax, False), target_targets(syntax, False)
    size = syntax.size[1]
    encoder, decoder = (torch.eye(size)[t.parent[0]] * t.real[0][:, None] for t in (source, target))
    shown = Panel("decoder's target: no future words", decoder.double().numpy(), TARGET_WORDS, TARGET_WORDS, two_digits)
    shown.parse = False
    return Drawing(
        [over_words("encoder's target", encoder, two_digits), shown],
        "What the heads are trained towards for one sentence and its translation, which is parsed alike. In the "
        "decoder, a word whose head comes later attends to itself. From the equation, not from a trained model.",
    )


def relative_depth() -> Drawing:
    from fairseq_syntax.model.trees import Forest

    syntax = batch()
    depth = Forest(syntax).depth
    difference = (depth[None, :] - depth[:, None]).clamp(-2, 2)
    return Drawing(
        [Panel("r: difference of depths, at most 2", difference.numpy(), WORDS, WORDS, signed)],
        "The bucket $r(i, j)$ of each pair for one parse: its learnt vector is added to key and value. From the "
        "equation, not from a trained model.",
    )


def structural_positions() -> Drawing:
    from fairseq_syntax.model.trees import Forest
    from fairseq_syntax.systems.structural_positions import signed_distance

    distance = signed_distance(Forest(batch()), 16)[0]
    return Drawing(
        [Panel("r: signed distance in the tree", distance.numpy(), WORDS, WORDS, signed)],
        "The signed distance $r(i, j)$ of each pair for one parse: positive downwards and, off the path to the root, "
        "to the right. From the equation, not from a trained model.",
    )


def predicted_parse() -> Drawing:
    from fairseq_syntax.systems.predicted_parse import WordColumns, ldd_factor, pascal_factor, predicted_parents

    size = len(WORDS) + 1
    column = torch.arange(size)
    real = column < size - 1
    words = WordColumns(real[None], column[None], real[None], column[None].float())
    scores = torch.full((1, size, size), -9.0)
    for i, head in enumerate(HEADS):
        scores[0, i, head] = 0.0
    for head, (_, p) in UNSURE.items():
        scores[0, 7, head] = np.log(p)
    parents = predicted_parents(scores, words)
    return Drawing(
        [
            over_words("PASCAL's factor: a mixture of Gaussians", pascal_factor(parents, words, 1.0)[0], two_digits),
            over_words("LDD's factor: the probability itself", ldd_factor(parents, words)[0], two_digits),
        ],
        "The factors for a parent head that gives “telescope” the head “saw” with 0.6 and “girl” with 0.4, and is sure "
        "of the rest. From the equation, not from a trained model.",
    )


def sennrich_haddow() -> Drawing:
    labels = list(dict.fromkeys(LABELS))
    rows = np.array([[float(label == of_word) for label in labels] for of_word in LABELS])
    return Drawing(
        [Panel("the label joined to each word's embedding", rows, WORDS, labels, parse=False)],
        "Which label's embedding is joined to that of each word, for one parse. Attention is the plain Transformer's. "
        "From the equation, not from a trained model.",
    )


def gcn() -> Drawing:
    from fairseq_syntax.systems.gcn import GraphConvolution

    layer = GraphConvolution(1, len(LABELS), gates=False)
    with torch.no_grad():  # which edge each message came along is read off its factor
        for linear, weight in ((layer.upward, 3.0), (layer.downward, 2.0), (layer.loop, 1.0)):
            linear.weight.fill_(weight)
    parent, label = torch.tensor(HEADS), torch.arange(len(LABELS))
    states = torch.ones(len(WORDS), 1)
    reached = torch.autograd.functional.jacobian(lambda h: layer(h, parent, label), states)[:, 0, :, 0]
    names = {0: "", 1: "∘", 2: "↓", 3: "↑"}
    return Drawing(
        [Panel("messages to the row's word", reached.numpy(), WORDS, WORDS, lambda v: names[round(v)])],
        "Who sends to whom in one layer, for one parse: ↑ from a dependent, ↓ from the head, ∘ to itself; each has a "
        "matrix of its own, and a learnt gate. From the program with weights set by hand, not from a trained model.",
    )


def dlaa() -> Drawing:
    from fairseq_syntax.model.neighbourhoods import flat_relatives
    from fairseq_syntax.systems.dlaa import RELATIONS

    return Drawing(
        [_members("the block of each word, 5 places", *flat_relatives(batch(), 5, RELATIONS))],
        "The block $B(p)$ when the predicted place is the row's word, for one parse and a block of 5: 1 is the word "
        "itself, then parent, children, siblings, neighbours. From the program, not from a trained model.",
    )


def sdrnmt() -> Drawing:
    from fairseq_syntax.model.neighbourhoods import flat_relatives
    from fairseq_syntax.systems.sdrnmt import UNIT

    return Drawing(
        [_members("the unit of each word", *flat_relatives(batch(), 10, UNIT))],
        "The words of the unit $U_j$ in the order in which the convolution reads them, for one parse. From the "
        "program, not from a trained model.",
    )


def _members(title: str, members: Tensor, present: Tensor) -> Panel:
    order = np.zeros((len(WORDS), len(WORDS)))
    for i, (own, there) in enumerate(zip(members.tolist(), present.tolist())):
        for place, (member, is_there) in enumerate(zip(own, there), start=1):
            if is_there:
                order[i, member] = place
    panel = Panel(title, order, WORDS, WORDS, lambda v: f"{v:.0f}" if v else "")
    # the first is the most: darkest
    panel.values = np.where(order > 0, order, np.nan)
    return panel


def local_attention() -> Drawing:
    from fairseq_syntax.systems.pascal import gaussian_window

    size, window = len(WORDS), 2
    step = torch.arange(size).float()
    distance = step[None, :] - step[:, None]
    inside = (distance.abs() <= window).float()
    steps = [f"step {t}" for t in range(1, size + 1)]
    return Drawing(
        [
            Panel("local-m: what each step may see", inside.numpy(), steps, WORDS, two_digits, parse=False),
            Panel(
                "local-p: the factor if $p_t = t$",
                (gaussian_window(distance, (window / 2) ** 2) * inside).numpy(),
                steps,
                WORDS,
                two_digits,
                parse=False,
            ),
        ],
        "The window of $D = 2$ around each step; no parse is read. From the equation, not from a trained model.",
    )


def senmt() -> Drawing:
    from fairseq_syntax.model.trees import Forest

    forest = Forest(batch())
    steps = [f"step {t}" for t in range(1, len(WORDS) + 1)]
    panels = []
    for title, order in (
        ("children first (post-order)", forest.postorder),
        ("heads first (pre-order)", forest.preorder),
    ):
        read = torch.zeros(len(WORDS), len(WORDS))
        read[order, torch.arange(len(WORDS))] = 1.0
        panels.append(Panel(title, read.numpy(), steps, WORDS))
    return Drawing(
        panels,
        "The order in which the two further encoders read the words, for one parse. From the program, not from a "
        "trained model.",
    )


def tree2seq() -> Drawing:
    parent = torch.tensor(HEADS)
    up = (parent[None, :] == torch.arange(len(WORDS))[:, None]) & (torch.eye(len(WORDS)) == 0)
    down = up.T
    return Drawing(
        [
            over_words("upwards: a row reads its children", up.float()),
            over_words("downwards: a row reads its parent", down.float()),
        ],
        "Whose states each cell reads, for one parse. From the equation, not from a trained model.",
    )


# The functions above, each by its system's folder in examples/.
DRAWN: dict[str, Callable[[], Drawing]] = {
    name: make
    for name, make in list(globals().items())
    if getattr(make, "__annotations__", {}).get("return") == "Drawing"
}
# Systems without a matrix over words, and what their pages say in its place.
NOT_DRAWN = {
    "multitask": "Model and attention are the plain Transformer's. What the model learns of the parse is to write it:",
    "lasyn": "Attention is the plain Transformer's; the tags are in the output layer. What that costs, as measured:",
}


# --- drawing ---


@any_script()
def draw(panel: Panel) -> Figure:
    """A panel, with the parse above it where its columns are the words of the source.

    Each is a picture of its own, so that those of a system stand beside each other on a wide screen, and below each
    other on a phone.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # in inches: the names of rows, a cell, the names of columns and the tree above them, and the title below
    beside, cell, names, below = 0.95, 0.34, 0.8, 0.4
    wide, high = cell * len(panel.columns), cell * len(panel.rows)
    size = (beside + wide + 0.45, names + TREE * panel.parse + high + below)
    figure = Figure(figsize=size, facecolor="white")
    FigureCanvasAgg(figure)

    def axes(bottom: float, height: float) -> Axes:
        return figure.add_axes((beside / size[0], bottom / size[1], wide / size[0], height / size[1]))

    _draw_panel(axes(below, high), panel)
    if panel.parse:
        _draw_tree(axes(below + high + names, TREE))
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    values = panel.values.astype(float)
    order = np.isnan(values).any()  # ranks: the first is the darkest
    shade = np.nan_to_num(1.0 - (values - 1) / 8) * ~np.isnan(values) if order else np.abs(values)
    top = max(1.0, float(shade.max())) if order else max(float(shade.max()), 1e-9)
    rows, columns = values.shape
    # half the scale of colours at most, so that black text can be read on all of it, in grey too
    axes.imshow(shade / top * 0.55, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(columns), panel.columns, rotation=60, ha="left", rotation_mode="anchor", fontsize=9.5)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.set_yticks(range(rows), panel.rows, fontsize=9.5)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#d8dee4", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    for (i, j), value in np.ndenumerate(values):
        text = "" if np.isnan(value) else panel.text(value) if panel.text else "•" if value else ""
        axes.text(j, i, text, ha="center", va="center", fontsize=8.5, color=INK)
    axes.set_xlabel(panel.title, fontsize=10.5, color=INK)


def _draw_tree(axes: Axes) -> None:
    """The arcs of the sentence, each with its arrow at the dependent."""
    arcs = [(i, h) for i, h in enumerate(HEADS) if i != h]
    levels = arc_levels(arcs)
    for (i, h), level in zip(arcs, levels):
        start = h + (0.2 if i > h else -0.2)
        axes.plot([start, start, i, i], [0, level, level, 0], color=ARC, linewidth=1)
        axes.plot([i], [0.12], "v", color=ARC, markersize=4)
    axes.set_xlim(-0.5, len(WORDS) - 0.5)
    axes.set_ylim(0, max(levels) + 0.3)
    axes.set_axis_off()


def save_all(out: Path) -> None:
    """Draw every panel of every system as ``SYSTEM-N.svg``."""
    out.mkdir(parents=True, exist_ok=True)
    for name, make in DRAWN.items():
        for number, panel in enumerate(make().panels, start=1):
            save_figure(draw(panel), out / f"{name}-{number}.svg")


def bench_bars(rows: Mapping[str, float]) -> Figure:
    """Measured ratios by name as bars from 1, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.9 + 0.42 * len(rows)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names, ratios = list(rows), list(rows.values())
    axes.barh(range(len(rows)), [r - 1 for r in ratios], left=1, color=COLORS[0], height=0.6)
    for y, ratio in enumerate(ratios):
        axes.text(max(ratio, 1) * 1.06, y, f"{ratio:.2f} ×", va="center", fontsize=9.5)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.15, max(ratios) * 2.2)
    axes.set_yticks(range(len(rows)), names)
    axes.set_xticks([0.2, 0.5, 1, 2, 5, 10, 20], ["0.2", "0.5", "1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("times its speed (one CPU thread)")
    return figure
