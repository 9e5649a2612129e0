#!/usr/bin/env python3
"""Writes TABLE.md from the results that the recipes in table have kept.

python examples/toy/page.py
"""

from __future__ import annotations

import statistics
from pathlib import Path

from fairseq_syntax.lab.recipes.hardware import described
from fairseq_syntax.lab.recipes.layout import Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.report import main_table
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.scoring.tables import Table, number, over_seeds
from fairseq_syntax.runtime.files import atomic_open

HERE = Path(__file__).resolve().parent
CORPORA = (
    "attachment",
    "uncertain-0.6",
    "uncertain-0.8",
    "uncertain-0.95",
    "lexical",
    "lexical-both",
    "homograph",
    "lstm",
)
HEAD = """# The toy table

Written by `examples/toy/page.py` from the results that the recipes in [table](table) have kept. Exact match is that on
the ambiguous test sentences, and the best possible that of who knows what the system does: the text alone, or with it
what the column says. UAS is that of the parent head's trees; of DBSA's two heads, encoder / decoder, over the given
text of both sides."""


def section(name: str) -> str:
    """The table of a recipe's corpus."""
    path = HERE / "table" / f"{name}.yaml"
    work = Work(Plan(load_recipe(path), path))
    results, test = work.results(), Scored("test")
    hard = Scored("test", lines="ambiguous")
    means = {system["name"]: system["mean"] for system in results.reports[test]["systems"]}
    share = results.reports[hard]["sentences"] / results.reports[test]["sentences"]
    table = main_table(work.plan, results, [hard])
    header = ["system", "knows", "seeds", "exact match", "gain", "significant", "best possible"]
    header += ["unambiguous", "BLEU", "UAS", "training"]
    rows = []
    (possible,) = (one.figures for one in work.plan.recipe.published if one.lines == hard.lines)
    for system, seeds, _, gain, significant in table.rows:
        of_runs = [facts for run, facts in results.facts.items() if run.system == system]
        (entry,) = (one for one in results.reports[hard]["systems"] if one["name"] == system)
        exact, deviation = entry["mean"]["exact"], entry["sd"]["exact"]
        match = over_seeds(exact, deviation, 1)
        rest = (means[system]["exact"] - share * exact) / (1 - share)
        heads = [key for key in ("UAS, test", "UAS, encoder", "UAS, decoder") if key in of_runs[0]["values"]]
        uas = " / ".join(number(statistics.fmean(one["values"][key] for one in of_runs), 1) for key in heads)
        seconds = statistics.fmean(facts["seconds"]["train"] for facts in of_runs)
        row = [
            system,
            work.plan.recipe.systems[system].about,
            seeds,
            match,
            gain,
            significant,
            number(possible.get(system), 1),
        ]
        rows.append([*row, number(rest, 1), number(means[system]["BLEU"], 1), uas, f"{seconds:.0f} s"])
    notes = [*table.notes, *(f"best possible: {one.note}" for one in work.plan.recipe.published)]
    notes += [described(dict(one)) for one in results.environments]
    made = Table(f"{results.reports[hard]['sentences']} ambiguous sentences", header, rows, notes)
    return f"## {name}\n\n{work.plan.recipe.about}\n\n{made.render('markdown')}"


def main() -> None:
    with atomic_open(HERE / "TABLE.md") as file:
        file.write("\n\n".join([HEAD, *map(section, CORPORA)]) + "\n")


if __name__ == "__main__":
    main()
