"""User errors on one line, in ``fairseq-syntax`` and in fairseq's own commands.

``FAIRSEQ_SYNTAX_TRACEBACK=1`` in the environment shows the traceback instead.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import DISK_FULL, MAKE_ROOM

WITH_TRACEBACK = "FAIRSEQ_SYNTAX_TRACEBACK"
INTERRUPTED = 130  # the exit status after Ctrl-C: 128 plus the signal number
_OF_ANOTHER_PROCESS = re.compile(r"(?:^|\n)(?:[\w.]+\.)?SyntaxDataError: (?P<text>.+?)\s*\Z", re.DOTALL)
_HINTS = {**dict.fromkeys(DISK_FULL, MAKE_ROOM), errno.EMFILE: "let more files be open: ulimit -n 1024"}


def fault(error: BaseException) -> str | None:
    """The message for a user error; None for a defect of the program, whose traceback should be shown.

    User errors are SyntaxDataErrors (also from other processes), OSErrors (a full disk, a missing file), and fairseq's
    errors about options.
    """
    text = error.message if isinstance(error, SyntaxDataError) else str(error)
    may_be_of_another = isinstance(error, SyntaxDataError) or type(error).__name__ == "ProcessRaisedException"
    if may_be_of_another and (other := _OF_ANOTHER_PROCESS.search(text)):
        return other["text"].strip()
    if isinstance(error, SyntaxDataError):
        return str(error)
    if isinstance(error, OSError):
        if error.errno is None:  # raised by fairseq itself: "Model file not found"
            return text or None
        names = ", ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        hint = f" ({_HINTS[error.errno]})" if error.errno in _HINTS else ""
        return f"{names + ': ' if names else ''}{error.strerror}{hint}"
    before = error.__cause__ or error.__context__
    if isinstance(before, OSError) and before.errno in _HINTS:  # PyTorch raises its own error after a failed write
        return fault(before)
    if isinstance(error, MemoryError):  # of what is made of a line that was read
        return "there is not enough memory (is there a very long line, as in a compressed file made to be large?)"
    if type(error) is AssertionError and text.startswith("Torch not compiled with CUDA"):
        return f"{text} (an option such as --fp16 needs a GPU, and PyTorch one that it is built for)"
    # fairseq checks options by these exceptions; a subclass, such as UnicodeError, is a defect.
    if type(error) in (AssertionError, Exception, ValueError) and text:
        raised_in = traceback.extract_tb(error.__traceback__)[-1:]
        if raised_in and {"fairseq", "fairseq_cli"} & set(Path(raised_in[0].filename).parts):
            return text.strip().partition("\n")[0]
    return None


def report_fault(command: str, error: BaseException) -> int | None:
    """Print a user error on stderr and return the exit status; None if the traceback should be shown."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of the output has closed it
        return 1
    text = fault(error)
    if text is None or os.environ.get(WITH_TRACEBACK):
        return None
    print(f"{command}: error: {text}", file=sys.stderr)
    return 1


def discard_output() -> None:
    """Discard unwritten standard output, which would cause an error message at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_utf8() -> None:
    """Set stdout and stderr to UTF-8 in any locale, since an encoding error would come after the work.

    The names of files may contain any bytes: stdout gets them as they are, stderr gets escapes.
    """
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors=errors)


def end_on_full_disk() -> None:
    """Make a full disk end a command, since logging would print a traceback for each lost line, and argparse nothing.

    Other errors in logging are handled as before; for example, training continues after the reader of its log has gone.
    """
    usual = logging.Handler.handleError

    def handle_error(self: logging.Handler, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        usual(self, record)

    def print_message(self: argparse.ArgumentParser, message: str, file: IO[str] | None = None) -> None:
        print(message or "", end="", file=file or sys.stderr, flush=True)

    logging.Handler.handleError = handle_error  # type: ignore[method-assign]
    argparse.ArgumentParser._print_message = print_message  # type: ignore[method-assign, assignment]


def report_in_fairseq() -> None:
    """Make fairseq's commands end like this package's: errors in one line, status 130 after Ctrl-C, UTF-8 output."""
    main = sys.modules.get("__main__")
    module = getattr(getattr(main, "__spec__", None), "name", None) or ""
    command = Path(sys.argv[0]).name if sys.argv else ""
    if module.startswith("fairseq_cli."):
        command = module.replace("fairseq_cli.", "fairseq-").replace("_", "-")
    elif not command.startswith("fairseq-") or command == "fairseq-syntax":
        return
    if getattr(sys.excepthook, "reports_faults", False):
        return
    write_utf8()
    end_on_full_disk()
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        status = report_fault(command, error)
        if status is None:
            usual(kind, error, trace)
        else:
            if isinstance(error, OSError):
                discard_output()
            raise SystemExit(status)

    hook.reports_faults = True  # type: ignore[attr-defined]
    sys.excepthook = hook
