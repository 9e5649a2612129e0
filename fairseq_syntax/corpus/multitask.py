"""Corpora that teach a plain Transformer to translate and to parse (Currey and Heafield, 2019)."""

from __future__ import annotations

import json
import os
import random
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from fairseq_syntax.corpus.conllu_parts import ConlluPart, conllu_parts
from fairseq_syntax.corpus.linearize import is_projective, linearize, piece_symbols
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.files import as_data_error, atomic_open, fingerprint, read_lines
from fairseq_syntax.runtime.jobs import Parts, in_workers

PART_LINES = 10_000


@dataclass(frozen=True)
class Doubling:
    """What to write.

    Args:
        prefix: of the files of pieces; the source's parse is ``PREFIX.SRC.conllu``
        src, tgt: languages, the endings of the files
        tags: at both ends of a source: which asks for the translation, and which for the parse
        form: of the linearised parse, one of ``linearize.FORMS``
        words: the words' own pieces within the brackets, and not their UPOS
    """

    prefix: str
    src: str
    tgt: str
    tags: tuple[str, str]
    form: str = "brackets"
    words: bool = False

    def read_pairs(self) -> Iterator[tuple[str, str]]:
        """The lines of both sides of the corpus.

        Raises:
            SyntaxDataError: they differ in number, or the source uses one of the tags
        """
        paths = [f"{self.prefix}.{lang}" for lang in (self.src, self.tgt)]
        for number, (source, target) in enumerate(zip_longest(*map(read_lines, paths)), start=1):
            if source is None or target is None:
                counts = [sum(1 for _ in read_lines(path)) for path in paths]
                raise SyntaxDataError(f"{counts[0]} lines, but {paths[1]} has {counts[1]}", path=paths[0])
            for tag in self.tags:
                if tag in source and tag in source.split():
                    raise SyntaxDataError(
                        f"the text holds {tag}", path=paths[0], line=number, hint="choose other --tags"
                    )
            yield source, target


def write_doubled(given: Doubling, out: str, *, made_from: str, seed: int = 1, workers: int = 1) -> str:
    """Writes ``OUT.SRC`` and ``OUT.TGT``: each sentence with its translation and with its parse, shuffled.

    The linearised parses are made in parts: a run that was killed continues with those that are missing. Then all goes
    to a temporary file, and the order in which it is read back is shuffled: 8 bytes of memory a line.

    Args:
        given: what to write
        out: path of the files without their endings
        made_from: a fingerprint of the files and of ``given``
        seed: of the shuffle
        workers: processes; the files do not depend on their number

    Returns:
        a line of report

    Raises:
        SyntaxDataError: bad input, or a file cannot be written
    """
    total = sum(1 for _ in given.read_pairs())
    parts = Parts(Path(f"{out}.{given.src}").absolute(), fingerprint("multitask", made_from, PART_LINES), ".pairs")
    spans: list[tuple[int, int]] = []

    def missing() -> Iterator[tuple[list[tuple[str, str]], ConlluPart]]:
        pairs = given.read_pairs()
        for part in conllu_parts(f"{given.prefix}.{given.src}.conllu", PART_LINES, n_lines=total):
            own = list(islice(pairs, part.end - part.start))
            spans.append((part.start, part.end))
            if parts.is_whole(spans[-1]):
                bar.update(len(own))
            else:
                yield own, part

    with parts.being_made():
        with progress(total=total, of=Path(given.prefix).name) as bar:
            count = min(workers, -(-total // PART_LINES))
            for lines in in_workers(_work, missing(), workers=count, start=_start, arguments=(given, parts)):
                bar.update(lines)
        crossing, order, parses = 0, array("q"), array("q")
        asks_parse = f"{given.tags[1]} ".encode()
        folder = Path(out).parent
        with as_data_error(folder), tempfile.TemporaryFile(dir=folder) as spool:
            for span in spans:
                head, _, body = parts.body(span).partition(b"\n")
                crossing += json.loads(head)["crossing"]
                place = spool.tell()
                spool.write(body)
                rows = body.split(b"\n")
                for source, target in zip(rows[::2], rows[1::2]):
                    (parses if source.startswith(asks_parse) else order).append(place)
                    place += len(source) + len(target) + 2
            translations = len(order)
            order.extend(parses)
            random.Random(seed).shuffle(order)

            def shuffled() -> Iterator[tuple[str, str]]:
                for place in order:
                    spool.seek(place)
                    yield spool.readline().decode()[:-1], spool.readline().decode()[:-1]

            write_pairs(given, out, shuffled())
    lost = (
        f", {crossing} of them with crossing arcs, whose word order brackets lose" if given.form == "brackets" else ""
    )
    return f"{out}: {translations} translations and {len(parses)} parses{lost}"


_worker: tuple[Doubling, Parts] | None = None


def _start(given: Doubling, parts: Parts) -> None:
    global _worker
    parts.check_folder()
    _worker = given, parts


def _work(task: tuple[list[tuple[str, str]], ConlluPart]) -> int:
    """Makes a part: a line of JSON, and each pair in two lines."""
    assert _worker is not None
    given, parts = _worker
    pairs, part = task
    translate, parse = given.tags
    rows: list[str] = []
    crossing = 0
    for (text, target), line in zip(pairs, part.read(f"{given.prefix}.{given.src}.conllu"), strict=True):
        rows += [f"{translate} {text} {translate}", target]
        if line.words:
            symbols = piece_symbols(line, text.split()) if given.words else None
            rows += [f"{parse} {text} {parse}", " ".join(linearize(line, given.form, symbols))]
            crossing += not is_projective(line)
    head = json.dumps({"crossing": crossing})
    parts.commit((part.start, part.end), "\n".join([head, *rows, ""]).encode())
    return len(pairs)


def write_tagged(given: Doubling, out: str) -> str:
    """Writes the corpus with the tag of translation, in its order; returns a line of report."""
    tag = given.tags[0]
    count = write_pairs(given, out, ((f"{tag} {s} {tag}", t) for s, t in given.read_pairs()))
    return f"{out}: {count} translations"


def write_pairs(given: Doubling, out: str | os.PathLike[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Writes both sides, whole or not at all; returns the number of pairs."""
    count = 0
    with atomic_open(f"{out}.{given.src}") as source, atomic_open(f"{out}.{given.tgt}") as target:
        for s, t in pairs:
            source.write(f"{s}\n")
            target.write(f"{t}\n")
            count += 1
    return count
