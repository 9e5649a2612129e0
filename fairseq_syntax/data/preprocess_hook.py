"""The hook into ``fairseq-preprocess``; the code behind it is imported only when that command runs.

fairseq has no hook for plugins there, so two of its functions are replaced: the one that adds the command's options,
and the command's ``main``, which is looked up when it is called. For other tasks, both behave as before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import ModuleType


def install() -> None:
    """Add the syntax options and the binarization of syntax to fairseq-preprocess."""
    from fairseq import options

    original = options.add_preprocess_args

    @functools.wraps(original)
    def add_preprocess_args(parser):
        from fairseq_syntax.data.preprocess import add_syntax_options, wrap_main

        group = original(parser)
        add_syntax_options(parser)
        for module in _command_modules():
            wrap_main(module)
        return group

    options.add_preprocess_args = add_preprocess_args


def _command_modules() -> Iterator[ModuleType]:
    """The modules of the command: as imported by the console script, and as run by ``python -m``."""
    if module := sys.modules.get("fairseq_cli.preprocess"):
        yield module
    main = sys.modules.get("__main__")
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == "fairseq_cli.preprocess":
        yield main
