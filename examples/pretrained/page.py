#!/usr/bin/env python3
"""Writes the tables of docs/pretrained.md from kept and starts.json, each after a comment that names it.

python examples/pretrained/page.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

from starts import KEPT, NO_SYSTEM, ROOT, STARTS, UPDATES

from fairseq_syntax.lab.recipes.layout import Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import main_table
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.scoring.tables import Table, number
from fairseq_syntax.runtime.files import atomic_open

HERE = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "pretrained.md"
PAIRS = (1000, 4000)
ABOUT = {
    "imported": "as it is",
    "finetuned": "without a parse",
    "supervised_heads": "with the parse",
    "supervised_heads.shuffled": "other sentences' trees",
}


def captions() -> Table:
    """BLEU of the recipes' systems: mean and standard deviation over seeds, with a star if the gain is significant."""
    columns = []
    for pairs in PAIRS:
        path = HERE / f"captions-{pairs}.yaml"
        work = Work(Plan(load_recipe(path), path))
        rows = main_table(work.plan, work.results(), [Scored("test")]).rows
        columns.append({name: bleu + "*" * said.startswith("yes") for name, _, bleu, _, said in rows})
    rows = [[f"`{name}`: {about}", *(cells[name] for cells in columns)] for name, about in ABOUT.items()]
    return Table("", ["BLEU, 80 updates on a CPU", *(f"{pairs:,} captions" for pairs in PAIRS)], rows)


def starts() -> Table:
    """Losses without a system, and how much more they are with each; means over the seeds."""
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    rows = []
    for start in STARTS:
        row = [start]
        for of_model in found.values():
            without, seeds = of_model["starts"][NO_SYSTEM], of_model["starts"].get(start, {})
            for update in map(str, UPDATES):
                more = [losses[update] - without[seed][update] for seed, losses in seeds.items() if seed in without]
                total = fmean(losses[update] for losses in without.values())
                row.append(
                    number(total) if start == NO_SYSTEM else f"{round(fmean(more), 2) + 0:+.2f}" if more else "–"
                )
        rows.append(row)
    head = [f"{name}: {update}" if update == 0 else str(update) for name in found for update in UPDATES]
    return Table("", ["bits per piece, by updates", *head], [row for row in rows if {*row[1:]} != {"–"}])


def with_tables(text: str) -> str:
    """The page's text with these tables."""
    for name, table in (("captions", captions()), ("starts", starts())):
        below = rf"(?<=<!-- {name} -->\n\n)(\|.*\n)*\n*"
        text, places = re.subn(below, f"{table.render('markdown')}\n\n", text)
        assert places == 1, name
    return text


def main() -> None:
    text = with_tables(PAGE.read_text(encoding="utf-8"))
    with atomic_open(PAGE) as file:
        file.write(text)


if __name__ == "__main__":
    main()
