"""``fairseq-syntax user-dir``: the path of the plugin."""

from __future__ import annotations

import argparse
import os

from fairseq_syntax.cli.command import Command

COMMAND = Command(
    group="train",
    summary="print the path for --user-dir",
    example='fairseq-train bin --user-dir "$(fairseq-syntax user-dir)" --task syntax_translation',
    step=1,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def main(args: argparse.Namespace) -> None:
    import fairseq_syntax

    print(os.path.dirname(os.path.abspath(fairseq_syntax.__file__)))
