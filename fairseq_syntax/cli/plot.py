"""Draw scores, training curves and reliability.

A figure is a PNG, SVG or PDF, depending on its file name.

    fairseq-syntax plot curves plain=plain.log PASCAL=pascal.log --metrics loss bleu --output curves.svg
"""

import json
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairseq_syntax.cli.arguments import SEVERAL, TRANSLATIONS, positive
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.cli.common import read_scored_systems
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.scoring.names import METRICS
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_output, read_bytes
from fairseq_syntax.runtime.named_files import file_by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METRIC = Option("--metric", "metric to draw", choices=METRICS, default="bleu")


def _box(args: Namespace) -> "Figure":
    """Draw a box plot of the systems' sentence scores.

    fairseq-syntax plot box --ref test.de --sys plain=plain.out PASCAL=pascal.out --output box.svg
    """
    import numpy as np

    from fairseq_syntax.lab.figures.plot import box_plot
    from fairseq_syntax.lab.scoring.metrics import Scorer

    systems, (references,) = read_scored_systems(args)
    check_output(args.output, *args.ref, *(run.path for system in systems for run in system.runs))
    scorer = Scorer(args.metric, references, args.tokenize)
    scores = {s.name: np.mean([scorer.sentences(run.lines) for run in s.runs], axis=0) for s in systems}
    return box_plot(scores, scorer.name)


def _length(args: Namespace) -> "Figure":
    """Draw BLEU by length, from a report of score --by-length.

    fairseq-syntax plot length report.json --baseline plain --output length.svg
    """
    from fairseq_syntax.lab.figures.plot import bleu_by_length

    return bleu_by_length(_part(args, args.report, "by_length", "score --by-length N --json"), args.baseline)


def _by(args: Namespace) -> "Figure":
    """Draw a metric by a property of the source's parse, from a report of score --by.

    fairseq-syntax plot by report.json --property dependency-length --metric chrf --output by.svg
    """
    from fairseq_syntax.lab.figures.plot import score_by_property

    parts = {part["property"]: part for part in _part(args, args.report, "by_syntax", "score --by PROPERTY --json")}
    name = args.property or next(iter(parts))
    if name not in parts:
        raise SyntaxDataError(f"no scores by {name}", path=args.report, hint=meant(name, parts))
    return score_by_property(parts[name], METRICS[args.metric])


def _curves(args: Namespace) -> "Figure":
    """Draw training curves from fairseq's logs.

    fairseq-syntax plot curves plain=plain.log PASCAL=pascal.log --metrics loss bleu --output curves.svg
    """
    from fairseq_syntax.lab.figures.plot import training_curves
    from fairseq_syntax.lab.scoring.logs import read_curves

    logs = file_by_name(args.logs)
    check_output(args.output, *logs.values())
    runs = {name: read_curves(path) for name, path in logs.items()}
    return training_curves(runs, args.metrics or ["loss"], args.since)


def _reliability(args: Namespace) -> "Figure":
    """Draw a reliability diagram of a parser's probabilities.

    fairseq-syntax plot reliability stanza=report.json --output reliability.svg
    """
    from fairseq_syntax.lab.figures.plot import reliability_diagram

    curves = {}
    for name, path in file_by_name(args.files).items():
        for curve, bins in _part(args, path, "curves", "calibrate --json").items():
            curves[curve if len(args.files) == 1 else f"{name}: {curve}"] = bins
    return reliability_diagram(curves)


def _part(args: Namespace, path: str, key: str, how: str) -> Any:
    """A part of a JSON report written by another subcommand.

    Raises:
        SyntaxDataError: the file is not such a report, or lacks the part; or the picture would overwrite it
    """
    check_output(args.output, path)
    try:
        part = json.loads(read_bytes(path))[key]
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        part = None
    if not part:
        raise SyntaxDataError(f"a report without {key}", path=path, hint=f"fairseq-syntax {how} FILE writes it")
    return part


_FIGURES: dict[Callable[[Namespace], "Figure"], list[Option]] = {
    _box: [*TRANSLATIONS, _METRIC],
    _length: [
        Option("report REPORT", "output of fairseq-syntax score --by-length N --json REPORT"),
        Option("--baseline NAME", "draw gains over this system, and the share of sentences"),
    ],
    _by: [
        Option("report REPORT", "output of fairseq-syntax score --by PROPERTY --json REPORT"),
        Option("--property PROPERTY", "which property to draw (default: the first)"),
        _METRIC,
    ],
    _curves: [
        Option("logs [NAME=]LOG", "json, simple or tqdm logs of fairseq-train", nargs="+"),
        Option("--metrics NAME", "one panel each (default: loss)", **SEVERAL),
        Option("--since", "start at update N", type=positive, default=1),
    ],
    _reliability: [Option("files [NAME=]FILE", "output of fairseq-syntax calibrate", nargs="+")],
}


def _add_figures(parser: Any) -> None:
    """Add a subcommand for each figure, with the name of the function that draws it."""
    figures = parser.add_subparsers(dest="figure", metavar="FIGURE", required=True)
    output = Option("--output FILE", "FILE.png, FILE.svg or FILE.pdf", required=True)
    for draw, arguments in _FIGURES.items():
        command = Command(draw.__doc__ or "", "evaluate", [*arguments, output])
        command.add_to(figures, draw.__name__.strip("_")).set_defaults(draw=draw)


COMMAND = Command(__doc__, group="evaluate", step=3, arguments=[_add_figures])


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.figures import plot

    plot.check_ending(args.output)
    plot.save_figure(args.draw(args), args.output)
    finished(args.output, "the figure")
