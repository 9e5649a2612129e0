"""Multi-task corpora for a plain Transformer that translates and parses (Currey and Heafield, 2019)."""

from __future__ import annotations

import random
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairseq_syntax.corpus.linearize import is_projective, linearize, piece_symbols
from fairseq_syntax.corpus.parallel_text import aligned
from fairseq_syntax.corpus.text_parts import TextPart, conllu_parts, side_by_side, text_parts
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error, atomic_open, errors_in, read_lines
from fairseq_syntax.runtime.jobs import Step
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts

PART_LINES = 10_000


@dataclass(frozen=True)
class Doubling:
    """A multi-task corpus of the pieces ``PREFIX.SRC``, ``PREFIX.TGT`` and the parse ``PREFIX.SRC.conllu``.

    Args:
        tags: the tags at both ends of a source that request a translation and a parse
        form: the form of the linearized parse, one of ``linearize.FORMS``
        words: put the words' pieces into the brackets, not their UPOS
    """

    prefix: str
    src: str
    tgt: str
    tags: tuple[str, str]
    form: str = "brackets"
    words: bool = False

    def files(self, prefix: str) -> list[str]:
        """The files of both sides."""
        return [f"{prefix}.{lang}" for lang in (self.src, self.tgt)]

    @property
    def texts(self) -> list[str]:
        """The files of pieces."""
        return self.files(self.prefix)

    def read_pairs(self) -> Iterator[tuple[str, ...]]:
        """Read the lines of both sides of the corpus.

        Raises:
            SyntaxDataError: the sides differ in their number of lines, or the source contains a tag
        """
        for number, pair in enumerate(aligned([*map(read_lines, self.texts)], self.texts), start=1):
            for tag in self.tags:
                if tag in pair[0].split():
                    message, hint = f"the text contains {tag}", "choose other --tags"
                    raise SyntaxDataError(message, path=self.texts[0], line=number, hint=hint)
            yield pair


def write_doubled(doubling: Doubling, out: str, *, seed: int = 1, workers: int = 1) -> str:
    """Write ``OUT.SRC`` and ``OUT.TGT``: each sentence with its translation and with its parse, shuffled by ``seed``.

    Linearized parses are made in parts by ``workers`` processes, and a killed run resumes with the missing ones. All
    lines are then written to a temporary file and read back in random order, which takes 8 bytes of memory per line.
    Returns a line of report.

    Raises:
        SyntaxDataError: the input is invalid, or a file cannot be written
    """
    step = _step(doubling, out, "doubled", seed=seed)
    total = 0 if step.record() else sum(1 for _ in doubling.read_pairs())

    sides = [text_parts(path, PART_LINES) for path in doubling.texts]
    sides.append(conllu_parts(f"{doubling.texts[0]}.conllu", PART_LINES, n_lines=total))

    def merge(made: MadeParts) -> dict[str, int]:
        crossing, order, parses = 0, array("q"), array("q")
        asks_parse = f"{doubling.tags[1]} ".encode()
        folder = Path(out).parent
        with as_data_error(folder), tempfile.TemporaryFile(dir=folder) as spool:
            for note, body in made:
                crossing += note["crossing"]
                place = spool.tell()
                spool.write(body)
                rows = body.split(b"\n")
                for source, target in zip(rows[::2], rows[1::2]):
                    (parses if source.startswith(asks_parse) else order).append(place)
                    place += len(source) + len(target) + 2
            counts = {"translations": len(order), "parses": len(parses), "crossing": crossing}
            order.extend(parses)
            random.Random(seed).shuffle(order)

            def shuffled() -> Iterator[tuple[str, str]]:
                for place in order:
                    spool.seek(place)
                    yield spool.readline().decode()[:-1], spool.readline().decode()[:-1]

            _write_pairs(doubling, out, shuffled())
        return counts

    note, was_done = map_parts(
        step,
        side_by_side(*sides),
        partial(_double_part, doubling),
        merge,
        part_lines=PART_LINES,
        total=total,
        workers=workers,
    )
    if was_done:
        return f"{out}: up to date"
    lost = ""
    if doubling.form == "brackets":
        lost = f", {note['crossing']} of them with crossing arcs, whose word order brackets lose"
    return f"{out}: {note['translations']} translations and {note['parses']} parses{lost}"


def _double_part(doubling: Doubling, parts: tuple[TextPart, ...]) -> Made:
    """Make two lines from each pair of a part; the note contains the number of parses with crossing arcs."""
    texts, targets, parses = parts
    translate, parse = doubling.tags
    rows: list[str] = []
    crossing = 0
    for text, target, line in zip(texts.texts(), targets.texts(), parses.parses(), strict=True):
        rows += [f"{translate} {text} {translate}", target]
        if line.words:
            with errors_in(parses.path):
                symbols = piece_symbols(line, text.split()) if doubling.words else None
            linearized = " ".join(linearize(line, doubling.form, symbols))
            rows += [f"{parse} {text} {parse}", linearized]
            crossing += not is_projective(line)
    return {"crossing": crossing}, "\n".join([*rows, ""]).encode()


def write_tagged(doubling: Doubling, out: str) -> str:
    """Write the corpus with the tag for translation, in order; returns a line of report."""
    tag = doubling.tags[0]
    step = _step(doubling, out, "tagged")
    with step.making() as record:
        if record is not None:
            return f"{out}: up to date"
        step.begin()
        count = _write_pairs(doubling, out, ((f"{tag} {s} {tag}", t) for s, t in doubling.read_pairs()))
        step.finish({"translations": count})
    return f"{out}: {count} translations"


def _step(doubling: Doubling, out: str, kind: str, **options: object) -> Step:
    inputs = [*doubling.texts, *([f"{doubling.texts[0]}.conllu"] if kind == "doubled" else [])]
    options |= {"tags": doubling.tags, "form": doubling.form, "words": doubling.words}
    return Step.of(f"multitask, {kind}", doubling.files(out), inputs, **options)


def _write_pairs(doubling: Doubling, out: str, pairs: Iterable[tuple[str, str]]) -> int:
    """Write both sides atomically; returns the number of pairs."""
    count = 0
    with atomic_open(f"{out}.{doubling.src}") as source, atomic_open(f"{out}.{doubling.tgt}") as target:
        for s, t in pairs:
            source.write(f"{s}\n")
            target.write(f"{t}\n")
            count += 1
    return count
