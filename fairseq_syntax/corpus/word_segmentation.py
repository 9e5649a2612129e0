"""Word segmentation of Chinese and Japanese by an external program that puts spaces between words.

The program reads lines and writes them with spaces, such as ``kytea -notags``, ``mecab -Owakati`` or
``python -m jieba -q -d ' '``. It is started once per language and split.
"""

from __future__ import annotations

import pickle
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from fairseq_syntax.corpus.parallel_text import Row
from fairseq_syntax.corpus.words import single_spaced, unspaced
from fairseq_syntax.errors import SyntaxDataError


def worded(rows: Iterable[Row], langs: Sequence[str], programs: Mapping[str, str]) -> Iterator[Row]:
    """Segment the words of rows by the program of each language, with its options.

    Raises:
        SyntaxDataError: a program cannot be run, fails, drops lines, or changes more than spaces; the error's line is
            the 1-based number of the sentence among those of its language
    """
    for lang, program in programs.items():
        rows = _worded(rows, slice(0, 1) if lang == langs[0] else slice(1, None), program)
    yield from rows


def _worded(rows: Iterable[Row], columns: slice, command: str) -> Iterator[Row]:
    """Segment the words of some columns; all rows are read first, into a temporary file."""
    words = shlex.split(command)
    if not words:
        raise SyntaxDataError("no program for word segmentation", hint="such as mecab -Owakati")
    # Through files: with pipes, a program that writes before it has read all would wait for its reader, and that for
    # the program.
    with (
        tempfile.TemporaryFile() as waiting,
        tempfile.TemporaryFile() as text,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        for row in rows:
            pickle.dump(row, waiting)
            text.writelines(sentence.encode() + b"\n" for sentence in row[columns])
        text.seek(0)
        try:
            status = subprocess.run(words, stdin=text, stdout=output, stderr=errors).returncode
        except OSError as error:
            message = f"{words[0]} cannot be run: {error.strerror}"
            raise SyntaxDataError(message, hint="install it, or name another program") from error
        for file in (waiting, output, errors):
            file.seek(0)
        n_good = 0

        def failed() -> SyntaxDataError:
            detail = errors.read().decode("utf-8", "replace").strip()[-300:]
            message = f"{words[0]} ended with status {status}, and {n_good} lines are as they should be"
            return SyntaxDataError(message, line=n_good, hint=detail or command)

        with suppress(EOFError):
            while True:
                cells = list(pickle.load(waiting))
                for place in range(len(cells))[columns]:
                    if not (segmented := output.readline()):
                        raise failed()
                    sentence, spaced = cells[place], single_spaced(segmented.decode("utf-8", "replace"))
                    if unspaced(sentence) != unspaced(spaced):
                        message = f"{words[0]} changed a sentence: {sentence!r} became {spaced!r}"
                        raise SyntaxDataError(message, line=n_good + 1)
                    n_good += 1
                    cells[place] = spaced
                yield tuple(cells)
        if status or output.readline():
            raise failed()
