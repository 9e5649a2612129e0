"""Which words of a translation stand for which words of its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Span = tuple[int, int]


@dataclass(frozen=True)
class WordAlignment:
    """Links between the words of a source and of its translation.

    Attributes:
        source_text, target_text: the texts that the offsets count in
        source_words, target_words: where each word stands in its text, ``[start, end)`` in characters, from 0
        links: (source word, target word), counted from 0, in the order of the target
    """

    source_text: str
    target_text: str
    source_words: list[Span]
    target_words: list[Span]
    links: list[tuple[int, int]]

    def pharaoh(self) -> str:
        """The links as ``0-0 2-1``: the source's word first, counted from 0."""
        return " ".join(f"{source}-{target}" for source, target in self.links)

    def as_json(self) -> dict[str, Any]:
        """The attributes, ready for :func:`json.dumps`."""
        return asdict(self)
