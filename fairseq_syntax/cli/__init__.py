"""The ``fairseq-syntax`` command: one module per subcommand, loaded when it is used."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from fairseq_syntax import __version__, register
from fairseq_syntax.cli.command import GROUPS, check, commands, load
from fairseq_syntax.cli.common import check_files
from fairseq_syntax.errors import RUNS_COMMAND, SyntaxDataError, similar
from fairseq_syntax.runtime.faults import discard_output, report_fault, write_utf8


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        the exit status: 0 for success, 1 for bad input (explained on stderr), 2 for wrong usage
    """
    write_utf8()
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="fairseq-syntax",
        usage="%(prog)s [-h] [--version] SUBCOMMAND ...",
        description="Syntax for fairseq's translation models.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(
        dest="subcommand", metavar="SUBCOMMAND", required=True, help=argparse.SUPPRESS, prog=parser.prog
    )
    chosen = load(argv[0]) if argv and "_ARGCOMPLETE" not in os.environ else None
    # without a subcommand, help or an error lists all of them, and shell completion needs their options
    modules = {argv[0]: chosen} if chosen else commands()
    for name, module in modules.items():
        module.COMMAND.add_to(subparsers, name)
    if not chosen:
        parser.epilog = _by_group(modules)
        if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
            import argcomplete

            argcomplete.autocomplete(parser)  # exits
        if not argv:
            parser.print_help(sys.stderr)
            return 2
        if not argv[0].startswith("-"):
            parser.error(_asking(f"there is no subcommand {argv[0]}", argv[0], modules))
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        options = [option for action in args.subparser._actions for option in action.option_strings]
        args.subparser.error(
            _asking(f"unrecognized arguments: {' '.join(unknown)}", unknown[0].partition("=")[0], options)
        )
    fairseq_log = logging.getLogger("fairseq")
    level = fairseq_log.level
    module = modules[args.subcommand]
    running = RUNS_COMMAND.set(True)
    try:
        needs = module.COMMAND.needs_fairseq
        if needs and hasattr(args, "model"):
            check_files(args)
        if needs(args) if callable(needs) else needs:
            register(getattr(args, "user_dir", ()))
            fairseq_log.setLevel(logging.WARNING)
            # PyTorch warns of fairseq's masks, of which one is boolean and the other is not.
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask", UserWarning)
        check(module, args)
        status: int = module.main(args) or 0
        sys.stdout.flush()  # otherwise Python would report a full disk only at exit
        return status
    except (SyntaxDataError, OSError, KeyboardInterrupt) as error:
        reported = report_fault(f"fairseq-syntax {args.subcommand}", error)
        if reported is None:
            raise
        if isinstance(error, KeyboardInterrupt) and module.COMMAND.resumes:
            print("the same command continues where this one stopped", file=sys.stderr)
        # An error without a file name concerns standard output, such as a closed pipe.
        if isinstance(error, OSError) and error.filename is None:
            discard_output()
        return reported
    finally:
        RUNS_COMMAND.reset(running)
        fairseq_log.setLevel(level)  # restored for trainings in this process


def _by_group(modules: dict[str, Any]) -> str:
    """The names and summaries of the subcommands, group by group."""
    lines = []
    for group in GROUPS:
        members = [(name, module.COMMAND.summary) for name, module in modules.items() if module.COMMAND.group == group]
        lines += [f"{group}:", *(f"  {name:<11} {summary}" for name, summary in members), ""]
    return "\n".join([*lines, "fairseq-syntax SUBCOMMAND --help describes one, with an example."])


def _asking(message: str, name: str, names: Iterable[str]) -> str:
    """A message with a suggestion, if one of the names is similar."""
    question = similar(name, names)
    return f"{message}: {question}" if question else message
