"""``fairseq-syntax score``: BLEU, chrF, TER, RIBES, distinct-1, BEER, and tests against a baseline."""

from __future__ import annotations

import argparse
import logging

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import (
    SEVERAL,
    add_report,
    add_translations,
    natural,
    positive,
    print_report,
    read_translations,
)
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import DISTINCT_KEY, METRICS, USUAL
from fairseq_syntax.runtime.files import check_output

COMMAND = Command(
    group="evaluate",
    summary="score translations, with significance",
    description="Score translations with sacrebleu, nltk and scipy, and test systems against a baseline.",
    example=r"""
        fairseq-syntax score --ref test.de --sys plain=plain.out PASCAL=pascal.1.out,pascal.2.out --metrics bleu chrf \
            --conllu test.en.conllu --by dependency-length""",
    step=1,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_translations(parser)
    parser.add_argument("--src", metavar="FILE", help="source sentences; --by-length then counts their tokens")
    parser.add_argument(
        "--groups",
        metavar="FILE",
        help="file with the document of each sentence, one per line; the bootstrap then resamples documents",
    )
    parser.add_argument("--baseline", metavar="NAME", help="baseline system (default: the first)")
    parser.add_argument("--also-against", **SEVERAL, default=[], metavar="NAME", help="additional baselines")
    parser.add_argument("--by-length", type=positive, help="also report BLEU by length, in steps of N tokens")
    parser.add_argument("--conllu", metavar="PARSE", help="the source's parse, for --by")
    parser.add_argument(
        "--by",
        **SEVERAL,
        metavar="PROPERTY",
        help="also report all scores by intervals of a property of the parse: length, depth, "
        "dependency-length, longest-dependency, crossing, label=NAME, upos=NAME; length@10,20,30 sets the "
        "bounds",
    )
    shown = f"default: {' '.join(USUAL)}"
    parser.add_argument("--metrics", **SEVERAL, choices=[*METRICS, DISTINCT_KEY], help=shown)
    parser.add_argument("--lines", metavar="FILE", help="score only lines that are non-empty in this file")
    parser.add_argument(
        "--controls",
        **SEVERAL,
        metavar="NAME",
        help="report how much of each gain is due to syntax: compare SYSTEM with SYSTEM.NAME, trained on a "
        "control parse",
    )
    parser.add_argument(
        "--controls-by",
        **SEVERAL,
        metavar="PROPERTY",
        help="with --controls: also by intervals of this property, as for --by",
    )
    parser.add_argument("--lowercase", action="store_true", help="compare lowercased text")
    parser.add_argument(
        "--resamples",
        type=natural,
        default=1000,
        help="resamples of the bootstrap over sentences and seeds; 0: no test",
    )
    parser.add_argument("--trials", type=natural, default=10000, help="trials of the randomization test; 0: no test")
    parser.add_argument("--beer", metavar="COMMAND", help="the BEER program, if you have it")
    add_report(parser)


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.lab.scoring.properties import Property
    from fairseq_syntax.lab.scoring.report import Options, evaluate, read_parses, tables

    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    if bool(args.by or args.controls_by) != bool(args.conllu):
        raise SyntaxDataError("requires --by or --controls-by", option="--conllu", hint="give both")
    if args.controls and not args.baseline:
        raise SyntaxDataError("gains require a baseline", option="--controls", hint="--baseline NAME")
    check_output(args.json, *args.ref, args.src, args.conllu, args.groups, args.lines)
    systems, (references, sources, groups, lines) = read_translations(args, args.src, args.groups, args.lines)
    check_output(args.json, *(run.path for system in systems for run in system.runs))
    options = Options(
        metrics=args.metrics or USUAL,
        tokenize=args.tokenize,
        lowercase=args.lowercase,
        resamples=args.resamples,
        trials=args.trials,
        by_length=args.by_length,
        beer=args.beer,
        by=[Property.of(text) for text in args.by or ()],
        controls=args.controls or (),
        controls_by=[Property.of(text) for text in args.controls_by or ()],
    )
    parses = read_parses(args.conllu, len(references[0]), sources) if args.conllu else None
    if lines is not None:
        chosen = [number for number, line in enumerate(lines) if line]
        references = [[reference[i] for i in chosen] for reference in references]
        sources = [sources[i] for i in chosen] if sources else None
        groups = [groups[i] for i in chosen] if groups else None
        parses = [parses[i] for i in chosen] if parses else None
        for run in (run for system in systems for run in system.runs):
            run.lines, run.nbest = [run.lines[i] for i in chosen], [run.nbest[i] for i in chosen]
    report = evaluate(
        systems,
        references,
        options,
        baseline=args.baseline,
        also_against=args.also_against,
        sources=sources,
        parses=parses,
        groups=groups,
    )
    print_report(args, report, tables(report))
    return 0
