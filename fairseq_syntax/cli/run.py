"""Run a recipe: from a corpus to a table of scores.

The steps are text, parses, pieces, models, translations, scores and the report. An interrupted run resumes when rerun.
After a change of the recipe, only the affected steps run again.

    fairseq-syntax run recipe.yaml --only transformer pascal --seeds 1
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_syntax.cli.arguments import GPUS_PER_WORKER, PAIRS, RAY, SEVERAL, natural, positive
from fairseq_syntax.cli.command import Command, Flag, Group, OneOf, Option, check_line
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.stages import KINDS, shown_path, states
from fairseq_syntax.lab.scoring.tables import Table
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.ray_workers import RayWorkers, chosen_workers

if TYPE_CHECKING:
    from fairseq_syntax.lab.recipes.layout import Run
    from fairseq_syntax.lab.recipes.running import Work


class _Keys(argparse.Action):
    """Print all keys of a recipe, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object, **kwargs: object) -> None:
        from fairseq_syntax.lab.recipes.reference import keys_page

        print(keys_page(), end="")
        parser.exit()


ARGUMENTS = [
    Option("recipe RECIPE.yaml", "the recipe"),
    Option("--keys", "print all keys of a recipe, and exit", action=_Keys, nargs=0),
    OneOf(
        Flag("--dry-run", "print the commands, what they would refuse, and how much there is to compute; run nothing"),
        Flag("--status", "show which steps are done, to do, or pending on an earlier one, and run nothing"),
        Flag("--report", "write the report from existing results, and run nothing"),
    ),
    Flag("--smoke", "run a small version, in a minute or two and with a parser that needs no models, in FOLDER-smoke"),
    Option("--data DIR", "folder with the files of the corpus (corpus.data)"),
    Option("--model-dir DIR", "models of the source's parser (parse.source.models), or else of the target's"),
    Option("--output DIR", "result folder (folder); with --smoke, DIR-smoke"),
    Option(
        "--user-dir FOLDER",
        "import your own plugin from this folder, instead of the recipe's (user_dir); may be repeated",
        action="append",
        default=[],
    ),
    Option("--set KEY=VALUE", "override keys, such as train.max-epoch=2", **PAIRS),
    Group(
        "a part of it",
        Option("--only SYSTEM[/SEED]", "only these systems or runs", **SEVERAL),
        Option("--seeds N", "only these seeds", **SEVERAL, type=natural),
        Option("--to STAGE", f"stop after this stage: {', '.join(KINDS[:-1])}", default="report", choices=KINDS),
    ),
    Group(
        "work",
        Option(
            "--workers",
            "number of models trained at the same time, each on its share of the GPUs (default: 1 on GPUs or with "
            "--ray, otherwise one per `threads` cores)",
            type=positive,
        ),
        RAY,
        GPUS_PER_WORKER,
    ),
    Flag("--keep", "also save the results in the recipe's `kept` file"),
]
TRAIN = 'fairseq-train {} --user-dir "$(fairseq-syntax user-dir)" --task syntax_translation --arch ARCH …'
COMMAND = Command(__doc__, "start", ARGUMENTS, step=2, resumes=True)


def _translate_command(work: Work) -> str:
    """The command that translates raw text with the last trained system of the recipe, if any can."""
    source = work.plan.recipe.parse.source
    # a model that was trained on a control parse does not take the parse of a text
    real = [run for run in work.chosen if work.plan.recipe.systems[run.system].parse == "parse"]
    trained = [run for run in real if work.plan.checkpoint(run).exists()]
    if not trained or (source is not None and source.files is not None):
        return ""
    words = ["fairseq-syntax", "translate", shown_path(work.plan.checkpoint(trained[-1])), "--input", "FILE"]
    words += [word for folder in work.plan.plugins(trained[-1].system) for word in ("--user-dir", shown_path(folder))]
    if source is not None and source.models is not None:
        words += ["--model-dir", str(work.plan.models(source))]
    return shlex.join(words)


def _about_kept(work: Work, runs: bool) -> Iterator[str]:
    """What the recipe's kept results change, which would otherwise go unnoticed; also in what runs, if asked for."""
    if work.kept_file is None:
        return
    file, otherwise = shown_path(work.kept_file), "(--set kept=null: run all)"
    if work.unused:
        why = "were made with other settings or other text, and are not used"
        yield f"{file}: {len(work.unused)} of the kept results ({_some(work.unused)}) {why}"
    if runs and work.replaced:
        yield f"{file}: {len(work.replaced)} of {len(work.chosen)} runs are kept here and not run again {otherwise}"
    if runs and (unscored := work.unscored(work.chosen)):
        yield f"{file}: has no translations, without which {_some(unscored)} cannot be scored {otherwise}"


