"""Word segmentation of Chinese and Japanese by an external program that puts spaces between words.

The program reads lines and writes them with spaces, such as ``kytea -notags``, ``mecab -Owakati`` or
``python -m jieba -q -d ' '``. It is started once per file.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from fairseq_syntax.corpus.words import single_spaced, unspaced
from fairseq_syntax.errors import SyntaxDataError


def segment_words(sentences: Iterable[str], command: str) -> Iterator[str]:
    """Yield each sentence with spaces between its words.

    Args:
        sentences: the sentences, all of which are read first, into a temporary file
        command: the program with its options

    Raises:
        SyntaxDataError: the program cannot be run, fails, drops lines, or changes more than spaces; the error's line is
            the 1-based number of the sentence
    """
    words = shlex.split(command)
    if not words:
        raise SyntaxDataError("no program for word segmentation", hint="such as mecab -Owakati")
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        text.writelines(sentence.encode() + b"\n" for sentence in sentences)
        text.seek(0)
        try:
            # Through files: with pipes, a program that writes before it has read all would wait for
            # its reader, and that for the program.
            status = subprocess.run(words, stdin=text, stdout=output, stderr=errors).returncode
        except OSError as error:
            message = f"{words[0]} cannot be run: {error.strerror}"
            raise SyntaxDataError(message, hint="install it, or name another program") from error
        for file in (text, output, errors):
            file.seek(0)
        n_good = 0
        for line, segmented in zip_longest(text, output):
            if line is None or segmented is None:  # too many or too few lines
                break
            sentence, spaced = line.decode(), single_spaced(segmented.decode("utf-8", "replace"))
            if unspaced(sentence) != unspaced(spaced):
                message = f"{words[0]} changed a sentence: {sentence[:-1]!r} became {spaced!r}"
                raise SyntaxDataError(message, line=n_good + 1)
            n_good += 1
            yield spaced
        else:
            if not status:
                return
        detail = errors.read().decode("utf-8", "replace").strip()[-300:]
        message = f"{words[0]} ended with status {status}, and {n_good} lines are as they should be"
        raise SyntaxDataError(message, line=n_good, hint=detail or command)
