"""Compare a parser's probabilities with a treebank.

Parse the treebank's words, or read a parse of them, and report the expected calibration error, UAS by confidence, the
best temperature, and the effect of each --min-prob. Temperatures apply to the softmax for each word. Unlike eval-tree,
LAS compares labels with their subtypes. Of parsers without probabilities (spacy, udpipe), UAS and LAS are reported.

    fairseq-syntax calibrate --gold en_ewt-ud-dev.conllu --lang en --json report.json --picture diagram.svg
"""

import logging
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fairseq_syntax.cli.arguments import REPORT, positive
from fairseq_syntax.cli.command import Command, Group, Option
from fairseq_syntax.cli.common import print_report, refuse
from fairseq_syntax.cli.parse import OF_DISTRIBUTIONS, OF_THE_PARSER, PARSER, distributions, parser_options
from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.corpus.header import controls, parsed_with
from fairseq_syntax.corpus.parsing.parser import TRANSITION_BASED, Parser, ParserOptions, load_parser, recorded_options
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.files import check_output, errors_in

logger = logging.getLogger(__name__)

# Small enough not to affect the distributions, large enough to keep their lists short.
_MIN_PROB = 1e-5
_OTHER_LABELS = 0.1  # of the words; rare labels may be missing in a small treebank
AT_A_TIME = 1000  # sentences at a time, which the parser sorts into batches

ARGUMENTS = [
    Option("--gold FILE", "the treebank, CoNLL-U", required=True, type=Path),
    Option("--parsed FILE", "parse of its words with Arcs=, instead of a parser", type=Path),
    Option("--picture FILE", "draw a reliability diagram: .png, .svg or .pdf", type=Path),
    Option("--bins", "number of confidence bins", type=positive, default=10),
    *REPORT,
    Group("parser", *PARSER),
    Group("distributions", *distributions(_MIN_PROB)),
]
COMMAND = Command(__doc__, "research", ARGUMENTS, step=2)


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.figures.plot import check_ending, reliability_diagram, save_figure
    from fairseq_syntax.lab.scoring import calibration

    check_output(args.json, args.gold, args.parsed, args.picture)
    check_output(args.picture, args.gold, args.parsed)
    if args.picture is not None:
        check_ending(args.picture)
    if args.parsed is not None:
        refuse(args, (*OF_THE_PARSER, *OF_DISTRIBUTIONS), "--parsed gives parses, so nothing is parsed here")
    gold = list(read_conllu(args.gold))
    if args.parsed is not None:
        parsed = list(read_conllu(args.parsed, n_lines=len(gold)))
    else:
        gold = [sentence for line in gold for sentence in calibration.parsed_sentences(line)]
        if by_steps := args.parser in TRANSITION_BASED:
            refuse(
                args, (*OF_DISTRIBUTIONS, "picture", "bins"), f"the parser {args.parser} has no probabilities of arcs"
            )
        # the treebank's words and sentences, of any length
        options = parser_options(args, distributions=not by_steps, tokenizer="whitespace", max_words=10**9)
        parsed = _parse(load_parser(options), gold)
        if by_steps:
            with errors_in(args.gold):
                report = calibration.attachment(gold, parsed)
            _note_other_labels(gold, parsed)
            print_report(args, report, calibration.calibration_tables(report))
            return
    _note_other_labels(gold, parsed)
    with errors_in(args.parsed or args.gold):
        sample = calibration.compare_parses(gold, parsed)
    report = calibration.calibration_report(sample, args.bins, _temperatures(args))
    if args.picture is not None:
        save_figure(reliability_diagram(report["curves"]), args.picture)
    print_report(args, report, calibration.calibration_tables(report))


def _note_other_labels(gold: Sequence[ParsedLine], parsed: Sequence[ParsedLine]) -> None:
    """Warn where the parser follows other conventions than the treebank, such as ClearNLP's."""
    from fairseq_syntax.lab.scoring.calibration import foreign_labels

    share, labels = foreign_labels(gold, parsed)
    if share > _OTHER_LABELS:
        message = "%.0f %% of the words have labels that the treebank does not have (%s): UAS and LAS count other %s"
        logger.warning(message, 100 * share, ", ".join(labels[:3]), "conventions as errors")


def _parse(parser: Parser, gold: Sequence[ParsedLine]) -> list[ParsedLine]:
    """Parse the words of gold sentences."""
    parsed: list[ParsedLine] = []
    with progress(total=len(gold), of="parsing", unit="sentences") as bar:
        for start in range(0, len(gold), AT_A_TIME):
            parsed += parser.parse([sentence.words for sentence in gold[start : start + AT_A_TIME]], first_line=start)
            bar.update(len(parsed) - start)
    return parsed


def _temperatures(args: Namespace) -> tuple[float, float] | None:
    """The temperatures (heads, labels) by which the parser's scores were divided.

    None for arc marginals, which have no temperature, and for control parses, whose probabilities are not a parser's.
    """
    made_by = None if args.parsed is None else parsed_with(args.parsed)
    used = parser_options(args) if args.parsed is None else ParserOptions(**recorded_options(made_by))
    return None if used.structured or controls(made_by) else (used.temperature, used.label_temperature)
