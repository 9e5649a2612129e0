"""``python -m bench [ONLY …]``: all measures, or those whose names begin with one of the words."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import bench
from bench.harness import MEASURES, RESULTS, commit


def every_measure() -> dict[str, Callable[[], Any]]:
    """All measures by their names, from all modules of this package."""
    for module in pkgutil.iter_modules(bench.__path__):
        if not module.name.startswith("__") and module.name not in ("harness", "corpus"):
            importlib.import_module(f"bench.{module.name}")
    return MEASURES


def main() -> int:
    """Run the chosen measures and append them to ``bench/results.jsonl``."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure ratios against plain counterparts.")
    parser.add_argument("only", nargs="*", metavar="ONLY", help="beginnings of names, such as train/ or layer/pascal")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    measures = every_measure()
    chosen = {name: f for name, f in measures.items() if not args.only or name.startswith(tuple(args.only))}
    if args.list:
        print("\n".join(sorted(measures)))
        return 0
    if not chosen:
        parser.error(f"no measure begins with {' or '.join(args.only)}; --list names them")
    commit()  # now, as another may be checked out while the measures run
    for function in dict.fromkeys(chosen.values()):  # a function may record several measures
        function()
    print(f"appended to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
