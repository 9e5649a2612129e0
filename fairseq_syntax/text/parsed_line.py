"""The parse of one line of text, as everything after the parser takes it."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from fairseq_syntax.text.tree_drawing import draw_tree


@dataclass(slots=True)
class Token:
    """A surface token: what stands in the text.

    ``first`` and ``last`` (inclusive) are the indices of its syntactic words in the line, and ``word`` the one that
    owns its pieces: the first whose head lies outside the token. ``pieces`` is None until the text is segmented.
    """

    form: str
    space_after: bool
    first: int
    last: int
    word: int
    pieces: int | None = None


@dataclass(slots=True)
class ParsedLine:
    """The parse of one line of text; no words where the line is empty.

    ``heads`` counts from 0 through the whole line, and a root is its own head. ``arcs`` holds
    ``(dependent, head, label, p)``, head = dependent for the artificial root, in the order of the dependents;
    None where the line has no distributions. ``sentences`` are word spans ``[start, end)``. ``line_number`` counts
    lines of text from 0, ``file_line`` lines of the CoNLL-U file from 1. ``parsed`` is
    False where there is no parse, and only the tokens mean anything.
    """

    words: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    deprels: list[str] = field(default_factory=list)
    upos: list[str] = field(default_factory=list)
    xpos: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    arcs: list[tuple[int, int, str, float]] | None = None
    sentences: list[tuple[int, int]] = field(default_factory=list)
    line_number: int = 0
    file_line: int = 0

    def _repr_html_(self) -> str:
        """The trees of the line, a word a row, as a notebook shows them."""
        rows = [f"{word}  {label}" for word, label in zip(self.words, self.deprels)]
        return f"<pre>{html.escape(draw_tree(rows, self.heads))}</pre>"

    parsed: bool = True


def owner(first: int, last: int, heads: list[int]) -> int:
    """The word of ``first..last`` that owns the token's pieces: the first whose head lies outside, or a root."""
    for word in range(first, last + 1):
        if not first <= heads[word] <= last or heads[word] == word:
            return word
    raise ValueError(f"words {first} to {last} attach to each other only")


def text_of(line: ParsedLine) -> str:
    """The text of the line: its surface tokens with single spaces, and none where SpaceAfter=No."""
    text = "".join(token.form + " " if token.space_after else token.form for token in line.tokens)
    return text[:-1] if line.tokens and line.tokens[-1].space_after else text


def append(line: ParsedLine, other: ParsedLine) -> None:
    """Puts the sentences of ``other`` after those of ``line``."""
    offset = len(line.words)
    for name in ("words", "deprels", "upos", "xpos"):
        getattr(line, name).extend(getattr(other, name))
    line.heads.extend(head + offset for head in other.heads)
    for token in other.tokens:
        line.tokens.append(
            Token(
                token.form,
                token.space_after,
                token.first + offset,
                token.last + offset,
                token.word + offset,
                token.pieces,
            )
        )
    line.sentences.extend((start + offset, end + offset) for start, end in other.sentences)
    if other.arcs is not None:
        line.arcs = (line.arcs or []) + [(dep + offset, head + offset, label, p) for dep, head, label, p in other.arcs]
