"""The plan of a recipe: its stages and the keys of its results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.data_stages import data_stages
from fairseq_syntax.lab.recipes.layout import Layout, Run, Scored
from fairseq_syntax.lab.recipes.schema import CommandSection as OwnCommand
from fairseq_syntax.lab.recipes.schema import Variant
from fairseq_syntax.lab.recipes.stages import (
    KINDS,
    PLUGIN,
    Free,
    In,
    Out,
    Stage,
    StageCommand,
    Word,
    content,
    options,
    shown_path,
)
from fairseq_syntax.lab.scoring.names import tokenizer_of
from fairseq_syntax.plugins import code_digest
from fairseq_syntax.runtime.digests import fingerprint

SEARCH = ("beam", "lenpen", "max-len-b")  # options of fairseq-generate that `translate` has, too
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')""")  # text in quotes in a shell command
_SHELL = (lambda path: shlex.quote(shown_path(path)), shown_path)  # how paths are written outside and inside quotes


def _free(word: Word) -> Word:
    """A word that makes no other training of one with which it is averaged otherwise."""
    return Free(word) if type(word) is str else word


class Plan(Layout):
    """The stages of a recipe; arguments as in :class:`.layout.Layout`."""

    def stages(self, runs: Iterable[Run]) -> list[Stage]:
        """The stages up to the translations of the given runs, in an executable order."""
        runs = list(runs)
        # Of a recipe without systems, which prepares data for others, all.
        parses = {self.recipe.systems[run.system].parse for run in runs} or {*self.recipe.parse.controls}
        stages = data_stages(self, [name for name in self.recipe.parse.controls if name in parses])
        for run in runs:
            stages += self.of_run(run)
        return self._with_commands(stages, runs)

    def of_run(self, run: Run) -> list[Stage]:
        """The stages of a run: training, translations and trees."""
        return [self.train(run), *self.translations(run), *self.trees(run)]

    def _with_commands(self, stages: Sequence[Stage], runs: Sequence[Run]) -> list[Stage]:
        """Insert the recipe's own commands, each before the stages of the kind that it names."""
        own = [
            self._of_command(name, command, run)
            for name, command in self.recipe.commands.items()
            for run in (runs if command.each == "run" else [None])
            if run is None or command.is_of(run.system)
        ]
        own = [_after_earlier_kinds(stage, [*stages, *own]) for stage in own]
        ordered: list[Stage] = []
        for stage in stages:
            # It waits for them even if its inputs do not include their outputs, which may occur inside an option.
            first = [other for other in own if other.kind == stage.kind and other.run in (None, stage.run)]
            ordered += [other for other in first if other not in ordered]
            ordered.append(replace(stage, after=(*stage.after, *(other.name for other in first))))
        ordered += [stage for stage in own if stage not in ordered]
        self._check_apart(ordered)
        return ordered

    def _check_apart(self, stages: Sequence[Stage]) -> None:
        """Raise SyntaxDataError if two stages have one record or output, so that one of them would be lost."""
        makers: dict[Path, str] = {}
        for stage in stages:
            for path in {stage.stamp, *stage.outputs}:
                if path in makers:
                    message = f"{makers[path]} and {stage.name} both write {shown_path(path)}"
                    raise SyntaxDataError(message, path=self.path, hint="another name or outputs for the command")
                makers[path] = stage.name

    def _of_command(self, name: str, command: OwnCommand, run: Run | None) -> Stage:
        """The stage of a command of the recipe; for a command that is executed per run, the stage for ``run``."""
        of = None if run is None else str(run)
        # Paths with spaces are quoted, except where the recipe does so itself.
        parts = [self.filled(part, run, _SHELL[number % 2]) for number, part in enumerate(_QUOTED.split(command.run))]
        commands = [StageCommand(["bash", "-euo", "pipefail", "-c", Free("".join(parts))])]
        made, reads = ([self.place(text, run) for text in texts] for texts in (command.outputs, command.inputs))
        about = (command.run, of or "")
        full_name = name if of is None else f"{name} {of}"
        plugins = self.plugins(None if run is None else run.system)
        more: dict[str, Any] = {"reads": tuple(reads), "run": of, "about": about, "plugins": plugins}
        return self.stage(command.before, full_name, commands, made, **more)

    # ----------------------------------------------------------------------------------------------------------- models

    def _data(self, run: Run) -> Path:
        """The folder of a run's binarized data."""
        system = self.recipe.systems[run.system]
        return self.bin(system.parse) if system.data is None else self.place(system.data, run)

    def reads(self, run: Run, *splits: str) -> tuple[Path, ...]:
        """The files of its data that a run reads; the whole folder if a command of the recipe makes it."""
        system = self.recipe.systems[run.system]
        if system.data is not None:
            return (self._data(run),)
        files = [path for split in splits for path in self.binarized(split, system.parse)]
        return (*self.dictionaries(system.parse), *files)

    def train(self, run: Run) -> Stage:
        """The stage that trains a run's model."""
        recipe, folder = self.recipe, self.model(run)
        system, (source, target) = recipe.systems[run.system], self.langs
        made = [folder / f"checkpoint_{name}.pt" for name in dict.fromkeys([recipe.translate.checkpoint, "last"])]
        if system.checkpoint is not None:
            given = In(self.place(system.checkpoint, run))
            copies = [StageCommand(["cp", given, Out(path)]) for path in made]
            return self.stage("train", f"train {run}", copies, made, run=str(run), plugins=self.plugins(run.system))
        values = {**recipe.size, **system.size, **recipe.train, **system.train, **system.options}
        words: list[Word] = ["fairseq-train", Out(self._data(run)), *PLUGIN, "-s", source, "-t", target]
        words += options({"arch": system.arch}) + self.options(values) + options({"seed": run.seed})
        words += [Free("--cpu")] if recipe.device == "cpu" else []
        averaged, number = self._averaged()
        # What is saved beside does not change what is trained.
        if averaged == "ema" and "store-ema" not in values:
            words.append(Free("--store-ema"))
        elif averaged == "best" and "keep-best-checkpoints" not in values:
            words += options({"keep-best-checkpoints": Free(number)})
        if averaged == "last" and not {"keep-last-epochs", "save-interval-updates"} & values.keys():
            words += options({"keep-last-epochs": Free(number)})
        elif not {"no-epoch-checkpoints", "keep-last-epochs"} & values.keys():
            words.append(Free("--no-epoch-checkpoints"))
        if not any(key.startswith("distributed-") for key in values):
            # By default fairseq starts a process for each GPU that it sees, with --cpu too, and so an update would have
            # as many batches.
            words += options({"distributed-world-size": Free(1)})
        # fairseq's own log in the folder covers all starts; the runner's log only the last one
        log = Out(folder / "train.log")
        words += [Free("--no-progress-bar"), *options({"log-interval": Free(100), "log-file": log})]
        commands = [StageCommand([*words, *options({"save-dir": Out(folder)})])]
        if averaged:
            select = {"ema": True} if averaged == "ema" else {averaged: number}
            files = {**select, "output": Out(self.checkpoint(run))}
            commands.append(StageCommand(list(map(_free, ["fairseq-syntax", "average", Out(folder), *options(files)]))))
        reads, resumed = self.reads(run, "train", "valid"), (f"{folder}/*.pt", f"{folder}/train.log")
        more: dict[str, Any] = {
            "reads": reads,
            "resumed": resumed,
            "log": log.path,
            "plugins": self.plugins(run.system),
        }
        return self.stage("train", f"train {run}", commands, made, run=str(run), **more)

    def _averaged(self) -> tuple[str, str]:
        """What `translate` averages: ``last`` or ``best`` checkpoints, and how many, or ``ema``; empty if nothing."""
        kind, _, number = self.recipe.translate.checkpoint.rpartition("-")
        return ("ema", "") if number == "ema" else ({"average": "last", "average-best": "best"}.get(kind, ""), number)

    def translations(self, run: Run) -> list[Stage]:
        """The stages that translate each test set in each variant."""
        recipe, (source, target) = self.recipe, self.langs
        data, checkpoint = Out(self._data(run)), In(self.checkpoint(run))
        stages = []
        for table, output in self.outputs(run).items():
            variant = self.variants(run.system)[table.variant]
            values = self.search_options(run, variant)
            words: list[Word]
            if variant.without_parse:  # fairseq-generate would read the parse in the binarized data
                words = ["fairseq-syntax", "translate", checkpoint]
                # fairseq-generate's default beam, as for the others; that of `translate` is narrower.
                words += options({"data": data, "device": Free(recipe.device), "beam": values.get("beam") or 5})
                words += options({key: values.get(key) for key in SEARCH if key != "beam"})
                words += ["--parser", "none", "--missing-parse", "neutral"]
                words += options({"input": In(self.text(table.test, source)), "output": Out(output)})
                command = StageCommand(words)
            else:
                words = ["fairseq-generate", data, *PLUGIN, "-s", source, "-t", target]
                words += options({"path": checkpoint, "gen-subset": self.subset(table.test)}) + self.options(values)
                words += [Free("--cpu")] if recipe.device == "cpu" else []
                command = StageCommand([*words, Free("--no-progress-bar")], stdout=output)
            reads = self.reads(run, table.test)
            name = f"translate {run} {table}"
            more: dict[str, Any] = {"reads": reads, "plugins": self.plugins(run.system)}
            stages.append(self.stage("translate", name, [command], [output], run=str(run), **more))
        return stages

    def search_options(self, run: Run, variant: Variant) -> dict[str, Any]:
        """The options of fairseq-generate in a variant."""
        recipe = self.recipe
        return {**recipe.translate.options, **recipe.systems[run.system].translate, **variant.options}

    def trees(self, run: Run) -> list[Stage]:
        """The stages that compare the trees predicted by a model's parent head with the parse."""
        stages = []
        for test in self.tests if run.system in self.recipe.score.trees else ():
            parse, score = In(self.parse(test, self.langs[0])), self.tree_scores(run, test)
            tree = Out(self.folder / "outputs" / test / f"{run.system}.{run.seed}.conllu")
            where = {"data": Out(self._data(run)), "device": Free(self.recipe.device)}
            predict = options({**where, "input": parse, "output": tree})
            commands = [
                StageCommand(["fairseq-syntax", "tree", In(self.checkpoint(run)), *predict]),
                StageCommand(["fairseq-syntax", "eval-tree", "--json", parse, tree], stdout=score),
            ]
            of_run: dict[str, Any] = {"run": str(run), "plugins": self.plugins(run.system)}
            stages.append(self.stage("translate", f"trees {run} {test}", commands, [score], **of_run))
        return stages

    def baseline_of(self, table: Scored) -> str:
        """The system with which the others are compared in a table."""
        variant = self.recipe.translate.variants.get(table.variant, Variant())
        return variant.baseline or self.recipe.baseline

    @property
    def tokenizer(self) -> str:
        """sacrebleu's tokenizer for the target language."""
        return self.recipe.score.tokenize or tokenizer_of(self.langs[1])

    def score(self, table: Scored, finished: Collection[Run]) -> Stage | None:
        """The stage that scores all finished runs; None if there are none."""
        score, source = self.recipe.score, self.langs[0]
        variant = self.recipe.translate.variants.get(table.variant, Variant())
        outputs: dict[str, list[Path]] = {}
        for name in self.recipe.systems if variant.systems is None else variant.systems:
            if of := [self.output(run, table) for run in self.runs if run.system == name and run in finished]:
                outputs[name] = of
        if not outputs:
            return None
        baseline = self.baseline_of(table)
        has_baseline = baseline in outputs  # no tests against an unfinished one

        def lines_of(pattern: str | None) -> In | None:
            return None if pattern is None else In(self.place(pattern, test=table.test))

        values: dict[str, Any] = {
            "ref": [In(path) for path in self.references(table.test)],
            "sys": [Free(f"{name}=" + ",".join(str(Out(file)) for file in files)) for name, files in outputs.items()],
            "metrics": score.metrics,
            "tokenize": None if self.tokenizer == "13a" else self.tokenizer,
            "lowercase": score.lowercase,
            "baseline": baseline if has_baseline else None,
            "resamples": score.resamples if has_baseline else "0",
            "trials": score.trials if has_baseline else "0",
            "groups": lines_of(score.groups),
            "lines": lines_of(score.lines.get(table.lines)),
            "also-against": [name for name in score.also_against if name in outputs and has_baseline],
            "beer": score.beer,
        }
        if score.by_length and not table.lines:
            is_source = score.by_length_of == "source"
            values |= {"by-length": score.by_length, "src": In(self.text(table.test, source)) if is_source else None}
        if has_baseline and not table.lines and source in self.sides():
            if score.shares is not None:
                values |= {"controls": score.shares.controls, "controls-by": score.shares.by}
            values["by"] = score.by
            if score.by or values.get("controls-by"):
                values["conllu"] = In(self.parse(table.test, source))
        made = self.score_file(table)
        command = StageCommand(["fairseq-syntax", "score", *options({**values, "json": Out(made)})])
        reads = tuple(file for files in outputs.values() for file in files)
        # Translations are identified by paths, which do not count in the fingerprint, so name the systems.
        about = tuple(f"{name}:{len(files)}" for name, files in outputs.items())
        return self.stage("score", f"score {table}", [command], [made], reads=reads, about=about)

    # ------------------------------------------------------------------------------------------------------------- keys

    def key(self, run: Run) -> str:
        """A fingerprint of the settings in the recipe on which the results of a run depend.

        Recipes with equal settings share results. Unlike that of a stage, the key does not depend on the content of
        files, because results are stored without the corpus; see :meth:`text_key`.
        """
        recipe, system = self.recipe, self.recipe.systems[run.system]
        places = {"data", "download", "train", "valid", "tests"}
        corpus = recipe.corpus.model_dump(exclude=places, exclude_defaults=True)
        parse = recipe.parse.model_dump(exclude={"controls": {"__all__": {"about"}}}, exclude_defaults=True)
        for side in ("source", "target"):
            parse.get(side, {}).pop("models", None)
        parse["controls"] = parse.get("controls", {}).get(system.parse)
        stages = [self.train(run), *self.translations(run)]
        # Without paths and words that do not affect results, which have other types.
        commands = [[word for word in one.words if type(word) is str] for stage in stages for one in stage.commands]
        pieces = recipe.pieces.model_dump(exclude_defaults=True)
        once = [one for one in recipe.commands.values() if one.each == "once" and one.before not in ("score", "report")]
        of_run = [one for one in recipe.commands.values() if one.is_of(run.system)]
        # only if present, because older results were stored before recipes had commands, an environment and plugins
        plugins = [code_digest(folder) for folder in self.plugins(run.system)]
        more = [one for one in ([one.run for one in once + of_run], recipe.env, plugins) if one]
        return fingerprint(corpus, parse, pieces, system.parse, commands, *more)

    def text_key(self) -> str | None:
        """A fingerprint of the user's text and parses; None if a reader provides them, or if they are not here."""
        made = {path for stage in self.stages(self.runs[:1]) for path in stage.outputs}
        of_text = [one for one in data_stages(self, []) if one.kind in ("corpus", "filter", "parse")]
        paths = dict.fromkeys(path for stage in of_text for path in stage.inputs if path not in made)
        if not paths or not all(path.exists() for path in paths):
            return None
        return fingerprint(*map(content, paths))

    def score_key(self, table: Scored) -> str:
        """A fingerprint of the settings on which stored scores depend, in addition to the runs."""
        told = {"values", "trees", "perplexity"}
        commands = [one.run for one in self.recipe.commands.values() if one.before == "score"]
        score = self.recipe.score.model_dump(exclude=told, exclude_defaults=True)
        return fingerprint(str(table), score, self.recipe.baseline, *filter(None, [commands]))


def _after_earlier_kinds(stage: Stage, others: Iterable[Stage]) -> Stage:
    """The stage of a command, which waits for all others of its run, or of all runs, that are of earlier kinds."""
    kind = KINDS.index(stage.kind)
    beside = (other for other in others if stage.run is None or other.run in (None, stage.run))
    return replace(stage, after=tuple(other.name for other in beside if KINDS.index(other.kind) < kind))
