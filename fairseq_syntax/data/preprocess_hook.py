"""The hook into ``fairseq-preprocess``; the code behind it is imported only when that command runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import ModuleType


def install() -> None:
    """Add the syntax options and the binarizing of syntax to fairseq-preprocess, once."""
    from fairseq import options

    original = options.add_preprocess_args
    if getattr(original, "with_syntax", False):
        return

    @functools.wraps(original)
    def add_preprocess_args(parser):
        from fairseq_syntax.data.preprocess import add_syntax_options, wrap_main

        group = original(parser)
        add_syntax_options(parser)
        for module in _command_modules():
            wrap_main(module)
        return group

    add_preprocess_args.with_syntax = True  # type: ignore[attr-defined]
    options.add_preprocess_args = add_preprocess_args


def _command_modules() -> Iterator[ModuleType]:
    """The command's module: imported by the console script, or run by ``python -m``."""
    if module := sys.modules.get("fairseq_cli.preprocess"):
        yield module
    main = sys.modules.get("__main__")
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == "fairseq_cli.preprocess":
        yield main
