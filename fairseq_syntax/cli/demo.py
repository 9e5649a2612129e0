"""``fairseq-syntax demo``: the toy corpora, with the programs that a checkout has in examples/toy."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import SEVERAL, natural, positive

COMMAND = Command(
    group="start",
    summary="train the plain Transformer and PASCAL on a toy corpus, and compare them",
    description="Write a toy corpus whose translation depends on the parse, train systems on it, and print what "
    "they reach beside what can be reached: about 3 minutes on two cores. What is done already is not done again.",
    example="fairseq-syntax demo --output runs/toy",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every system (hours)")
    which.add_argument("--only", **SEVERAL, metavar="NAME", help="these rows; a wrong one lists all")
    parser.add_argument("--output", default="runs/toy", metavar="DIR", help="default: runs/toy")
    parser.add_argument("--workers", type=positive, default=2, metavar="N", help="systems trained at once (default: 2)")
    parser.add_argument("--seeds", type=natural, **SEVERAL, metavar="N", help="train with each of these (default: 1)")


def toy_folder() -> Path:
    """Where the toy programs are: in the installed package, or in a checkout beside it.

    Raises:
        SyntaxDataError: in neither
    """
    from fairseq_syntax.errors import SyntaxDataError

    package = Path(__file__).resolve().parents[1]
    for folder in (package / "toy", package.parent / "examples" / "toy"):
        if (folder / "run.py").exists():
            return folder
    raise SyntaxDataError("the toy programs are not there", path=package / "toy", hint="install the package again")


def main(args: argparse.Namespace) -> int:
    import subprocess
    import sys

    command = [sys.executable, str(toy_folder() / "run.py"), "--output", args.output, "--workers", str(args.workers)]
    command += ["--all"] if args.all else []
    command += ["--only", *args.only] if args.only else []
    command += ["--seeds", *map(str, args.seeds)] if args.seeds else []
    return subprocess.run(command).returncode
