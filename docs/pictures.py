#!/usr/bin/env python3
"""Draws the pictures of the documentation from what programs measured.

    python docs/pictures.py point                   at the top of the README, from the models of `make demo`
    python docs/pictures.py playground              below it: the page of `fairseq-syntax serve`, in a Chromium
    python docs/pictures.py attention               PASCAL's trained attention, from a model of `make demo`
    python docs/pictures.py keep-curves NAME=LOG …  what the site needs of fairseq-train's logs, into docs/data
    python docs/pictures.py figures                 those of measured results, from what is kept, into docs/figures

The colours are Okabe and Ito's, which colour-blind readers tell apart; marks and lines differ too, so that the pictures
can be read in grey.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # from a checkout that is not installed too
sys.path.insert(1, str(Path(__file__).resolve().parent))

import terms

from bench.harness import on_one_thread
from fairseq_syntax.lab.figures.heatmap import arc_levels
from fairseq_syntax.lab.figures.plot import COLORS, save_figure
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.use.pages.fonts import any_script

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
BLUE, RED, GREEN = COLORS[0], COLORS[1], COLORS[2]
GREY, INK = "#8a939c", "#1f2328"


def new_figure(width: float, height: float) -> Figure:
    """A white figure of so many inches, which no global state of pyplot keeps alive."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one plot and a light grid."""
    figure = new_figure(width, height)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


# --- the picture at the top of the README ---

WORDS = ["the", "man", "saw", "the", "girl", "with", "the", "telescope", "."]
HEADS = [2, 3, 0, 5, 3, 8, 8, None, 3]  # from 1, 0 for the root; None is what the sentence leaves open
LABELS = ["det", "nsubj", "root", "det", "obj", "case", "det", "?", "punct"]
TAGS = ["DET", "NOUN", "VERB", "DET", "NOUN", "ADP", "DET", "NOUN", "PUNCT"]
OPEN = 7
READINGS = {3: ("obl", "he used the telescope"), 5: ("nmod", "she had the telescope")}


@dataclass
class Reading:
    """One parse of the sentence, and what each system says to it."""

    heads: list[int]
    labels: list[str]
    gloss: str
    right: str
    translations: dict[str, str]


def conllu(head: int, label: str) -> str:
    """The sentence with the phrase attached to a word (counted from 1), a word a row."""
    rows = []
    for i, word in enumerate(WORDS):
        to, how = (head, label) if i == OPEN else (HEADS[i], LABELS[i])
        after = "SpaceAfter=No" if i + 1 < len(WORDS) and WORDS[i + 1] == "." else "_"
        rows.append("\t".join([str(i + 1), word, "_", TAGS[i], "_", "_", str(to), how, "_", after]))
    return "\n".join(rows) + "\n"


def read_models(data: Path, models: dict[str, Path]) -> list[Reading]:
    """Both readings, translated by each model.

    Raises:
        SyntaxDataError: no such model
    """
    from fairseq_syntax.corpus.conllu import parse_conllu_block
    from fairseq_syntax.use.translator import Translator

    lines = [parse_conllu_block(conllu(head, label)) for head, (label, _) in READINGS.items()]
    said = {
        name: [t.text for t in Translator.load(path, data, device="cpu", beam=1, max_len_b=60).translate(lines)]
        for name, path in models.items()
    }
    readings = []
    for n, (line, (head, (_, gloss))) in enumerate(zip(lines, READINGS.items())):
        governor = {3: "sah", 5: "Mädchen"}[head]
        right = f"der Mann sah das Mädchen mit dem Fernrohr ({governor})."
        readings.append(
            Reading(line.heads, line.deprels, gloss, right, {name: found[n] for name, found in said.items()})
        )
    return readings


@any_script()
def point(readings: Sequence[Reading]) -> Figure:
    """The readings below each other: the parse over the words, and each system's translation, right or wrong."""
    figure = new_figure(6.2, 3.3 * len(readings))  # narrow, to be read on a phone
    panels = figure.subplots(len(readings), 1, squeeze=False)[:, 0]
    figure.subplots_adjust(0.02, 0.01, 0.98, 0.985, hspace=0.1)
    for panel, reading in zip(panels, readings):
        _draw_reading(panel, reading)
    return figure


