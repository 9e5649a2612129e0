"""Words of Chinese and Japanese, by a program that puts spaces between them.

Any program will do that reads lines and writes them with spaces, such as ``kytea -notags``, ``mecab -Owakati`` or
``python -m jieba -q -d ' '``; it is started once for a file.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO

from fairseq_syntax.errors import SyntaxDataError

__all__ = ["segment_words"]


def segment_words(sentences: Iterable[str], command: str) -> Iterator[str]:
    """Each sentence with spaces between its words.

    Args:
        command: the program with its options

    Raises:
        SyntaxDataError: the program cannot be run, fails, drops lines, or changes more than spaces; the error's line
            is the sentence's, from 1
    """
    words = shlex.split(command)
    if not words:
        raise SyntaxDataError("no program for word segmentation", hint="such as mecab -Owakati")
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            message = f"{words[0]} cannot be run: {error.strerror}"
            raise SyntaxDataError(message, hint="install it, or name another program") from error
        assert process.stdin is not None and process.stdout is not None
        feeder = _Feeder(sentences, process.stdin)
        feeder.start()
        try:
            number = 0
            for number, raw in enumerate(process.stdout, start=1):
                segmented = " ".join(raw.decode("utf-8", "replace").split())
                sentence = feeder.sent(number)
                if sentence is None or _letters(sentence) != _letters(segmented):
                    message = f"{words[0]} changed a sentence: {sentence!r} became {segmented!r}"
                    raise SyntaxDataError(message, line=number)
                yield segmented
            feeder.join()
            if feeder.error is not None:
                raise feeder.error
            status = process.wait()
            if status or number != feeder.count:
                errors.seek(0)
                detail = errors.read().decode("utf-8", "replace").strip()[-300:]
                message = f"{words[0]} ended after {number} of {feeder.count} lines"
                message += f" with status {status}" if status else ""
                raise SyntaxDataError(message, line=number, hint=detail or command)
        finally:
            process.kill()  # of no effect where it has ended
            process.stdout.close()
            process.wait()
            feeder.join()


class _Feeder(threading.Thread):
    """Writes sentences to a program while another thread reads what it makes of them.

    What is written and not yet read again is kept to be compared; it is as much as the program and the pipes hold.
    """

    def __init__(self, sentences: Iterable[str], stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.sentences, self.stream = sentences, stream
        self.count = 0
        self.error: Exception | None = None
        self._waiting: dict[int, str] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            for sentence in self.sentences:
                with self._lock:
                    self.count += 1
                    self._waiting[self.count] = sentence
                self.stream.write(sentence.encode("utf-8") + b"\n")
        except BrokenPipeError:
            pass  # the program has ended; its status says why
        except Exception as error:  # of the stream of sentences, which the reading thread passes on
            self.error = error
        finally:
            with suppress(OSError):
                self.stream.close()

    def sent(self, number: int) -> str | None:
        """The sentence of that number, from 1, which is forgotten; None if there was none."""
        with self._lock:
            return self._waiting.pop(number, None)


def _letters(text: str) -> str:
    return "".join(text.split())
