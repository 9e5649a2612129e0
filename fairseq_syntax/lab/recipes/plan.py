"""From a recipe to its stages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fairseq_syntax.lab.recipes import model_stages
from fairseq_syntax.lab.recipes.data_stages import data_stages
from fairseq_syntax.lab.recipes.layout import Layout, Run, Table
from fairseq_syntax.lab.recipes.stages import KINDS, Command, Free, Stage
from fairseq_syntax.runtime.files import fingerprint


class Plan(Layout):
    """The stages of a recipe; arguments as in :class:`.layout.Layout`."""

    def stages(self, runs: Iterable[Run]) -> list[Stage]:
        """The stages up to the translations of some runs, in an order in which they can be made."""
        runs = list(runs)
        parses = {self.recipe.systems[run.system].parse for run in runs}
        stages = data_stages(self, [name for name in self.recipe.parse.controls if name in parses])
        for run in runs:
            stages += self.of_run(run)
        return self._with_commands(stages, runs)

    def of_run(self, run: Run) -> list[Stage]:
        """A run's training, translations and trees."""
        return [
            model_stages.train(self, run),
            *model_stages.translations(self, run),
            *model_stages.trees(self, run),
        ]

    def score(self, table: Table, finished: Collection[Run]) -> Stage | None:
        """The scores of all runs that are finished; None without any."""
        return model_stages.score(self, table, finished)

    def key(self, run: Run) -> str:
        """What the results of a run depend on, as far as the recipe says it: two recipes may share results.

        By what the recipe says and not, as a stage, by the content of files: results are kept without the corpus.
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
            # Neither paths nor words without a part in the result, which are of other types.
            [word for word in command.words if type(word) is str]
            for stage in (model_stages.train(self, run), *model_stages.translations(self, run))
            for command in stage.commands
        ]
        pieces = recipe.pieces.model_dump(exclude_defaults=True)
        once = [one for one in recipe.commands.values() if one.each == "once" and one.before not in ("score", "report")]
        of_run = [one for one in recipe.commands.values() if one.is_of(run.system)]
        # only what there is: results were kept when recipes had no commands and no environment
        more = [one for one in ([one.run for one in once + of_run], recipe.env) if one]
        return fingerprint(corpus, parse, pieces, system.parse, commands, *more)

    def score_key(self, table: Table) -> str:
        """What kept scores depend on beside the runs."""
        told = {"values", "trees", "perplexity"}
        commands = [one.run for one in self.recipe.commands.values() if one.before == "score"]
        score = self.recipe.score.model_dump(exclude=told, exclude_defaults=True)
        return fingerprint(str(table), score, self.recipe.baseline, *filter(None, [commands]))

    def _with_commands(self, stages: list[Stage], runs: Sequence[Run]) -> list[Stage]:
        """The stages with the recipe's own commands, each before the stages that it says."""
        for name, one in self.recipe.commands.items():
            for run in [run for run in runs if one.is_of(run.system)] if one.each == "run" else [None]:
                of = None if run is None else str(run)
                # what comes before it in the order of kinds is there when it begins
                beside = [s for s in stages if of is None or s.run in (None, of)]
                before = [s.name for s in beside if KINDS.index(s.kind) < KINDS.index(one.before)]
                stage = self.stage(
                    one.before,
                    name if of is None else f"{name} {of}",
                    [Command(["bash", "-euo", "pipefail", "-c", Free(self.filled(one.run, run))])],
                    [self.place(text, run) for text in one.outputs],
                    reads=tuple(self.place(text, run) for text in one.inputs),
                    run=of,
                    about=(one.run, of or ""),
                    after=tuple(before),
                )
                # their inputs need not name its outputs: an option may have them in a text
                later = {s.name for s in stages if s.kind == one.before and of in (None, s.run)}
                stages = [replace(s, after=(*s.after, stage.name)) if s.name in later else s for s in stages]
                place = next((at for at, s in enumerate(stages) if s.name in later), len(stages))
                stages.insert(place, stage)
        return stages
