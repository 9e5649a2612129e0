"""``fairseq-syntax inspect``: contents of a store, and consistency with its tokens."""

from __future__ import annotations

import argparse
import os

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_sentences, sentence_numbers
from fairseq_syntax.errors import SyntaxDataError

COMMAND = Command(
    group="data",
    summary="summarize a store, and check it against its tokens",
    description="Summarize the stores of a data directory (or one store), and draw a sentence as text.",
    example="fairseq-syntax inspect bin --check",
    needs_fairseq=True,
    step=6,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="BIN", help="a data directory, or SPLIT.SRC-TGT.LANG.syntax.arrow")
    parser.add_argument(
        "--check", action="store_true", help="verify all files of both sides, and that the stores match the tokens"
    )
    add_sentences(parser, "the first")
    parser.add_argument(
        "--label-groups", default="ud", metavar="MAP", help="LDD's label groups: ud, stanford or a file"
    )


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.corpus.store.reader import SyntaxStore
    from fairseq_syntax.data.report import Tokens, check, check_directory, describe, example, find_stores, report

    failed = False
    if args.check and os.path.isdir(args.path):
        for problem in check_directory(args.path):
            print(f"  WRONG: {problem}")
            failed = True
    for path in find_stores(args.path):
        store = SyntaxStore(path)
        tokens, missing = None, ""
        try:
            tokens = Tokens(path)
        except SyntaxDataError as error:  # a store can be inspected without its tokens
            missing = str(error)
        print(report(describe(store), args.label_groups))
        for sentence in sentence_numbers(args) or ([1] if len(store) else []):
            print("  " + example(store, sentence, tokens).replace("\n", "\n    "))
        if args.check:
            wrong = check(store, tokens) if tokens else missing
            print(f"  WRONG: {wrong}" if wrong else f"  check: all {len(store):,} sentences are right")
            failed |= wrong is not None
    return 1 if failed else 0
