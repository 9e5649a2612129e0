"""Multi-task corpora for a plain Transformer that translates and parses, with linearized dependency trees.

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

import random
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from fairseq_syntax.corpus.parsed_line import ParsedLine
from fairseq_syntax.corpus.text_parts import TextPart, conllu_parts, count_parallel_lines, parallel_parts, text_parts
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error, atomic_open_binary, errors_in
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts

PART_LINES = 10_000
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


@dataclass(frozen=True)
class Doubling:
    """A multi-task corpus of the pieces ``PREFIX.SRC``, ``PREFIX.TGT`` and the parse ``PREFIX.SRC.conllu``.

    Args:
        tags: the tags at both ends of a source that request a translation and a parse
        form: the form of the linearized parse, one of :data:`FORMS`
        words: put the words' pieces into the brackets, not their UPOS
    """

    prefix: str
    src: str
    tgt: str
    tags: tuple[str, str]
    form: str = "brackets"
    words: bool = False

    def files(self, prefix: str) -> list[str]:
        """The files of both sides with a prefix."""
        return [f"{prefix}.{lang}" for lang in (self.src, self.tgt)]


def write_multitask(doubling: Doubling, out: str, *, parsed: bool = True, seed: int = 1, workers: int = 1) -> str:
    """Write ``OUT.SRC`` and ``OUT.TGT``: each sentence with the tag for translation and its translation.

    If ``parsed``, each also comes with its parse, and all are shuffled by ``seed``. The lines are made in parts by
    ``workers`` processes, and a killed run resumes with the missing ones. They are then written to a temporary file and
    read back in random order, which takes 8 bytes of memory per line. Returns a line of report.

    Raises:
        SyntaxDataError: the input is invalid, or a file cannot be written
    """
    texts = doubling.files(doubling.prefix)
    parse = [f"{texts[0]}.conllu"] if parsed else []
    options: dict[str, Any] = {"tags": doubling.tags, "form": doubling.form, "words": doubling.words}
    if parsed:
        options["seed"] = seed
    name = f"multitask, {'doubled' if parsed else 'tagged'}"
    step = RecordedStep.of(name, doubling.files(out), [*texts, *parse], **options)
    total = count_parallel_lines(texts)
    sides = [text_parts(path, PART_LINES) for path in texts]
    sides += [conllu_parts(path, PART_LINES, n_lines=total) for path in parse]

    def merge(made: MadeParts) -> dict[str, int]:
        crossing, order, parses = 0, array("q"), array("q")
        asks_parse = f"{doubling.tags[1]} ".encode()
        folder = Path(out).parent
        with as_data_error(folder), tempfile.TemporaryFile(dir=folder) as spool, ExitStack() as stack:
            for note, body in made:
                crossing += note["crossing"]
                place = spool.tell()
                spool.write(body)
                rows = body.split(b"\n")
                for source, target in zip(rows[::2], rows[1::2]):
                    (parses if source.startswith(asks_parse) else order).append(place)
                    place += len(source) + len(target) + 2
            counts = {"translations": len(order), "parses": len(parses), "crossing": crossing}
            if parsed:
                order.extend(parses)
                random.Random(seed).shuffle(order)
            files = [stack.enter_context(atomic_open_binary(path)) for path in step.outputs]
            for place in order:
                spool.seek(place)
                for file in files:
                    file.write(spool.readline())
        return counts

    note, was_done = map_parts(
        step,
        parallel_parts(*sides),
        partial(_double_part, doubling),
        merge,
        part_lines=PART_LINES,
        total=total,
        workers=workers,
    )
    if was_done:
        return f"{out}: up to date"
    report = f"{out}: {note['translations']} translations"
    if parsed:
        report += f" and {note['parses']} parses"
        if doubling.form == "brackets":
            report += f", {note['crossing']} of them with crossing arcs, whose word order brackets lose"
    return report


def _double_part(doubling: Doubling, parts: tuple[TextPart, ...]) -> Made:
    """Make two lines from each pair of a part, and two from each parse; the note counts parses with crossing arcs."""
    texts, targets, *parses = parts
    translate, parse = doubling.tags
    rows: list[str] = []
    crossing = 0
    lines = parses[0].parses() if parses else repeat(None)
    for number, (text, target, line) in enumerate(zip(texts.texts(), targets.texts(), lines), texts.start + 1):
        pieces = text.split()
        for tag in doubling.tags:
            if tag in pieces:
                hint = "choose other --tags"
                raise SyntaxDataError(f"the text contains {tag}", path=texts.path, line=number, hint=hint)
        rows += [f"{translate} {text} {translate}", target]
        if line is not None and line.words:
            known = any(token.pieces for token in line.tokens)  # then it is checked that the parse is of this text
            with errors_in(parses[0].path):
                of_words = piece_symbols(line, pieces) if doubling.words or known else None
            symbols = of_words if doubling.words else None
            rows += [f"{parse} {text} {parse}", " ".join(linearize(line, doubling.form, symbols))]
            crossing += not is_projective(line)
    return {"crossing": crossing}, "\n".join([*rows, ""]).encode()
