"""``fairseq-syntax plot``: the papers' figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from fairseq_syntax.cli.command import Command, add_command
from fairseq_syntax.cli.options import SEVERAL, add_translations, positive, read_translations
from fairseq_syntax.lab.scoring.names import METRICS

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
        "BLEU by length of the reference, or of the source",
        r"""
        fairseq-syntax plot length --ref test.de --src test.en --sys plain=plain.out PASCAL=pascal.out \
            --output length.svg""",
    )
    add_translations(length)
    length.add_argument("--src", metavar="FILE", help="source sentences, to count their tokens instead")
    length.add_argument("--baseline", metavar="NAME", help="draw gains over this system, and the share of sentences")
    length.add_argument("--step", type=positive, default=10, help="width of an interval")

    by = _figure(
        figures,
        _by,
        "a metric by a property of the source's parse",
        r"""
        fairseq-syntax plot by --ref test.de --sys plain=plain.out PASCAL=pascal.out \
            --conllu test.en.conllu --by dependency-length --output by.svg""",
    )
    add_translations(by)
    by.add_argument("--conllu", required=True, metavar="PARSE", help="the source's parse")
    by.add_argument("--src", metavar="FILE", help="source sentences, to check the parse against")
    by.add_argument("--by", required=True, metavar="PROPERTY", help="property, as in score --by")
    by.add_argument("--metric", choices=METRICS, default="bleu", help="metric to draw")
    by.add_argument("--resamples", type=positive, default=1000, help="resamples of the bootstrap")

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
    """The parser of a figure, which is called as the function that draws it."""
    figure = add_command(figures, draw.__name__.strip("_"), Command("evaluate", summary, example))
    figure.set_defaults(draw=draw)
    figure.add_argument("--output", required=True, metavar="FILE", help="FILE.png, FILE.svg or FILE.pdf")
    return figure


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.lab.figures import plot
    from fairseq_syntax.runtime.console import finished
    from fairseq_syntax.runtime.files import check_output

    check_output(args.output, *getattr(args, "ref", ()), getattr(args, "src", None), getattr(args, "conllu", None))
    plot.check_ending(args.output)
    plot.save(args.draw(args), args.output)
    finished(args.output, "the figure")
    return 0


def _box(args):
    import numpy as np

    from fairseq_syntax.lab.figures.plot import box_plot
    from fairseq_syntax.lab.scoring.metrics import Scorer

    systems, (references,) = _read(args)
    scorer = Scorer(args.metric, references, args.tokenize)
    scores = {s.name: np.mean([scorer.sentences(run.lines) for run in s.runs], axis=0) for s in systems}
    return box_plot(scores, scorer.name)


def _length(args):
    from fairseq_syntax.lab.figures.plot import bleu_by_length, gain_by_length
    from fairseq_syntax.lab.scoring.by_length import by_length

    systems, (references, sources) = _read(args, args.src)
    runs = {system.name: [run.lines for run in system.runs] for system in systems}
    table = by_length(runs, references, args.step, sources, tokenize=args.tokenize)
    return bleu_by_length(table) if args.baseline is None else gain_by_length(table, args.baseline)


def _by(args):
    from fairseq_syntax.lab.figures.plot import score_by_property
    from fairseq_syntax.lab.scoring.metrics import METRICS
    from fairseq_syntax.lab.scoring.properties import Property
    from fairseq_syntax.lab.scoring.report import Options, evaluate, read_parses

    wanted = [Property.of(args.by)]
    systems, (references, sources) = _read(args, args.src)
    options = Options([args.metric], args.tokenize, resamples=args.resamples, trials=0, by=wanted)
    parses = read_parses(args.conllu, len(systems[0].runs[0]), sources)
    report = evaluate(systems, references, options, parses=parses)
    return score_by_property(report["by_syntax"][0], METRICS[args.metric])


def _curves(args):
    from fairseq_syntax.lab.figures.plot import training_curves
    from fairseq_syntax.lab.scoring.logs import read_curves

    runs = {name: read_curves(path) for name, path in _of_names(args, args.logs).items()}
    return training_curves(runs, args.metrics or ["loss"], args.since)


def _reliability(args):
    import json

    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.lab.figures.plot import reliability_diagram

    curves = {}
    for name, path in _of_names(args, args.files).items():
        try:
            with open(path, encoding="utf-8") as file:
                bins_of = json.load(file)["curves"]
            bins_of = {curve: [(float(p), float(right), int(n)) for p, right, n in of] for curve, of in bins_of.items()}
            if not bins_of or not all(sum(n for *_, n in bins) > 0 for bins in bins_of.values()):
                raise ValueError("no predictions")
        except (OSError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise SyntaxDataError(
                f"not a report of fairseq-syntax calibrate ({type(error).__name__})",
                path=path,
                hint="fairseq-syntax calibrate --json",
            ) from error
        curves |= {curve if len(args.files) == 1 else f"{name}: {curve}": bins for curve, bins in bins_of.items()}
    return reliability_diagram(curves)


def _read(args, *others):
    from fairseq_syntax.runtime.files import check_output

    systems, texts = read_translations(args, *others)
    check_output(args.output, *(run.path for system in systems for run in system.runs))
    return systems, texts


def _of_names(args: argparse.Namespace, texts: list[str]) -> dict[str, str]:
    """Files by their names, of which no two may be alike."""
    from fairseq_syntax.runtime.files import check_output
    from fairseq_syntax.runtime.named_files import file_by_name

    named = file_by_name(texts)
    check_output(args.output, *named.values())
    return named
