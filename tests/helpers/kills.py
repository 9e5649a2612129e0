"""A kill at the moment when a file takes its name: the only moments that can be told apart afterwards."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from fairseq_syntax.runtime import files

_KILLED, _FAILED = 9, 3


def killed_at(moment: int, work: Callable[[], object]) -> bool:
    """Does ``work`` in a forked process that dies, without any cleaning up, around a commit.

    Args:
        moment: 0 and 1 are before and after the first file took its name, 2 and 3 the second, …

    Returns:
        False where the work was done before it came to that
    """
    pid = os.fork()
    if pid == 0:
        try:
            _die_at(moment)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(_FAILED)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
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
