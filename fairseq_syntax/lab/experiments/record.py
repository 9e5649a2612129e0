"""The results file of an experiment: what it holds, how it is written and read, and which of it holds now.

``results.jsonl`` has one JSON object a line; of two that say the same thing the later one counts:

- ``{"kind": "environment", …}``: hardware, threads and versions, at each start
- ``{"kind": "step", "cell", "step", "command", "seconds", "attempts", "fingerprint", "code"}``: a step that
  succeeded, and the fingerprint of this package's code; ``"to_keep"`` where its cell's files will be kept;
  ``"inputs"``, by name, what each held
- ``{"kind": "kept", "cell", "fingerprint", "code", "files"}``: that a cell's files are in the folder of those that are
  kept: the fingerprint of its last step, the code that made them, and the SHA-256 of each
- ``{"kind": "value", "cell", "name", "value", "digits", "fingerprint"}``: a number out of a step's JSON file, and the
  fingerprint of the cell's last step
- ``{"kind": "test", "test", "seeds", "fingerprint", "files", "cells", "report"}``: what ``fairseq-syntax score`` says
  of a test set, the SHA-256 of each file that it has read, and the fingerprint of each cell's last step
- ``{"kind": "shares", "test", "seeds", "fingerprint", "files", "cells", "draws", "draws_by", "baseline", "metrics",
  "own", "by"}``:
  what :func:`.shares.measure`, :meth:`.significance.Resampled.own_part` and :func:`.shares.measure_by` say of a test
  set, by metric
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from fairseq_syntax.lab.experiments.plan import Experiment
from fairseq_syntax.runtime.files import atomic_open, make_folder

_PACKAGES = ("fairseq-syntax", "fairseq-fixed", "torch", "numpy", "sacrebleu", "nltk", "scipy", "stanza",
             "sentencepiece", "subword-nmt", "pyarrow")  # fmt: skip


def append(path: Path, entry: dict) -> None:
    """Add a line, in one write: a program that is killed leaves whole lines, or a last one that :func:`read` drops."""
    make_folder(path.parent)
    data = (json.dumps({**entry, "time": _now()}, ensure_ascii=False) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict]:
    """The lines of a results file; half a line, which a killed program left, is passed over."""
    entries: list[dict] = []
    if not path.exists():
        return entries
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):  # a command may hold U+2028
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "kind" in entry:
            entries.append(entry)
    return entries


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, whenever the program is killed."""
    make_folder(path.parent)
    with atomic_open(path) as stream:
        stream.write(text)


def environment() -> dict:
    """Hardware, threads and versions of this process; nothing that names the machine or its user."""
    found: dict[str, Any] = {"kind": "environment", "python": platform.python_version(), "system": platform.system()}
    found |= {"machine": platform.machine(), "cpu": _cpu(), "cpus": len(os.sched_getaffinity(0))}
    found["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    found["versions"] = {}
    for package in _PACKAGES:
        try:
            found["versions"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    try:
        import torch
    except ImportError:
        return found
    found["threads"] = torch.get_num_threads()
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def record_environment(path: Path) -> None:
    """Record the environment, unless it is the one recorded last."""
    now = environment()
    before = [entry for entry in read(path) if entry["kind"] == "environment"]
    if not before or {key: item for key, item in before[-1].items() if key != "time"} != now:
        append(path, now)


def current(experiment: Experiment, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of what a record says, the latest of each kind that holds of the experiment as it is now.

    What is left out: systems, seeds, steps, tests and values that it had once, what other commands gave in the place
    of those that it has now, and comparisons with, or gains over, another baseline.
    """
    latest: dict[tuple, Mapping[str, Any]] = {}
    for entry in entries:
        latest[tuple(entry.get(key) for key in ("kind", "cell", "step", "test", "name"))] = entry
    tasks = [
        *experiment.prepare_tasks(),
        *(task for cell in experiment.cells() for task in experiment.cell_tasks(*cell)),
    ]
    commands = {(task.cell, task.step): task.fingerprint for task in tasks}
    cells = {f"{system}/{seed}": experiment.fingerprint(system, seed) for system, seed in experiment.cells()}
    tests = {test.name: test.baseline for test in experiment.tests}
    values = {value.name: value.only for value in experiment.values}
    baseline = experiment.shares.baseline if experiment.shares is not None else None

    def replaced(entry: Mapping[str, Any]) -> bool:
        """Whether a cell that was scored has other commands now; records of earlier versions do not tell."""
        return any(cells.get(cell, known) != known for cell, known in entry.get("cells", {}).items())

    def holds(entry: Mapping[str, Any]) -> bool:
        if entry["kind"] == "step":
            return commands.get((entry["cell"], entry["step"])) == entry.get("fingerprint")
        if entry["kind"] == "value":
            only = values.get(entry["name"], ())
            if entry["cell"] not in cells or (only is not None and entry["cell"].rpartition("/")[0] not in only):
                return False
            fingerprint = cells[entry["cell"]]
            return entry.get("fingerprint", fingerprint) == fingerprint  # records of earlier versions have none
        if entry["kind"] in ("test", "shares") and replaced(entry):
            return False
        if entry["kind"] == "shares":
            return baseline is not None and entry["test"] in tests and entry.get("baseline", baseline) == baseline
        if entry["kind"] == "test":
            against = tests.get(entry["test"])
            return entry["test"] in tests and (against is None or entry["report"].get("baseline", against) == against)
        return True

    return [entry for entry in latest.values() if holds(entry)]


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.processor() or "unknown"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
