"""The file formats of parallel corpora, each read as a stream of sentences.

White space inside a sentence is reduced to single spaces.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from fairseq_syntax.corpus.conllu import is_markup
from fairseq_syntax.corpus.segments import Path, paired, read_segments
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines, uncompressed_name

Item = TypeVar("Item")
# A sentence, its translation, and any further reference translations.
Row = tuple[str, ...]


class Split(NamedTuple):
    """A split of a corpus: its name, and source, target and any further references of each sentence."""

    name: str
    rows: Iterable[Row]


# Lines other than sentences in training files of IWSLT. Some occur on only one side (translators, reviewers).
_TAG = re.compile(r"\s*</?(url|talkid|keywords|speaker|translator|reviewer|doc|transcript)\b[^>]*>")
_SENTENCE_TAG = re.compile(r"\s*<(title|description)>(.*?)</\1>\s*\Z")


def read_plain_text(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or compressed."""
    for line in read_lines(path):
        yield single_spaced(line)


def read_tagged(path: Path) -> Iterator[str]:
    """The sentences of an IWSLT training file (``train.tags.*``): lines of text among lines of tags.

    The format is not XML, as nothing is escaped. Titles and descriptions of talks count as sentences.
    """
    for line in read_lines(path):
        if sentence := _SENTENCE_TAG.match(line):
            yield single_spaced(sentence[2])
        elif not _TAG.match(line):
            yield single_spaced(line)


def read_aspec(path: Path) -> Iterator[dict[str, str]]:
    """The sentences of an ASPEC-JE file, by language (``ja``, ``en``): fields with `` ||| `` between them.

    Training files have ``similarity ||| document ||| sentence ||| Japanese ||| English``; other files lack the
    similarity.
    """
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("|||")
        if len(fields) not in (4, 5):
            message = f"{len(fields)} fields between |||, not 4 or 5"
            raise SyntaxDataError(message, path=path, line=number, hint="is it a file of ASPEC?")
        yield {"ja": single_spaced(fields[-2]), "en": single_spaced(fields[-1])}


def read_tsv(path: Path) -> Iterator[Row]:
    """The first two columns of tab-separated values, without quoting: a tab always ends a field."""
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise SyntaxDataError("no tab between source and target", path=path, line=number)
        yield single_spaced(fields[0]), single_spaced(fields[1])


def read_side(path: Path) -> Iterator[str]:
    """Read one side of a corpus, by its name: ``.sgm``, ``.xml``, ``train.tags.*``, or plain text."""
    if is_markup(path):
        return (segment.text for segment in read_segments(path))
    name = os.path.basename(uncompressed_name(path))
    return read_tagged(path) if name.startswith("train.tags.") else read_plain_text(path)


def parallel(*paths: Path, langs: Sequence[str | None] = (None, None)) -> Iterator[Row]:
    """Rows of parallel files: source, target, and further references.

    Test sets in SGML or XML are paired by their identifiers (:func:`.paired`), other files line by line
    (:func:`aligned`). A file in WMT's XML contains all sides, and is given for each of them.

    Args:
        langs: the source and target language, which are compared with those of WMT's XML
    """
    if all(map(is_markup, paths)):
        of_sides = [langs[0], *[langs[-1]] * (len(paths) - 1)]
        sides = [read_segments(path, side, lang) for side, (path, lang) in enumerate(zip(paths, of_sides))]
        return paired(sides, paths)
    return aligned([read_side(path) for path in paths], paths)


def aligned(sides: Sequence[Iterable[str]], paths: Sequence[Path]) -> Iterator[Row]:
    """Zip parallel streams, read from ``paths``, into rows.

    Raises:
        SyntaxDataError: a stream ends before another
    """
    for count, row in enumerate(zip_longest(*sides)):
        if None in row:
            ended = paths[row.index(None)]
            longer = next(path for path, side in zip(paths, row) if side is not None)
            message = f"ends after {count} sentences, and {os.fspath(longer)} goes on"
            hint = "they are not the two sides of one corpus, or one is cut off"
            raise SyntaxDataError(message, path=ended, line=count, hint=hint)
        yield row


def reservoir(items: Iterable[Item], count: int, draw: random.Random) -> list[Item]:
    """A reservoir sample of ``count`` items without replacement, in no particular order; all if there are fewer."""
    kept: list[Item] = []
    for number, item in enumerate(items):
        if number < count:
            kept.append(item)
        elif (place := draw.randrange(number + 1)) < count:
            kept[place] = item
    return kept
