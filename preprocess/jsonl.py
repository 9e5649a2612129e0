"""A reader for JSON Lines, as exported from Hugging Face's translation datasets; copy it for a format of your own.

Files: ``train.jsonl``, ``validation.jsonl`` and ``test.jsonl``, plain or compressed, anywhere below the folder, with an
object per line: ``{"translation": {"en": "…", "de": "…"}}``, or the inner one alone.

    fairseq-syntax corpus -s en -t de --reader preprocess/jsonl.py --data DIR --output text
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_syntax.corpus.downloads import find
from fairseq_syntax.corpus.parallel_text import Row, Split
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines


def read(data: Path, source: str, target: str, *, tests: Sequence[str] = ("test",)) -> Iterator[Split]:
    """The splits.

    Args:
        tests: names of test sets, each a file
    """
    for split, name in (("train", "train"), ("valid", "validation"), *zip(tests, tests)):
        yield Split(split, rows(find(data, f"{name}.jsonl"), source, target))


def rows(path: Path, source: str, target: str) -> Iterator[Row]:
    """The sentence pairs of a file. Raises SyntaxDataError for a line that is not such an object."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            pair = json.loads(line)
            pair = pair.get("translation", pair)
            yield single_spaced(pair[source]), single_spaced(pair[target])
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            message = f"not an object with texts in {source} and {target}: {type(error).__name__}: {error}"
            raise SyntaxDataError(message, path=path, line=number) from error
