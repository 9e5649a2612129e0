"""Test sets in SGML and XML, whose segments have identifiers, by which translations are paired with their sources.

White space inside a segment is reduced to single spaces. Character entities are resolved once: ``&amp;lt;`` in a file
is the text ``&lt;``.

sacrebleu reads WMT's XML too, by private methods for its own test sets: a missing translation becomes an empty one, and
ids must be numbers. Here a gap between two files is an error, and one in a single file is told.
"""

from __future__ import annotations

import html
import logging
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple
from xml.etree import ElementTree

from fairseq_syntax.corpus.conllu import is_markup
from fairseq_syntax.corpus.words import language_of, single_spaced
from fairseq_syntax.errors import SyntaxDataError, similar
from fairseq_syntax.runtime.files import read_lines

logger = logging.getLogger(__name__)

Path = str | os.PathLike[str]

# The attributes of the following segments' set or document, or a segment, whose end may be missing.
_SEGMENT = re.compile(
    r"<(refset|srcset|doc)\b([^>]*)>|<seg\b([^>]*)>(.*?)(</seg\s*>|(?=<seg\b)|\Z)", re.IGNORECASE | re.DOTALL
)
_ATTRIBUTE = re.compile(r"""\b(sysid|docid|id)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^"'>\s]+))""", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w+);")
_WMT = re.compile(r"<(?:dataset|collection|src|hyp)\b", re.IGNORECASE)  # and not NIST's <srcset> and <refset>


class Segment(NamedTuple):
    """A segment of one side of a test set, with the identifiers that it has.

    ``place`` is the 0-based number of its document, and its own within the document.
    """

    document: str | None
    id: str | None
    place: tuple[int, int]
    text: str
    translator: str | None = None  # the sysid of its references, in NIST's SGML


def has_all_sides(path: Path) -> bool:
    """Whether a file is a test set in WMT's XML, which contains source and references, by its name and beginning."""
    if not (is_markup(path) and os.path.isfile(path)):
        return False
    return any(map(_WMT.search, islice(read_lines(path), 100)))


def read_segments(path: Path, side: int = 0, lang: str | None = None) -> list[Segment]:
    """The segments of one side of a test set, in NIST's SGML or in WMT's XML, which contains all sides.

    Test sets are small, so the file is read as a whole.

    Args:
        side: in WMT's XML, 0 for the source, N for the Nth reference of each document
        lang: in WMT's XML, the language of the side; another is an error

    Raises:
        SyntaxDataError: the file cannot be read, or a segment does not end
    """
    text = "\n".join([*read_lines(path), ""])
    return list(_of_wmt(text, path, side, lang) if _WMT.search(text) else _of_nist(text, path))


def _of_nist(text: str, path: Path) -> Iterator[Segment]:
    """The segments of a file in NIST's SGML (WMT to 2020, IWSLT, OpenMT).

    Such files are often not well-formed XML (``&`` and ``<`` are not escaped), so only these tags are searched for. A
    segment may span several lines.
    """
    of_set: dict[str, str] = {}
    docid: str | None = None
    document, number = 0, 0
    for match in _SEGMENT.finditer(text):
        attributes = {a[0].lower(): a[1] or a[2] or a[3] for a in _ATTRIBUTE.findall(match[2] or match[3] or "")}
        if match[1] is not None:
            of_set |= {name: value for name, value in attributes.items() if name == "sysid"}
            if match[1].lower() == "doc":
                document, number, docid = document + 1, 0, attributes.get("docid")
            continue
        if not match[5]:
            line = text.count("\n", 0, match.start()) + 1
            raise SyntaxDataError("this <seg> does not end", path=path, line=line, hint="is the file cut off?")
        sentence, place = single_spaced(unescape_entities(match[4])), (max(document - 1, 0), number)
        yield Segment(docid, attributes.get("id"), place, sentence, of_set.get("sysid"))
        number += 1


def _of_wmt(text: str, path: Path, side: int, lang: str | None) -> Iterator[Segment]:
    """The segments of one side of a file in WMT's XML (from 2021): ``<seg>`` below ``<src>`` or ``<ref>``."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise SyntaxDataError(f"is not well-formed XML: {error}", path=path, line=error.position[0]) from error
    element = "ref" if side else "src"
    languages = [value for node in root.iter(element) if (value := node.get("lang"))]
    wanted = None if lang is None else language_of(lang)
    if wanted is not None and languages and wanted not in map(language_of, languages):
        message = f"its {element} elements are {' and '.join(sorted(set(languages)))}, not {lang}"
        raise SyntaxDataError(message, path=path, hint="-s and -t name the languages of the file")
    for number, document in enumerate(root.iter("doc")):
        nodes = [node for node in document.iter(element) if wanted in (None, language_of(node.get("lang", lang or "")))]
        for node in nodes[max(side - 1, 0) :][:1]:
            for place, segment in enumerate(node.iter("seg")):
                sentence = single_spaced("".join(segment.itertext()))
                yield Segment(document.get("id"), segment.get("id"), (number, place), sentence)


def paired(sides: Sequence[Sequence[Segment]], paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Rows of the segments with the same identifiers, in the order of the first side.

    Segments are identified by their document's identifier and their own. Where a side lacks one of the two, the place
    in the file is taken on all sides. In a file that contains all sides (WMT's XML), segments without a translation,
    such as those of test suites, are left out with a warning.

    Args:
        paths: the file of each side

    Raises:
        SyntaxDataError: a segment occurs twice or is missing on a side
    """
    everything = [segment for side in sides for segment in side]
    by_document = all(segment.document is not None for segment in everything)
    by_id = all(segment.id is not None for segment in everything)

    def key(segment: Segment) -> tuple[str, str]:
        document, place = segment.place
        return (
            str(segment.document) if by_document else f"number {document + 1}",
            str(segment.id) if by_id else f"number {place + 1}",
        )

    texts: list[dict[tuple[str, str], str]] = []
    for side, path in zip(sides, paths):
        texts.append({})
        for one in side:
            if (name := key(one)) in texts[-1]:
                hint = "the reader nist reads several references from one file"
                raise SyntaxDataError(f"segment {name[1]} of document {name[0]} occurs twice", path=path, hint=hint)
            texts[-1][name] = one.text
    first, *others = texts
    one_file = len({os.path.realpath(path) for path in paths}) == 1
    left_out = [name for name in first if one_file and not all(name in other for other in others)]
    if left_out and len(left_out) < len(first):
        logger.warning("%s: %d segments without a translation are left out", paths[0], len(left_out))
        first = {name: text for name, text in first.items() if name not in set(left_out)}
    for other, path in zip(others, paths[1:]):
        for here, there, lacking in ((first, other, path), (other, first, paths[0])):
            if missing := next((name for name in here if name not in there), None):
                document, segment = missing
                documents = {name[0] for name in there}
                what = f"segment {segment} of document {document}" if document in documents else f"document {document}"
                message = f"has no {what}, which {os.fspath(path if lacking == paths[0] else paths[0])} has"
                meant = similar(document, documents) if document not in documents else None
                raise SyntaxDataError(message, path=lacking, hint=meant or "are they the two sides of one test set?")
    for name, text in first.items():
        yield (text, *(other[name] for other in others))


def unescape_entities(text: str) -> str:
    """Resolve character entities once; a lone ``&`` is kept."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
