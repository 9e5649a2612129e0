"""``fairseq-syntax binarize``: add binarized syntax to an existing token dataset."""

from __future__ import annotations

import argparse
import logging
import sys

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_languages, add_workers
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.ray_workers import chosen_workers

COMMAND = Command(
    group="data",
    summary="add the syntax to an existing token dataset",
    example=r"""
        fairseq-syntax binarize -s en -t de --trainpref pieces/train --validpref pieces/valid --testpref pieces/test \
            --output bin""",
    needs_fairseq=True,
    step=5,
    resumes=True,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", dest="destdir", required=True, metavar="DIR", help="the token dataset, with its dictionaries"
    )
    add_languages(parser)
    for split in ("train", "valid", "test"):
        parser.add_argument(
            f"--{split}pref",
            metavar="PREFIX",
            help=f"{split} files, as given to fairseq-preprocess: PREFIX.LANG with the pieces and PREFIX.LANG.conllu",
        )
    parser.add_argument("--only-source", action="store_true", help="omit the syntax of the target")
    add_workers(parser)
    from fairseq_syntax.data.preprocess import add_syntax_options

    add_syntax_options(parser)


def main(args: argparse.Namespace) -> None:
    from fairseq_syntax.data.preprocess import binarize_syntax, check_dataset, train_command

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with chosen_workers(args, count=args.workers) as workers:
        check_dataset(args)
        binarize_syntax(args, workers)
    finished(args.destdir, "the syntax is beside the tokens", train_command(args.destdir), file=sys.stderr)
