"""The one error that a user is meant to read.

Every check of a file or an option raises :class:`SyntaxDataError`, whose text says what is wrong, where, and what
to do about it. The command line prints it without a traceback; a traceback means a defect of this package.
"""

from __future__ import annotations

import os

__all__ = ["SyntaxDataError"]


class SyntaxDataError(ValueError):
    """Bad input: a file, a line or an option that cannot be used.

    Args:
        message: what is wrong, in one sentence
        path: the file at fault
        line: its line at fault, counted from 1
        hint: what to do, usually the command to run
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.message, self.path, self.line, self.hint = message, path, line, hint
        where = "" if path is None else f"{os.fspath(path)}:{line}: " if line is not None else f"{os.fspath(path)}: "
        super().__init__(f"{where}{message}" + (f" ({hint})" if hint else ""))

    def __reduce__(self):
        # Keyword-only arguments do not survive the default pickling, and worker processes send their errors home.
        return _rebuild, (self.message, self.path, self.line, self.hint)


def _rebuild(message, path, line, hint):
    return SyntaxDataError(message, path=path, line=line, hint=hint)
