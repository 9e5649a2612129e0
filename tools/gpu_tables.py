"""What the systems cost a GPU: counted on the emulated device, estimated from that, and written into the docs.

``python tools/gpu_tables.py`` fills the tables of ``docs/gpus.md``, each of which follows a comment that names it. It
takes some minutes.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]
DOCS = ROOT / "docs" / "gpus.md"
Costs = dict[str, dict[str, float]]  # of each row


def figures() -> dict[str, Any]:
    """Costs of updates, of steps of a search, of updates at the base size, and of attention by length."""
    import gpu_costs
    import gpu_estimate

    import fairseq_syntax

    fairseq_syntax.register()
    with tempfile.TemporaryDirectory() as directory:
        counted = gpu_costs.counted(Path(directory))
    return counted | {"base": gpu_estimate.updates(), "layers": gpu_estimate.layers()}


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The tables as Markdown, by name; ratios are to fairseq's own model of the family, whose row comes first."""
    base = found["base"]["transformer"]
    columns = ("A100", "H100", "H100 without launches")
    estimates = {
        row: [*(f"{costs[name] / base[name]:.3f}" for name in ("kernels", "peak"))]
        + [f"{base[name] / costs[name]:.3f}" for name in columns]
        for row, costs in found["base"].items()
    }
    titles = ["kernels", "peak bytes", "speed, A100", "speed, H100", "H100 if launches were free"]
    return {
        "updates": table(["reads", "copies", "kernels"], counts(found["updates"])),
        "steps": table(["reads", "copies", "kernels"], counts(found["steps"])),
        "estimates": table(titles, estimates),
    }


def counts(costs: Costs) -> dict[str, list[str]]:
    """Reads and copies, and kernels as a ratio; absolute in the rows of the plain models."""
    rows, plain = {}, {}
    for row, cost in costs.items():
        if row in ("transformer", "lstm"):
            plain = cost
        ratio = f"{cost['kernels']:,.0f}" if cost is plain else f"{cost['kernels'] / plain['kernels']:.3f}"
        rows[row] = [f"{cost[name]:.1f}".removesuffix(".0") for name in ("reads", "copies")] + [ratio]
    return rows


def table(titles: list[str], rows: dict[str, list[str]]) -> str:
    """A table in Markdown."""
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    return "\n".join(lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()])


def main() -> int:
    """Count and estimate, then write the tables."""
    import emulated_cuda

    try:
        emulated_cuda.install()
    except emulated_cuda.Unavailable as error:
        print(f"gpu_tables: {error}", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    found = figures()
    text = DOCS.read_text(encoding="utf-8")
    for name, written in tables(found).items():
        text, found_there = re.subn(rf"(?<=<!-- {name} -->\n\n)(\|.*\n)*", f"{written}\n", text)
        if found_there != 1:
            raise SystemExit(f"gpu_tables: {DOCS.name} has {found_there} places for the table {name}")
    DOCS.write_text(text, encoding="utf-8")
    print(json.dumps({key: found[key] for key in ("layers", "base")}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
