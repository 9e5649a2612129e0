"""The hook into ``fairseq-preprocess``; the code behind it is imported only when that command runs.

fairseq has no hook for plugins there, so two of its functions are replaced: the one that adds the command's options,
and the command's ``main``, which is looked up when it is called. For other tasks, both behave as before.
"""

from __future__ import annotations

import functools
import sys
from argparse import ArgumentParser


def add_syntax_options(parser: ArgumentParser) -> None:
    """Add the options of the syntax step, for ``fairseq-preprocess`` and ``fairseq-syntax binarize``."""
    group = parser.add_argument_group("Syntax")
    group.add_argument(
        "--source-parses",
        metavar="DIR",
        help="folder with the parses of the source, named like its pieces (default: next to the pieces)",
    )
    for side in ("source", "target"):
        group.add_argument(
            f"--{side}-labels",
            metavar="FILE",
            help=f"use this label inventory for the {side} (default: made from the training data, as labels.LANG.json)",
        )


def install() -> None:
    """Add the syntax options and the binarization of syntax to fairseq-preprocess."""
    from fairseq import options

    original = options.add_preprocess_args

    @functools.wraps(original)
    def add_preprocess_args(parser):
        from fairseq_syntax.data.preprocess import wrap_main

        group = original(parser)
        add_syntax_options(parser)
        for name in ("fairseq_cli.preprocess", "__main__"):  # the latter under python -m
            if hasattr(module := sys.modules.get(name), "_make_binary_dataset"):
                wrap_main(module)
        return group

    options.add_preprocess_args = add_preprocess_args
