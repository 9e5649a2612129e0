"""Options shared by several subcommands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from fairseq_syntax.corpus.conllu import ParsedLine, is_conllu, read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import tokenizer_of_text
from fairseq_syntax.runtime.bounds import real, whole
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, is_read_once, read_lines, read_stdin, write_json
from fairseq_syntax.runtime.ray_workers import add_ray_options
from fairseq_syntax.use import BEAM

if TYPE_CHECKING:
    from fairseq_syntax.lab.scoring.report import System


# An option with several values, which accumulate if it is repeated.
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}


def _name_and_value(text: str) -> tuple[str, str]:
    """The parts of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"NAME=VALUE is wanted, not {text}")
    return name, value


PAIRS: dict[str, Any] = {**SEVERAL, "type": _name_and_value, "default": []}
# For ``type=``; ``--help`` shows their ranges.
positive = whole(1)
natural = whole(0)
probability = real(1e-9, 1.0)
temperature = real(0.01, 100.0)
seconds = real(0.001, 1e6)


def refuse(
    args: argparse.Namespace, add_arguments: Callable[[Any], None], names: Collection[str], why: str, hint: str = ""
) -> None:
    """Reject options that have no effect in combination with others.

    Args:
        args: the parsed arguments
        add_arguments: the subcommand's function, for the defaults
        names: the names of the options in ``args``
        why: the reason why they have no effect
        hint: what to do (default: omit them)

    Raises:
        SyntaxDataError: an option has a value other than its default
    """
    # argparse does not tell which options were given, so compare with the defaults of a second parser.
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name in names:
        if getattr(args, name) != parser.get_default(name):
            raise SyntaxDataError(why, option="--" + name.replace("_", "-"), hint=hint or "drop it")


def add_data(parser: Any, of: str = "the model was") -> None:
    """Add ``--data``."""
    parser.add_argument("--data", metavar="DIR", help=f"the binarized data (default: what {of} trained on)")


def add_model(parser: Any, *, several: bool = True) -> None:
    """Add the argument ``MODEL``, a checkpoint or an ensemble, for :func:`.named_files.files_of`."""
    help = "checkpoint or exported folder" + ("; commas join an ensemble" if several else "")
    parser.add_argument("model", metavar="MODEL[,MODEL…]" if several else "MODEL", help=help)


def add_models(parser: Any, more: str = "", *, required: bool = True, several: bool = True) -> None:
    """Add the arguments ``MODEL …``, for :func:`.named_files.systems_by_name`.

    Args:
        more: appended to the help text
        required: whether at least one is required
        several: whether each may be an ensemble
    """
    metavar = "[NAME=]MODEL[,MODEL…]" if several else "[NAME=]MODEL"
    ensemble = "commas join an ensemble" if several else ""
    about = ["checkpoints or exported folders, named after their folders by default", ensemble, more]
    count = {**SEVERAL, "nargs": "+" if required else "*"}
    parser.add_argument("model", **count, metavar=metavar, help="; ".join(filter(None, about)))


def add_languages(parser: Any) -> None:
    """Add ``-s`` and ``-t``, as in fairseq-preprocess."""
    for side in ("source", "target"):
        parser.add_argument(f"-{side[0]}", f"--{side}-lang", required=True, metavar="LANG", help=f"the {side} language")


def add_file_language(parser: Any) -> None:
    """Add ``--lang``, the extension of file names."""
    parser.add_argument("--lang", required=True, metavar="LANG", help="language code, as in the file names")


def add_source_parser(parser: Any, help: str = "parser for raw text", whose: str = "the model's") -> None:
    """Add the options of the parser for raw text: ``--parser``, ``--lang`` and ``--model-dir``."""
    parser.add_argument(
        "--parser", default="", metavar="NAME", help=f"{help} (default: that of the training text, with its options)"
    )
    parser.add_argument("--lang", default="", help=f"language of the parser's models (default: {whose} source)")
    parser.add_argument("--model-dir", metavar="DIR", help="folder of the parser's models")


def add_sentences(parser: Any, default: str) -> None:
    """Add ``--sentences``, for :func:`sentence_numbers`."""
    help = f"sentence numbers from 1 (default: {default})"
    parser.add_argument("--sentences", **SEVERAL, type=_number_or_range, metavar="N[-M]", help=help)


def sentence_numbers(args: argparse.Namespace) -> list[int] | None:
    """The distinct numbers in ``--sentences``; None if the option is not given."""
    return list(dict.fromkeys(chain.from_iterable(args.sentences))) if args.sentences else None


def _number_or_range(text: str) -> range:
    """The numbers of ``N`` or ``N-M``."""
    first, dash, last = text.partition("-")
    numbers = range(int(positive(first)), int(positive(last if dash else first)) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"a range without a number in it: {text!r}")
    return numbers


def add_batches(parser: Any, size: int = 32) -> None:
    """Add ``--batch-size``, in sentences, and ``--device``."""
    parser.add_argument("--batch-size", type=positive, default=size, help="sentences per batch")
    add_device(parser)


