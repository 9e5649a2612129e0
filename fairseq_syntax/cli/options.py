"""Arguments and output shared by several subcommands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from fairseq_syntax.cli.command import Option
from fairseq_syntax.corpus.conllu import ParsedLine, is_conllu, read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import tokenizer_of_text
from fairseq_syntax.runtime.bounds import real, whole
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, is_read_once, read_lines, read_stdin, write_json
from fairseq_syntax.use import BEAM as USUAL_BEAM

if TYPE_CHECKING:
    from fairseq_syntax.lab.scoring.report import System


def _name_and_value(text: str) -> tuple[str, str]:
    """The parts of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"NAME=VALUE is wanted, not {text}")
    return name, value


# For ``type=``; ``--help`` shows their ranges.
positive = whole(1)
natural = whole(0)
probability = real(1e-9, 1.0)
temperature = real(0.01, 100.0)
seconds = real(0.001, 1e6)


def _number_or_range(text: str) -> range:
    """The numbers of ``N`` or ``N-M``."""
    first, dash, last = text.partition("-")
    numbers = range(int(positive(first)), int(positive(last if dash else first)) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"a range without a number in it: {text!r}")
    return numbers


# An option with several values, which accumulate if it is repeated.
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}
PAIRS: dict[str, Any] = {**SEVERAL, "type": _name_and_value, "default": []}

# ------------------------------------------------------------------------------------------------ arguments

SEED = Option("--seed", "random seed", type=natural, default=1)
OUTPUT_FOLDER = Option("--output DIR", "output folder", required=True)
MODEL_DIR = Option("--model-dir DIR", "folder of the parser's models")
DATA = Option("--data DIR", "the binarized data (default: what the model was trained on)")
DEVICE = Option("--device", "device of the model (default: cuda if available)", choices=("cpu", "cuda"))
BASELINE = Option("--baseline NAME", "baseline system (default: the first)")
BEAM = Option("--beam", "beam size", type=positive, default=USUAL_BEAM)
TOKENIZE = Option("--tokenize NAME", "sacrebleu's tokenizer (zh, ja-mecab, char …)", default="13a")
# For :func:`.named_files.files_of`.
MODEL = Option("model MODEL[,MODEL…]", "checkpoint or exported folder; commas join an ensemble")
ONE_MODEL = Option("model MODEL", "checkpoint or exported folder")
# Languages as in fairseq-preprocess, and the one in the names of files.
LANGUAGES = (
    Option("-s --source-lang LANG", "the source language", required=True),
    Option("-t --target-lang LANG", "the target language", required=True),
)
FILE_LANGUAGE = Option("--lang LANG", "language code, as in the file names", required=True)
# For :func:`.ray_workers.chosen_workers`.
RAY = Option(
    "--ray ADDRESS",
    "run workers on the Ray cluster with this head (HOST:PORT; local starts one). Without ADDRESS: the cluster of "
    "RAY_ADDRESS, one that runs here, or one started for this command",
    nargs="?",
    const="",
)
GPUS_PER_WORKER = Option(
    "--gpus-per-worker G",
    "with --ray: GPUs per worker, such as 1 or 0.5 (default: 1 with --device cuda, otherwise none)",
    type=real(0.0, 1e3),
)
PROCESSES = Option("--workers", "number of processes", type=positive, default=1)
WORKERS = Option("--workers", "number of processes (default: 1; with --ray, as many as fit the cluster)", type=positive)
# For :func:`print_report`.
REPORT = (
    Option("--format", "format of the printed tables", choices=("text", "markdown"), default="text"),
    Option("--json FILE", "also write the report as JSON (- prints it instead of the tables)"),
)
# For :func:`read_translations`: references and translations of several systems.
TRANSLATIONS = (
    Option("--ref FILE", "reference translations, plain text", **SEVERAL, required=True),
    Option(
        "--sys [NAME=]FILE[,FILE…]",
        "translations: plain text or the output of fairseq-generate; several files after a name are seeds",
        **SEVERAL,
        required=True,
    ),
    Option(
        "--tokenize NAME",
        "sacrebleu's tokenizer (default: 13a; zh, ja-mecab or char for references in scripts without spaces)",
    ),
)


