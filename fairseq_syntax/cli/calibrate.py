"""``fairseq-syntax calibrate``: whether a parser's probabilities can be believed, against a treebank."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import positive
from fairseq_syntax.cli.parse import (
    OF_DISTRIBUTIONS,
    OF_THE_PARSER,
    add_distribution_options,
    add_parser_options,
    given_options,
)

if TYPE_CHECKING:
    from fairseq_syntax.corpus.conllu import ParsedLine
    from fairseq_syntax.corpus.parsing.base import Parser, SentenceParse

# Small enough to leave the distributions as they are, large enough to keep their lists short.
_MIN_PROB = 1e-5
AT_A_TIME = 1000  # sentences, which the parser sorts into batches

COMMAND = Command(
    group="research",
    summary="compare a parser's probabilities with a treebank",
    description="Parse the words of a treebank, or read a parse of them, and report how well the probabilities of "
    "heads and labels are calibrated: expected calibration error, UAS by confidence, the best "
    "temperature, and the effect of each --min-prob. Temperatures apply to the softmax for each word.",
    example="fairseq-syntax calibrate --gold en_ewt-ud-dev.conllu --lang en --output report.json --picture diagram.svg",
    step=2,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gold", required=True, type=Path, metavar="FILE", help="the treebank, CoNLL-U")
    parser.add_argument(
        "--parsed", type=Path, metavar="FILE", help="parse of its words with Arcs=, instead of a parser"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a reliability diagram: .png, .svg or .pdf")
    parser.add_argument("--bins", type=positive, default=10, metavar="N", help="number of confidence bins")
    add_parser_options(parser, raw_text=False)
    arcs = parser.add_argument_group("distributions")
    add_distribution_options(arcs, min_prob=_MIN_PROB)


def main(args: argparse.Namespace) -> int:
    import json

    from fairseq_syntax.cli.parse import parser_options
    from fairseq_syntax.corpus.conllu import read_conllu
    from fairseq_syntax.corpus.parsing.base import load_parser
    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.lab import calibration
    from fairseq_syntax.lab.figures.plot import check_ending, reliability_diagram, save
    from fairseq_syntax.runtime.console import finished
    from fairseq_syntax.runtime.files import atomic_open, check_output

    check_output(args.output, args.gold, args.parsed, args.picture)
    check_output(args.picture, args.gold, args.parsed)
    unused = given_options(args, (*OF_THE_PARSER, *OF_DISTRIBUTIONS), {"min_prob": _MIN_PROB})
    if args.parsed is not None and unused:
        raise SyntaxDataError(f"{unused} with --parsed: nothing is parsed", hint="drop one of the two")
    if args.picture is not None:
        check_ending(args.picture)
    gold = list(read_conllu(args.gold))
    if args.parsed is not None:
        parsed = list(read_conllu(args.parsed, n_lines=len(gold)))
    else:
        options = parser_options(args, distributions=True, tokenizer="whitespace", max_words=10**9)
        parsed = _parse(load_parser(options), gold)
    try:
        sample = calibration.compare(gold, parsed)
    except SyntaxDataError as error:
        raise SyntaxDataError(error.message, path=args.parsed or args.gold, hint=error.hint) from error
    report, curves = _report(sample, args.bins, _temperatures(args))
    # first what is kept: who reads the table may stop reading
    if args.output is not None:
        with atomic_open(args.output) as file:
            json.dump(report | {"curves": curves}, file, indent=1)
            file.write("\n")
    if args.picture is not None:
        save(reliability_diagram(curves), args.picture)
    print(_text(report))
    if args.output is not None:
        finished(
            args.output,
            "the report",
            f"fairseq-syntax plot reliability {args.output} --output FILE.svg",
            file=sys.stderr,
        )
    if args.picture is not None:
        finished(args.picture, "the reliability diagram", file=sys.stderr)
    return 0


def _parse(parser: Parser, gold: Sequence[ParsedLine]) -> list[ParsedLine]:
    """The gold lines' words parsed, sentence by sentence, in lines of the same sentences."""
    from fairseq_syntax.corpus.parsing.base import assemble
    from fairseq_syntax.corpus.parsing.tokenizers import Surface
    from fairseq_syntax.runtime.console import progress

    sentences = [line.words[start:end] for line in gold for start, end in line.sentences]
    numbers = [line.line_number for line in gold for _ in line.sentences]
    parses: list[SentenceParse] = []
    with progress(total=len(sentences), of="parsing", unit="sentences") as bar:
        for start in range(0, len(sentences), AT_A_TIME):
            some = slice(start, start + AT_A_TIME)
            parses += parser.checked_parses(sentences[some], numbers[some])
            bar.update(min(AT_A_TIME, len(sentences) - start))
    in_turn = iter(parses)
    return [
        assemble(
            [[Surface(word, True, [word]) for word in line.words[start:end]] for start, end in line.sentences],
            [next(in_turn) for _ in line.sentences],
            line.line_number,
        )
        for line in gold
    ]