def _draw_reading(axes: Axes, reading: Reading) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(-6.2, 4.6)
    widths = [1.25 * len(word) + 3.0 for word in WORDS]
    scale = 96 / sum(widths)
    middles, at = [], 2.0
    for width in widths:
        middles.append(at + width * scale / 2)
        at += width * scale
    arcs = [(i, h) for i, h in enumerate(reading.heads) if i != h and reading.labels[i] != "punct"]
    for (i, h), level in zip(arcs, arc_levels(arcs)):
        open_arc = i == OPEN
        _draw_arc(axes, middles, i, h, 0.6 + 0.78 * level, reading.labels[i], BLUE if open_arc else GREY, open_arc)
    for i, (word, middle) in enumerate(zip(WORDS, middles)):
        strong = i in (OPEN, reading.heads[OPEN])
        axes.text(
            middle, 0, word, ha="center", va="center", fontsize=16, color=BLUE if strong else INK,
            fontweight="bold" if strong else "normal",
        )  # fmt: skip
    axes.text(2, 3.9, f"“{reading.gloss}”", fontsize=12.5, color=INK, style="italic", va="center")
    for row, (name, text) in enumerate(reading.translations.items()):
        y = -1.65 - 2.5 * row
        right = text == reading.right
        color = GREEN if right else RED
        axes.text(2, y, name, fontsize=13.5, color=INK, va="center", fontweight="bold")
        axes.text(4, y - 1.1, "✓" if right else "✗", fontsize=17, color=color, va="center", ha="center")
        axes.text(7, y - 1.1, text, fontsize=13.5, color=INK, va="center", style="normal" if right else "italic")


def _draw_arc(
    axes: Axes, middles: list[float], i: int, h: int, top: float, label: str, color: str, strong: bool
) -> None:
    to, start = middles[i], middles[h] + (0.7 if i > h else -0.7)
    width = 2.4 if strong else 1.0
    axes.plot([start, start, to], [0.55, top, top], color=color, linewidth=width, solid_joinstyle="round")
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (to, 0.55), (to, top), arrowprops={**style, "mutation_scale": 15 if strong else 9})
    axes.text(
        (start + to) / 2, top, label, ha="center", va="center", fontsize=11.5 if strong else 9, color=color,
        fontweight="bold" if strong else "normal", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
    )  # fmt: skip


# --- measured speed ---


def bench(prefix: str) -> dict[int, dict[str, Any]]:
    """The last measurements PREFIX@LENGTH on one CPU thread, by their length."""
    found = {}
    for name, row in on_one_thread().items():
        of, _, length = name.partition("@")
        if of == prefix and length.isdigit():
            found[int(length)] = row
    return dict(sorted(found.items()))


SPEEDS = {
    "layer/ldd": ("LDD in linear time", "o-"),
    "layer/ldd_projected": ("LDD, with the projections around it", "s--"),
    "layer/pascal": ("PASCAL", "^-."),
}


@any_script()
def speed() -> Figure:
    """Speed of a layer's attention against the plain one (1), by length."""
    figure, axes = one_panel(7, 4.2)
    lengths: set[int] = set()
    for (prefix, (name, style)), color in zip(SPEEDS.items(), (BLUE, GREEN, RED)):
        rows = bench(prefix)
        if not rows:
            continue
        ratios = [row["ratio"] for row in rows.values()]
        lows = [row["ratio"] - row["ratio_min"] for row in rows.values()]
        highs = [row["ratio_max"] - row["ratio"] for row in rows.values()]
        axes.errorbar(
            list(rows),
            ratios,
            (lows, highs),
            fmt=style,
            color=color,
            capsize=3,
            markersize=6,
            linewidth=1.7,
            label=name,
        )
        lengths |= set(rows)
    axes.axhline(1, color=INK, linewidth=1)
    axes.text(max(lengths), 1.06, "plain attention", ha="right", va="bottom", fontsize=9, color=INK)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(lengths), [str(n) for n in sorted(lengths)])
    marks = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    axes.set_xlabel("tokens of a sentence")
    axes.set_ylabel("speed, times plain attention")
    axes.legend(frameon=False, loc="upper left")
    return figure


# --- the toy corpora ---


def toy_rows() -> list[dict[str, str]]:
    """The rows of examples/toy/TABLE.md: ``system``, ``corpus``, what it ``knows``, ``exact`` and ``best``."""
    rows, corpus = [], ""
    for line in (ROOT / "examples/toy/TABLE.md").read_text("utf-8").splitlines():
        corpus = line.removeprefix("## ") if line.startswith("## ") else corpus
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("| system |"):
            places = {name: cells.index(of) for name, of in {"exact": "exact match", "best": "best possible"}.items()}
        elif cells and not line.startswith("|:"):
            found = {name: cells[place].split(" ± ")[0] for name, place in places.items()}
            rows.append({"system": cells[0], "corpus": corpus, "knows": cells[1].removeprefix("the "), **found})
    return rows


