"""Readers of parallel corpora, one module per format; a recipe selects one by ``corpus.reader``.

A reader is a module with a function

    def read(data: Path, source: str, target: str, *, …) -> Iterator[Split]

which yields the splits and their rows by name: ``train`` and ``valid``, then each test set. It may also have
``download(data, source, target, *, …)``, which downloads missing files. Their keyword arguments, all with a default,
are the options in the recipe's ``corpus.options``. A missing file raises a SyntaxDataError that says what to put where.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fairseq_syntax.corpus.parallel_text import Row
from fairseq_syntax.corpus.parallel_text import Split as Split
from fairseq_syntax.errors import SyntaxDataError, meant, quoted
from fairseq_syntax.runtime.files import atomic_open, check_outputs, make_folder


class WrittenSplit(NamedTuple):
    """A split as plain text files, one sentence per line: source, target and any further references."""

    name: str
    paths: list[Path]
    sentences: int


def names() -> list[str]:
    """The names of the package's readers."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def reader(name: str) -> ModuleType:
    """Import a reader by its name or the path of its file. Raises SyntaxDataError if it does not exist."""
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        if spec is None or spec.loader is None or not Path(name).is_file():
            raise SyntaxDataError("no such reader", path=name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif name in names():
        module = importlib.import_module(f"{__name__}.{name}")
    else:
        hint = f"there are {', '.join(names())}, or your own file.py"
        raise SyntaxDataError(f"no reader is called {name}", hint=hint)
    if not callable(getattr(module, "read", None)):
        raise SyntaxDataError("the reader has no function read", path=name, hint="see fairseq_syntax/corpus/readers")
    return module


def options_of(module: ModuleType) -> set[str]:
    """The names of a reader's options."""
    functions = [getattr(module, name) for name in ("read", "download") if hasattr(module, name)]
    return set().union(*map(_keywords, functions))


def check_reader(
    name: str, data: str | os.PathLike[str], *, download: bool = False, options: Mapping[str, Any] | None = None
) -> ModuleType:
    """The module of a reader; arguments as for :func:`read_corpus`.

    Raises:
        SyntaxDataError: the reader or an option does not exist, or it cannot download
    """
    module = reader(name)
    accepted = options_of(module)
    for option in options or ():
        if option not in accepted:
            raise SyntaxDataError(f"the reader {name} has no option {option}", hint=meant(option, sorted(accepted)))
    if download and not hasattr(module, "download"):
        hint = f"put its files there by hand: {inspect.getdoc(module)}"
        raise SyntaxDataError(f"{name} cannot be downloaded", path=data, hint=hint)
    return module


def read_corpus(
    name: str,
    data: str | os.PathLike[str],
    source: str,
    target: str,
    *,
    download: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Split]:
    """Read the splits of a corpus: train, valid, and test sets.

    Args:
        name: the name of the reader
        data: the folder that contains the corpus's files, at any depth
        source, target: the languages, as in the file names
        download: download missing files into the folder, if the corpus can be downloaded
        options: options of the reader

    Raises:
        SyntaxDataError: the reader or an option does not exist, an option has another type, a file is missing or
            damaged, or a download fails
    """
    from pydantic import ValidationError

    module = check_reader(name, data, download=download, options=options)

    def run(function: Callable) -> Any:
        keywords = _keywords(function)
        taken = {option: value for option, value in (options or {}).items() if option in keywords}
        for option, value in taken.items():
            if isinstance(keywords[option], (tuple, list)) and not isinstance(value, (tuple, list)):
                taken[option] = [value]  # a list of one item
        try:
            return _checked(function)(Path(data), source, target, **taken)
        except ValidationError as error:
            wrong = error.errors()[0]
            message = f"the reader {name} cannot use the option {wrong['loc'][0]}: {wrong['input']!r}"
            raise SyntaxDataError(message, hint=wrong["msg"]) from error

    if download:
        run(module.download)
    yield from run(module.read)


def _keywords(function: Callable) -> dict[str, Any]:
    """A function's keyword-only parameters and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _checked(function: Callable) -> Callable:
    """A function that raises pydantic's ValidationError for values of other types than its annotations say."""
    from pydantic import ConfigDict, validate_call

    try:
        return validate_call(config=ConfigDict(coerce_numbers_to_str=True))(function)
    except NameError:  # annotations that only a type checker can resolve
        return function


def write_corpus(
    splits: Iterable[tuple[str, Iterable[Row]]],
    folder: str | os.PathLike[str],
    source: str,
    target: str,
    *,
    inputs: Collection[str | os.PathLike[str]] = (),
) -> list[WrittenSplit]:
    """Write each split as plain text, ``SPLIT.LANG``, and further references as ``SPLIT.LANG.1`` and so on.

    Args:
        inputs: the files of the corpus, none of which is overwritten

    Raises:
        SyntaxDataError: a split has no sentences or occurs twice, a sentence contains a line break, or a file cannot be
            written or is one of ``inputs``
    """
    make_folder(folder)
    written: list[WrittenSplit] = []
    for name, rows in splits:
        if any(split.name == name for split in written):
            raise SyntaxDataError(f"two splits are called {name}", path=folder)
        paths = [Path(folder, f"{name}.{lang}") for lang in (source, target)]
        rows = iter(rows)
        if (first := next(rows, None)) is None:
            raise SyntaxDataError(f"{name} holds no sentences", path=paths[0], hint="is it the right folder?")
        paths += [Path(folder, f"{name}.{target}.{number}") for number in range(1, len(first) - 1)]
        check_outputs(paths, inputs)
        sentences = 0
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_open(path)) for path in paths]
            for row in chain([first], rows):
                sentences += 1
                for file, sentence in zip(files, row, strict=True):
                    if "\n" in sentence:  # the sides would no longer be parallel
                        raise SyntaxDataError(f"a line break in sentence {sentences} of {name}: {quoted(sentence)}")
                    file.write(sentence + "\n")
        written.append(WrittenSplit(name, paths, sentences))
    return written
