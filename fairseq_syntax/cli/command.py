"""Metadata of a subcommand, and the argument parser made from it."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fairseq_syntax.runtime.bounds import Range

__all__ = ["GROUPS", "Command", "add_command", "commands", "load"]

Group = Literal["start", "data", "train", "use", "evaluate", "research"]
GROUPS: tuple[Group, ...] = get_args(Group)  # in the order of ``fairseq-syntax --help``


@dataclass(frozen=True)
class Command:
    """The metadata of a subcommand: ``COMMAND`` in the module with its name in this package.

    The module also defines ``add_arguments(parser)`` and ``main(args)``, which returns the exit status (None means 0).

    Args:
        group: the group in which ``fairseq-syntax --help`` lists it
        summary: one line, without capital and full stop
        example: one or several commands to copy; a test parses each
        description: the beginning of ``--help`` (default: the summary)
        needs_fairseq: whether it loads fairseq models or data, so that the package must be registered first
        resumes: whether rerunning it continues an interrupted run
        step: its position in the pipeline within its group; others follow by name
    """

    group: Group
    summary: str
    example: str
    description: str = ""
    needs_fairseq: bool = False
    resumes: bool = False
    step: int = 100


class _Help(argparse.HelpFormatter):
    """Help text that shows ranges and defaults of options, and leaves examples unwrapped.

    argparse only provides private methods for this, which are the same in all tested Python versions.
    """

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        is_number = isinstance(action.type, Range)
        return "N" if is_number else super()._get_default_metavar_for_optional(action)

    def _expand_help(self, action: argparse.Action) -> str:
        # If the help text states the default itself, the range is added inside the same brackets.
        text, _, written = super()._expand_help(action).partition("(default: ")
        facts = [str(action.type)] if isinstance(action.type, Range) else []
        if written:
            facts.append(f"default: {written.rstrip()}"[:-1])
        elif action.default not in (None, False, "", "-", argparse.SUPPRESS) and action.default != []:
            default = action.default
            facts.append(f"default: {default:g}" if isinstance(default, float) else f"default: {default}")
        return f"{text.rstrip()} ({'; '.join(facts)})".strip() if facts else text

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


def add_command(subparsers: Any, name: str, command: Command) -> argparse.ArgumentParser:
    """Create the parser of a subcommand, with its example but without options.

    Args:
        subparsers: the result of ``ArgumentParser.add_subparsers``
        name: the name of the subcommand
        command: its metadata
    """
    example = textwrap.indent(textwrap.dedent(command.example).strip(), "  ")
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=command.summary,
        description=command.description or f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=f"example:\n{example}",
        formatter_class=_Help,
    )
    return parser


def load(name: str) -> Any:
    """Import the module of a subcommand; None if it does not exist."""
    if name.replace("_", "-") not in _module_names():
        return None
    module = importlib.import_module(f"fairseq_syntax.cli.{name.replace('-', '_')}")
    return module if isinstance(getattr(module, "COMMAND", None), Command) else None


def commands() -> dict[str, Any]:
    """The modules of all subcommands by name, in the order of ``fairseq-syntax --help``."""
    modules = {name: module for name in _module_names() if (module := load(name)) is not None}

    def place(name: str) -> tuple[int, int, str]:
        command = modules[name].COMMAND
        return GROUPS.index(command.group), command.step, name

    return {name: modules[name] for name in sorted(modules, key=place)}


def _module_names() -> list[str]:
    """The modules of this package, not all of which are subcommands, spelled like subcommands."""
    folder = str(Path(__file__).parent)
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules([folder])]
