"""The parse of one line of text, the common form of all parsers and readers, and drawings of its trees."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from fairseq_syntax.corpus.cycles import cycle_through, without_cycles
from fairseq_syntax.corpus.words import Span, single_spaced, unspaced
from fairseq_syntax.errors import SyntaxDataError, quoted


@dataclass(slots=True)
class Token:
    """A surface token, as written in the text.

    ``first`` and ``last`` (inclusive) are the indices of its syntactic words in the line. ``word`` is the one that owns
    its pieces: the first word whose head is outside the token. ``pieces`` is None until the text is segmented.
    """

    form: str
    space_after: bool
    first: int
    last: int
    word: int
    pieces: int | None = None


@dataclass(slots=True)
class ParsedLine:
    """The parse of one line of text; an empty line has no words.

    ``heads`` are 0-based in the whole line, and a root is its own head. ``arcs`` contains ``(dependent, head, label,
    p)`` in the order of dependents, where head = dependent means the artificial root; it is None without distributions.
    ``sentences`` are word spans ``[start, end)``. ``line_number`` is the 0-based line of the text, ``file_line`` the
    1-based line of the CoNLL-U file. If ``parsed`` is False, only the tokens are meaningful.
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
    parsed: bool = True

    @classmethod
    def of_words(
        cls,
        words: Sequence[str],
        conllu_heads: Sequence[int],
        labels: Sequence[str],
        *,
        tags: Sequence[str] | None = None,
        text: str | None = None,
    ) -> ParsedLine:
        """Make the parse of one sentence from its words.

        .. code-block:: python

            ParsedLine.of_words(["She", "sleeps", "."], [2, 0, 2], ["nsubj", "root", "punct"], text="She sleeps.")

        Args:
            conllu_heads: the heads of the words as in CoNLL-U: 1-based, 0 for the root (:attr:`conllu_heads` gives them
                back; ``heads`` are 0-based)
            tags: universal part-of-speech tags (default: ``_``)
            text: the text, which determines the spacing (default: a space between all words)

        Raises:
            SyntaxDataError: the lists have other lengths, the heads are not a tree, or the words not those of the text
        """
        n = len(words)
        # Before the conversion, in which a root is its own head.
        if (own := next((i for i, head in enumerate(conllu_heads, 1) if head == i), None)) is not None:
            raise SyntaxDataError(f"the head of word {own} is the word itself", hint="the head of a root is 0")
        line = cls(
            words=list(words),
            heads=[i if head == 0 else head - 1 for i, head in enumerate(conllu_heads)],
            deprels=list(labels),
            upos=["_"] * n if tags is None else list(tags),
            xpos=["_"] * n,
            tokens=[Token(word, True, i, i, i) for i, word in enumerate(words)],
            sentences=[(0, n)] if n else [],
        )
        if text is not None:
            take_spaces(line, text)
            if not all(words) or line.words != list(words):  # the spaces within words are the caller's
                raise SyntaxDataError(f"the words have other spaces than the text {quoted(text)}")
        return check_parse(line)

    @property
    def conllu_heads(self) -> list[int]:
        """The heads as in CoNLL-U, but for the whole line: 1-based, 0 for a root."""
        return [0 if head == i else head + 1 for i, head in enumerate(self.heads)]

    def _repr_html_(self) -> str:
        """The trees of the line, a word a row, as a notebook shows them."""
        rows = [f"{word}  {label}" for word, label in zip(self.words, self.deprels)]
        return f"<pre>{html.escape(draw_tree(rows, self.heads))}</pre>"


def owner(first: int, last: int, heads: list[int]) -> int:
    """The word of ``first..last`` that owns the token's pieces: the first whose head lies outside, or a root."""
    for word in range(first, last + 1):
        if not first <= heads[word] <= last or heads[word] == word:
            return word
    raise ValueError(f"words {first} to {last} attach to each other only")


def is_tree(heads: Sequence[int]) -> bool:
    """Whether every word is below one root, its own head (0-based)."""
    roots = sum(head == word for word, head in enumerate(heads))
    return roots == 1 and cycle_through(heads) is None


def depths(heads: Sequence[int]) -> list[int]:
    """The depth of each word: the number of arcs between it and its root. A root is its own head."""
    depth = [0 if head == i else -1 for i, head in enumerate(heads)]  # -1: not known yet
    for start in range(len(heads)):
        path = []
        word = start
        while depth[word] < 0:
            path.append(word)
            word = heads[word]
        for step, below in enumerate(reversed(path), 1):
            depth[below] = depth[word] + step
    return depth


def draw_tree(rows: Sequence[str], heads: Sequence[int]) -> str:
    """Draw one or several trees, of the text for each word, and 0-based heads, where a root is its own head.

    The first word of a cycle is drawn as a root.

    .. code-block:: text

           ╭─ A det
        ╭─ man nsubj
        runs root
        ╰─ fast advmod
    """
    heads = without_cycles(heads)
    level = depths(heads)
    grid = [[" "] * (3 * depth) for depth in level]
    dependents: dict[int, set[int]] = {}
    for word, head in enumerate(heads):
        if word != head:
            dependents.setdefault(head, set()).add(word)
    for head, children in dependents.items():
        column = 3 * level[head]
        first, last = min(*children, head), max(*children, head)
        for row in range(first, last + 1):
            if row == head or column >= len(grid[row]):
                continue  # in a non-projective tree, a word may lie on the line
            if row in children:
                corner = "╭" if row == first else "╰" if row == last else "├"
                grid[row][column : column + 3] = [corner, "─", " "]
            else:
                grid[row][column] = "│"
    return "\n".join(("".join(cells) + row).rstrip() for cells, row in zip(grid, rows))


