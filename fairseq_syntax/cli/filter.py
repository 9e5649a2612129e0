r"""Remove pairs of a parallel corpus by language, length, ratio or parse.

Lines that pass all filters on every side are kept; a report says what was removed and why. Lines with an empty side are
always removed, and options enable the other filters.

    fairseq-syntax filter --input train.en train.de --output clean/train.en clean/train.de \
        --max-length 80 --max-ratio 2.5 --languages en de
"""

from argparse import Namespace
from shlex import quote

from fairseq_syntax.cli.arguments import PROCESSES, SEVERAL, positive
from fairseq_syntax.cli.command import Command, Flag, Group, Option
from fairseq_syntax.cli.common import then_segment
from fairseq_syntax.corpus.conllu import check_text
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import real
from fairseq_syntax.runtime.console import finished

ARGUMENTS = [
    Option("--input FILE", "parallel text files (may be compressed)", **SEVERAL, required=True),
    Option("--output FILE", "output files, in the order of --input", **SEVERAL, required=True),
    Group(
        "length",
        Option("--min-length", "minimum number of tokens per side", type=positive, default=1),
        Option("--max-length", "maximum number of tokens per side (PASCAL: 80, LDD: 256)", type=positive),
        Option("--max-ratio R", "maximum ratio of the longer to the shorter side", type=real(1.0, 1e6)),
        Flag("--characters", "count characters instead of tokens between spaces"),
    ),
    Group(
        "parse",
        Option(
            "--conllu FILE",
            "parse of one of the files: remove lines without a valid parse; a parse of another text is an error",
        ),
        Option("--conllu-output FILE", "the remaining parses, renumbered"),
    ),
    Option("--languages CODE", "language of each file (en de), identified by py3langid", **SEVERAL),
    Option("--removed FILE", "write each removed line to this file, with the reason"),
    PROCESSES,
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=1)


def check(args: Namespace) -> None:
    from fairseq_syntax.corpus.filters import language_identifier

    if bool(args.conllu) != bool(args.conllu_output):
        raise SyntaxDataError("requires --conllu-output", option="--conllu", hint="give both")
    if args.languages:
        language_identifier(args.languages)


def main(args: Namespace) -> None:
    from fairseq_syntax.corpus.filters import Limits, filter_files

    for path in args.input:
        check_text(path, "a parse of the text is given as --conllu")
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
    text, parse = quote(args.output[0]), quote(f"{args.output[0]}.conllu")
    then = f"fairseq-syntax parse --input {text} --output {parse} --lang LANG"
    if conllu:
        then = then_segment(args.conllu_output)
    finished(", ".join(args.output), f"{report.kept} lines", then)
