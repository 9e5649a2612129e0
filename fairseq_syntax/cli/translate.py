"""``fairseq-syntax translate``: raw text in, text out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    summary = "translate raw text with a trained model"
    parser = subparsers.add_parser(
        "translate",
        help=summary,
        description="Translate raw text, or CoNLL-U, line by line: parses it where the model needs a parse, segments, "
        "translates and puts the pieces together again. Empty lines stay empty.",
    )
    parser.add_argument(
        "checkpoint", nargs="+", metavar="CHECKPOINT", help="a model, or several for an ensemble; or an exported folder"
    )
    parser.add_argument("--data", metavar="DIR", help="the binarized data (default: what the model was trained on)")
    parser.add_argument("--input", default="-", metavar="FILE", help="text, or a .conllu file (default: text on stdin)")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: stdout")
    parser.add_argument(
        "--alignments",
        metavar="FILE",
        help="also write which words stand for which: a line of links such as 0-0 2-1, the source's word first; with "
        "the words' places in the texts if FILE ends in .jsonl",
    )
    parser.add_argument("--parser", default="stanza", help="for raw text (default: stanza)")
    parser.add_argument("--lang", default="", help="language of the parser's models (default: the model's source)")
    parser.add_argument("--model-dir", metavar="DIR", help="directory of the parser's models")
    parser.add_argument(
        "--missing-parse",
        choices=("error", "neutral"),
        default="error",
        help="text that cannot be parsed: stop, or translate it without a parse (default: error)",
    )
    parser.add_argument("--beam", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="P", help="length penalty (default: 1)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="sentences at a time (default: 32)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")


def main(args: argparse.Namespace) -> int:
    """Translate; 1 if there are lines that could not be."""
    import logging
    from contextlib import nullcontext
    from itertools import islice

    from fairseq_syntax.console import finished, progress
    from fairseq_syntax.inference.alignment import written
    from fairseq_syntax.inference.translator import Translator
    from fairseq_syntax.text.conllu import read_conllu
    from fairseq_syntax.text.files import read_lines, read_stdin, whole_file

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    translator = Translator.load(
        args.checkpoint,
        args.data,
        parser_name=args.parser,
        parser_lang=args.lang,
        parser_dir=args.model_dir,
        missing_parse=args.missing_parse,
        device=args.device,
        batch_size=args.batch_size,
        beam=args.beam,
        lenpen=args.lenpen,
    )
    if args.input == "-":
        source: Iterable[Any] = read_stdin()
    elif args.input.removesuffix(".gz").endswith(".conllu"):
        source = read_conllu(args.input)
    else:
        source = read_lines(args.input)
    total = None if args.input == "-" else _count(args.input)
    lines = iter(source)
    count = bad = 0

    def write(path: str | None):
        return nullcontext(sys.stdout if path == "-" else None) if path in ("-", None) else whole_file(path)

    with (
        write(args.output) as file,
        write(args.alignments) as links,
        progress(total=total, of="translating") as bar,
    ):
        # A few batches at a time: sorting by length within them keeps padding low, and output flows on a pipe.
        while chunk := list(islice(lines, args.batch_size * 4)):
            for number, best in enumerate(translator.translations(chunk, alignments=links is not None), count + 1):
                if best[0].error is not None:
                    bad += 1
                    where = "<stdin>" if args.input == "-" else args.input
                    print(f"fairseq-syntax translate: error: {where}:{number}: {best[0].error}", file=sys.stderr)
                file.write(best[0].text + "\n")
                if links is not None:
                    found = best[0].alignment  # an empty line has none
                    links.write((written(found, args.alignments) if found is not None else "") + "\n")
            file.flush()
            count += len(chunk)
            bar.update(len(chunk))
    if args.output != "-":
        finished(args.output, f"{count} lines", f"fairseq-syntax score --ref REFERENCE --sys {args.output}")
    if args.alignments:
        finished(args.alignments, f"the alignments of {count} lines")
    if bad:
        print(f"{bad} of {count} lines are not translated: their lines are empty", file=sys.stderr)
    return 1 if bad else 0


def _count(path: str) -> int | None:
    """The lines of a text, and those that a parse says it has."""
    from fairseq_syntax.text.conllu_parts import declared_lines
    from fairseq_syntax.text.files import read_raw_lines

    parsed = path.removesuffix(".gz").endswith(".conllu")
    return declared_lines(path) if parsed else sum(1 for _ in read_raw_lines(path))
