"""Execution of a recipe: running stages, scoring finished runs, stored results."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.layout import Run, Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.report import Results
from fairseq_syntax.lab.recipes.runner import Runner, environment
from fairseq_syntax.lab.recipes.stages import KINDS, Stage
from fairseq_syntax.lab.scoring.logs import read_curves
from fairseq_syntax.lab.scoring.outputs import read_translations
from fairseq_syntax.runtime.files import atomic_open, make_folder, read_lines
from fairseq_syntax.runtime.jobs import read_record

logger = logging.getLogger(__name__)


class Work:
    """Executes a recipe: runs its stages, scores finished runs, and collects and stores their results.

    ``only`` names systems or runs, and ``to`` the last kind of stage to make; a recipe without systems ends with the
    binarized data.
    """

    def __init__(
        self,
        plan: Plan,
        only: Collection[str] | None = None,
        seeds: Collection[int] | None = None,
        to: str = "report",
    ) -> None:
        self.plan = plan
        self.to = to if plan.recipe.systems else min(to, "binarize", key=KINDS.index)
        self.chosen = plan.chosen(only, seeds)
        self.kept_file = plan.place(plan.recipe.kept) if plan.recipe.kept else None
        self.kept = Kept.read(self.kept_file)
        self.variables = environment(plan.recipe.threads, plan.recipe.env)

    # ------------------------------------------------------------------------------------------- existing results

    @cached_property
    def text_key(self) -> str | None:
        """The fingerprint of the recipe's text, as :meth:`.plan.Plan.text_key`."""
        return self.plan.text_key()

    @cached_property
    def kept_runs(self) -> list[Run]:
        """The runs with stored results for the recipe's current settings."""
        return [run for run in self.plan.runs if self._is_kept(run)]

    @property
    def replaced(self) -> list[Run]:
        """The chosen runs whose models and translations stored results replace; none if only data are requested."""
        if KINDS.index(self.to) < KINDS.index("train"):
            return []
        return [run for run in self.chosen if run in self.kept_runs]

    @property
    def unused(self) -> list[Run]:
        """The chosen runs whose stored results were made with other settings, tests or text."""
        return [run for run in self.chosen if str(run) in self.kept.runs and run not in self.kept_runs]

    def unscored(self, runs: Collection[Run]) -> list[Run]:
        """Those of the runs that cannot be scored, because stored runs to compare them with have no translations."""
        have_translations = (self.kept.runs[str(run)]["outputs"] or self._is_made(run) for run in self.kept_runs)
        if all(have_translations):
            return []
        # Runs are only scored together. So the stored tables stay as they are, with the runs that are in them.
        tables = [table for table in self.plan.tables() if self._kept_report(table) is not None]
        in_tables = {name for table in tables for name in self.kept.scores[str(table)]["runs"]}
        return [run for run in runs if str(run) not in in_tables]

    def _is_kept(self, run: Run) -> bool:
        entry = self.kept.runs.get(str(run))
        if entry is None or entry["key"] != self.plan.key(run):
            return False
        if not self._is_current(entry):
            return False
        # The key has the tests by their place, not by name. Some older results are without translations.
        names = [name for name in entry["outputs"] if name in self.plan.tests]
        return not entry["outputs"] or names == self.plan.tests

    def _is_current(self, entry: Mapping[str, Any]) -> bool:
        """Whether a stored result is of the text that is here, and of the checkpoint; what is unknown is taken as such.

        Neither is part of the key: the text may be elsewhere, and older results do not name the checkpoint.
        """
        here = {"text": self.text_key, "checkpoint": self.plan.recipe.translate.checkpoint}
        return all(None in (value, entry.get(name)) or value == entry[name] for name, value in here.items())

    def finished(self) -> list[Run]:
        """The runs whose translations are stored, or exist and belong to the recipe's current settings."""
        return [run for run in self.plan.runs if run in self.kept_runs or self._is_made(run)]

    def _is_made(self, run: Run) -> bool:
        """Whether the translations of a run were made here, with the recipe's current settings.

        A checkpoint of earlier settings, and with it the translations, remains until the run is made again.
        """
        translations = self.plan.translations(run)
        if not all(stage.is_done() for stage in translations):
            return False
        last = KINDS.index("translate")
        beside = {stage.name for stage in self.plan.trees(run)}
        before = [stage for stage in self.plan.stages([run]) if KINDS.index(stage.kind) <= last]
        # A change in the corpus's folder, to which readers of other languages may write, is not one of its text yet.
        return not any(stage.is_stale() for stage in before if not stage.listed and stage.name not in beside)

    def stages(self) -> list[Stage]:
        """The stages up to the translations of the chosen runs, except for those that stored results replace."""
        runs = [run for run in self.chosen if run not in self.replaced]
        stages = self.plan.stages(runs)
        # If all translations are stored, only the data for scoring are needed, such as references, but not parses and
        # pieces that only models read.
        if not runs and self.chosen:
            wanted: set[Path | str] = set()
            for score in self.scores(self.plan.runs):
                wanted |= set(score.inputs).difference(score.reads)
            # Backwards, so that a stage's inputs are requested before the stage that makes them is reached.
            for stage in reversed(stages):
                if wanted.isdisjoint((stage.name, *stage.outputs)):
                    stages.remove(stage)
                else:
                    wanted |= {*stage.inputs, *stage.after}
        return self._wanted(stages)

    def scores(self, finished: Sequence[Run]) -> list[Stage]:
        """The stages that score the finished runs."""
        return [stage for table in self.plan.tables() if (stage := self.plan.score(table, finished))]

    def all_stages(self) -> list[Stage]:
        """All stages, as if all runs were finished."""
        return self._wanted([*self.stages(), *self.scores(self.plan.runs)])

    def _wanted(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages up to the last requested kind."""
        return [stage for stage in stages if KINDS.index(stage.kind) <= KINDS.index(self.to)]

    # -------------------------------------------------------------------------------------------------------- work

    def run(self, runner: Runner) -> list[str]:
        """Run the unfinished stages, and return the names of those that failed."""
        failed = runner.run(self.stages())
        scores = self._wanted(self.scores(self.finished()))
        for run in self.kept_runs if scores else ():
            self._restore(run)
        return failed + runner.run([stage for stage in scores if not stage.missing()])

    def _restore(self, run: Run) -> None:
        """Write the stored translations of a run to their usual files, unless they were made here."""
        if self._is_made(run):
            return
        outputs = self.kept.runs[str(run)]["outputs"]
        for table, path in self.plan.outputs(run).items():
            if str(table) in outputs:  # existing files may belong to earlier settings of the recipe
                make_folder(path.parent)
                with atomic_open(path) as file:
                    file.writelines(f"{line}\n" for line in outputs[str(table)])

    def results(self) -> Results:
        """The results to report, of runs finished here and of stored ones."""
        finished = self.finished()
        results = Results({}, {}, list(self.kept.environments), unscored=self.unscored(finished))
        for table in self.plan.tables():
            stage = self.plan.score(table, finished)
            if stage is not None and stage.is_done():
                results.reports[table] = json.loads(self.plan.score_file(table).read_text(encoding="utf-8"))
            elif (report := self._kept_report(table)) is not None:
                results.reports[table] = report
        for run in finished:
            log, is_kept = self.plan.model(run) / "train.log", run in self.kept_runs
            # A stored run's folder may contain a model of other settings.
            if not is_kept or self._is_made(run):
                if not self.plan.train(run).log_is_its_own():
                    logger.warning("%s is not the log of its training: the report is without its figures", log)
                elif log.exists():
                    results.curves[run] = read_curves(log)
            results.facts[run] = self.kept.runs[str(run)]["facts"] if is_kept else self._facts(run, results)
        return results

    def _kept_report(self, table: Scored) -> Mapping[str, Any] | None:
        """The stored scores of a table, unless its scoring, its baseline or one of its runs has changed since."""
        entry = self.kept.scores.get(str(table))
        keys = {str(run): self.plan.key(run) for run in self.kept_runs}
        if entry is None or entry["key"] != self.plan.score_key(table) or not entry["runs"].items() <= keys.items():
            return None
        if not self._is_current(entry):
            return None
        report: Mapping[str, Any] = entry["report"]
        # The key does not have the baseline of a variant.
        return report if report.get("baseline") in (None, self.plan.baseline_of(table)) else None

    def _facts(self, run: Run, results: Results) -> dict[str, Any]:
        """Facts about a run in addition to its scores: seconds by kind of stage, commands, and values by name.

        Values of stages that failed, or have not run yet, are left out. The hardware is added to ``results``, which
        already contains the run's curves.
        """
        makers = {path: stage for stage in self.plan.stages([run]) for path in stage.outputs}

        def is_made(path: Path) -> bool:
            return path not in makers or makers[path].is_done()

        score = self.plan.recipe.score
        seconds: dict[str, float] = {}
        commands: list[str] = []
        values: dict[str, float] = {}
        for stage in self.plan.of_run(run):
            note = (read_record(stage.stamp) or {}).get("note") or {}
            seconds[stage.kind] = round(seconds.get(stage.kind, 0.0) + note.get("seconds", 0.0), 1)
            commands += note.get("commands", [])
            if (machine := note.get("hardware")) and machine not in results.environments:
                results.environments.append(machine)
        for test in self.plan.tests if run.system in score.trees else ():
            if is_made(path := self.plan.tree_scores(run, test)):
                values[f"UAS, {test}"] = 100 * number_in(path, "UAS.f1")
        if score.perplexity and (points := results.curves.get(run, {}).get("valid", {}).get("ppl")):
            values["perplexity, valid"] = points[-1][1]
        for name, value in score.values.items():
            path = self.plan.place(value.file, run)
            if (value.systems is None or run.system in value.systems) and is_made(path):
                values[name] = number_in(path, value.key)
        text = self.plan.text("train", self.plan.langs[0])
        pairs = {"pairs": sum(1 for _ in read_lines(text))} if text.exists() else {}
        return {"seconds": seconds, "commands": commands, "values": values, **pairs}

    def keep(self, results: Results) -> Path:
        """Add results to the recipe's file of stored results, which the recipe must name."""
        assert self.kept_file is not None, "the recipe has no `kept`"
        kept = Kept(environments=list(results.environments))
        about = {
            "checkpoint": self.plan.recipe.translate.checkpoint,
            **({"text": self.text_key} if self.text_key else {}),
        }
        for run, facts in results.facts.items():
            if run in self.kept_runs:
                kept.runs[str(run)] = self.kept.runs[str(run)]
            else:
                outputs = {str(table): read_translations(path).lines for table, path in self.plan.outputs(run).items()}
                entry = {"run": str(run), "key": self.plan.key(run), "outputs": outputs, "facts": facts}
                kept.runs[str(run)] = {**entry, **about}
        for table, report in results.reports.items():
            names = [system["name"] for system in report["systems"]]
            keys = {str(run): self.plan.key(run) for run in results.facts if run.system in names}
            entry = {"table": str(table), "key": self.plan.score_key(table), "runs": keys, "report": report, **about}
            before = self.kept.scores.get(str(table))
            # A stored report is of the runs that it names, even if more are finished now.
            kept.scores[str(table)] = before if before and before["report"] is report else entry
        self._add_newer(kept)
        kept.write(self.kept_file)
        return self.kept_file

    def _add_newer(self, kept: Kept) -> None:
        """Add what another process, or version control, has put into the file since this work began."""
        newer = Kept.read(self.kept_file)
        kept.environments += [one for one in newer.environments if one not in kept.environments]
        of_runs = {str(run): self.plan.key(run) for run in self.plan.runs}
        of_tables = {str(table): self.plan.score_key(table) for table in self.plan.tables()}
        for name, entry in self._with_keys(newer.runs, of_runs).items():
            kept.runs.setdefault(name, entry)
        for name, entry in self._with_keys(newer.scores, of_tables).items():
            kept.scores.setdefault(name, entry)

    def _with_keys(self, entries: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
        """Those of stored entries that are of the recipe's current settings, whose keys are given by name."""
        return {
            name: entry for name, entry in entries.items() if entry["key"] == keys.get(name) and self._is_current(entry)
        }


def number_in(path: Path, key: str) -> float:
    """A number in a JSON file. Raises SyntaxDataError if it is missing."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        for part in key.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        return float(value)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise SyntaxDataError(f"there is no value {key} ({type(error).__name__}: {error})", path=path) from error
