"""Using the arguments shared by several subcommands: rejected combinations, inputs, reports."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, Any

from fairseq_syntax.corpus.conllu import ParsedLine, is_conllu, read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import tokenizer_of_text
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, instead, is_read_once, read_lines, read_stdin, write_json
from fairseq_syntax.runtime.named_files import check_distinct, files_of, missing_model, named_files

if TYPE_CHECKING:
    from fairseq_syntax.lab.scoring.evaluation import ScoredSystem


def refuse(args: Namespace, names: Collection[str], why: str, hint: str = "drop it") -> None:
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


def check_files(args: Namespace) -> None:
    """Raise SyntaxDataError for models, data and an input that do not exist, before seconds of importing fairseq.

    Reads ``model`` (:func:`.named_files.files_of` of a text, :func:`.named_files.named_files` of each of several), and
    ``data`` and ``input`` if there are such arguments.
    """
    named = [files_of(args.model)] if isinstance(args.model, str) else [named_files(text)[1] for text in args.model]
    for path in chain.from_iterable(named):
        if not os.path.exists(path):
            raise missing_model(Path(path))
    data = getattr(args, "data", None)
    if data and not any(map(os.path.exists, data.split(":"))):  # fairseq's way to join several
        raise SyntaxDataError("no such folder", path=data, option="--data", hint=instead(data))
    text = getattr(args, "input", None)
    if text and text != "-" and not os.path.exists(text):
        raise SyntaxDataError("no such file", path=text, option="--input", hint=instead(text))


def sentence_numbers(args: Namespace) -> list[int] | None:
    """The distinct numbers in ``--sentences``; None if the option is not given."""
    return list(dict.fromkeys(chain.from_iterable(args.sentences))) if args.sentences else None


def translator_options(args: Namespace) -> dict[str, Any]:
    """The arguments of ``Translator.load`` for :data:`.arguments.TRANSLATOR`."""
    return {
        "data": args.data,
        "parser_name": args.parser,
        "parser_lang": args.lang,
        "parser_dir": args.model_dir,
        "device": args.device,
        "batch_size": args.batch_size,
    }


def read_scored_systems(args: Namespace, *others: str | None) -> tuple[list[ScoredSystem], list[Any]]:
    """Read the files of :data:`.arguments.TRANSLATIONS`; sets ``args.tokenize`` if it is None.

    Args:
        others: further files with one line per sentence, such as the source; None is passed through

    Returns:
        the systems, the list of references, and the lines of each of ``others``

    Raises:
        SyntaxDataError: files differ in their number of lines, or two systems have the same name
    """
    from fairseq_syntax.lab.scoring.evaluation import read_system
    from fairseq_syntax.lab.scoring.outputs import check_parallel, read_text

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
    check_distinct(system.name for system in systems)
    return systems, [references, *texts]


def is_stream(path: str) -> bool:
    """Whether an input can be read only once and so not be counted: ``-`` (stdin), a pipe or a device."""
    return path == "-" or is_read_once(path)


def read_sentences(path: str) -> Iterable[str | ParsedLine]:
    """Read the lines of a text or the parses of a ``.conllu`` file, also compressed; ``-`` is text on stdin."""
    if path == "-":
        return read_stdin()
    return read_conllu(path) if is_conllu(path) else read_lines(path)


def opened(path: str) -> AbstractContextManager[IO[str]]:
    """Open a file for atomic writing; ``-`` is stdout."""
    return nullcontext(sys.stdout) if path == "-" else atomic_open(path)


def print_report(args: Namespace, report: Mapping[str, Any], tables: Iterable[Any]) -> bool:
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
    command = f"fairseq-syntax segment --lang {lang} --input {quote(os.fspath(parse))} --output DIR {how}"
    return command if is_conllu(parse) else ""
