"""``fairseq-syntax user-dir``: where the plugin lies, from a checkout and installed."""

from __future__ import annotations

import argparse
import os


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    summary = "print what to give to --user-dir"
    subparsers.add_parser("user-dir", help=summary, description=summary.capitalize() + ".")


def main(args: argparse.Namespace) -> None:
    """Print the package's directory."""
    import fairseq_syntax

    print(os.path.dirname(os.path.abspath(fairseq_syntax.__file__)))
