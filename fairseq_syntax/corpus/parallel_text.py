"""The file formats of parallel corpora, each read as a stream of sentences.

White space inside a sentence is reduced to single spaces. In SGML and XML, character entities are resolved once:
``&amp;lt;`` in a file is the text ``&lt;``. Plain text is not changed.
"""

from __future__ import annotations

import html
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple, TypeVar
from xml.etree import ElementTree

from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines, uncompressed_name

Path = str | os.PathLike[str]
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
# In SGML: the attributes of the following segments' set or document, or a segment, whose end may be missing.
_SEGMENT = re.compile(
    r"<(?:refset|doc)\b([^>]*)>|<seg\b[^>]*>(.*?)(</seg\s*>|(?=<seg\b)|\Z)", re.IGNORECASE | re.DOTALL
)
_ATTRIBUTE = re.compile(r"\b(sysid|docid)\s*=\s*\"?([^\">\s]+)", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w+);")


def read_text(path: Path) -> Iterator[str]:
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


def read_segments(path: Path) -> Iterator[str]:
    """The segments of a test set in NIST's SGML (WMT to 2020, IWSLT, OpenMT); see :func:`read_translations`."""
    return (sentence for *_, sentence in read_translations(path))


def read_translations(path: Path) -> Iterator[tuple[str | None, str | None, str]]:
    """The segments of a test set in NIST's SGML, after the ``sysid`` and ``docid`` of their ``<refset>`` or ``<doc>``.

    Such files are often not well-formed XML (``&`` and ``<`` are not escaped), so only these tags are searched for. A
    segment may span several lines, and one that does not end is an error. Test sets are small, so the file is read as
    a whole.
    """
    text, of_set = "\n".join(read_lines(path)), dict[str, str]()
    for match in _SEGMENT.finditer(text):
        if match[1] is not None:
            of_set |= {name.lower(): value for name, value in _ATTRIBUTE.findall(match[1])}
            continue
        if not match[3]:
            line = text.count("\n", 0, match.start()) + 1
            raise SyntaxDataError("this <seg> does not end", path=path, line=line, hint="is the file cut off?")
        yield of_set.get("sysid"), of_set.get("docid"), single_spaced(unescape(match[2]))


def read_wmt_xml(path: Path, element: str, lang: str) -> Iterator[str]:
    """The segments of one side of a test set in WMT's XML (from 2021): ``<seg>`` below ``<src>`` or ``<ref>``.

    If a document has references by several translators, those of the first are taken. Elements without a language
    match any ``lang``.
    """
    try:
        root = ElementTree.fromstring("\n".join([*read_lines(path), ""]))
    except ElementTree.ParseError as error:
        raise SyntaxDataError(f"is not well-formed XML: {error}", path=path, line=error.position[0]) from error
    for document in root.iter("doc"):
        sides = (node for node in document.iter(element) if node.get("lang", lang) == lang)
        for side in islice(sides, 1):
            yield from (single_spaced("".join(segment.itertext())) for segment in side.iter("seg"))


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
    name = os.path.basename(uncompressed_name(path))
    if name.endswith((".xml", ".sgm", ".sgml")):
        return read_segments(path)
    return read_tagged(path) if name.startswith("train.tags.") else read_text(path)


def parallel(*paths: Path) -> Iterator[Row]:
    """Rows of parallel files: source, target, and further references; see :func:`aligned`."""
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


def unescape(text: str) -> str:
    """Resolve character entities once; a lone ``&`` is kept."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
