"""Processes that are forked to be killed.

Files are told apart afterwards by one thing: whether the kill came before or after a file took its name.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from fairseq_syntax.runtime import files

_KILLED, _FAILED = 9, 3


def forked(work: Callable[[], object]) -> int:
    """The number of a forked process that does the work, and then ends without any cleaning up.

    Its status is what the work returns if that is a number, otherwise 0; 3 after an exception, which it prints.
    """
    if pid := os.fork():
        return pid
    try:
        # What earlier tests left may own threads, which a fork has not: to collect it would wait for them forever.
        gc.freeze()
        status = work()
        os._exit(status if isinstance(status, int) else 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(_FAILED)


def ended(pid: int) -> int:
    """The status with which a process ends; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(moment: int, work: Callable[[], object]) -> bool:
    """Does ``work`` in a forked process that dies, without any cleaning up, around a commit.

    Args:
        moment: 0 and 1 are before and after the first file took its name, 2 and 3 the second, …

    Returns:
        False where the work was done before it came to that
    """

    def dying() -> None:
        _die_at(moment)
        work()

    status = ended(forked(dying))
    assert status in (0, _KILLED), f"the work failed in another way: {status}"
    return status == _KILLED


def _die_at(moment: int) -> None:
    take_name, commits = files._take_name, 0

    def dying(temporary: str, target: str) -> None:
        nonlocal commits
        if moment == 2 * commits:
            os._exit(_KILLED)
        take_name(temporary, target)
        if moment == 2 * commits + 1:
            os._exit(_KILLED)
        commits += 1

    files._take_name = dying


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by their names in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_every_kill(make: Callable[[Path], object], folder: Path, *, step: int = 1) -> int:
    """Kills what ``make`` does in a folder around each commit, and lets it go on: the files are those of one run.

    Args:
        make: the work, which writes below the folder that it is given
        folder: for all runs
        step: try every so many moments only

    Returns:
        the moments that were tried
    """
    whole = folder / "whole"
    whole.mkdir(parents=True)
    make(whole)
    expected = content(whole)
    assert expected and not [name for name in expected if name.endswith((".part", ".lock")) or ".parts" in name]
    for moment in range(0, 1000, step):
        cut = folder / f"cut{moment}"
        cut.mkdir()
        killed = killed_at(moment, lambda cut=cut: make(cut))
        if killed:
            make(cut)
        actual = content(cut)
        others = [name for name in {*actual, *expected} if actual.get(name) != expected.get(name)]
        assert not others, f"after a kill at moment {moment}: {others}"
        if not killed:
            return len(range(0, moment, step))
    raise AssertionError("there is no end to it")
