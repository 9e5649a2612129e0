"""Readers of parallel corpora by name: from a folder with the files that one downloads or buys to pairs of sentences.

A reader is a module of this package with a function ``read(folder, langs, *, download=False, …)`` that yields the
splits; its other arguments, all with a default, are the reader's options. A reader of your own is a line in
:data:`READERS`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_syntax.corpus.readers.formats import Row
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open, make_folder

__all__ = ["READERS", "Row", "Split", "WrittenSplit", "read_corpus", "write_corpus"]

READERS = {
    "aspec": "ASPEC, scientific abstracts, English and Japanese (WAT)",
    "iwslt": "TED talks in the layout of IWSLT 2014 to 2017",
    "multi30k": "Multi30k, task 1: image captions",
    "nist": "NIST OpenMT Chinese-English: LDC corpora and test sets with four references",
    "moses": "a pair of plain files, with test sets drawn from it, by length: UN, News Commentary",
    "wmt": "WMT: News Commentary, Europarl, Common Crawl, SETIMES, CWMT, and the newstest sets",
}


class Split(NamedTuple):
    """A part of a corpus.

    Attributes:
        name: ``train`` and ``valid``, each once and in this order, then test sets by their own names
        rows: source, target and, of a test set that has several, further reference translations
    """

    name: str
    rows: Iterable[Row]


@dataclass
class WrittenSplit:
    """A split as plain text files, a sentence a line."""

    name: str
    source: Path
    target: Path
    references: list[Path] = field(default_factory=list)  # further ones
    sentences: int = 0


def read_corpus(
    name: str,
    folder: str | os.PathLike[str],
    langs: tuple[str, str],
    *,
    download: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Split]:
    """The splits of a corpus: train, valid, and its test sets.

    Args:
        name: of :data:`READERS`
        folder: with the corpus's files, anywhere below it
        langs: source and target, as in the names of the files
        download: fetch into the folder what is missing, where the corpus may be downloaded
        options: of the reader

    Raises:
        SyntaxDataError: no such reader or option, or files that are missing or damaged
    """
    if name not in READERS:
        hint = f"one of {', '.join(sorted(READERS))}"
        raise SyntaxDataError(f"no reader of corpora is called {name}", hint=hint)
    read = import_module(f"{__name__}.{name}").read
    known = [p for p in inspect.signature(read).parameters if p not in ("folder", "langs", "download")]
    for option in options or {}:
        if option not in known:
            hint = f"it has {', '.join(known)}" if known else "it has none"
            raise SyntaxDataError(f"the reader {name} has no option {option}", hint=hint)
    yield from read(Path(folder), langs, download=download, **(options or {}))


def write_corpus(splits: Iterable[Split], folder: str | os.PathLike[str], langs: tuple[str, str]) -> list[WrittenSplit]:
    """Writes each split as plain text, ``SPLIT.LANG``, and further references as ``SPLIT.LANG.1`` and so on.

    Raises:
        SyntaxDataError: a split without sentences, one that stands twice, or a file that cannot be written
    """
    make_folder(folder)
    written: list[WrittenSplit] = []
    for name, rows in splits:
        if any(split.name == name for split in written):
            raise SyntaxDataError(f"two splits are called {name}", path=folder)
        paths = [Path(folder, f"{name}.{lang}") for lang in langs]
        count = 0
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_open(path)) for path in paths]
            for count, row in enumerate(rows, start=1):
                while len(files) < len(row) and count == 1:
                    paths.append(Path(folder, f"{name}.{langs[1]}.{len(files) - 1}"))
                    files.append(stack.enter_context(atomic_open(paths[-1])))
                for file, sentence in zip(files, row, strict=True):
                    file.write(sentence + "\n")
            if not count:
                hint = "is it the right folder?"
                raise SyntaxDataError(f"{name} holds no sentences", path=paths[0], hint=hint)
        written.append(WrittenSplit(name, paths[0], paths[1], paths[2:], count))
    return written
