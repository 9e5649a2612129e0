"""HTML as text to translate: which parts are sentences, and which markup stays where it is.

Tags of blocks (``p``, ``li``, ``br``, …) end a sentence, and so do elements that are not translated: comments, scripts,
``code``, ``pre`` and whatever has ``translate="no"``. Tags within a line (``b``, ``a``, …) do not. A pair of them stays
if it encloses whole sentences, apart from punctuation; within a sentence it is dropped, as the words that it belongs to
may be anywhere in the translation.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

# Quoted values of attributes may contain >. Unclosed markup extends to the end of the text, so matching takes linear
# time.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<(?:script|style)\b.*?(?:</(?:script|style)\s*>|\Z)"
    r"|</?[a-z!?](?:[^<>\"']|\"[^\"]*\"|'[^']*')*>|</?[a-z!?][^<>]*>",
    re.DOTALL | re.I,
)
_NAME = re.compile(r"</?([a-z][^\s/>]*)", re.I)
_NO = re.compile(r"\stranslate\s*=\s*[\"']?no\b|\sclass\s*=\s*(?:\"[^\"]*\bnotranslate\b|'[^']*\bnotranslate\b)", re.I)
_KEPT = frozenset(
    {"code", "kbd", "math", "noscript", "object", "pre", "samp", "script", "style", "svg", "template", "textarea", "tt"}
    | {"var", "video"}
)
_INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "label"}
    | {"mark", "q", "ruby", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "u", "wbr"}
)


@dataclass(frozen=True)
class Tag:
    """A tag within a line, before the character ``at`` of its text; ``opens``: whether it begins an element."""

    text: str
    name: str
    opens: bool
    at: int


def units(text: str, between: re.Pattern[str]) -> Iterator[tuple[bool, str]]:
    """Split HTML into markup and sentences, in order.

    Args:
        between: matches what is between sentences, in a group

    Yields:
        whether a part is a sentence, without markup and entities, and the part
    """
    line: list[str] = []  # the text since the last block
    length, tags = 0, []
    for kind, part in _parts(text):
        if kind == "text":
            line.append(html.unescape(part))
            length += len(line[-1])
        elif kind == "inline":
            (match,) = _NAME.findall(part)
            tags.append(Tag(part, match.lower(), part[1] != "/", length))
        else:
            yield from _of_line("".join(line), tags, between)
            line, length, tags = [], 0, []
            yield False, part
    yield from _of_line("".join(line), tags, between)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Text, tags within lines, and all other markup (``block``), which includes what is not translated."""
    at, kept, depth, begin = 0, "", 0, 0  # kept: the name of the element that is not translated, begun at `begin`
    for match in _MARKUP.finditer(text):
        if not kept and match.start() > at:
            yield "text", text[at : match.start()]
        at, tag = match.end(), match[0]
        found = _NAME.match(tag)
        name = found[1].lower() if found else ""
        closes, is_whole = tag.startswith("</"), tag.endswith("/>") or name in ("script", "style")
        if kept:
            depth += 0 if name != kept or is_whole else -1 if closes else 1
            if depth == 0:
                yield "block", text[begin:at]
                kept = ""
        elif name and not closes and not is_whole and (name in _KEPT or _NO.search(tag)):
            kept, depth, begin = name, 1, match.start()
        else:
            yield ("inline" if name in _INLINE else "block"), tag
    if kept:  # it is not closed
        yield "block", text[begin:]
    elif at < len(text):
        yield "text", text[at:]


def _of_line(text: str, tags: Sequence[Tag], between: re.Pattern[str]) -> Iterator[tuple[bool, str]]:
    """The sentences of a line, what is between them, and those of its tags that stay."""
    spans, at = [], 0  # of sentences and, with False, of what is between them
    for gap, piece in enumerate(between.split(text)):
        if piece:
            spans.append((gap % 2 == 0, at, at + len(piece)))
        at += len(piece)
    sentences = [(start, end) for is_sentence, start, end in spans if is_sentence]
    places = _kept_places(text, tags, sentences)
    pending = [(place, number) for number, place in enumerate(places) if place is not None]
    done = 0
    for is_sentence, start, end in spans:
        while done < len(pending) and pending[done][0] <= start:
            yield False, tags[pending[done][1]].text
            done += 1
        if is_sentence:
            yield True, text[start:end]
            continue
        cut = start
        while done < len(pending) and pending[done][0] < end:
            place, number = pending[done]
            yield False, html.escape(text[cut:place], quote=False)
            yield False, tags[number].text
            cut, done = place, done + 1
        yield False, html.escape(text[cut:end], quote=False)
    for _, number in pending[done:]:
        yield False, tags[number].text


def _kept_places(text: str, tags: Sequence[Tag], sentences: Sequence[tuple[int, int]]) -> list[int | None]:
    """Where each tag stays, outside all sentences, in ascending order; None for one that is dropped."""
    places: list[int | None] = []
    edges: list[int] = []  # of the tag's sentence: its start if the tag opens, its end if it closes
    within = 0
    for tag in tags:
        while within < len(sentences) and sentences[within][1] <= tag.at:
            within += 1
        start, end = sentences[within] if within < len(sentences) else (tag.at, tag.at)
        is_inside = start < tag.at < end
        edges.append((start if tag.opens else end) if is_inside else tag.at)
        outside = text[start : tag.at] if tag.opens else text[tag.at : end]
        places.append(None if is_inside and any(map(str.isalnum, outside)) else edges[-1])
    opened: dict[str, list[int]] = {}
    for number, tag in enumerate(tags):
        if tag.opens:
            opened.setdefault(tag.name, []).append(number)
        elif opened.get(tag.name):
            pair = opened[tag.name].pop(), number
            if any(places[one] is None for one in pair):
                places[pair[0]] = places[pair[1]] = None
        else:  # its pair is in another line
            places[number] = edges[number]
    for number in chain.from_iterable(opened.values()):
        places[number] = None if tags[number].name == "wbr" else edges[number]
    most, result = 0, []  # no tag moves before an earlier one
    for place in places:
        most = most if place is None else max(most, place)
        result.append(None if place is None else most)
    return result