def _some(runs: Sequence[Run]) -> str:
    return ", ".join(map(str, runs[:3])) + (" …" if len(runs) > 3 else "")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.corpus.parsing.parser import model_path
    from fairseq_syntax.lab.recipes.plan import Plan
    from fairseq_syntax.lab.recipes.reading import load_recipe
    from fairseq_syntax.lab.recipes.report import page_sections, write_report
    from fairseq_syntax.lab.recipes.runner import Runner, typed
    from fairseq_syntax.lab.recipes.running import Work
    from fairseq_syntax.lab.recipes.smoke import smoke
    from fairseq_syntax.runtime.workers import cores, shares_of_gpus

    changes = dict(args.set)
    # Relative to the current folder, unlike paths in a recipe. Quoted, because changes are parsed as YAML.
    path, folders = Path(args.recipe), {"corpus.data": args.data, "folder": args.output}
    if args.model_dir is not None:
        parse = load_recipe(path, changes).parse
        side = "source" if parse.source is not None else "target"
        if getattr(parse, side) is None:
            raise SyntaxDataError("the recipe has no parser", path=path, option="--model-dir")
        if model_path(getattr(parse, side).parser, args.model_dir, Path()) is None:
            changes[f"parse.{side}.models"] = args.model_dir
        else:
            folders[f"parse.{side}.models"] = args.model_dir
    for key, folder in folders.items():
        if folder is not None:
            changes[key] = json.dumps(str(Path(folder).absolute()), ensure_ascii=False)
    if args.user_dir:
        changes["user_dir"] = json.dumps([str(Path(one).absolute()) for one in args.user_dir], ensure_ascii=False)
    recipe = load_recipe(path, changes)
    if "kept" in changes and recipe.kept is None and "page" not in changes:
        recipe.page = None  # it shows the kept results
    recipe = smoke(recipe) if args.smoke else recipe
    work = Work(Plan(recipe, path), args.only, args.seeds, args.to)
    if args.report and not recipe.systems:
        raise SyntaxDataError("the recipe has no systems to report on", path=path, option="--report")
    if args.keep and work.kept_file is None:
        raise SyntaxDataError("the recipe has no `kept`", path=path, hint="kept: results.jsonl.gz")
    for note in _about_kept(work, runs=not (args.status or args.report)):
        print(note, file=sys.stderr, flush=True)
    if args.dry_run:
        print("\n".join(typed(work.all_stages(), work.variables)), flush=True)
    if not (args.status or args.report):
        from fairseq_syntax.lab.recipes.amounts import amounts
        from fairseq_syntax.lab.recipes.checks import problems  # here, as it imports PyTorch

        # Before hours of parsing. All problems, since each would cost another start, and each when it is found, since
        # those of models take longer.
        unfinished = [stage for stage in work.all_stages() if not stage.is_done()]
        told = 0
        for told, problem in enumerate(problems(work.plan, unfinished, check_line, here=args.ray is None), start=1):
            print(f"fairseq-syntax run: {'error' if told == 1 else 'also'}: {problem}", file=sys.stderr, flush=True)
        if told:
            return 1
        for line in amounts(work.plan, unfinished):
            print(f"\n# {line}" if args.dry_run else line, file=sys.stdout if args.dry_run else sys.stderr, flush=True)
    if args.dry_run:
        return 0
    if args.status:
        for run in work.kept_runs:
            print(f"kept\t{run}")
        for name, state in states(work.all_stages()).items():
            print(f"{state}\t{name}")
        return 0
    failed: list[str] = []
    if not args.report:
        here = recipe.device == "cpu" and args.ray is None
        jobs = args.workers or (max(1, cores() // recipe.threads) if here else 1)
        gpus = 1.0 if recipe.device == "cuda" else 0.0
        with chosen_workers(args, count=jobs, cpus=recipe.threads, gpus=gpus) as workers:
            cluster = workers if isinstance(workers, RayWorkers) else None
            if cluster is not None:  # before the first stage, so that a wrong address is reported at once
                cluster.connect()
            several = recipe.device == "cuda" and cluster is None and jobs > 1
            visible = {**os.environ, **work.variables}.get("CUDA_VISIBLE_DEVICES")
            shares = shares_of_gpus(jobs, visible) if several else []
            failed = work.run(Runner(work.plan.folder, jobs, work.variables, cluster, shares))
    if failed:
        print(f"failed: {', '.join(failed)}")
        print("next: fix the errors shown in the logs and rerun the same command; finished steps are kept")
    results = work.results()
    if args.keep and results.facts:
        finished(work.keep(results), "the results that are kept")
    if work.to == "binarize" and not (failed or args.report):
        finished(shown_path(work.plan.bin()), "the binarized data", TRAIN.format(shown_path(work.plan.bin())))
    if work.to == "report" and (results.reports or not failed):
        markdown, page = write_report(work.plan, results)
        for section in page_sections(work.plan, results):
            if section.title.startswith("Scores"):
                blocks = [block.render() if isinstance(block, Table) else block for block in section.blocks]
                print("\n" + "\n\n".join(map(str, blocks)) + "\n")
        finished(shown_path(markdown), "the report")
        finished(shown_path(page), "the same, for a browser", "" if failed else _translate_command(work))
    return 1 if failed else 0
