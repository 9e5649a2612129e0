"""Summarize stores, draw sentences, and check them against their tokens.

fairseq-syntax inspect bin --check
"""

import os
from argparse import Namespace

from fairseq_syntax.cli.arguments import sentences
from fairseq_syntax.cli.command import Command, Flag, Option
from fairseq_syntax.cli.common import sentence_numbers
from fairseq_syntax.errors import SyntaxDataError

ARGUMENTS = [
    Option("path BIN", "a data directory, or SPLIT.SRC-TGT.LANG.syntax.arrow"),
    Flag("--check", "verify all files of both sides, and that the stores match the tokens"),
    sentences("the first"),
    Option("--label-groups MAP", "LDD's label groups: ud, stanford, clearnlp or a file", default="ud"),
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=6, needs_fairseq=True)


def main(args: Namespace) -> int:
    from fairseq_syntax.corpus.store.reader import SyntaxStore
    from fairseq_syntax.data.store_report import Tokens, check, check_directory, example, find_stores, store_report

    failed = False
    for path in find_stores(args.path):
        store = SyntaxStore(path)
        tokens, missing = None, ""
        try:
            tokens = Tokens(path)
        except SyntaxDataError as error:  # a store can be inspected without its tokens
            missing = str(error)
        print(store_report(store, args.label_groups))
        for sentence in sentence_numbers(args) or ([1] if len(store) else []):
            print("  " + example(store, sentence, tokens).replace("\n", "\n    "))
        if args.check:
            wrong = check(store, tokens) if tokens else missing
            print(f"  WRONG: {wrong}" if wrong else f"  check: all {len(store):,} sentences are right")
            failed |= wrong is not None
    if args.check and os.path.isdir(args.path):  # last, since a store may be right whose files are not
        for problem in check_directory(args.path):
            print(f"WRONG: {problem}")
            failed = True
    return int(failed)
