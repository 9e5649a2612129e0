"""NIST OpenMT, Chinese to English: news of the LDC, and test sets with several references.

To be bought from the LDC. The paper on supervised heads trains on LDC2003E14, LDC2005T10, LDC2005E83, LDC2006E26,
LDC2003E07, LDC2005T06, LDC2004T07, LDC2004T08, LDC2006E34, LDC2006E85, LDC2006E92 and LDC2002E18. Their layouts differ:
put the sentences into ``train.zh`` and ``train.en``, one a line. The test sets are read as NIST gives them: a source
file ``mt05-src.sgm``, and ``mt05-ref.sgm`` with all references, each ``<refset>`` or ``<DOC>`` with its ``sysid``;
so is the validation set, ``mt02`` unless another is named (the paper names none).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_syntax.corpus.downloads import find
from fairseq_syntax.corpus.parallel_text import Row, aligned, parallel, read_segments, read_translations
from fairseq_syntax.corpus.readers import Split
from fairseq_syntax.errors import SyntaxDataError

HINT = "the corpora of the LDC are to be bought; put train.zh and train.en, mt05-src.sgm, mt05-ref.sgm here"


def read(
    data: Path,
    source: str,
    target: str,
    *,
    valid: str = "mt02",
    tests: Sequence[str] = ("mt05", "mt08", "mt12"),
    lowercase: bool = False,
) -> Iterator[Split]:
    """The splits; those of tests have all their references.

    Args:
        valid: the test set for validation, of which the first reference is taken
        tests: names of test sets
        lowercase: the English text, as in the paper
    """
    train = [find(data, f"train.{lang}", hint=HINT) for lang in (source, target)]
    splits = {"train": parallel(*train), "valid": (row[:2] for row in evaluation(data, valid))}
    for name, rows in (*splits.items(), *((name, evaluation(data, name)) for name in tests)):
        if lowercase:
            rows = ((row[0], *(side.lower() for side in row[1:])) for row in rows)
        yield Split(name, rows)


def evaluation(data: Path, name: str) -> Iterator[Row]:
    """A test set: source and all references."""
    source = find(data, f"{name}-src.sgm", hint=HINT)
    paths = [source, find(data, f"{name}-ref.sgm", hint=HINT)]
    references = read_references(paths[1])
    return aligned([read_segments(source), *references], [source, *[paths[1]] * len(references)])


def read_references(path: Path) -> list[list[str]]:
    """The reference translations of a test set, one list of sentences for each translator, in the order of the file.

    Raises:
        SyntaxDataError: a segment before any ``sysid``, which says whose translation it is
    """
    sentences: dict[str, list[str]] = {}
    for translator, sentence in read_translations(path):
        if translator is None:
            raise SyntaxDataError("a segment of no translator: no <refset> or <DOC> with a sysid before it", path=path)
        sentences.setdefault(translator, []).append(sentence)
    return list(sentences.values())
