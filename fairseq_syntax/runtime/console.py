"""Terminal output: progress bars, counted warnings, and the last lines of a command.

The bars are tqdm's, all with the rate and the remaining time. They go to stderr, only where that is a terminal, and
only once a second has passed; nothing of them stays. The last lines of a command go to stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

DELAY = 1.0  # seconds before a bar is shown


def progress(
    items: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    unit: str = "lines",
    of: str = "",
    quiet: bool = False,
) -> tqdm[Any]:
    """A progress bar, to be iterated over, or to be updated in a ``with`` block.

    Args:
        items: to pass on one by one
        total: how many there will be; by default the length of ``items``, if it has one. Without it there is a rate
            and no remaining time.
        unit: what is counted, in the plural
        of: what is being done or made, before the bar
        quiet: show nothing
    """
    from tqdm import tqdm

    bar: tqdm[Any] = tqdm(
        items,
        total=total,
        unit=f" {unit}",
        desc=of or None,
        delay=DELAY,
        leave=False,
        dynamic_ncols=True,
        disable=True if quiet else None,
    )
    return bar


_of_the_part: ContextVar[Callable[[float], None] | None] = ContextVar("of_the_part", default=None)


def partly_done(share: float) -> None:
    """Reports progress within a task to the bar of this process, if there is one.

    Args:
        share: of the work, from 0 to 1, that is done
    """
    if (move := _of_the_part.get()) is not None:
        move(share)


@contextmanager
def moved_by_parts(move: Callable[[float], None]) -> Iterator[None]:
    """Within the block, passes what :func:`partly_done` reports to ``move``."""
    token = _of_the_part.set(move)
    try:
        yield
    finally:
        _of_the_part.reset(token)


class CountedWarnings:
    """Warnings of one kind: the first three are given, and the others counted."""

    shown = 3

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn, self.count = warn, 0

    def add(self, text: str) -> None:
        """Log a warning, or count it."""
        self.count += 1
        if self.count <= self.shown:
            self._warn(text)

    def end(self, what: str) -> None:
        """Log how many warnings there were in all, if some were not shown; ``what`` names their kind."""
        if self.count > self.shown:
            self._warn(f"{what}: {self.count} in all")


def duration(seconds: float) -> str:
    """A duration as bars show it: ``MM:SS``, or ``H:MM:SS``."""
    from tqdm import tqdm

    text: str = tqdm.format_interval(seconds)
    return text


def say(text: str) -> None:
    """Print a line to stdout, above the bars if there are any."""
    from tqdm import tqdm

    tqdm.write(text)


def finished(output: str | os.PathLike[str] | None, what: str, then: str = "", *, file: TextIO | None = None) -> None:
    """Print the last lines of a command: ``OUTPUT: what it is``, and ``next: COMMAND``.

    Args:
        output: what was written, a file or a folder; None, ``-`` or a name of stdout is that, and the lines go to
            stderr then
        what: what it holds, with numbers
        then: the command that comes next in the pipeline; capitals stand for what the reader has to fill in
        file: where to print to, by default stdout
    """
    to_stdout = output is None or os.fspath(output) in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
    stream = file or (sys.stderr if to_stdout else sys.stdout)
    print(what if to_stdout else f"{os.fspath(output or '')}: {what}", file=stream)
    if then and not to_stdout:
        print(f"next: {then}", file=stream)