def check_parse(line: ParsedLine) -> ParsedLine:
    """Check that a parse could be written as CoNLL-U; returns it.

    Raises:
        SyntaxDataError: lists of other lengths, empty words, heads that are no trees, or arcs that leave their sentence
    """

    def wrong(message: str) -> NoReturn:
        raise SyntaxDataError(f"the parse of {quoted(text_of(line))}: {message}")

    n = len(line.words)
    for name in ("heads", "deprels", "upos", "xpos"):
        if len(getattr(line, name)) != n:
            wrong(f"{n} words, but {len(getattr(line, name))} {name}")
    spans = [(token.first, token.last + 1) for token in line.tokens]
    for name, parts in (("sentences", line.sentences), ("tokens", spans)):
        ends = [0, *(end for _, end in parts)]
        if ends[-1] != n or any(start != end or stop <= start for (start, stop), end in zip(parts, ends)):
            wrong(f"its {name} are not all of its words in turn")
    if any(not form.strip() for form in (*line.words, *(token.form for token in line.tokens))):
        wrong("a word is empty or white space only")
    start_of = [start for start, end in line.sentences for _ in range(start, end)]
    for word, (head, start) in enumerate(zip(line.heads, start_of)):
        if not 0 <= head < n or start_of[head] != start:
            wrong(f"the head of word {word + 1} is not in its sentence")
    roots = sum(word == head for word, head in enumerate(line.heads))
    if line.parsed and roots != len(line.sentences):
        wrong(f"{roots} roots in {len(line.sentences)} sentences")
    if (cycle := cycle_through(line.heads)) is not None:
        wrong(f"the heads form a cycle through word {cycle + 1}")
    for dependent, head, _, p in line.arcs or ():
        if not (0 <= dependent < n and 0 <= head < n and start_of[dependent] == start_of[head] and 0 <= p <= 1):
            wrong(f"an arc of word {dependent + 1} leaves the sentence, or is not a probability")
    return line


def text_of(line: ParsedLine) -> str:
    """The text of the line: its surface tokens, separated by single spaces except where SpaceAfter=No."""
    text = "".join(token.form + " " if token.space_after else token.form for token in line.tokens)
    return text[:-1] if line.tokens and line.tokens[-1].space_after else text


def token_spans(line: ParsedLine) -> list[Span]:
    """The characters ``[start, end)`` of each surface token in :func:`text_of` the line."""
    spans, start = [], 0
    for token in line.tokens:
        spans.append((start, start + len(token.form)))
        start += len(token.form) + token.space_after
    return spans


def is_parse_of(line: ParsedLine, text: str) -> bool:
    """Whether a parse is of a text, white space aside."""
    return unspaced(text_of(line)) == unspaced(text)


def take_spaces(line: ParsedLine, *texts: str) -> int:
    """Copy the spacing of the text that a parse belongs to into the parse; returns the index of that text.

    Not all parsers write ``SpaceAfter=No``, and some leave out the spaces within a word, as in French ``10 000``.

    Raises:
        SyntaxDataError: it is the parse of none of them, white space aside
    """
    which = next((i for i, text in enumerate(texts) if is_parse_of(line, text)), None)
    if which is None:
        message = f"the parse has {quoted(text_of(line))}, the text {', '.join(map(quoted, texts))}"
        raise SyntaxDataError(message, line=line.file_line or None, hint=why_other(line, *texts))
    text, at = texts[which], 0
    for token in line.tokens:
        start = at
        for _ in unspaced(token.form):
            while text[at].isspace():
                at += 1
            at += 1
        form, token_text = token.form, single_spaced(text[start:at])
        if single_spaced(form) != token_text:
            token.form = token_text
            if token.first == token.last and line.words[token.first] == form:
                line.words[token.first] = token_text
        token.space_after = at == len(text) or text[at].isspace()
    return which


# As the Penn Treebank and Moses write them, and as HTML does.
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def _without_escapes(text: str) -> str:
    for escape, character in {**_BRACKETS, "``": '"', "''": '"'}.items():
        text = text.replace(escape, character)
    return html.unescape(text)


def why_other(line: ParsedLine, *texts: str) -> str:
    """A hint at why a parse matches none of some texts: Unicode normalization, escapes, or another text."""
    parsed, candidates = unspaced(text_of(line)), [unspaced(text) for text in texts]
    if unicodedata.normalize("NFC", parsed) in (unicodedata.normalize("NFC", text) for text in candidates):
        return "they differ in Unicode normalization (NFC or NFD): normalize one of them"
    if _without_escapes(parsed) in map(_without_escapes, candidates):
        return "they differ in escapes, such as -LRB- or &amp;: write one as the other"
    return "the parse is of another text, or lines were lost: parse the text again"