def models(more: str = "", *, required: bool = True, several: bool = True) -> Option:
    """The arguments ``MODEL …``, for :func:`.named_files.systems_by_name`.

    Args:
        more: appended to the help text
        several: whether each may be an ensemble
    """
    metavar = "[NAME=]MODEL[,MODEL…]" if several else "[NAME=]MODEL"
    ensemble = "commas join an ensemble" if several else ""
    help = ["checkpoints or exported folders, named after their folders by default", ensemble, more]
    count = {**SEVERAL, "nargs": "+" if required else "*"}
    return Option("model", "; ".join(filter(None, help)), **count, metavar=metavar)


def sentences(default: str) -> Option:
    """``--sentences``, for :func:`sentence_numbers`."""
    help = f"sentence numbers from 1 (default: {default})"
    return Option("--sentences N[-M]", help, **SEVERAL, type=_number_or_range)


def batch_size(sentences: int = 32) -> Option:
    """``--batch-size``."""
    return Option("--batch-size", "sentences per batch", type=positive, default=sentences)


def source_parser(help: str = "parser for raw text") -> tuple[Option, ...]:
    """The options of the parser for raw text: ``--parser``, ``--lang`` and ``--model-dir``."""
    help = f"{help} (default: that of the training text, with its options)"
    return (
        Option("--parser NAME", help, default=""),
        Option("--lang", "language of the parser's models (default: the model's source)", default=""),
        MODEL_DIR,
    )


MISSING_PARSE = Option(
    "--missing-parse",
    "for text that cannot be parsed: an error, or a translation without a parse (neutral)",
    choices=("error", "neutral"),
    default="error",
)
# For :func:`translator_options`.
TRANSLATOR = (DATA, *source_parser("parser for raw text, or none"), batch_size(), DEVICE)

# --------------------------------------------------------------------------------------- reading arguments


def refuse(args: argparse.Namespace, names: Collection[str], why: str, hint: str = "drop it") -> None:
    """Reject options that have no effect in combination with others.

    Args:
        names: the names of the options in ``args``
        why: the reason why they have no effect

    Raises:
        SyntaxDataError: an option has a value other than its default
    """
    for name in names:  # argparse does not tell which options were given
        if getattr(args, name) != args.subparser.get_default(name):
            raise SyntaxDataError(why, option="--" + name.replace("_", "-"), hint=hint)


def sentence_numbers(args: argparse.Namespace) -> list[int] | None:
    """The distinct numbers in ``--sentences``; None if the option is not given."""
    return list(dict.fromkeys(chain.from_iterable(args.sentences))) if args.sentences else None


def translator_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``Translator.load`` for :data:`TRANSLATOR`."""
    return {
        "data": args.data,
        "parser_name": args.parser,
        "parser_lang": args.lang,
        "parser_dir": args.model_dir,
        "device": args.device,
        "batch_size": args.batch_size,
    }


def read_translations(args: argparse.Namespace, *others: str | None) -> tuple[list[System], list[Any]]:
    """Read the files of :data:`TRANSLATIONS`; sets ``args.tokenize`` if it is None.

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


# ----------------------------------------------------------------------------------------- input and output


def is_stream(path: str) -> bool:
    """Whether an input can be read only once and so not be counted: ``-`` (stdin), a pipe or a device."""
    return path == "-" or is_read_once(path)


def read_sentences(path: str) -> Iterable[str | ParsedLine]:
    """Read the lines of a text or the parses of a ``.conllu`` file, also with ``.gz``; ``-`` is text on stdin."""
    if path == "-":
        return read_stdin()
    return read_conllu(path) if is_conllu(path) else read_lines(path)


def opened(path: str) -> AbstractContextManager[IO[str]]:
    """Open a file for atomic writing; ``-`` is stdout."""
    return nullcontext(sys.stdout) if path == "-" else atomic_open(path)


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


def then_segment(parse: str | os.PathLike[str], lang: str = "LANG", how: str = "--train sentencepiece") -> str:
    """The command that segments a parse, for a command's last line; empty if the file is not named .conllu."""
    command = f"fairseq-syntax segment --lang {lang} --input {os.fspath(parse)} --output DIR {how}"
    return command if is_conllu(parse) else ""