def _temperatures(args: argparse.Namespace) -> tuple[float, float] | None:
    """Those of heads and of labels that the scores were divided by.

    None for marginals over trees, which have none, and for control parses, whose probabilities are no parser's.
    """
    from dataclasses import replace

    from fairseq_syntax.corpus.parsing.base import ParserOptions
    from fairseq_syntax.corpus.title import controls, parsed_with

    made_by, used = vars(args) if args.parsed is None else parsed_with(args.parsed) or {}, ParserOptions()
    recorded = {
        name: made_by[name] for name in OF_DISTRIBUTIONS if type(made_by.get(name)) is type(getattr(used, name))
    }
    used = replace(used, **recorded)  # a title may say anything
    return None if used.structured or controls(made_by) else (used.temperature, used.label_temperature)


def _report(sample, bins: int, temperatures: tuple[float, float] | None) -> tuple[dict, dict]:
    """The report and its curves; with a fit, where the temperatures are known that the probabilities were made at."""
    from fairseq_syntax.lab import calibration as c

    confidence, correct = sample.heads.best()
    joint, both = sample.arcs.best()
    curves = {"heads": c.reliability(confidence, correct, bins), "heads and labels": c.reliability(joint, both, bins)}
    report = {
        "words": sample.heads.n,
        "uas": float(sample.tree_right.mean()),
        "las": float(sample.tree_labelled.mean()),
        "head": {
            "accuracy": float(correct.mean()),
            "confidence": float(confidence.mean()),
            "ece": c.calibration_error(confidence, correct, bins),
            "log_loss": sample.heads.log_loss(),
        },
        "arc": {
            "accuracy": float(both.mean()),
            "confidence": float(joint.mean()),
            "ece": c.calibration_error(joint, both, bins),
            "log_loss": sample.arcs.log_loss(),
        },
        "uas_by_confidence": [
            {"confidence": p, "uas": accuracy, "words": count}
            for p, accuracy, count in c.reliability(sample.tree_p, sample.tree_right, bins)
        ],
        "kept": [
            {"min_prob": threshold, "arcs_per_word": arcs, "mass": mass}
            for threshold, arcs, mass in c.kept_mass(sample.arcs)
        ],
    }
    if temperatures is not None:
        # What is fitted comes on top of the temperatures that the scores were divided by already.
        more = c.fit_temperature(sample.heads)
        temperature = more * temperatures[0]
        report["temperature"] = {
            "head": temperature,
            "label": c.fit_temperature(sample.labels) * temperatures[1],
            "held_out_ece": c.held_out_error(sample.heads, bins),
            "log_loss": sample.heads.at(more).log_loss(),
        }
        confidence, correct = sample.heads.at(more).best()
        curves[f"heads, T = {temperature:.2f}"] = c.reliability(confidence, correct, bins)
    return report, curves


def _text(report: dict) -> str:
    lines = [
        f"{report['words']} words: UAS {100 * report['uas']:.2f}, LAS {100 * report['las']:.2f}",
        "                    accuracy  confidence     ECE  log loss",
    ]
    for name, title in (("head", "best head"), ("arc", "best head and label")):
        row = report[name]
        lines.append(
            f"{title:20} {100 * row['accuracy']:7.2f} {100 * row['confidence']:11.2f} {100 * row['ece']:7.2f}"
            f" {row['log_loss']:9.4f}"
        )
    if "temperature" in report:
        row = report["temperature"]
        lines.append(
            f"best fit: --temperature {row['head']:.3f} --label-temperature {row['label']:.3f}; heads then have an ECE "
            f"of {100 * row['held_out_ece']:.2f} (held out) and a log loss of {row['log_loss']:.4f}"
        )
    lines += ["", "confidence of the tree's head      words     UAS"]
    for row in report["uas_by_confidence"]:
        lines.append(f"{row['confidence']:29.3f} {row['words']:10d} {100 * row['uas']:7.2f}")
    lines += ["", "--min-prob    arcs per word    mass kept"]
    for row in report["kept"]:
        lines.append(f"{row['min_prob']:10g} {row['arcs_per_word']:16.2f} {row['mass']:12.4f}")
    return "\n".join(lines)