@any_script()
def toy() -> Figure:
    """Each row's exact match as a dot on the bar of the best that its knowledge allows."""
    rows = toy_rows()
    figure, axes = one_panel(7, 0.9 + 0.235 * len(rows))
    axes.grid(axis="y", visible=False)
    previous = None
    for y, row in enumerate(rows):
        if previous not in (None, row["corpus"]):
            axes.axhline(y - 0.5, color="#c9d1d9", linewidth=0.9)
        previous = row["corpus"]
        best = float(row["best"])
        axes.barh(y, best, 0.62, color="#dbe4ee", edgecolor="#b5c3d1", linewidth=0.6)
        told = row["knows"] != "text"
        axes.plot(
            float(row["exact"]), y, "D" if told else "o", color=BLUE if told else RED, markersize=5.5, clip_on=False,
            markeredgecolor="white", markeredgewidth=0.5, zorder=5,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{row['system']}  ·  {row['corpus']}" for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 101)
    axes.set_xlabel("exact match on the ambiguous test sentences, %")
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor="#dbe4ee", edgecolor="#b5c3d1", label="the best possible"),
        Line2D([], [], marker="D", linestyle="", color=BLUE, label="measured: reads the parse"),
        Line2D([], [], marker="o", linestyle="", color=RED, label="measured: reads the text alone"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=1, frameon=False, fontsize=8.5)
    return figure


# --- real text ---

# A system, the number of its seeds where any has several, BLEU and chrF with or without a standard deviation.
SCORE = re.compile(r"^\| ([^|]+?) \| (?:\d+ \| )?(\d+\.\d+)(?: ± [\d.]+)? \| (\d+\.\d+)(?: ± [\d.]+)? \|$")


def multi30k_scores(name: str) -> dict[str, dict[str, float]]:
    """BLEU by test set and system, of a table in examples/multi30k."""
    found: dict[str, dict[str, float]] = {}
    test = ""
    for line in (ROOT / "examples/multi30k" / name).read_text("utf-8").splitlines():
        if line.startswith("## "):
            test = line[3:].strip()
        elif test.startswith("test") and (match := SCORE.match(line)):
            found.setdefault(test, {})[match[1]] = float(match[2])
    return found


@any_script()
def multi30k() -> Figure:
    """BLEU of each system less the Transformer's, in the two test sets of the table of one CPU."""
    scores = multi30k_scores("CPU.md")
    names = [name for name in next(iter(scores.values())) if name not in ("transformer", "multitask")]
    differences = {test: [of_test[name] - of_test["transformer"] for name in names] for test, of_test in scores.items()}
    bars = {test: [(value, 0.0, value) for value in values] for test, values in differences.items()}
    return _of_two_tests(names, bars, "BLEU, difference from the Transformer of the same table")


