"""NIST OpenMT, Chinese to English: news from the LDC, and test sets with several references.

The data are sold by the LDC. The paper on supervised heads trains on LDC2003E14, LDC2005T10, LDC2005E83, LDC2006E26,
LDC2003E07, LDC2005T06, LDC2004T07, LDC2004T08, LDC2006E34, LDC2006E85, LDC2006E92 and LDC2002E18. Their layouts differ:
put the sentences into ``train.zh`` and ``train.en``, one per line. Test and validation sets are read in NIST's format:
a source file ``mt05-src.sgm``, and ``mt05-ref.sgm`` with all references, each ``<refset>`` or ``<DOC>`` with its
``sysid``. The validation set is ``mt02`` by default (the paper names none).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_syntax.corpus.downloads import find
from fairseq_syntax.corpus.parallel_text import Row, parallel
from fairseq_syntax.corpus.readers import Split
from fairseq_syntax.corpus.segments import Segment, paired, read_segments
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
    """Yield the splits; test sets have all their references.

    Args:
        valid: the set for validation, with its first reference
        tests: the names of test sets
        lowercase: lowercase the English text, as in the paper
    """
    train = [find(data, f"train.{lang}", hint=HINT) for lang in (source, target)]
    splits = {"train": parallel(*train), "valid": (row[:2] for row in evaluation(data, valid))}
    splits |= {name: evaluation(data, name) for name in tests}
    for name, rows in splits.items():
        if lowercase:
            rows = ((row[0], *map(str.lower, row[1:])) for row in rows)
        yield Split(name, rows)


def evaluation(data: Path, name: str) -> Iterator[Row]:
    """Read a test set: the source and all references, one per translator, in the order of the source."""
    source, reference = (find(data, f"{name}-{side}.sgm", hint=HINT) for side in ("src", "ref"))
    references: defaultdict[str, list[Segment]] = defaultdict(list)  # by translator
    for segment in read_segments(reference):
        if segment.translator is None:
            message = "a segment of no translator: no <refset> or <DOC> with a sysid before it"
            raise SyntaxDataError(message, path=reference)
        references[segment.translator].append(segment)
    yield from paired([read_segments(source), *references.values()], [source, *[reference] * len(references)])
