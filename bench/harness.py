"""Measuring ratios: two things in turn, A B A B …, in one process, so that the machine's drift hits both."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fairseq_syntax.lab.recipes.hardware import hardware

RESULTS = Path(__file__).parent / "results.jsonl"
MEASURES: dict[str, Callable[[], Any]] = {}


def measure(*names: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that records one or more measures; ``names`` are what ``ONLY`` selects them by."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        for name in names:
            MEASURES[name] = function
        return function

    return register


def temporary_folder() -> Path:
    """A new folder that goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def device() -> str:
    """Where tensors are to be put: the GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name() -> str:
    """The hardware in words: the processor, which runs some measures alone, and the GPU where there is one."""
    facts = hardware()
    return ", ".join([facts["cpu"], *facts["gpus"][:1]])


@cache
def commit() -> str | None:
    """The commit of the checkout, with ``+`` if its Python was changed since; None if this is no checkout."""
    git = ["git", "-C", str(RESULTS.parent)]
    changes = [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/*.py"]
    with suppress(OSError, subprocess.CalledProcessError):
        head, changed = (
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            for command in ([*git, "rev-parse", "--short=8", "HEAD"], changes)
        )
        return head + "+" * bool(changed)
    return None


def circumstances() -> dict[str, Any]:
    """Where, when and of which code something is measured."""
    return {"device": device_name(), "date": time.strftime("%Y-%m-%d"), "commit": commit()}


def seconds() -> float:
    """On one CPU thread, the processor's time of this process, which other programs do not lengthen; otherwise
    the time on the clock."""
    by_cpu = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time() if by_cpu else time.perf_counter()


def in_turn(
    ours: Callable[[], Any],
    plain: Callable[[], Any],
    *,
    pairs: int = 5,
    warmup: int = 1,
    repeat: int = 1,
) -> list[tuple[float, float]]:
    """Seconds of each of two functions, A B A B …; the arguments are those of :func:`compare`."""

    def timed(function: Callable[[], Any]) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = seconds()
        for _ in range(repeat):
            function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (seconds() - begin) / repeat

    return [(timed(ours), timed(plain)) for _ in range(warmup + pairs)][warmup:]


def compare(
    name: str,
    ours: Callable[[], Any],
    plain: Callable[[], Any],
    *,
    unit: str = "speed, ours over plain",
    pairs: int = 5,
    warmup: int = 1,
    repeat: int = 1,
    detail: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Time two functions that do the same work by :func:`seconds`, and record the ratio of their speeds.

    Args:
        ours, plain: called without arguments, and start no process; a ratio above 1 says that ours is faster
        pairs: how often each is timed, in turn
        warmup: untimed pairs before
        repeat: calls per timing, for functions that take less than some milliseconds
        detail: kept with the result
    """
    times = in_turn(ours, plain, pairs=pairs, warmup=warmup, repeat=repeat)
    medians = {
        "ours_seconds": statistics.median(t[0] for t in times),
        "plain_seconds": statistics.median(t[1] for t in times),
    }
    return record(name, [b / a for a, b in times], unit=unit, detail={**medians, **(detail or {})})


def record(name: str, ratios: list[float], *, unit: str, detail: dict[str, Any] | None = None) -> dict[str, Any]:
    """Print a measure as a line and append it to ``results.jsonl``; the figure is the median of ``ratios``."""
    result = {
        "name": name,
        "ratio": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "unit": unit,
        **circumstances(),
        "runs_on": device(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        # Other programs on the same cores widen the spread of ratios.
        "detail": {"cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1), **(detail or {})},
    }
    print(
        f"{name:42} {result['ratio']:8.3f}  ({result['ratio_min']:.3f} to {result['ratio_max']:.3f})  {unit}",
        flush=True,
    )
    with RESULTS.open("a", encoding="utf-8") as f:
        f.write(json.dumps(result, ensure_ascii=False) + "\n")
    return result


def records() -> list[dict[str, Any]]:
    """All records of ``results.jsonl``, the newest last."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def on_one_thread() -> dict[str, dict[str, Any]]:
    """The last record of each measure on one CPU thread: what pages state as that."""
    # Records before those on GPUs do not say where they ran.
    return {row["name"]: row for row in records() if row["threads"] == 1 and row.get("runs_on", "cpu") == "cpu"}
