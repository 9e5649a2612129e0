"""Text files: plain or gzip, UTF-8 checked line by line, written whole or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fairseq_syntax.errors import SyntaxDataError


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, plain or ``.gz``, without their line ends.

    Only ``\\n`` ends a line: the other line breaks of Unicode are text here, since the two sides of a corpus must
    keep their numbering.

    Raises:
        SyntaxDataError: no such file, a damaged archive, or a line that is not UTF-8
    """
    number = 0
    try:
        with gzip.open(path, "rb") if os.fspath(path).endswith(".gz") else open(path, "rb") as file:
            for raw in file:
                number += 1
                yield raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start + 1} of the line is 0x{error.object[error.start]:02x}"
        raise SyntaxDataError(message, path=path, line=number, hint="convert the file, for example by iconv") from None
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SyntaxDataError(f"cannot be read: {reason}", path=path) from error


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A text file to write to, which takes the name ``path`` only when the block ends without an error.

    A kill, a full disk or an exception leaves whatever stood under ``path`` before.

    Raises:
        SyntaxDataError: it cannot be written
    """
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise SyntaxDataError(f"cannot be written: {error.strerror}", path=path) from error
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; a corpus is to have the permissions of any new file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.remove(temporary)
        if isinstance(error, OSError) and error.filename is None:  # not of a file that the block was reading
            message = f"cannot be written: {error.strerror or error}"
            raise SyntaxDataError(message, path=path, hint="free some space") from error
        raise
