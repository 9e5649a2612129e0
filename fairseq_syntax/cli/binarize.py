r"""Add the syntax to an existing token dataset.

    fairseq-syntax binarize -s en -t de --trainpref pieces/train --validpref pieces/valid --testpref pieces/test \
        --output bin
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_syntax.cli.arguments import LANGUAGES, RAY, WORKERS
from fairseq_syntax.cli.command import Command, Flag, Option
from fairseq_syntax.data.preprocess_hook import add_syntax_options
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.ray_workers import chosen_workers

_FILES = "files, as given to fairseq-preprocess: PREFIX.LANG with the pieces and PREFIX.LANG.conllu"

ARGUMENTS: list[Callable[[Any], None]] = [
    Option("--output DIR", "the token dataset, with its dictionaries", dest="destdir", required=True),
    *LANGUAGES,
    *(Option(f"--{split}pref PREFIX", f"{split} {_FILES}") for split in ("train", "valid", "test")),
    Flag("--only-source", "omit the syntax of the target"),
    WORKERS,
    RAY,
    add_syntax_options,
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=5, needs_fairseq=True, resumes=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.data.preprocess import binarize_syntax, check_dataset, train_command

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with chosen_workers(args, count=args.workers) as workers:
        check_dataset(args)
        binarize_syntax(args, workers)
    finished(args.destdir, "the syntax is beside the tokens", train_command(args.destdir), file=sys.stderr)
