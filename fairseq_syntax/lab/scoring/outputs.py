"""Files of translations: plain text, one sentence per line, or the output of ``fairseq-generate``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairseq_syntax.errors import SyntaxDataError, quoted
from fairseq_syntax.runtime.files import read_bytes

_GENERATED = re.compile(r"([STHDP])-(\d+)\t(.*)")
# The score distinguishes it from plain text that happens to begin with H-1.
_MARKS_OUTPUT = re.compile(rb"^[HD]-\d+\t-?(?:\d|inf|nan)", re.MULTILINE)


@dataclass
class Translations:
    """One run of one system on one test set.

    Args:
        path: the file that they were read from
        lines: the best translation of each sentence, in the order of the test set, without trailing white space
        nbest: all translations of each sentence, best first (a plain file has one each)
        sources: the source sentences if ``fairseq-generate`` printed them, otherwise None
        scores: the model's score of each best translation (log2, per token) if printed, otherwise None
    """

    path: str
    lines: list[str]
    nbest: list[list[str]] = field(repr=False)
    sources: list[str] | None = field(default=None, repr=False)
    scores: list[float] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.lines)


def read_text(path: str | os.PathLike[str]) -> list[str]:
    """Read the lines of a UTF-8 text file, maybe compressed, without trailing white space, as sacrebleu does.

    Only a line feed ends a line; a carriage return or U+2028 inside a sentence does not.

    Raises:
        SyntaxDataError: the file does not exist, is empty, or is not UTF-8 (with the line)
    """
    return _decode(_read_bytes(path), path)


def read_translations(path: str | os.PathLike[str]) -> Translations:
    """Read a run from plain text or from the output of ``fairseq-generate``, recognized by ``D-<id>`` and ``H-<id>``.

    From fairseq-generate's output, the detokenized ``D-`` lines are taken in the order of their ids (they are printed
    batch by batch); the first line of an id is the best translation.

    Raises:
        SyntaxDataError: as in :func:`read_text`; in generate's output, ids are missing or there are only ``H-`` lines
    """
    data = _read_bytes(path)
    lines = _decode(data, path)
    if not _MARKS_OUTPUT.search(data):
        return Translations(os.fspath(path), lines, [[line] for line in lines])
    nbest: dict[int, list[str]] = {}
    sources: dict[int, str] = {}
    scores: dict[int, float] = {}
    for number, line in enumerate(lines, 1):
        match = _GENERATED.match(line)
        if match is None:
            # stripping has removed the tab before an empty source or translation
            match = _GENERATED.match(line + "\t")
            if match is None:
                continue
        kind, sentence, text = match[1], int(match[2]), match[3]
        if kind == "S":
            if sentence in sources:
                raise SyntaxDataError(
                    f"S-{sentence} occurs twice", path=path, line=number, hint="give each run its own file"
                )
            sources[sentence] = text
        elif kind == "D":
            score, _, translation = text.partition("\t")
            try:
                value = float(score)
            except ValueError:
                raise SyntaxDataError(
                    f"D-{sentence} has no score: {quoted(line)}", path=path, line=number, hint="is the file cut off?"
                ) from None
            nbest.setdefault(sentence, []).append(translation)
            scores.setdefault(sentence, value)
    if not nbest:
        raise SyntaxDataError(
            "fairseq-generate output without D- lines: H- lines are subword pieces",
            path=path,
            hint="give the whole output of fairseq-generate, or detokenized plain text",
        )
    count = max(nbest) + 1
    missing = [sentence for sentence in range(count) if sentence not in nbest]
    if missing:
        raise SyntaxDataError(
            f"no translation of sentence {missing[0]} ({len(missing)} of {count} are missing)",
            path=path,
            hint="generate without --skip-invalid-size-inputs-valid-test, and give all shards in one file",
        )
    return Translations(
        os.fspath(path),
        [nbest[i][0] for i in range(count)],
        [nbest[i] for i in range(count)],
        [sources[i] for i in range(count)] if len(sources) == count else None,
        [scores[i] for i in range(count)],
    )


def check_parallel(files: Sequence[tuple[str, int]]) -> int:
    """Check that files, given as ``(path, lines)``, have the same number of lines, and return it.

    Raises:
        SyntaxDataError: the numbers differ
    """
    first, count = files[0]
    for path, lines in files[1:]:
        if lines != count:
            raise SyntaxDataError(
                f"{lines} lines, but {first} has {count}", path=path, hint="they must be translations of one test set"
            )
    return count


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    data = read_bytes(path)
    if not data:  # blank lines are allowed: a collapsed model may generate nothing
        raise SyntaxDataError("the file is empty", path=path, hint="did the command that writes it fail?")
    return data


def _decode(data: bytes, path: str | os.PathLike[str]) -> list[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SyntaxDataError(
            f"not UTF-8: {error.reason} (byte 0x{data[error.start]:02x})",
            path=path,
            line=data.count(b"\n", 0, error.start) + 1,
            hint="convert it with iconv",
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.rstrip() for line in lines]
