"""The ``fairseq-syntax`` command: one module per subcommand, loaded when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from fairseq_syntax import __version__, register
from fairseq_syntax.cli.examples import add_examples
from fairseq_syntax.errors import SyntaxDataError

# In the order of the pipeline.
SUBCOMMANDS = {
    "demo": "train the plain Transformer and PASCAL on a toy corpus, and compare them",
    "filter": "remove pairs of a parallel corpus by language, length, ratio or parse",
    "parse": "parse text to CoNLL-U",
    "control": "make control parses: the same form, without the syntax",
    "segment": "split the words of a parse, or text, into subword pieces",
    "inventory": "make one dictionary and label inventory for several data directories",
    "binarize": "binarize the syntax beside an existing token dataset",
    "inspect": "say what is in a store, and check it against its tokens",
    "user-dir": "print what to give to --user-dir",
    "translate": "translate raw text with a trained model",
    "serve": "serve trained models over HTTP, with a page to try them on",
    "align": "align the words of translations by a model's attention",
    "export": "write a model for stock fairseq or CTranslate2",
    "score": "score translations, with significance",
    "contrast": "contrastive evaluation: is the right translation the more probable one?",
    "plot": "draw scores, training curves and reliability",
    "show": "draw a model's attention with the parse",
    "experiment": "run a grid of systems and seeds",
    "calibrate": "compare a parser's probabilities with a treebank",
    "tree": "write the tree that a model's parent head believes in",
    "eval-tree": "score trees against a treebank",
    "multitask": "make the corpus of the multi-task baseline",
    "diversify": "translate with varied tag sequences",
}
# Those that load what fairseq wrote, for which it has to know this package. It takes seconds to import.
WITH_FAIRSEQ = {
    "binarize",
    "inventory",
    "inspect",
    "translate",
    "align",
    "export",
    "serve",
    "contrast",
    "show",
    "tree",
    "diversify",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        the exit status: 0; 1 after bad input, which is explained on stderr; 2 after wrong usage
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="fairseq-syntax", description="Syntax for fairseq's translation models.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    chosen = argv[0] if argv and argv[0] in SUBCOMMANDS else None
    completing = "_ARGCOMPLETE" in os.environ  # set by the shell, which then wants to know all options
    for name, summary in SUBCOMMANDS.items():
        if completing or chosen in (None, name):
            if completing or chosen:
                add_subcommand(subparsers, name)
            else:
                subparsers.add_parser(name, help=summary)
    if completing:
        _complete(parser)
    args = parser.parse_args(argv)
    if args.subcommand in WITH_FAIRSEQ:
        register()
    try:
        return importlib.import_module(f"fairseq_syntax.cli.{args.subcommand.replace('-', '_')}").main(args) or 0
    except SyntaxDataError as error:
        print(f"fairseq-syntax {args.subcommand}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def add_subcommand(subparsers: Any, name: str) -> argparse.ArgumentParser:
    """Add a subcommand's parser, with its example."""
    importlib.import_module(f"fairseq_syntax.cli.{name.replace('-', '_')}").add_parser(subparsers)
    parser: argparse.ArgumentParser = subparsers.choices[name]
    add_examples(name, parser)
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that completes the command line, and end; without argcomplete there is no answer."""
    try:
        import argcomplete
    except ImportError:
        sys.exit(1)
    argcomplete.autocomplete(parser)
