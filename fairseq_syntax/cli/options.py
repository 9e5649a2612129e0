"""Options that several subcommands have, and what they read by them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_syntax.corpus.conllu import ParsedLine


def positive(text: str) -> int:
    """A number of at least 1, for ``type=``."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def probability(text: str) -> float:
    """A number above 0 and at most 1, for ``type=``."""
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def given(args: argparse.Namespace, defaults: Mapping[str, object]) -> str:
    """The options that have another value than their default, as they are written, for an error; empty without any.

    Args:
        args: parsed
        defaults: by the option's name in ``args``
    """
    names = [name for name, default in defaults.items() if getattr(args, name) != default]
    return ", ".join("--" + name.replace("_", "-") for name in names)


def add_data(parser: Any, of: str = "the model was") -> None:
    """Add ``--data``."""
    parser.add_argument("--data", metavar="DIR", help=f"the binarized data (default: what {of} trained on)")


def add_file_language(parser: Any) -> None:
    """Add the ``--lang`` of files whose names end with it."""
    parser.add_argument("--lang", required=True, metavar="LANG", help="language code, as in the names of the files")


def add_source_parser(parser: Any, help: str = "for raw text", whose: str = "the model's") -> None:
    """Add the options of the parser of raw text: ``--parser``, ``--lang`` and ``--model-dir``."""
    parser.add_argument(
        "--parser", default="", metavar="NAME", help=f"{help} (default: that of the training text, with its options)"
    )
    parser.add_argument("--lang", default="", help=f"language of the parser's models (default: {whose} source)")
    parser.add_argument("--model-dir", metavar="DIR", help="directory of the parser's models")


def add_batches(parser: Any, size: int = 32) -> None:
    """Add ``--batch-size``, in sentences, and ``--device``."""
    parser.add_argument(
        "--batch-size", type=positive, default=size, metavar="N", help=f"sentences at a time (default: {size})"
    )
    add_device(parser)


def add_device(parser: Any) -> None:
    """Add ``--device`` of a translation model."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")


def add_translator(parser: Any) -> None:
    """Add what :func:`translator_options` reads."""
    add_data(parser)
    add_source_parser(parser, "for raw text, or none")
    add_batches(parser)


def translator_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of ``Translator.load``."""
    return {
        "data": args.data,
        "parser_name": args.parser,
        "parser_lang": args.lang,
        "parser_dir": args.model_dir,
        "device": args.device,
        "batch_size": args.batch_size,
    }


def then_segment(parse: str | os.PathLike[str], lang: str = "LANG", how: str = "--train sentencepiece") -> str:
    """The command that cuts a parse into pieces, for a command's last line; empty where its name is not .conllu."""
    from fairseq_syntax.corpus.conllu import is_conllu

    command = f"fairseq-syntax segment --lang {lang} --input {os.fspath(parse)} --outdir DIR {how}"
    return command if is_conllu(parse) else ""


def is_stream(path: str) -> bool:
    """Whether an input can be read once only, and so not counted before: ``-`` (stdin), a pipe or a device."""
    from fairseq_syntax.runtime.files import is_read_once

    return path == "-" or is_read_once(path)


def read_sentences(path: str) -> Iterable[str | ParsedLine]:
    """The lines of a text, or the parses of a ``.conllu`` file, either with ``.gz``; ``-`` is text on stdin."""
    from fairseq_syntax.corpus.conllu import is_conllu, read_conllu
    from fairseq_syntax.runtime.files import read_lines, read_stdin

    if path == "-":
        return read_stdin()
    return read_conllu(path) if is_conllu(path) else read_lines(path)
