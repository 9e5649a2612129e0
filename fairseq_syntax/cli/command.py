"""What a subcommand declares, and the argument parser made from it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import pkgutil
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import Range

__all__ = ["GROUPS", "Choice", "Command", "Flag", "Group", "OneOf", "Option", "check", "check_line", "commands", "load"]

GroupName = Literal["start", "data", "train", "use", "evaluate", "research"]
GROUPS: tuple[GroupName, ...] = get_args(GroupName)  # in the order of ``fairseq-syntax --help``


class Argument(ABC):
    """Something that adds arguments to a parser, or to a group of one."""

    @abstractmethod
    def __call__(self, parser: Any) -> None: ...


class Option(Argument):
    """An argument of a parser.

    Args:
        names: what ``--help`` shows: ``-s --source-lang LANG`` or ``model MODEL``; the value's name may be missing
        help: its help text
        keywords: as in ``ArgumentParser.add_argument``
    """

    def __init__(self, names: str, help: str, **keywords: Any) -> None:
        words = names.split()
        self.names = [word for word in words if word.startswith("-")] or words[:1]
        metavar = tuple(words[len(self.names) :])
        if metavar:
            keywords["metavar"] = metavar if len(metavar) > 1 else metavar[0]
        self.keywords = {"help": help, **keywords}

    def __call__(self, parser: Any) -> None:
        parser.add_argument(*self.names, **self.keywords)


class Flag(Option):
    """An option without a value, False unless it is given."""

    def __init__(self, names: str, help: str) -> None:
        super().__init__(names, help, action="store_true")


class Choice(Option):
    """An option with one of several values, by default the first."""

    def __init__(self, names: str, help: str, *values: str) -> None:
        super().__init__(names, help, choices=values, default=values[0])


class Group(Argument):
    """Arguments below a heading of ``--help``."""

    def __init__(self, title: str, *arguments: Argument) -> None:
        self.title, self.arguments = title, arguments

    def __call__(self, parser: Any) -> None:
        group = parser.add_argument_group(self.title)
        for add in self.arguments:
            add(group)


class OneOf(Argument):
    """Options that exclude each other."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self.options, self.required = options, required

    def __call__(self, parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=self.required)
        for add in self.options:
            add(group)


@dataclass(frozen=True)
class Command:
    """A subcommand: ``COMMAND`` in the module with its name, beside ``main(args)``, which returns the exit status.

    The module may also have ``check(args)``, which is called before ``main``, and by ``run`` before its first stage: it
    raises SyntaxDataError for options and programs that cannot be used, whatever the inputs contain.

    Args:
        doc: the module's docstring: a summary in one line, a description if it needs one, and, indented, one or several
            commands to copy, which a test parses
        group: the group in which ``fairseq-syntax --help`` lists it
        arguments: its arguments, in the order of ``--help``
        step: its position in the pipeline within its group; others follow by name
        needs_fairseq: whether it loads fairseq models or data, so that the package must be registered first; or a
            function that decides by the parsed arguments
        resumes: whether rerunning it continues an interrupted run
    """

    doc: str
    group: GroupName
    arguments: Sequence[Callable[[Any], None]] = ()
    step: int = 100
    needs_fairseq: bool | Callable[[argparse.Namespace], bool] = False
    resumes: bool = False

    @property
    def summary(self) -> str:
        """The first line of the docstring, without capital and full stop."""
        line = self.doc.partition("\n")[0].rstrip(".")
        return line[0].lower() + line[1:]

    def add_to(self, subparsers: Any, name: str) -> argparse.ArgumentParser:
        """Create its parser, by the result of ``ArgumentParser.add_subparsers``.

        Arguments parsed by it have the parser as ``subparser``.
        """
        *paragraphs, example = inspect.cleandoc(self.doc).split("\n\n")
        parser: argparse.ArgumentParser = subparsers.add_parser(
            name,
            help=self.summary,
            description=" ".join(paragraphs),
            epilog="example:\n" + textwrap.indent(textwrap.dedent(example), "  "),
            formatter_class=_Help,
        )
        parser.set_defaults(subparser=parser)
        for add in self.arguments:
            add(parser)
        return parser


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


def check(module: Any, args: argparse.Namespace) -> None:
    """Raise SyntaxDataError for what a subcommand refuses before it reads its input."""
    if hasattr(module, "check"):
        module.check(args)


def check_line(argv: Sequence[str]) -> None:
    """Raise SyntaxDataError for a command line, without the program's name, that would be refused at its start."""
    module = load(argv[0])
    said = io.StringIO()
    parser = argparse.ArgumentParser()
    module.COMMAND.add_to(parser.add_subparsers(), argv[0])
    try:
        with contextlib.redirect_stderr(said):
            args = parser.parse_args(list(argv))
    except SystemExit:  # the last line is PROGRAM: error: argument OPTION: MESSAGE
        message = said.getvalue().strip().rpartition("error: ")[2]
        raise SyntaxDataError(message) from None
    check(module, args)


def load(name: str) -> Any:
    """Import the module of a subcommand; None if it does not exist."""
    module = _modules().get(name)
    return module and importlib.import_module(f"fairseq_syntax.cli.{module}")


def commands() -> dict[str, Any]:
    """The modules of all subcommands by name, in the order of ``fairseq-syntax --help``."""
    modules = {name: load(name) for name in _modules()}

    def place(name: str) -> tuple[int, int, str]:
        command = modules[name].COMMAND
        return GROUPS.index(command.group), command.step, name

    return {name: modules[name] for name in sorted(modules, key=place)}


def _modules() -> dict[str, str]:
    """The subcommands: the modules of this package that are not for all of them; ``import_`` is that of ``import``."""
    names = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return {n.rstrip("_").replace("_", "-"): n for n in names if n not in ("arguments", "command", "common")}
