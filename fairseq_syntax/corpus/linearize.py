"""Linearized dependency trees, as a second target of a translation model.

Currey and Heafield (2019), Incorporating Source Syntax into Transformer-Based Neural Machine Translation, use
constituency trees. There are two forms for dependency trees:

``brackets``
    Each word's subtree between ``(label`` and ``)label``, with the word's own symbol among its dependents in text
    order: ``(root (nsubj (det DET )det NOUN )nsubj VERB (obj NOUN )obj )root``. If arcs cross, word order is lost.
``relations``
    For each word, its label and the distance of its head in words: ``det +1 nsubj +1 root 0 obj -1``.

The sentences of a line are concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError

FORMS = ("brackets", "relations")
NO_TAG = "*"


def linearize(line: ParsedLine, form: str = "brackets", symbols: Sequence[Sequence[str]] | None = None) -> list[str]:
    """The symbols of a line's trees in a form of :data:`FORMS`.

    Args:
        symbols: the symbols of each word in ``brackets`` (default: its UPOS, or ``*`` without one)
    """
    if form == "relations":
        distances = (head - word for word, head in enumerate(line.heads))
        shown = (f"{distance:+d}" if distance else "0" for distance in distances)
        return list(chain.from_iterable(zip(line.deprels, shown)))
    if symbols is None:
        symbols = [[tag if tag != "_" else NO_TAG] for tag in line.upos]
    dependents: list[list[int]] = [[] for _ in line.words]
    roots: list[int] = []
    for word, head in enumerate(line.heads):
        (roots if head == word else dependents[head]).append(word)
    out: list[str] = []
    # a stack rather than recursion, since a chain of a thousand words exceeds Python's recursion limit
    stack: list[int | list[str]] = list(reversed(roots))
    while stack:
        top = stack.pop()
        if isinstance(top, list):
            out += top
            continue
        before = [d for d in dependents[top] if d < top]
        after = [d for d in dependents[top] if d > top]
        begin, end = [f"({line.deprels[top]}"], [f"){line.deprels[top]}"]
        stack += reversed([begin, *before, list(symbols[top]), *after, end])
    return out


def is_projective(line: ParsedLine) -> bool:
    """Whether the trees are projective (no arcs cross), so that ``brackets`` preserves word order."""
    arcs = sorted(((min(w, h), max(w, h)) for w, h in enumerate(line.heads) if w != h), key=lambda a: (a[0], -a[1]))
    # with an artificial root to the left, so that no arc may span a root
    open_ends: list[int] = []
    for start, end in arcs:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and open_ends[-1] < end:
            return False
        open_ends.append(end)
    return not any(start < w < end for w, h in enumerate(line.heads) if w == h for start, end in arcs)


def piece_symbols(line: ParsedLine, pieces: Sequence[str]) -> list[list[str]]:
    """The pieces of each word, for ``brackets`` with words; ``*`` for a word that does not own its token.

    Raises:
        SyntaxDataError: the parse does not belong to the pieces
    """
    counts = [token.pieces or 0 for token in line.tokens]  # 0 if the parse does not record it
    if 0 in counts or sum(counts) != len(pieces):
        have = "no number of" if 0 in counts else sum(counts)
        message = f"the parse has {have} pieces, the text of this line {len(pieces)}"
        raise SyntaxDataError(message, line=line.file_line, hint="make both by one run of `fairseq-syntax segment`")
    symbols: list[list[str]] = [[NO_TAG] for _ in line.words]
    rest = iter(pieces)
    for token, count in zip(line.tokens, counts):
        symbols[token.word] = list(islice(rest, count))
    return symbols
