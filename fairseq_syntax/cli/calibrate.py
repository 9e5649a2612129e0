"""``fairseq-syntax calibrate``: calibration of a parser's probabilities against a treebank."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_report, positive, print_report, refuse
from fairseq_syntax.cli.parse import (
    OF_DISTRIBUTIONS,
    OF_THE_PARSER,
    add_distribution_options,
    add_parser_options,
    parser_options,
)
from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.corpus.header import controls, parsed_with
from fairseq_syntax.corpus.parsing.base import Parser, ParserOptions, SentenceParse, assemble, load_parser
from fairseq_syntax.corpus.parsing.tokenizers import Surface
from fairseq_syntax.lab.scoring.tables import Table, number
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.files import check_output, errors_in

if TYPE_CHECKING:
    from fairseq_syntax.lab.calibration import Sample

# Small enough not to affect the distributions, large enough to keep their lists short.
_MIN_PROB = 1e-5
AT_A_TIME = 1000  # sentences at a time, which the parser sorts into batches

COMMAND = Command(
    group="research",
    summary="compare a parser's probabilities with a treebank",
    description="Parse the words of a treebank, or read a parse of them, and report how well the probabilities of "
    "heads and labels are calibrated: expected calibration error, UAS by confidence, the best "
    "temperature, and the effect of each --min-prob. Temperatures apply to the softmax for each word.",
    example="fairseq-syntax calibrate --gold en_ewt-ud-dev.conllu --lang en --json report.json --picture diagram.svg",
    step=2,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gold", required=True, type=Path, metavar="FILE", help="the treebank, CoNLL-U")
    parser.add_argument(
        "--parsed", type=Path, metavar="FILE", help="parse of its words with Arcs=, instead of a parser"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a reliability diagram: .png, .svg or .pdf")
    parser.add_argument("--bins", type=positive, default=10, help="number of confidence bins")
    add_report(parser)
    add_parser_options(parser, raw_text=False)
    arcs = parser.add_argument_group("distributions")
    add_distribution_options(arcs, min_prob=_MIN_PROB)


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.lab import calibration
    from fairseq_syntax.lab.figures.plot import check_ending, reliability_diagram, save

    check_output(args.json, args.gold, args.parsed, args.picture)
    check_output(args.picture, args.gold, args.parsed)
    if args.parsed is not None:
        refuse(
            args, add_arguments, (*OF_THE_PARSER, *OF_DISTRIBUTIONS), "--parsed gives parses, so nothing is parsed here"
        )
    if args.picture is not None:
        check_ending(args.picture)
    gold = list(read_conllu(args.gold))
    if args.parsed is not None:
        parsed = list(read_conllu(args.parsed, n_lines=len(gold)))
    else:
        # the treebank's words and sentences, of any length
        options = parser_options(args, distributions=True, tokenizer="whitespace", max_words=10**9)
        parsed = _parse(load_parser(options), gold)
    with errors_in(args.parsed or args.gold):
        sample = calibration.compare(gold, parsed)
    report, curves = _report(sample, args.bins, _temperatures(args))
    if args.picture is not None:
        save(reliability_diagram(curves), args.picture)
    print_report(args, report | {"curves": curves}, _tables(report))
    return 0


def _parse(parser: Parser, gold: Sequence[ParsedLine]) -> list[ParsedLine]:
    """Parse the gold words, with gold sentence boundaries."""
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
    """The temperatures (heads, labels) by which the parser's scores were divided.

    None for arc marginals, which have no temperature, and for control parses, whose probabilities are not a parser's.
    """
    made_by, used = vars(args) if args.parsed is None else parsed_with(args.parsed) or {}, ParserOptions()
    recorded = {
        name: made_by[name] for name in OF_DISTRIBUTIONS if type(made_by.get(name)) is type(getattr(used, name))
    }
    used = replace(used, **recorded)  # a title may say anything
    return None if used.structured or controls(made_by) else (used.temperature, used.label_temperature)


def _report(sample: Sample, bins: int, temperatures: tuple[float, float] | None) -> tuple[dict, dict]:
    """The report and its reliability curves, with fitted temperatures if the original ones are known."""
    from fairseq_syntax.lab import calibration as c

    report: dict[str, Any] = {"words": sample.heads.n}
    report |= {"uas": float(sample.tree_right.mean()), "las": float(sample.tree_labelled.mean())}
    curves = {}
    for name, curve, choices in (("head", "heads", sample.heads), ("arc", "heads and labels", sample.arcs)):
        confidence, correct = choices.best()
        curves[curve] = c.reliability(confidence, correct, bins)
        report[name] = {
            "accuracy": float(correct.mean()),
            "confidence": float(confidence.mean()),
            "ece": c.calibration_error(confidence, correct, bins),
            "log_loss": choices.log_loss(),
        }
    by_confidence = c.reliability(sample.tree_p, sample.tree_right, bins)
    report["uas_by_confidence"] = [dict(zip(("confidence", "uas", "words"), row)) for row in by_confidence]
    report["kept"] = [dict(zip(("min_prob", "arcs_per_word", "mass"), row)) for row in c.kept_mass(sample.arcs)]
    if temperatures is not None:
        # The fitted temperatures are relative to those by which the scores were already divided.
        more = c.fit_temperature(sample.heads)
        temperature = more * temperatures[0]
        report["temperature"] = {
            "head": temperature,
            "label": c.fit_temperature(sample.labels) * temperatures[1],
            "held_out_ece": c.held_out_error(sample.heads, bins),
            "log_loss": sample.heads.at(more).log_loss(),
        }
        curves[f"heads, T = {temperature:.2f}"] = c.reliability(*sample.heads.at(more).best(), bins)
    return report, curves


def _tables(report: dict) -> Iterator[Table]:
    rows = []
    for name, title in (("head", "best head"), ("arc", "best head and label")):
        shares = [number(100 * report[name][key]) for key in ("accuracy", "confidence", "ece")]
        rows.append([title, *shares, number(report[name]["log_loss"], 4)])
    notes = []
    if fit := report.get("temperature"):
        notes = [
            f"best fit: --temperature {fit['head']:.3f} --label-temperature {fit['label']:.3f}; heads then have an ECE "
            f"of {100 * fit['held_out_ece']:.2f} (held out) and a log loss of {fit['log_loss']:.4f}"
        ]
    title = f"{report['words']} words: UAS {100 * report['uas']:.2f}, LAS {100 * report['las']:.2f}"
    yield Table(title, ["", "accuracy", "confidence", "ECE", "log loss"], rows, notes)
    rows = [[f"{r['confidence']:.3f}", str(r["words"]), number(100 * r["uas"])] for r in report["uas_by_confidence"]]
    yield Table("Confidence of the tree's head", ["confidence", "words", "UAS"], rows)
    rows = [[f"{r['min_prob']:g}", number(r["arcs_per_word"]), number(r["mass"], 4)] for r in report["kept"]]
    yield Table("What is kept of the distributions", ["--min-prob", "arcs per word", "mass"], rows)
