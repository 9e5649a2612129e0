"""Files of translations: plain text, one sentence per line, or the output of ``fairseq-generate``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fairseq_syntax.corpus.conllu import check_no_markup
from fairseq_syntax.errors import SyntaxDataError, quoted
from fairseq_syntax.runtime.files import read_lines

# Stripping removes the tab before an empty source or translation.
_GENERATED = re.compile(r"([SD])-(\d+)(?:\t(.*)|$)")
# The score distinguishes it from plain text that happens to begin with H-1.
_MARKS_OUTPUT = re.compile(r"^[HD]-\d+\t-?(?:\d|inf|nan)")


@dataclass
class Translations:
    """One run of one system on one test set.

    Args:
        path: the file that they were read from
        lines: the best translation of each sentence, in the order of the test set, without trailing white space
        nbest: all translations of each sentence, best first (a plain file has one each)
    """

    path: str
    lines: list[str]
    nbest: list[list[str]] = field(repr=False)


def read_text(path: str | os.PathLike[str]) -> list[str]:
    """Like :func:`.files.read_lines`, without trailing white space, as sacrebleu reads; an empty file is an error."""
    check_no_markup(path)
    lines = [line.rstrip() for line in read_lines(path)]
    if not lines:  # blank lines are allowed: a collapsed model may generate nothing
        raise SyntaxDataError("the file is empty", path=path, hint="did the command that writes it fail?")
    return lines


def read_translations(path: str | os.PathLike[str]) -> Translations:
    """Read a run from plain text or from the output of ``fairseq-generate``, recognized by ``D-<id>`` and ``H-<id>``.

    From fairseq-generate's output, the detokenized ``D-`` lines are taken in the order of their ids (they are printed
    batch by batch); the first line of an id is the best translation.

    Raises:
        SyntaxDataError: as in :func:`read_text`; in generate's output, ids are missing or there are only ``H-`` lines
    """
    lines = read_text(path)
    if not any(map(_MARKS_OUTPUT.match, lines)):
        return Translations(os.fspath(path), lines, [[line] for line in lines])
    nbest: dict[int, list[str]] = {}
    for sentence, translation in _generated(lines, path):
        nbest.setdefault(sentence, []).append(translation)
    if not nbest:
        message = "fairseq-generate output without D- lines: H- lines are subword pieces"
        hint = "give the whole output of fairseq-generate, or detokenized plain text"
        raise SyntaxDataError(message, path=path, hint=hint)
    count = max(nbest) + 1
    if missing := [sentence for sentence in range(count) if sentence not in nbest]:
        message = f"no translation of sentence {missing[0]} ({len(missing)} of {count} are missing)"
        hint = "generate without --skip-invalid-size-inputs-valid-test, and give all shards in one file"
        raise SyntaxDataError(message, path=path, hint=hint)
    return Translations(os.fspath(path), [nbest[i][0] for i in range(count)], [nbest[i] for i in range(count)])


def _generated(lines: Sequence[str], path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """The sentence number and text of each ``D-`` line."""
    sources: set[int] = set()
    for number, line in enumerate(lines, 1):
        match = _GENERATED.match(line)
        if match is None:
            continue
        sentence = int(match[2])
        if match[1] == "S":
            if sentence in sources:
                hint = "give each run its own file"
                raise SyntaxDataError(f"S-{sentence} occurs twice", path=path, line=number, hint=hint)
            sources.add(sentence)
            continue
        score, _, translation = (match[3] or "").partition("\t")
        try:
            float(score)
        except ValueError:
            message = f"D-{sentence} has no score: {quoted(line)}"
            raise SyntaxDataError(message, path=path, line=number, hint="is the file cut off?") from None
        yield sentence, translation


def check_parallel(files: Sequence[tuple[str, int]]) -> int:
    """The number of lines of files, given as ``(path, lines)``. Raises SyntaxDataError if they differ."""
    first, count = files[0]
    for path, lines in files[1:]:
        if lines != count:
            message = f"{lines} lines, but {first} has {count}"
            raise SyntaxDataError(message, path=path, hint="they must have the same sentences in the same order")
    return count
