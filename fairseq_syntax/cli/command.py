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
    """A subcommand, as ``COMMAND`` of the module of its name in this package.

    The module also has ``add_arguments(parser)`` and ``main(args)``, which returns the exit status; None is 0.

    Args:
        group: where ``fairseq-syntax --help`` lists it
        summary: one line, without a capital or a full stop
        example: a command to copy, or several; a test parses each
        description: what ``--help`` says first (default: the summary)
        needs_fairseq: whether it loads models or data of fairseq, which then has to know this package first
        resumes: whether it continues an interrupted run of itself
        step: its place in the pipeline within its group; those without one come after, by name
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

    argparse calls no methods but private ones for these; they are the same in all Pythons that are tested.
    """

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        is_number = isinstance(action.type, Range)
        return "N" if is_number else super()._get_default_metavar_for_optional(action)

    def _expand_help(self, action: argparse.Action) -> str:
        # A default that the help text says itself joins the range, in one pair of brackets.
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
    """The parser of a subcommand, without its options yet, and with its example below them.

    Args:
        subparsers: what ``ArgumentParser.add_subparsers`` returned
        name: as it is typed
        command: what it says about itself
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
    """The module of a subcommand; None if there is none of this name."""
    if name.replace("_", "-") not in _module_names():
        return None
    module = importlib.import_module(f"fairseq_syntax.cli.{name.replace('-', '_')}")
    return module if isinstance(getattr(module, "COMMAND", None), Command) else None


def commands() -> dict[str, Any]:
    """All subcommands' modules by name, in the order of ``fairseq-syntax --help``."""
    modules = {name: module for name in _module_names() if (module := load(name)) is not None}

    def place(name: str) -> tuple[int, int, str]:
        command = modules[name].COMMAND
        return GROUPS.index(command.group), command.step, name

    return {name: modules[name] for name in sorted(modules, key=place)}


def _module_names() -> list[str]:
    """The modules of this package, which are not all subcommands, as one would be typed."""
    folder = str(Path(__file__).parent)
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules([folder])]
