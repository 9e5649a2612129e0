#!/usr/bin/env python3
"""Keeps what runs made that were not started by ``fairseq-syntax run``, as its own are kept: in a recipe's ``kept``.

    python examples/atlas/keep.py examples/atlas/atis.yaml FOLDER

A run is FOLDER/SYSTEM/SEED with the files ``command``, ``train.log``, ``done`` (JSON: seconds and cpu)
and the translations ``TEST.last.txt`` and, if there, ``valid.last.txt``. Of the recipe's systems and seeds, those
that are there are kept: translations, command, validation curve and hardware. The commands must be those
of the recipe. Runs that ``fairseq-syntax run`` started are kept by ``fairseq-syntax run RECIPE --keep``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.layout import Run, located
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load
from fairseq_syntax.runtime.files import read_lines

_VALID = re.compile(
    r"valid on 'valid' subset \| loss (?P<loss>[\d.]+) \| nll_loss (?P<nll>[\d.]+).* num_updates (?P<updates>\d+)"
)


def curve(log: str) -> list[tuple[int, float, float]]:
    """Updates, loss and negative log-likelihood of each validation in fairseq's log."""
    matches = _VALID.finditer(log)
    by_updates = {int(m["updates"]): (int(m["updates"]), float(m["loss"]), float(m["nll"])) for m in matches}
    return sorted(by_updates.values())


def entry_of(plan: Plan, run: Run, folder: Path, hide: list[str]) -> dict[str, Any]:
    """What is kept of a run, as ``fairseq-syntax run --keep`` writes it, with the validation set beside.

    Args:
        hide: texts that are left out of the command, such as folders of a machine
    """

    def lines(name: str) -> list[str]:
        return list(read_lines(folder / f"{name}.last.txt"))

    done = json.loads((folder / "done").read_text(encoding="utf-8"))
    command = (folder / "command").read_text(encoding="utf-8").strip()
    for text in hide:
        command = command.replace(text, "")
    facts = {
        "seconds": {"train": done["seconds"]},
        "commands": [command],
        "values": {},
        "cpu": done["cpu"],
        "curve": curve((folder / "train.log").read_text(encoding="utf-8")),
    }
    if (folder / "valid.last.txt").exists():
        facts["valid"] = lines("valid")
    outputs = {str(table): lines(table.test) for table in plan.outputs(run)}
    return {"kind": "run", "run": str(run), "key": plan.key(run), "outputs": outputs, "facts": facts}


def plan_of(path: Path) -> tuple[Plan, Path]:
    """A recipe's plan and its file of kept results."""
    recipe = load(path)
    plan = Plan(recipe, path)
    assert recipe.kept is not None, f"{path} has no kept"
    return plan, located(recipe.kept, plan.base)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, metavar="RECIPE.yaml")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with SYSTEM/SEED below it")
    parser.add_argument("--hide", nargs="*", default=[], metavar="TEXT", help="left out of the commands")
    args = parser.parse_args()
    plan, path = plan_of(args.recipe)
    kept = Kept.read(path)
    for run in plan.runs:
        folder = args.folder / run.system / str(run.seed)
        if (folder / "done").exists():
            kept.runs[str(run)] = entry_of(plan, run, folder, args.hide)
    kept.write(path)
    print(f"{path}: {len(kept.runs)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
