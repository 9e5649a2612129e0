"""The hook into ``fairseq-preprocess``; the code behind it is imported only when that command runs.

fairseq has no hook for plugins there, so two of its functions are replaced: the one that adds the command's options,
and the command's ``main``, which is looked up when it is called. For other tasks, both behave as before.
"""

from __future__ import annotations

import functools
import sys


def install() -> None:
    """Add the syntax options and the binarization of syntax to fairseq-preprocess."""
    from fairseq import options

    original = options.add_preprocess_args

    @functools.wraps(original)
    def add_preprocess_args(parser):
        from fairseq_syntax.data.preprocess import add_syntax_options, wrap_main

        group = original(parser)
        add_syntax_options(parser)
        for name in ("fairseq_cli.preprocess", "__main__"):  # the latter under python -m
            if hasattr(module := sys.modules.get(name), "_make_binary_dataset"):
                wrap_main(module)
        return group

    options.add_preprocess_args = add_preprocess_args