def _of_two_tests(
    names: Sequence[str], figures: Mapping[str, Sequence[tuple[float, float, float]]], label: str
) -> Figure:
    """A row for each name: in each of two tests a mark, and a line from one place to another."""
    figure, axes = one_panel(7, 0.9 + 0.35 * len(names))
    axes.grid(axis="y", visible=False)
    for number, (test, mark, color) in enumerate(zip(figures, "os", (BLUE, RED))):
        values, begins, ends = zip(*figures[test])
        places = [y + 0.14 * (2 * number - 1) for y in range(len(names))]
        axes.hlines(places, begins, ends, color=color, linewidth=1.2, linestyle="-" if number == 0 else "--")
        axes.plot(values, places, mark, color=color, markersize=6, label=test.replace("_", " of "))
    axes.axvline(0, color=INK, linewidth=1)
    called = {"sennrich_haddow": "S&H", "pascal": "PASCAL"}  # the rows of the recipes, as the pages call them
    axes.set_yticks(range(len(names)), [re.sub(r"^\w+", lambda m: called.get(m[0], m[0]), name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def kept(grid: str) -> Kept:
    """The results that are kept of a grid of examples/multi30k."""
    return Kept.read(ROOT / f"examples/multi30k/{grid}.jsonl.gz")


def gains(grid: str) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Test -> "SYSTEM, PARSE" -> BLEU gained over the Transformer with that parse, and the ends of its interval.

    From the results of a grid, ``trained`` or ``trained-longer``; the parse is the real one or a control.
    """
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for test, entry in kept(grid).scores.items():
        of_test = found[test] = {}
        for row in entry["report"]["shares"]["metrics"]["BLEU"]:
            of_test[f"{row['system']}, the parse"] = tuple(row["gain"])
            for control, twin in row["controls"].items():
                of_test[f"{row['system']}, {control}"] = tuple(twin["gain"])
    return found


@any_script()
def shares() -> Figure:
    """What systems gain with the parse and with control parses, after 8,000 updates."""
    figures = gains("trained-longer")
    names = list(next(iter(figures.values())))
    places = {test: [of_test[name] for name in names] for test, of_test in figures.items()}
    return _of_two_tests(names, places, "BLEU, gain over the Transformer, with 95 % intervals")


DATA = ROOT / "docs" / "data"
CURVES = DATA / "multi30k-curves.json"


def by_dependency() -> Figure:
    """BLEU on Multi30k by the mean length of a sentence's dependencies, from the report that `score --by` wrote."""
    from fairseq_syntax.lab.figures.plot import score_by_property

    return score_by_property(
        {"property": "dependency-length", "intervals": by_property("dependency-length", 2016)}, "BLEU"
    )


def by_property(name: str, year: int) -> list[dict[str, Any]]:
    """The groups of sentences by a property of the parse, with their scores, from a report of `score --by`.

    Raises:
        ValueError: the report is not of the translations that are kept of ``trained``
    """
    report = json.loads((DATA / f"multi30k-by-{year}.json").read_text("utf-8"))
    scores = {one["name"]: one["mean"]["BLEU"] for one in kept("trained").scores[f"test_{year}"]["report"]["systems"]}
    if any(abs(scores[one["name"]] - one["mean"]["BLEU"]) > 1e-6 for one in report["systems"]):
        raise ValueError(f"docs/data/multi30k-by-{year}.json is of other translations than those that are kept")
    (found,) = [one["intervals"] for one in report["by_syntax"] if one["property"] == name]
    return found


def reliability() -> Figure:
    """A parser's probabilities against a treebank, from the report that `calibrate` wrote."""
    from fairseq_syntax.lab.figures.plot import reliability_diagram

    return reliability_diagram(json.loads((DATA / "reliability.json").read_text("utf-8"))["curves"])


def keep_curves(logs: Sequence[str], out: Path) -> None:
    """Keep the translation losses of runs: name -> ``train`` and ``valid`` -> metric -> (updates, value)."""
    from fairseq_syntax.lab.scoring.logs import read_curves
    from fairseq_syntax.runtime.files import write_json

    kept = {}
    for text in logs:
        name, _, path = text.partition("=")
        curves = read_curves(path)
        kept[name] = {
            kind: {metric: curves[kind][metric] for metric in ("nll_loss",) if metric in curves[kind]}
            for kind in ("train", "valid")
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, kept)


def curves() -> Figure:
    """Training curves of Multi30k, from what :func:`keep_curves` kept."""
    from fairseq_syntax.lab.figures.plot import training_curves

    return training_curves(json.loads(CURVES.read_text("utf-8")), ["nll_loss"], since=1500)


# --- a trained model's attention ---


def attention(data: Path, checkpoint: Path, sentence: int, out: Path) -> None:
    """Draw two heads of PASCAL's first layer on a test sentence of the toy corpus (from 1)."""
    from fairseq_syntax.lab.figures.exhibits import collect
    from fairseq_syntax.lab.figures.heatmap import heat_maps

    exhibits, src, _ = collect(str(data), "test", [sentence], {"PASCAL": str(checkpoint)}, beam=1)
    save_figure(heat_maps(exhibits[0], "PASCAL", layers=[0], heads=[0, 1], src=src), out)


FILES = (  # each kind of file in the order of the pipeline, and what records where it comes from
    ("text", "", ""),
    ("parses\n*.conllu", ".NAME.made.json", "the text, the parser\nand its models"),
    ("pieces\nsegmentation", ".NAME.made.json", "text or parses,\nthe model of the pieces"),
    (
        "binarized data\ntokens, store, labels",
        "manifest.json\nmetadata of the store",
        "pieces, dictionary,\nsegmentation, parser",
    ),
    ("checkpoint", "in the checkpoint", "dictionaries, segmentations,\nlabels, parser, plugins"),
    ("exported folder,\nalignment head", "export.json\n*.alignment.json", "the checkpoint,\nits own files"),
    ("translations,\nreport", ".stages, *.jsonl.gz", "settings of the recipe,\neach file that was read"),
)


def provenance() -> Figure:
    """What each file records of the files that it was made from."""
    figure = new_figure(11.5, 2.7)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, len(FILES)), ylim=(0, 1))
    axes.axis("off")
    for place, (name, record, knows) in enumerate(FILES):
        box = {"boxstyle": "round,pad=0.45", "facecolor": "#f3f6fa", "edgecolor": BLUE}
        axes.text(place + 0.5, 0.78, name, ha="center", va="center", fontsize=8.5, color=INK, bbox=box)
        if record:
            axes.text(place + 0.5, 0.46, record, ha="center", va="center", fontsize=8, color=RED, family="monospace")
            axes.text(place + 0.5, 0.18, knows, ha="center", va="center", fontsize=8, color=INK)
            axes.annotate(
                "", (place + 0.06, 0.78), (place - 0.06, 0.78), arrowprops={"arrowstyle": "->", "color": GREY}
            )
    for height, what in ((0.46, "record"), (0.18, "knows")):
        axes.text(0.5, height, what, ha="center", va="center", fontsize=8.5, style="italic", color=GREY)
    return figure


def figures(out: Path) -> None:
    """Draw the pictures of measured results into a directory; pages show them in the repository too."""
    out.mkdir(parents=True, exist_ok=True)
    for draw in (speed, toy, multi30k, shares, by_dependency, reliability, curves, provenance):
        save_figure(draw(), out / f"{draw.__name__}.svg")
    save_figure(terms.bench_bars(lasyn_ratios()), out / "lasyn.svg")


def site(out: Path) -> None:
    """Draw the pictures of the systems' score terms, which only the site shows, into a directory."""
    terms.save_all(out / "terms")
    save_figure(terms.bench_bars(lasyn_ratios()), out / "terms" / "lasyn.svg")


def lasyn_ratios() -> dict[str, float]:
    """What LaSyn's output layer and its training cost, from bench/results.jsonl."""
    last = on_one_thread()
    names = {
        "layer/lasyn@literal": "output layer, against the literal sum",
        "layer/lasyn@softmax": "output layer, against one softmax",
        "train/lasyn_transformer@K1": "training, K = 1, against the Transformer",
        "train/lasyn_transformer@K5": "training, K = 5, against the Transformer",
    }
    return {what: last[name]["ratio"] for name, what in names.items()}


# --- the page of `fairseq-syntax serve` ---

SIZE = 760, 615  # pixels of the window


def playground(models: Mapping[str, Path], parser_models: str | None, output: Path) -> None:
    """Two pictures of the page side by side: while the phrase is dragged to another word, and when it is there.

    Args:
        models: checkpoints by name
        parser_models: Stanza's English models; None for its own folder
    """
    sys.path.insert(1, str(ROOT / "tests/helpers"))
    import browser as chromium
    import served
    from PIL import Image

    from fairseq_syntax import register
    from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser

    register()
    from fairseq_syntax.use.serving.served_models import Source, load_served
    from fairseq_syntax.use.serving.service import Service

    program = chromium.find()
    if program is None:
        raise SystemExit("no Chromium is installed")
    source = Source(load_parser(ParserOptions(model_dir=parser_models)))
    with (
        tempfile.TemporaryDirectory() as folder,
        served.running(Service(load_served(models, device="cpu"), source)) as server,
        closing(chromium.Browser(program, Path(folder, "profile"), *SIZE)) as page,
    ):
        page.open(f"http://127.0.0.1:{server.port}/")
        page.run(f"document.querySelector('#text').value = {json.dumps(' '.join(WORDS[:-1]) + '.')}; translateText()")
        _answered(page)
        page.run("document.querySelector('#panels').closest('section').style.visibility = 'hidden'")
        pictures = [Path(folder, f"{name}.png") for name in ("dragged", "there")]
        for head, picture in zip(READINGS, (None, pictures[0])):
            at = _carried(page, OPEN, head - 1)
            if picture is not None:
                page.screenshot(picture)
            page.send("Input.dispatchMouseEvent", type="mouseReleased", x=at[0], y=at[1], button="left", clickCount=1)
            _answered(page)
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        page.screenshot(pictures[1])
        images = [Image.open(picture).convert("RGB") for picture in pictures]
    both = Image.new("RGB", (2 * SIZE[0] + 20, SIZE[1]), "white")
    for number, image in enumerate(images):
        both.paste(image, (number * (SIZE[0] + 20), 0))
    both.quantize(64, dither=Image.Dither.NONE).save(output, optimize=True)


def _answered(page: Any) -> None:
    """Wait until the page shows what it has asked for."""
    quiet = "!asking.text && !asking.inside && document.querySelector('#cards').getAttribute('aria-busy') === 'false'"
    end = time.monotonic() + 120
    while not page.run(quiet):
        if time.monotonic() > end:
            raise SystemExit("the page does not answer")
        time.sleep(0.05)


def _carried(page: Any, word: int, to: int) -> list[float]:
    """Press the mouse on a word's arc and bring it to another word; where that is."""
    page.run("document.querySelector('#tree-picture').scrollIntoView({block: 'start'}); scrollBy(0, -60)")
    begin = page.run(
        "(p => {const r = p.ownerSVGElement.getBoundingClientRect();"
        " const q = p.getPointAtLength(p.getTotalLength() / 2); return [r.x + q.x, r.y + q.y]})"
        f"(document.querySelector(\".one[data-i='{word}'] .grip\"))"
    )
    page.send("Input.dispatchMouseEvent", type="mousePressed", x=begin[0], y=begin[1], button="left", clickCount=1)
    end = page.run(
        "(r => [r.x + r.width / 2, r.y + r.height / 2])"
        f"(document.querySelector(\"#tree-picture .spot[data-i='{to}']\").getBoundingClientRect())"
    )
    for share in (0.3, 0.7, 1.0):
        x, y = (a + share * (b - a) for a, b in zip(begin, end))
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
    return end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("point", help="the picture at the top of the README")
    demo = ROOT / "runs/toy/demo"
    one.add_argument("--data", type=Path, default=demo / "data/bin", metavar="BIN", help="default: %(default)s")
    one.add_argument("--plain", type=Path, default=demo / "models/transformer/1/checkpoint_last.pt", metavar="FILE")
    one.add_argument("--pascal", type=Path, default=demo / "models/PASCAL/1/checkpoint_last.pt", metavar="FILE")
    one.add_argument(
        "--output", type=Path, default=ROOT / "docs/point.svg", metavar="FILE", help="default: %(default)s"
    )
    page = kinds.add_parser("playground", help="the page of fairseq-syntax serve")
    page.add_argument("models", nargs="*", metavar="NAME=FILE", help="default: PASCAL of `make demo`")
    page.add_argument("--model-dir", metavar="DIR", help="Stanza's English models (default: its own folder)")
    page.add_argument("--output", type=Path, default=ROOT / "docs/playground.png", metavar="FILE")
    trained = kinds.add_parser("attention", help="PASCAL's trained attention")
    trained.add_argument("--data", type=Path, default=demo / "data/bin", metavar="BIN")
    trained.add_argument("--pascal", type=Path, default=demo / "models/PASCAL/1/checkpoint_last.pt", metavar="FILE")
    trained.add_argument("--sentence", type=int, default=124, metavar="N", help="of the test set (default: 124)")
    trained.add_argument("--output", type=Path, default=ROOT / "docs/pascal-attention.svg", metavar="FILE")
    keep = kinds.add_parser("keep-curves", help="what the site needs of fairseq-train's logs")
    keep.add_argument("logs", nargs="+", metavar="NAME=LOG")
    keep.add_argument("--output", type=Path, default=CURVES, metavar="FILE", help="default: %(default)s")
    drawn = kinds.add_parser("figures", help="the pictures of measured results, in docs/figures")
    drawn.add_argument("--output", type=Path, default=ROOT / "docs/figures", metavar="DIR", help="default: %(default)s")
    args = parser.parse_args()
    if args.kind == "playground":
        of_demo = [f"PASCAL={demo / 'models/PASCAL/1/checkpoint_last.pt'}"]
        named = (one.partition("=") for one in args.models or of_demo)
        playground({name: Path(path) for name, _, path in named}, args.model_dir, args.output)
        return 0
    if args.kind == "attention":
        attention(args.data, args.pascal, args.sentence, args.output)
        return 0
    if args.kind == "keep-curves":
        keep_curves(args.logs, args.output)
        return 0
    if args.kind == "figures":
        figures(args.output)
        return 0
    readings = read_models(args.data, {"plain Transformer": args.plain, "PASCAL": args.pascal})
    for reading in readings:
        print(reading.gloss, *reading.translations.items(), sep="\n  ")
    save_figure(point(readings), args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
