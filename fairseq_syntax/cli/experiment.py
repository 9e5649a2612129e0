"""``fairseq-syntax experiment``: run a grid of systems and seeds, and write its results table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import SEVERAL, positive
from fairseq_syntax.runtime.ray_workers import RayWorkers, add_ray_options, chosen_workers


class _Keys(argparse.Action):
    """Print what an experiment's YAML file may say, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object, **kwargs: object) -> None:
        from fairseq_syntax.lab.experiments import plan_file

        print((plan_file.__doc__ or "").replace(".. code-block:: yaml\n\n", "").replace("``", "`"), end="")
        parser.exit()


COMMAND = Command(
    group="train",
    summary="run a grid of systems and seeds",
    description="Run what is not done yet of an experiment, score it, and write the table from the results file. "
    "--keys describes the keys of the YAML file.",
    example="fairseq-syntax experiment experiment.yaml --workers 2",
    step=2,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.yaml", help="the experiment")
    parser.add_argument("--keys", action=_Keys, nargs=0, help="describe the keys of the YAML file, and end")
    parser.add_argument("--only", **SEVERAL, metavar="SYSTEM[/SEED]", help="run these systems or cells alone")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="cells to run at the same time")
    add_ray_options(parser, gpus=True)
    parser.add_argument("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="other values for its vars")
    parser.add_argument("--check-code", action="store_true", help="run again what other code of this package did")
    parser.add_argument("--list", action="store_true", help="show what is done and what is not, and run nothing")
    parser.add_argument("--table", action="store_true", help="write the table again from the results file alone")


def main(args: argparse.Namespace) -> int:
    import logging

    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.lab.experiments.grid import Grid
    from fairseq_syntax.lab.experiments.plan_file import load
    from fairseq_syntax.lab.experiments.record import current, read, write_whole
    from fairseq_syntax.lab.experiments.results_table import results_table
    from fairseq_syntax.lab.experiments.scores import collect
    from fairseq_syntax.lab.experiments.verdict import verdict_page
    from fairseq_syntax.runtime.console import finished, say

    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    overrides = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise SyntaxDataError(f"not a variable and its value: {text!r}", hint="--set NAME=VALUE")
        overrides[name] = value
    experiment = load(args.file, overrides)
    grid = Grid(experiment, say, check_code=args.check_code)
    if args.only and args.table:
        raise SyntaxDataError("--only chooses what runs; --table is of all cells")
    chosen = experiment.chosen(args.only)
    if args.list:
        kept = {f"{system}/{seed}" for system, seed in experiment.cells() if grid.is_complete(system, seed)}
        none_to_run = {f"{system}/{seed}" for system, seed in chosen} <= kept
        for tasks in [experiment.prepare_tasks(), *(experiment.cell_tasks(*cell) for cell in chosen)]:
            done = "done"
            for task in tasks:
                if task.cell in kept or (task.cell == "prepare" and none_to_run):
                    done = "done" if grid.is_done(task) else "kept"
                elif not grid.is_done(task):
                    done = "to do"  # and so are the steps after it, which run again with it
                print(f"{done}\t{task.cell}\t{task.step}")
        return 0
    failed: list[str] = []
    problems: list[SyntaxDataError] = []
    if not args.table:
        with chosen_workers(args, count=args.workers) as workers:
            grid.cluster = workers if isinstance(workers, RayWorkers) else None
            failed = grid.run(args.only, args.workers)
        complete = [cell for cell in experiment.cells() if grid.is_complete(*cell)]
        problems = collect(experiment, complete)
    entries = read(experiment.record)
    if not entries:
        raise SyntaxDataError("there are no results yet", path=experiment.record, hint="run it without --table")
    if args.table and _has_results(entries) and not _has_results(current(experiment, entries)):
        raise SyntaxDataError(
            "nothing of what it records holds of the experiment as it is now: the table would be empty",
            path=experiment.record,
            hint="commands, env, outputs or inputs are others, or an input is gone; run it without --table",
        )
    write_whole(experiment.table, results_table(experiment, entries))
    if experiment.shares is not None:
        write_whole(experiment.shares.page, verdict_page(experiment, entries))
    for problem in problems:
        print(f"not scored: {problem}", file=sys.stderr)
    finished(experiment.table, "the table")
    if experiment.shares is not None:
        finished(experiment.shares.page, "how much of the gains is syntax")
    if failed:
        print(f"failed: {', '.join(failed)}")
        print("next: mend what the logs say, and give the same command again; what is done is not done again")
    return 1 if failed or problems else 0


def _has_results(entries: Sequence[Mapping[str, Any]]) -> bool:
    return any(entry["kind"] in ("step", "test", "value") for entry in entries)
