"""The figures hold the numbers that they are given, in every format and script; logs are read in every format."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pytest
import sacrebleu
from data_errors import data_error, refused
from matplotlib import font_manager, rcParams
from matplotlib.cbook import is_math_text
from matplotlib.text import Text
from PIL import Image

from fairseq_syntax.cli import main as command
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.figures import plot
from fairseq_syntax.lab.figures.heatmap import heat_maps
from fairseq_syntax.lab.scoring.by_property import by_length
from fairseq_syntax.lab.scoring.logs import read_curves
from fairseq_syntax.lab.scoring.outputs import read_translations
from fairseq_syntax.use.pages.exhibit import Exhibit, Output, Tree
from fairseq_syntax.use.pages.fonts import any_script

STAMP = "2026-01-01 00:00:00 | INFO | train | "
JSON_LOG = """Namespace(log_format='json')
{"epoch": 1, "update": 0.5, "loss": "9.678", "ppl": "818.88", "num_updates": "3", "lr": "0.01", "wall": "3"}
{"epoch": 1, "valid_loss": "8.771", "valid_ppl": "436.92", "valid_num_updates": "6"}
{"epoch": 1, "train_loss": "9.338", "train_ppl": "647.16", "train_num_updates": "6", "train_train_wall": "2"}
{"epoch": 2, "valid_loss": "8.100", "valid_ppl": "270.0", "valid_num_updates": "12", "valid_best_loss": "8.1"}
{"epoch": 2, "valid_loss": "8.058", "valid_ppl": "266.49", "valid_num_updates": "12", "valid_best_loss": "8.058"}
{"epoch": 2, "train_loss": "8.449", "train_ppl": "inf", "train_num_updates": "12", "train_lr": "0.01"}
{"epoch": 3, "train_loss": "8.4
"""
SIMPLE_LOG = """begin validation on "valid" subset
epoch 001:      3 / 6 loss=9.678, ppl=818.88, num_updates=3, lr=0.01, wall=3
epoch 001 | valid on 'valid' subset | loss 8.771 | ppl 436.92 | num_updates 6
epoch 001 | loss 9.338 | ppl 647.16 | num_updates 6 | train_wall 2
epoch 002 | valid on 'valid' subset | loss 8.1 | ppl 270.0 | num_updates 12 | best_loss 8.1
epoch 002 | valid on 'valid' subset | loss 8.058 | ppl 266.49 | num_updates 12 | best_loss 8.058
epoch 002 | loss 8.449 | ppl inf | num_updates 12 | lr 0.01
"""


@pytest.mark.parametrize("stamp", ["", STAMP])
@pytest.mark.parametrize("log", [JSON_LOG, SIMPLE_LOG])
def test_a_log_is_read_whatever_its_format(tmp_path, log, stamp):
    path = tmp_path / "train.log"
    path.write_text("".join(stamp + line + "\n" for line in log.splitlines()))
    curves = read_curves(path)
    assert set(curves) == {"train", "valid", "train_inner"}
    assert curves["valid"]["loss"] == [(6, 8.771), (12, 8.058)], "of two values at one update the last counts"
    assert curves["train"]["loss"] == [(6, 9.338), (12, 8.449)]
    assert curves["train_inner"]["loss"] == [(3, 9.678)]
    assert curves["train"]["train_wall"] == [(6, 2.0)] and curves["valid"]["best_loss"] == [(12, 8.058)]


def test_scores_by_a_property_are_drawn_with_their_intervals(tmp_path):
    scores = {"a": {"score": 10.0, "low": 8.0, "high": 13.0}, "b": {"score": 5.0, "low": 5.5, "high": 6.0}}
    intervals = [{"over": None, "to": 2.0, "sentences": 7, "scores": {"BLEU": scores}}]
    intervals.append({"over": 2.0, "to": None, "sentences": 1200, "scores": {"BLEU": scores}})
    figure = plot.score_by_property({"property": "depth", "intervals": intervals}, "BLEU")
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["≤ 2\n7", "> 2\n1,200"]
    first, second = axes.containers
    assert first[0].get_ydata().tolist() == [10.0, 10.0]
    assert [segment[:, 1].tolist() for segment in first[2][0].get_segments()] == [[8.0, 13.0]] * 2
    assert [segment[:, 1].tolist() for segment in second[2][0].get_segments()] == [[5.0, 6.0]] * 2
    few = [{**intervals[0], "scores": {"BLEU": {name: {"score": 4.0} for name in scores}}}, intervals[1]]
    (axes,) = plot.score_by_property({"property": "depth", "intervals": few}, "BLEU").axes
    for container in axes.containers:
        assert [len(ends) for ends in container[2][0].get_segments()] == [0, 2], "no interval of the first"
    assert "hollow: too few for an interval" in axes.get_xlabel()
    assert [line.get_ydata().tolist() for line in axes.lines if line.get_markerfacecolor() == "white"] == [[4.0], [4.0]]
    with data_error("chrF", "BLEU"):
        plot.score_by_property({"property": "depth", "intervals": intervals}, "chrF")

    for name, lines in (("ref", "a b c d\n" * 3), ("sys", "a b c e\n" * 3)):
        (tmp_path / name).write_text(lines)
    row = "1\tw\t_\tN\t_\t_\t0\troot\t_\t_\n\n"
    (tmp_path / "p.conllu").write_text(row * 3)
    argv = ["score", "--ref", tmp_path / "ref", "--sys", tmp_path / "sys", "--conllu", tmp_path / "p.conllu"]
    argv += ["--by", "depth", "upos=N", "--resamples", 10, "--json", tmp_path / "report.json"]
    (tmp_path / "src").write_text("w\n" * 3)
    assert command([*map(str, argv), "--src", f"{tmp_path}/src"]) == 0
    draw = ["plot", "by", f"{tmp_path}/report.json", "--output", f"{tmp_path}/by.png", "--property"]
    assert command([*draw, "upos=N"]) == 0
    with Image.open(tmp_path / "by.png") as image:
        assert image.size[0] > 100
    refused([*draw, "upos=V"], "upos=N", path="report.json")
    (tmp_path / "src").write_text("v\n" * 3)
    refused([*map(str, argv), "--src", f"{tmp_path}/src"], path="p.conllu", line=1)


def test_a_file_that_is_no_log_is_named(tmp_path):
    (tmp_path / "x").write_text("nothing here\n")
    with data_error(path="x"):
        read_curves(tmp_path / "x")


@pytest.mark.parametrize("updates", ["nan", "inf"])
def test_a_number_of_updates_that_is_none_is_passed_over(tmp_path, updates):
    (tmp_path / "x").write_text(SIMPLE_LOG + f"epoch 003 | loss 7.5 | num_updates {updates}\n")
    assert read_curves(tmp_path / "x")["train"]["loss"] == [(6, 9.338), (12, 8.449)]
    (tmp_path / "x").write_text(f"epoch 003 | loss 7.5 | num_updates {updates}\n")
    with data_error(path="x"):
        read_curves(tmp_path / "x")


@pytest.mark.parametrize("curves", [[], {}, None])
def test_what_is_no_report_of_calibrate_is_named(tmp_path, curves):
    (tmp_path / "r.json").write_text(json.dumps({"curves": curves}))
    refused(["plot", "reliability", f"{tmp_path}/r.json", "--output", f"{tmp_path}/r.svg"], path="r.json")


def test_curves_are_drawn_per_run_and_kind(tmp_path):
    (tmp_path / "log").write_text(JSON_LOG)
    runs = {"a": read_curves(tmp_path / "log"), "b": {"valid": {"loss": [(1, 2.0), (2, 1.0)]}}}
    figure = plot.training_curves(runs, ["loss", "ppl"])
    loss = figure.axes[0]
    drawn = [(line.get_linestyle(), line.get_xydata().tolist()) for line in loss.lines]
    assert sorted(drawn) == [
        ("-", [[1, 2.0], [2, 1.0]]),
        ("-", [[6, 8.771], [12, 8.058]]),
        ("--", [[6, 9.338], [12, 8.449]]),
    ]
    with data_error("bleu", "loss"):
        plot.training_curves(runs, ["bleu"])
    later = plot.training_curves(runs, ["loss"], since=6).axes[0]
    assert [line.get_xdata().tolist() for line in later.lines] == [[6, 12], [6, 12]]
    with data_error("loss", "13"):
        plot.training_curves(runs, ["loss"], since=13)


def test_curves_of_several_validation_subsets_are_told_apart():
    kinds = {kind: {"loss": [(1, 2.0 + place), (2, 1.0)]} for place, kind in enumerate(("train", "valid", "test"))}
    figure = plot.training_curves({"a": kinds}, ["loss"])
    drawn = {line.get_ydata()[0]: line.get_linestyle() for line in figure.axes[0].lines}
    entries = {line.get_label(): line.get_linestyle() for line in figure.legends[0].get_lines()}
    assert entries == {"a": "-", "valid": drawn[3.0], "test": drawn[4.0], "training": drawn[2.0]}
    assert len(set(drawn.values())) == 3


@pytest.mark.parametrize("names", [["a", "b", "c"], [f"a system with a long name {n}" for n in range(8)]])
def test_the_legend_fits_the_picture(names):
    figure = plot.training_curves({name: {"valid": {"loss": [(1, 2.0), (2, 1.0)]}} for name in names}, ["loss"])
    (legend,) = figure.legends
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and len(legend.get_texts()) == len(names) + 2
    assert figure.axes[0].get_window_extent().y1 <= box.y0


def test_a_box_plot_shows_quartiles_and_mean():
    scores = np.arange(101.0)
    figure = plot.box_plot({"a": scores, "b": scores / 2}, "BLEU")
    axes = figure.axes[0]
    heights = {tuple(np.unique(line.get_ydata())) for line in axes.lines}
    assert (50.0,) in heights and (25.0,) in heights, "the medians"
    assert (25.0, 75.0) in heights, "the box"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b"]
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == 202


def test_bars_are_the_scores_by_length():
    table = {"of": "source", "width": 10, "buckets": [
        {"over": 0, "to": 10, "sentences": 5, "BLEU": {"a": 20.0, "b": 21.0}},
        {"over": 20, "to": 30, "sentences": 1234, "BLEU": {"a": 10.0, "b": 12.0}},
    ]}  # fmt: skip
    axes, below = plot.bleu_by_length(table).axes
    assert [bar.get_height() for bar in axes.patches] == [20.0, 10.0, 21.0, 12.0]
    assert [text.get_text() for text in below.get_xticklabels()] == ["(0, 10]\n5", "(20, 30]\n1,234"]


def test_a_system_looks_the_same_with_and_without_a_baseline():
    buckets = [{"over": 0, "to": 9, "sentences": 1, "BLEU": {"plain": 1.0, "A": 2.0, "B": 3.0}}]
    looks = []
    for baseline in (None, "plain"):
        bars = plot.bleu_by_length({"buckets": buckets, "of": "source"}, baseline).axes[0].containers
        looks.append({bar.get_label(): (bar[0].get_facecolor(), bar[0].get_hatch()) for bar in bars})
    assert looks[0].pop("plain") and looks[0] == looks[1]


def test_a_legend_has_every_name():
    """matplotlib leaves out names that begin with an underscore."""
    names = ["_old", "new"]
    scores = {"BLEU": {name: {"score": 1.0, "low": 0.5, "high": 1.5} for name in names}}
    intervals = [{"over": None, "to": None, "sentences": 1, "scores": scores}]
    lengths = [{"over": 0, "to": 9, "sentences": 1, "BLEU": dict.fromkeys(names, 1.0)}]
    for figure in (
        plot.bleu_by_length({"buckets": lengths, "of": "source"}),
        plot.score_by_property({"property": "length", "intervals": intervals}, "BLEU"),
        plot.training_curves({name: {"valid": {"loss": [(1, 1.0)]}} for name in names}, ["loss"]),
        plot.reliability_diagram({name: [(0.5, 0.5, 9)] for name in names}),
    ):
        legend = figure.legends[0] if figure.legends else figure.axes[0].get_legend()
        actual = [text.get_text().strip().partition(" ")[0] for text in legend.get_texts()]
        assert [name for name in actual if name in names] == names


def test_gains_by_length_are_those_of_sacrebleu_on_the_sentences_of_each_length(tmp_path, capsys):
    """From files to bars and to the printed table, against sacrebleu on sentences that a loop has chosen."""
    rng = random.Random(3)
    words = [
        "a",
        "man",
        "in",
        "a",
        "red",
        "shirt",
        "is",
        "riding",
        "his",
        "old",
        "bike",
        "near",
        "the",
        "green",
        "river",
        "with",
        "two",
        "dogs",
    ]
    sources = [" ".join(rng.choices(words, k=rng.choice([2, 4, 9, 12, 13, 25]))) for _ in range(90)]

    def copies(rate: float) -> list[str]:
        return [" ".join(w if rng.random() > rate else "oops" for w in line.split()) for line in sources]

    systems = {"base": copies(0.3), "near": copies(0.1), "far": copies(0.5)}
    for name, side in {"src": sources, "ref": sources, **systems}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in side))
    gains, shares = {"near": [], "far": []}, []
    for over in (0, 10, 20):
        chosen = [n for n, line in enumerate(sources) if over < len(line.split()) <= over + 10]
        of = {
            name: sacrebleu.corpus_bleu([side[n] for n in chosen], [[sources[n] for n in chosen]], force=True).score
            for name, side in systems.items()
        }
        for name in gains:
            gains[name].append(of[name] - of["base"])
        shares.append(100 * len(chosen) / len(sources))

    argv = ["--ref", tmp_path / "ref", "--src", tmp_path / "src", "--sys", *(f"{n}={tmp_path / n}" for n in systems)]
    runs = {name: [read_translations(tmp_path / name).lines] for name in systems}
    table = by_length(runs, [sources], 10, sources)
    axes, below = plot.bleu_by_length(table, "base").axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(gains["near"] + gains["far"])
    assert [bar.get_height() for bar in below.patches] == pytest.approx(shares) and sum(shares) == pytest.approx(100)
    with pytest.raises(SyntaxDataError):
        plot.bleu_by_length(table, "nosuch")

    out, report = tmp_path / "gain.png", tmp_path / "report.json"
    score = ["score", *argv, "--metrics", "bleu", "--by-length", "10", "--resamples", "0", "--trials", "0"]
    assert command(list(map(str, [*score, "--json", report]))) == 0
    printed = capsys.readouterr().out
    for name in gains:
        assert all(f"({gain:+.1f})" in printed for gain in gains[name])
    assert all(f"{share:.1f}%" in printed for share in shares)
    assert command(list(map(str, ["plot", "length", report, "--baseline", "base", "--output", out]))) == 0
    with Image.open(out) as image:
        assert image.size[1] > 300


def test_a_reliability_diagram_names_its_error():
    figure = plot.reliability_diagram({"heads": [(0.5, 0.25, 100), (0.9, 0.9, 300)]})
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["perfect", "heads (ECE 6.2%)"], "100/400 of a gap of 0.25"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_figure_is_saved_and_always_the_same(tmp_path, ending):
    for name in ("one", "two"):
        plot.save_figure(plot.box_plot({"a": np.arange(9.0)}, "chrF"), tmp_path / f"{name}.{ending}")
    one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert len(one) > 2000 and one == two
    with data_error(path="x.gif"):
        plot.save_figure(plot.box_plot({"a": np.arange(9.0)}, "chrF"), tmp_path / "x.gif")


@pytest.mark.parametrize("text, fonts", [("猫", "CJK"), ("日本語の", "CJK"), ("العربية", "Arabic")])
def test_names_in_any_script_are_drawn_and_not_boxes(tmp_path, text, fonts, caplog, recwarn):
    if not any("Noto" in font.name and fonts in font.name for font in font_manager.fontManager.ttflist):
        pytest.skip(f"no Noto {fonts} font is installed")
    plot.save_figure(plot.box_plot({text: np.arange(9.0), "a": np.arange(9.0)}, "BLEU"), tmp_path / "x.png")
    assert not [w for w in recwarn if "Glyph" in str(w.message)], "a glyph is missing"
    assert np.asarray(Image.open(tmp_path / "x.png").convert("L")).min() == 0


def test_the_fonts_of_a_locale_are_those_of_its_language():
    families = []
    for language in ("ja", "ja_XX", "zh_CN"):
        with any_script(language):
            families.append(rcParams["font.family"])
    assert families[0] == families[1]
    if len([name for name in families[0] if "CJK" in name]) > 1:
        assert families[0] != families[2]


def test_dollar_signs_are_no_mathematics(tmp_path):
    """matplotlib would draw what stands between two of them as a formula, and not draw ``$$`` at all."""
    names = ["$5-$6", "$$"]
    pieces = [*names, "</s>"]
    exhibit = Exhibit(1, "", "", names, ["X"] * 2, [1] * 2, pieces)
    exhibit.outputs["S"] = Output("", {}, pieces, {"cross": [np.full((1, 3, 3), 1 / 3)]})
    without, exhibit.trees["parser"] = heat_maps(exhibit, "S", kind="cross"), Tree([0, 0], names, [0.5, None])
    scores = {"BLEU": {name: {"score": 1.0} for name in names}}
    part = {"property": "label=$a$", "intervals": [{"over": None, "to": 1, "sentences": 1, "scores": scores}]}
    lengths = [{"over": 0, "to": 9, "sentences": 1, "BLEU": dict.fromkeys(names, 1.0)}]
    for figure in (
        without,
        heat_maps(exhibit, "S", kind="cross"),
        plot.box_plot(dict.fromkeys(names, np.arange(9.0)), "chrF"),
        plot.bleu_by_length({"buckets": lengths, "of": "source"}),
        plot.bleu_by_length({"buckets": lengths, "of": "source"}, "$$"),
        plot.score_by_property(part, "BLEU"),
        plot.training_curves({name: {"valid": {"loss": [(1, 1.0)]}} for name in names}, ["loss"]),
        plot.reliability_diagram({name: [(0.5, 0.25, 100)] for name in names}),
    ):
        plot.save_figure(figure, tmp_path / "x.png")
        texts = [text.get_text() for text in figure.findobj(Text) if "$" in text.get_text()]
        texts = [text for text in texts if "mathdefault" not in text]  # of the numbers at an axis
        assert texts and not any(map(is_math_text, texts)), texts


def test_no_figure_leaves_out_a_system_of_the_same_name_or_replaces_what_it_is_drawn_from(tmp_path, capsys):
    for name in ("a.svg", "b"):
        (tmp_path / name).write_text(SIMPLE_LOG)
    one, two = (f"{tmp_path}/{name}" for name in ("a.svg", "b"))
    texts = ["--ref", one, "--sys", f"s={one}", f"s={two}"]
    for figure in (
        ["box", *texts],
        ["curves", f"s={one}", f"s={two}"],
        ["reliability", "s=1", "s=2"],
    ):
        refused(["plot", *figure, "--output", f"{tmp_path}/x.svg"], "=FILE")
    for figure in (["box", "--ref", one, "--sys", two], ["box", "--ref", two, "--sys", one], ["curves", one]):
        refused(["plot", *figure, "--output", one], path=one)
    box = ["plot", "box", "--ref", one, "--sys", two, "--output", f"{tmp_path}/x.svg"]
    refused([*box, "--tokenize", "klingon"], "klingon")
    refused(["plot", "curves", two, "--output", f"{tmp_path}/x.jpg"], ".jpg")
    assert (tmp_path / "a.svg").read_text() == SIMPLE_LOG and not (tmp_path / "x.svg").exists()


def test_the_commands_draw(tmp_path):
    rng = random.Random(0)
    lines = [" ".join(rng.choices(["a", "b", "c", "d", "e"], k=rng.randint(1, 25))) for _ in range(40)]
    (tmp_path / "ref.gz").write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    (tmp_path / "sys").write_text("".join(line[::-1] + "\n" for line in lines))
    (tmp_path / "log").write_text(SIMPLE_LOG)
    files = ["--ref", f"{tmp_path}/ref.gz", "--sys", f"x={tmp_path}/sys", "--output"]
    assert command(["plot", "box", *files, f"{tmp_path}/box.svg"]) == 0
    score = ["score", *files[:-1], "--by-length", "5", "--json", f"{tmp_path}/report.json", "--src"]
    assert command([*score, f"{tmp_path}/sys"]) == 0
    length = ["plot", "length", f"{tmp_path}/report.json", "--output"]
    assert command([*length, f"{tmp_path}/length.png"]) == 0
    assert (
        command(["plot", "curves", f"{tmp_path}/log", "--metrics", "loss", "ppl", "--output", f"{tmp_path}/c.pdf"]) == 0
    )
    assert all((tmp_path / name).stat().st_size > 2000 for name in ("box.svg", "length.png", "c.pdf"))
    (tmp_path / "short").write_text("one\n")
    assert command([*score, f"{tmp_path}/short"]) == 1
    refused(["plot", "length", f"{tmp_path}/log", "--output", f"{tmp_path}/x.png"], path="log")
    (tmp_path / "calibration.json").write_text(json.dumps({"curves": {"heads": [[0.5, 0.5, 3]]}}))
    argv = ["plot", "reliability", f"x={tmp_path}/calibration.json", "--output", f"{tmp_path}/r.png"]
    assert command(argv) == 0 and (tmp_path / "r.png").exists()
    (tmp_path / "calibration.json").write_text("{}")
    assert command(argv) == 1
