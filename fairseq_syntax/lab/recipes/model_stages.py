"""Stages of models: training, translation, trees of parent heads, and scoring."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fairseq_syntax.lab.recipes.layout import Layout, Run, Scored
from fairseq_syntax.lab.recipes.schema import Variant
from fairseq_syntax.lab.recipes.stages import PLUGIN, Command, Free, In, Out, Stage, Word, options
from fairseq_syntax.lab.scoring.names import tokenizer_of


def data_of(layout: Layout, run: Run) -> Path:
    """The folder of a run's binarized data."""
    system = layout.recipe.systems[run.system]
    return layout.bin(system.parse) if system.data is None else layout.place(system.data, run)


def _read(layout: Layout, run: Run, *splits: str) -> tuple[Path, ...]:
    """The files of its data that a run reads; the whole folder if a command of the recipe makes it."""
    system = layout.recipe.systems[run.system]
    if system.data is not None:
        return (data_of(layout, run),)
    files = [path for split in splits for path in layout.binarized(split, system.parse)]
    return (*layout.dictionaries(system.parse), *files)


def train(layout: Layout, run: Run) -> Stage:
    """The stage that trains a run's model."""
    recipe, folder = layout.recipe, layout.model(run)
    system, (source, target) = recipe.systems[run.system], layout.langs
    values = {**recipe.size, **system.size, **recipe.train, **system.train, **system.options}
    words: list[Word] = ["fairseq-train", Out(data_of(layout, run)), *PLUGIN, "-s", source, "-t", target]
    words += options({"arch": system.arch}) + layout.options(values) + options({"seed": run.seed})
    words += [Free("--cpu")] if recipe.device == "cpu" else []
    words += [] if {"no-epoch-checkpoints", "keep-last-epochs"} & values.keys() else [Free("--no-epoch-checkpoints")]
    # fairseq's own log in the folder covers all starts; the runner's log only the last one
    log = Out(folder / "train.log")
    words += [Free("--no-progress-bar"), *options({"log-interval": Free(100), "log-file": log})]
    command = Command([*words, *options({"save-dir": Out(folder)})])
    made = [folder / f"checkpoint_{name}.pt" for name in dict.fromkeys([recipe.translate.checkpoint, "last"])]
    reads, stale = _read(layout, run, "train", "valid"), (f"{folder}/*.pt", f"{folder}/train.log")
    return layout.stage("train", f"train {run}", [command], made, reads=reads, stale=stale, run=str(run))


def translations(layout: Layout, run: Run) -> list[Stage]:
    """The stages that translate each test set in each variant."""
    recipe, (source, target) = layout.recipe, layout.langs
    data, checkpoint = Out(data_of(layout, run)), In(layout.checkpoint(run))
    stages = []
    for table, output in layout.outputs(run).items():
        variant = layout.variants(run.system)[table.variant]
        values = {**recipe.translate.options, **recipe.systems[run.system].translate, **variant.options}
        words: list[Word]
        if variant.without_parse:  # fairseq-generate would read the parse in the binarized data
            words = ["fairseq-syntax", "translate", checkpoint]
            # fairseq-generate's default beam, as for the others; that of `translate` is narrower.
            words += options({"data": data, "device": Free(recipe.device), "beam": values.get("beam", 5)})
            words += ["--parser", "none", "--missing-parse", "neutral"]
            words += options({"input": In(layout.text(table.test, source)), "output": Out(output)})
            command = Command(words)
        else:
            words = ["fairseq-generate", data, *PLUGIN, "-s", source, "-t", target]
            words += options({"path": checkpoint, "gen-subset": layout.subset(table.test)}) + layout.options(values)
            words += [Free("--cpu")] if recipe.device == "cpu" else []
            command = Command([*words, Free("--no-progress-bar")], stdout=output)
        reads = _read(layout, run, table.test)
        name = f"translate {run} {table}"
        stages.append(layout.stage("translate", name, [command], [output], reads=reads, run=str(run)))
    return stages


def trees(layout: Layout, run: Run) -> list[Stage]:
    """The stages that compare the trees predicted by a model's parent head with the parse."""
    stages = []
    for test in layout.tests if run.system in layout.recipe.score.trees else ():
        parse, score = In(layout.parse(test, layout.langs[0])), layout.tree_scores(run, test)
        tree = Out(layout.folder / "outputs" / test / f"{run.system}.{run.seed}.conllu")
        where = {"data": Out(data_of(layout, run)), "device": Free(layout.recipe.device)}
        predict = options({**where, "input": parse, "output": tree})
        commands = [
            Command(["fairseq-syntax", "tree", In(layout.checkpoint(run)), *predict]),
            Command(["fairseq-syntax", "eval-tree", "--json", parse, tree], stdout=score),
        ]
        stages.append(layout.stage("translate", f"trees {run} {test}", commands, [score], run=str(run)))
    return stages


def tokenizer(layout: Layout) -> str:
    """sacrebleu's tokenizer for the target language."""
    return layout.recipe.score.tokenize or tokenizer_of(layout.langs[1])


def score(layout: Layout, table: Scored, finished: Collection[Run]) -> Stage | None:
    """The stage that scores all finished runs; None if there are none."""
    score, source = layout.recipe.score, layout.langs[0]
    variant = layout.recipe.translate.variants.get(table.variant, Variant())
    runs: dict[str, list[Run]] = {}
    for name in layout.recipe.systems if variant.systems is None else variant.systems:
        if of := [run for run in layout.runs if run.system == name and run in finished]:
            runs[name] = of
    if not runs:
        return None
    baseline = variant.baseline or layout.recipe.baseline
    outputs = {name: [layout.output(run, table) for run in of] for name, of in runs.items()}

    def lines_of(pattern: str | None) -> In | None:
        return None if pattern is None else In(layout.place(pattern, test=table.test))

    values: dict[str, Any] = {
        "ref": [In(path) for path in layout.references(table.test)],
        "sys": [Free(f"{name}=" + ",".join(str(Out(file)) for file in files)) for name, files in outputs.items()],
        "metrics": score.metrics,
        "tokenize": None if tokenizer(layout) == "13a" else tokenizer(layout),
        "lowercase": score.lowercase,
        # no tests against an unfinished baseline
        **({"baseline": baseline} if baseline in runs else {}),
        "resamples": score.resamples if baseline in runs else "0",
        "trials": score.trials if baseline in runs else "0",
        "groups": lines_of(score.groups),
        "lines": lines_of(score.lines.get(table.lines)),
        "also-against": [name for name in score.also_against if name in runs and baseline in runs],
        "beer": score.beer,
    }
    if score.by_length and not table.lines:
        is_source = score.by_length_of == "source"
        values |= {"by-length": score.by_length, "src": In(layout.text(table.test, source)) if is_source else None}
    if baseline in runs and not table.lines and source in layout.sides():
        if score.shares is not None:
            values |= {"controls": score.shares.controls, "controls-by": score.shares.by}
        values["by"] = score.by
        if score.by or values.get("controls-by"):
            values["conllu"] = In(layout.parse(table.test, source))
    words = ["fairseq-syntax", "score", *options({**values, "json": Out(layout.score_file(table))})]
    reads: Sequence[Path] = [file for files in outputs.values() for file in files]
    # Translations are identified by paths, which do not count in the fingerprint, so name the systems.
    about = tuple(f"{name}:{len(of)}" for name, of in runs.items())
    made = [layout.score_file(table)]
    return layout.stage("score", f"score {table}", [Command(words)], made, reads=tuple(reads), about=about)
