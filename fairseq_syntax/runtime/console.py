"""Terminal output: progress bars, counted warnings, and the last lines of a command.

The bars are tqdm's, with the rate and the remaining time. They are shown on stderr if it is a terminal, after one
second, and are removed at the end. The last lines of a command go to stdout.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

DELAY = 1.0  # seconds before a bar is shown


def progress(
    items: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    unit: str = "lines",
    of: str = "",
    quiet: bool = False,
) -> Any:
    """A progress bar (tqdm), to be iterated over, or to be updated in a ``with`` block.

    Args:
        items: the items to iterate over
        total: the number of items (default: the length of ``items``, if it has one). Without it, only the rate is shown
            and not the remaining time.
        unit: the name of the items, in the plural
        of: the label before the bar
        quiet: show nothing
    """
    from tqdm import tqdm

    return tqdm(
        items,
        total=total,
        unit=f" {unit}",
        desc=of or None,
        delay=DELAY,
        leave=False,
        dynamic_ncols=True,
        disable=True if quiet else None,  # None: unless stderr is a terminal
    )


def lock_bars_per_process() -> None:
    """Let the progress bars of this process, and of its forks, wait for no other process.

    tqdm's lock is shared by all forks of a process. If one is killed while it holds the lock, the others wait forever.
    """
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())


_of_the_part: ContextVar[Callable[[float], None] | None] = ContextVar("of_the_part", default=None)


def partly_done(share: float) -> None:
    """Report the share of a task that is done, from 0 to 1, to the bar of this process, if there is one."""
    if (move := _of_the_part.get()) is not None:
        move(share)


@contextmanager
def moved_by_parts(move: Callable[[float], None]) -> Iterator[None]:
    """A context in which reports to :func:`partly_done` are passed to ``move``."""
    token = _of_the_part.set(move)
    try:
        yield
    finally:
        _of_the_part.reset(token)


class CountedWarnings:
    """Warnings of one kind, of which the first three are shown and the others counted."""

    shown = 3

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn, self.count = warn, 0

    def add(self, text: str) -> None:
        """Log a warning, or count it."""
        self.count += 1
        if self.count <= self.shown:
            self._warn(text)

    def end(self, what: str) -> None:
        """Log the total number of warnings if some were not shown; ``what`` names their kind."""
        if self.count > self.shown:
            self._warn(f"{what}: {self.count} in all")


def say(text: str) -> None:
    """Print a line to stdout at once, also into a pipe, and above the bars if there are any."""
    from tqdm import tqdm

    tqdm.write(text)
    sys.stdout.flush()


def finished(output: str | os.PathLike[str] | None, what: str, then: str = "", *, file: TextIO | None = None) -> None:
    """Print the last lines of a command: ``OUTPUT: what it is``, and ``next: COMMAND``.

    Args:
        output: the file or folder that was written. For None, ``-`` or another name of stdout, the lines go to stderr.
        what: a description of its content, with numbers
        then: the next command in the pipeline; capitals mark what the reader has to fill in
        file: the stream to print to (default: stdout)
    """
    to_stdout = output is None or os.fspath(output) in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
    stream = file or (sys.stderr if to_stdout else sys.stdout)
    print(what if to_stdout else f"{os.fspath(output or '')}: {what}", file=stream)
    if then and not to_stdout:
        print(f"next: {then}", file=stream)
