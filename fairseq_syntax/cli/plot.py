"""``fairseq-syntax plot``: the papers' figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from fairseq_syntax.cli.command import Command, add_command
from fairseq_syntax.cli.options import SEVERAL, add_translations, positive, read_translations
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.scoring.names import METRICS
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_output, read_bytes
from fairseq_syntax.runtime.named_files import file_by_name

_CURVES = "fairseq-syntax plot curves plain=plain.log PASCAL=pascal.log --metrics loss bleu --output curves.svg"

COMMAND = Command(
    group="evaluate",
    summary="draw scores, training curves and reliability",
    description="Draw a figure as PNG, SVG or PDF, depending on its file name.",
    example=_CURVES,
    step=3,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    figures = parser.add_subparsers(dest="figure", metavar="FIGURE", required=True)
    box = _figure(
        figures,
        _box,
        "box plot of the systems' sentence scores",
        "fairseq-syntax plot box --ref test.de --sys plain=plain.out PASCAL=pascal.out --output box.svg",
    )
    add_translations(box)
    box.add_argument("--metric", choices=METRICS, default="bleu", help="metric to draw")

    length = _figure(
        figures,
        _length,
        "BLEU by length, from a report of score --by-length",
        "fairseq-syntax plot length report.json --baseline plain --output length.svg",
    )
    length.add_argument("report", metavar="REPORT", help="output of fairseq-syntax score --by-length N --json REPORT")
    length.add_argument("--baseline", metavar="NAME", help="draw gains over this system, and the share of sentences")

    by = _figure(
        figures,
        _by,
        "a metric by a property of the source's parse, from a report of score --by",
        "fairseq-syntax plot by report.json --property dependency-length --metric chrf --output by.svg",
    )
    by.add_argument("report", metavar="REPORT", help="output of fairseq-syntax score --by PROPERTY --json REPORT")
    by.add_argument("--property", metavar="PROPERTY", help="which property to draw (default: the first)")
    by.add_argument("--metric", choices=METRICS, default="bleu", help="metric to draw")

    curves = _figure(figures, _curves, "training curves from fairseq's logs", _CURVES)
    curves.add_argument("logs", nargs="+", metavar="[NAME=]LOG", help="json, simple or tqdm logs of fairseq-train")
    curves.add_argument("--metrics", **SEVERAL, metavar="NAME", help="one panel each (default: loss)")
    curves.add_argument("--since", type=positive, default=1, help="start at update N")

    reliability = _figure(
        figures,
        _reliability,
        "reliability diagram of a parser's probabilities",
        "fairseq-syntax plot reliability stanza=report.json --output reliability.svg",
    )
    reliability.add_argument("files", nargs="+", metavar="[NAME=]FILE", help="output of fairseq-syntax calibrate")


def _figure(figures: Any, draw: Callable[[Any], Any], summary: str, example: str) -> argparse.ArgumentParser:
    """Add the parser of a figure, which has the name of the function that draws it."""
    figure = add_command(figures, draw.__name__.strip("_"), Command("evaluate", summary, example))
    figure.set_defaults(draw=draw)
    figure.add_argument("--output", required=True, metavar="FILE", help="FILE.png, FILE.svg or FILE.pdf")
    return figure


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.lab.figures import plot

    check_output(args.output, *getattr(args, "ref", ()), getattr(args, "report", None))
    plot.check_ending(args.output)
    plot.save(args.draw(args), args.output)
    finished(args.output, "the figure")
    return 0


def _box(args):
    import numpy as np

    from fairseq_syntax.lab.figures.plot import box_plot
    from fairseq_syntax.lab.scoring.metrics import Scorer

    systems, (references,) = read_translations(args)
    check_output(args.output, *(run.path for system in systems for run in system.runs))
    scorer = Scorer(args.metric, references, args.tokenize)
    scores = {s.name: np.mean([scorer.sentences(run.lines) for run in s.runs], axis=0) for s in systems}
    return box_plot(scores, scorer.name)


def _length(args):
    from fairseq_syntax.lab.figures.plot import bleu_by_length, gain_by_length

    table = _part(args.report, "by_length", "score --by-length N --json")
    return bleu_by_length(table) if args.baseline is None else gain_by_length(table, args.baseline)


def _by(args):
    from fairseq_syntax.lab.figures.plot import score_by_property

    parts = {part["property"]: part for part in _part(args.report, "by_syntax", "score --by PROPERTY --json")}
    name = args.property or next(iter(parts))
    if name not in parts:
        raise SyntaxDataError(f"no scores by {name}", path=args.report, hint=meant(name, parts))
    return score_by_property(parts[name], METRICS[args.metric])


def _curves(args):
    from fairseq_syntax.lab.figures.plot import training_curves
    from fairseq_syntax.lab.scoring.logs import read_curves

    runs = {name: read_curves(path) for name, path in _named_files(args, args.logs).items()}
    return training_curves(runs, args.metrics or ["loss"], args.since)


def _reliability(args):
    from fairseq_syntax.lab.figures.plot import reliability_diagram

    curves = {}
    for name, path in _named_files(args, args.files).items():
        for curve, bins in _part(path, "curves", "calibrate --json").items():
            curves[curve if len(args.files) == 1 else f"{name}: {curve}"] = bins
    return reliability_diagram(curves)


def _part(path: str, key: str, how: str) -> Any:
    """A part of a JSON report written by another subcommand.

    Raises:
        SyntaxDataError: the file is not such a report, or lacks the part
    """

    try:
        part = json.loads(read_bytes(path))[key]
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        part = None
    if not part:
        raise SyntaxDataError(f"a report without {key}", path=path, hint=f"fairseq-syntax {how} FILE writes it")
    return part


def _named_files(args: argparse.Namespace, texts: list[str]) -> dict[str, str]:
    """Files by name; names must be unique."""
    named = file_by_name(texts)
    check_output(args.output, *named.values())
    return named
