"""The plan of a recipe: its stages and the keys of its results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fairseq_syntax.lab.recipes import model_stages
from fairseq_syntax.lab.recipes.data_stages import data_stages
from fairseq_syntax.lab.recipes.layout import Layout, Run, Scored
from fairseq_syntax.lab.recipes.schema import Command as OwnCommand
from fairseq_syntax.lab.recipes.stages import KINDS, Command, Free, Stage
from fairseq_syntax.runtime.files import fingerprint


class Plan(Layout):
    """The stages of a recipe; arguments as in :class:`.layout.Layout`."""

    def stages(self, runs: Iterable[Run]) -> list[Stage]:
        """The stages up to the translations of the given runs, in an executable order."""
        runs = list(runs)
        parses = {self.recipe.systems[run.system].parse for run in runs}
        stages = data_stages(self, [name for name in self.recipe.parse.controls if name in parses])
        for run in runs:
            stages += self.of_run(run)
        return self._with_commands(stages, runs)

    def of_run(self, run: Run) -> list[Stage]:
        """The stages of a run: training, translations and trees."""
        return [
            model_stages.train(self, run),
            *model_stages.translations(self, run),
            *model_stages.trees(self, run),
        ]

    def score(self, table: Scored, finished: Collection[Run]) -> Stage | None:
        """The stage that scores all finished runs; None if there are none."""
        return model_stages.score(self, table, finished)

    def key(self, run: Run) -> str:
        """A fingerprint of the settings in the recipe on which the results of a run depend.

        Recipes with equal settings share results. Unlike that of a stage, the key does not depend on the content of
        files, because results are stored without the corpus.
        """
        recipe, system = self.recipe, self.recipe.systems[run.system]
        corpus = recipe.corpus.model_dump(
            exclude={"data", "download", "train", "valid", "tests"}, exclude_defaults=True
        )
        parse = recipe.parse.model_dump(exclude={"controls": {"__all__": {"about"}}}, exclude_defaults=True)
        for side in ("source", "target"):
            parse.get(side, {}).pop("models", None)
        parse["controls"] = parse.get("controls", {}).get(system.parse)
        commands = [
            # Without paths and words that do not affect results, which have other types.
            [word for word in command.words if type(word) is str]
            for stage in (model_stages.train(self, run), *model_stages.translations(self, run))
            for command in stage.commands
        ]
        pieces = recipe.pieces.model_dump(exclude_defaults=True)
        once = [one for one in recipe.commands.values() if one.each == "once" and one.before not in ("score", "report")]
        of_run = [one for one in recipe.commands.values() if one.is_of(run.system)]
        # only if present, because older results were stored before recipes had commands and an environment
        more = [one for one in ([one.run for one in once + of_run], recipe.env) if one]
        return fingerprint(corpus, parse, pieces, system.parse, commands, *more)

    def score_key(self, table: Scored) -> str:
        """A fingerprint of the settings on which stored scores depend, in addition to the runs."""
        told = {"values", "trees", "perplexity"}
        commands = [one.run for one in self.recipe.commands.values() if one.before == "score"]
        score = self.recipe.score.model_dump(exclude=told, exclude_defaults=True)
        return fingerprint(str(table), score, self.recipe.baseline, *filter(None, [commands]))

    def _with_commands(self, stages: Sequence[Stage], runs: Sequence[Run]) -> list[Stage]:
        """Insert the recipe's own commands, each before the stages of the kind that it names."""
        added = []
        for name, command in self.recipe.commands.items():
            its_runs = [run for run in runs if command.is_of(run.system)] if command.each == "run" else [None]
            added += [self._of_command(name, command, run) for run in its_runs]
        # A command runs after all stages of earlier kinds.
        for number, stage in enumerate(added):
            beside = [other for other in (*stages, *added) if stage.run is None or other.run in (None, stage.run)]
            earlier = [other.name for other in beside if KINDS.index(other.kind) < KINDS.index(stage.kind)]
            added[number] = replace(stage, after=tuple(earlier))
        ordered: list[Stage] = []
        for stage in stages:
            # It waits for them even if its inputs do not include their outputs, which may occur inside an option.
            first = [other for other in added if other.kind == stage.kind and other.run in (None, stage.run)]
            ordered += [other for other in first if other not in ordered]
            ordered.append(replace(stage, after=(*stage.after, *(other.name for other in first))))
        return ordered + [stage for stage in added if stage not in ordered]

    def _of_command(self, name: str, command: OwnCommand, run: Run | None) -> Stage:
        """The stage of a command of the recipe; for a command that is executed per run, the stage for ``run``."""
        of = None if run is None else str(run)
        return self.stage(
            command.before,
            name if of is None else f"{name} {of}",
            [Command(["bash", "-euo", "pipefail", "-c", Free(self.filled(command.run, run))])],
            [self.place(text, run) for text in command.outputs],
            reads=tuple(self.place(text, run) for text in command.inputs),
            run=of,
            about=(command.run, of or ""),
        )
