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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq_syntax.corpus.parallel_text import Row, Split
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open, make_folder

__all__ = ["Row", "Split", "WrittenSplit", "names", "read_corpus", "reader", "write_corpus"]


@dataclass
class WrittenSplit:
    """A split as plain text files, with one sentence per line."""

    name: str
    source: Path
    target: Path
    references: list[Path] = field(default_factory=list)  # further references
    sentences: int = 0


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
        shipped = ", ".join(names())
        raise SyntaxDataError(f"no reader is called {name}", hint=f"there are {shipped}, or your own file.py")
    if not callable(getattr(module, "read", None)):
        raise SyntaxDataError("the reader has no function read", path=name, hint="see fairseq_syntax/corpus/readers")
    return module


def options_of(module: ModuleType) -> set[str]:
    """The names of a reader's options."""
    functions = [getattr(module, name, None) for name in ("read", "download")]
    return set().union(*(_keywords(function) for function in functions if function is not None))


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
        SyntaxDataError: the reader or an option does not exist, a file is missing or damaged, or a download fails
    """
    module = reader(name)
    options = dict(options or {})
    accepted = options_of(module)
    for option in options:
        if option not in accepted:
            hint = f"it has {', '.join(sorted(accepted))}" if accepted else "it has none"
            raise SyntaxDataError(f"the reader {name} has no option {option}", hint=hint)
    if download:
        if not hasattr(module, "download"):
            hint = f"put its files there by hand: {inspect.getdoc(module)}"
            raise SyntaxDataError(f"{name} cannot be downloaded", path=data, hint=hint)
        module.download(Path(data), source, target, **_taken(module.download, options))
    yield from module.read(Path(data), source, target, **_taken(module.read, options))


def _keywords(function) -> dict[str, Any]:
    """A function's keyword-only parameters and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _taken(function, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a function accepts; a string is accepted for a list with one item."""
    defaults = _keywords(function)
    taken = {name: value for name, value in options.items() if name in defaults}
    for name, value in taken.items():
        if isinstance(value, str) and isinstance(defaults[name], (tuple, list)):
            taken[name] = [value]
    return taken


def write_corpus(
    splits: Iterable[tuple[str, Iterable[Row]]], folder: str | os.PathLike[str], source: str, target: str
) -> list[WrittenSplit]:
    """Write each split as plain text, ``SPLIT.LANG``, and further references as ``SPLIT.LANG.1`` and so on.

    Raises:
        SyntaxDataError: a split has no sentences or occurs twice, or a file cannot be written
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
        split = WrittenSplit(name, paths[0], paths[1], paths[2:])
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_open(path)) for path in paths]
            for row in chain([first], rows):
                split.sentences += 1
                for file, sentence in zip(files, row, strict=True):
                    file.write(sentence + "\n")
        written.append(split)
    return written
