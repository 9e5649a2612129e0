#!/usr/bin/env python3
"""Keeps what finished runs made: a line of JSON each, one compressed file a grid.

    python examples/atlas/keep.py runs/atlas/runs/atis --out examples/atlas/kept/atis.jsonl.xz

A run is a folder GRID/SYSTEM/SEED with the files ``command``, ``train.log``, ``done`` (how long it took, and on what)
and the translations ``test.last.txt`` and ``valid.last.txt``. Kept are the command, the validation curve, the hardware
and the translations. Runs that are kept already stay.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_VALID = re.compile(
    r"valid on 'valid' subset \| loss (?P<loss>[\d.]+) \| nll_loss (?P<nll>[\d.]+)"
    r".* num_updates (?P<updates>\d+)"
)


def curve(log: str) -> list[tuple[int, float, float]]:
    """Updates, loss and negative log-likelihood of each validation in fairseq's log."""
    matches = _VALID.finditer(log)
    by_updates = {int(m["updates"]): (int(m["updates"]), float(m["loss"]), float(m["nll"])) for m in matches}
    return sorted(by_updates.values())


def read_run(folder: Path) -> dict[str, Any]:
    """What is kept of a run."""
    done = json.loads((folder / "done").read_text(encoding="utf-8"))
    texts = {
        path.stem: path.read_text(encoding="utf-8").splitlines()
        for path in sorted(folder.glob("*.txt"))
        if path.stem.removesuffix(".last") in ("test", "test1", "valid")
    }
    return {
        "system": folder.parent.name,
        "seed": int(folder.name),
        "command": (folder / "command").read_text(encoding="utf-8").strip(),
        "seconds": done["seconds"],
        "cpu": done["cpu"],
        "curve": curve((folder / "train.log").read_text(encoding="utf-8")),
        **{name.removesuffix(".last"): lines for name, lines in texts.items()},
    }


def read_kept(path: Path) -> Iterator[dict[str, Any]]:
    """The runs of a grid; none where the file is not there."""
    if path.exists():
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path, metavar="FOLDER", help="with SYSTEM/SEED below it")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl.xz")
    parser.add_argument("--hide", nargs="*", default=[], metavar="TEXT=TEXT", help="replacements in commands")
    args = parser.parse_args()
    runs = {(run["system"], run["seed"]): run for run in read_kept(args.out)}
    for done in sorted(args.grid.glob("*/*/done")):
        run = read_run(done.parent)
        for pair in args.hide:
            run["command"] = run["command"].replace(*pair.split("=", 1))
        runs[run["system"], run["seed"]] = run
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(args.out, "wt", encoding="utf-8", preset=9) as file:
        for _, run in sorted(runs.items()):
            file.write(json.dumps(run, ensure_ascii=False) + "\n")
    print(f"{args.out}: {len(runs)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
