"""``fairseq-syntax filter``: corpus filters for parallel files, as in the papers."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import SEVERAL, positive, then_segment
from fairseq_syntax.corpus.conllu import check_text
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import real
from fairseq_syntax.runtime.console import finished

COMMAND = Command(
    group="data",
    summary="remove pairs of a parallel corpus by language, length, ratio or parse",
    description="Write the lines of parallel files that pass all filters on every side, and report what was "
    "removed and why. Lines with an empty side are always removed; options enable the other filters.",
    example=r"""
        fairseq-syntax filter --input train.en train.de --output clean/train.en clean/train.de \
            --max-length 80 --max-ratio 2.5 --languages en de""",
    step=1,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", **SEVERAL, required=True, metavar="FILE", help="parallel text files (.gz too)")
    parser.add_argument(
        "--output", **SEVERAL, required=True, metavar="FILE", help="output files, in the same order as --input"
    )
    length = parser.add_argument_group("length")
    length.add_argument("--min-length", type=positive, default=1, help="minimum number of tokens per side")
    length.add_argument("--max-length", type=positive, help="maximum number of tokens per side (PASCAL: 80, LDD: 256)")
    length.add_argument(
        "--max-ratio", type=real(1.0, 1e6), metavar="R", help="maximum ratio of the longer to the shorter side"
    )
    length.add_argument("--characters", action="store_true", help="count characters instead of tokens between spaces")
    parse = parser.add_argument_group("parse")
    parse.add_argument(
        "--conllu",
        metavar="FILE",
        help="parse of one of the files: remove lines without a valid parse; a parse of another text is an error",
    )
    parse.add_argument("--conllu-output", metavar="FILE", help="the remaining parses, renumbered")
    parser.add_argument(
        "--languages", **SEVERAL, metavar="CODE", help="language of each file (en de), identified by py3langid"
    )
    parser.add_argument("--removed", metavar="FILE", help="write each removed line to this file, with the reason")
    parser.add_argument("--workers", type=positive, default=1, help="number of processes")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.corpus.filters import Limits, filter_files

    for path in args.input:
        check_text(path, "a parse of the text is given as --conllu")
    if bool(args.conllu) != bool(args.conllu_output):
        raise SyntaxDataError("requires --conllu-output", option="--conllu", hint="give both")
    if args.max_length is not None and args.max_length < args.min_length:
        message = f"no line has {args.min_length} tokens or more, and {args.max_length} at most"
        raise SyntaxDataError(message, hint="--max-length is at least --min-length")
    limits = Limits(
        min_length=args.min_length,
        max_length=args.max_length,
        max_ratio=args.max_ratio,
        characters=args.characters,
        languages=tuple(args.languages) if args.languages else None,
    )
    conllu = (args.conllu, args.conllu_output) if args.conllu else None
    report = filter_files(args.input, args.output, limits, conllu=conllu, removed=args.removed, workers=args.workers)
    print(report)
    if conllu:
        then = then_segment(args.conllu_output)
    else:
        then = f"fairseq-syntax parse --input {args.output[0]} --output {args.output[0]}.conllu --lang LANG"
    finished(", ".join(args.output), f"{report.kept} lines", then)
    return 0