def add_translations(parser: Any) -> None:
    """Add ``--ref``, ``--sys`` and ``--tokenize``, for references and translations of several systems."""
    parser.add_argument("--ref", **SEVERAL, required=True, metavar="FILE", help="reference translations, plain text")
    parser.add_argument(
        "--sys",
        **SEVERAL,
        required=True,
        metavar="[NAME=]FILE[,FILE…]",
        help="translations: plain text or the output of fairseq-generate; several files after a name are seeds",
    )
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        help="sacrebleu's tokenizer (default: 13a; zh, ja-mecab or char for references in scripts without spaces)",
    )


def read_translations(args: argparse.Namespace, *others: str | None) -> tuple[list[System], list[Any]]:
    """Read the files of :func:`add_translations`; sets ``args.tokenize`` if it is None.

    Args:
        others: further files with one line per sentence, such as the source; None is passed through

    Returns:
        the systems, the list of references, and the lines of each of ``others``

    Raises:
        SyntaxDataError: files differ in their number of lines, or two systems have the same name
    """
    from fairseq_syntax.lab.scoring.outputs import check_parallel, read_text
    from fairseq_syntax.lab.scoring.report import check_names, read_system

    references = [read_text(path) for path in args.ref]
    if args.tokenize is None:
        args.tokenize = tokenizer_of_text(references[0])
        if args.tokenize != "13a":
            message = f"tokenizer: {args.tokenize}, by the script of {args.ref[0]} (--tokenize names another)"
            print(message, file=sys.stderr)
    texts = [read_text(path) if path else None for path in others]
    systems = [read_system(text) for text in args.sys]
    read = [*zip(args.ref, references), *((path, text) for path, text in zip(others, texts) if path and text)]
    read += [(run.path, run.lines) for system in systems for run in system.runs]
    check_parallel([(path, len(lines)) for path, lines in read])
    check_names([system.name for system in systems])
    return systems, [references, *texts]


def add_report(parser: Any) -> None:
    """Add ``--format`` and ``--json``, for :func:`print_report`."""
    parser.add_argument("--format", choices=("text", "markdown"), default="text", help="format of the printed tables")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the report as JSON (- prints it instead of the tables)"
    )


def print_report(args: argparse.Namespace, report: Mapping[str, Any], tables: Iterable[Any]) -> bool:
    """Print tables, and write the report as JSON if requested; returns False if JSON is printed instead."""
    if args.json == "-":
        print(json.dumps(report, indent=1, ensure_ascii=False))
        return False
    if args.json:  # first the file, since the reader of the tables may close the pipe
        write_json(args.json, report)
    print("\n\n".join(table.render(args.format) for table in tables))
    if args.json:
        finished(args.json, "the report", file=sys.stderr)
    return True


def add_workers(parser: Any) -> None:
    """Add ``--workers`` and ``--ray``, for :func:`.ray_workers.chosen_workers`."""
    parser.add_argument(
        "--workers", type=positive, help="number of processes (default: 1; with --ray, as many as fit the cluster)"
    )
    add_ray_options(parser)


def add_device(parser: Any) -> None:
    """Add ``--device`` for a translation model."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="device of the model (default: cuda if available)")


def add_beam(parser: Any) -> None:
    """Add ``--beam``."""
    parser.add_argument("--beam", type=positive, default=BEAM, help="beam size")


def add_search(parser: Any) -> None:
    """Add the options of a search: ``--beam``, ``--lenpen`` and ``--max-len-b``."""
    add_beam(parser)
    parser.add_argument("--lenpen", type=real(-10.0, 10.0), default=1.0, metavar="P", help="length penalty")
    parser.add_argument("--max-len-b", type=positive, default=200, help="maximum number of pieces per translation")


def add_translator(parser: Any) -> None:
    """Add the options that :func:`translator_options` reads."""
    add_data(parser)
    add_source_parser(parser, "parser for raw text, or none")
    add_batches(parser)


def translator_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``Translator.load``."""
    return {
        "data": args.data,
        "parser_name": args.parser,
        "parser_lang": args.lang,
        "parser_dir": args.model_dir,
        "device": args.device,
        "batch_size": args.batch_size,
    }


def opened(path: str) -> AbstractContextManager[IO[str]]:
    """Open a file for atomic writing; ``-`` is stdout."""
    return nullcontext(sys.stdout) if path == "-" else atomic_open(path)


def then_segment(parse: str | os.PathLike[str], lang: str = "LANG", how: str = "--train sentencepiece") -> str:
    """The command that segments a parse, for a command's last line; empty if the file is not named .conllu."""
    command = f"fairseq-syntax segment --lang {lang} --input {os.fspath(parse)} --output DIR {how}"
    return command if is_conllu(parse) else ""


def is_stream(path: str) -> bool:
    """Whether an input can be read only once and so not be counted: ``-`` (stdin), a pipe or a device."""
    return path == "-" or is_read_once(path)


def read_sentences(path: str) -> Iterable[str | ParsedLine]:
    """Read the lines of a text or the parses of a ``.conllu`` file, also with ``.gz``; ``-`` is text on stdin."""
    if path == "-":
        return read_stdin()
    return read_conllu(path) if is_conllu(path) else read_lines(path)
