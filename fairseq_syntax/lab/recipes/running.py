"""A recipe from its plan to its report: what is kept, what is made, what is scored."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.environment import environment as hardware
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.layout import Run, Table, located
from fairseq_syntax.lab.recipes.model_stages import translations
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.report import Results, write_report
from fairseq_syntax.lab.recipes.runner import Runner, environment
from fairseq_syntax.lab.recipes.stages import KINDS, Stage, ancestors, dependencies
from fairseq_syntax.lab.scoring.logs import read_curves
from fairseq_syntax.lab.scoring.outputs import read_translations
from fairseq_syntax.runtime.files import atomic_open, fingerprint, make_folder, write_json
from fairseq_syntax.runtime.jobs import read_record


class Work:
    """The work of one recipe.

    Args:
        plan: its stages
        only, seeds: the systems or runs, and seeds, that are to be made (default: all)
        to: the last kind of stage that is
    """

    def __init__(
        self,
        plan: Plan,
        only: Collection[str] | None = None,
        seeds: Collection[int] | None = None,
        to: str = "report",
    ) -> None:
        self.plan, self.to = plan, to
        self.chosen = plan.chosen(only, seeds)
        self.kept_file = located(plan.recipe.kept, plan.base) if plan.recipe.kept else None
        self.kept = Kept.read(self.kept_file)
        self.variables = environment(plan.recipe.threads, plan.recipe.env)

    # ------------------------------------------------------------------------------------------------ what is there

    @cached_property
    def kept_runs(self) -> list[Run]:
        """Runs whose results are kept, as the recipe stands."""
        return [run for run in self.plan.runs if self.kept.runs.get(str(run), {}).get("key") == self.plan.key(run)]

    def finished(self) -> list[Run]:
        """Runs whose translations are there."""
        there = []
        for run in self.plan.runs:
            if run in self.kept_runs or all(stage.is_done() for stage in translations(self.plan, run)):
                there.append(run)
        return there

    def stages(self) -> list[Stage]:
        """The stages up to the translations that are asked for, but for runs that are kept."""
        runs = [run for run in self.chosen if run not in self.kept_runs]
        stages = self.plan.stages(runs)
        if not runs:  # what scores are made from, and no more
            needs = dependencies(stages)
            wanted = {path for table in self.plan.tables() for path in self._of_the_test(table)}
            names = {stage.name for stage in stages if not wanted.isdisjoint(stage.outputs)}
            named = ancestors(names, needs)
            stages = [stage for stage in stages if stage.name in named]
        return [stage for stage in stages if KINDS.index(stage.kind) <= KINDS.index(self.to)]

    def _of_the_test(self, table: Table) -> list[Path]:
        """What a table's scores are made from, but for the translations."""
        stage = self.plan.score(table, self.plan.runs)
        return [] if stage is None else [path for path in stage.inputs if path not in stage.reads]

    def scores(self, finished: Sequence[Run] | None = None) -> list[Stage]:
        """The stages that score what is finished."""
        finished = self.finished() if finished is None else finished
        made = (self.plan.score(table, finished) for table in self.plan.tables())
        return [stage for stage in made if stage is not None]

    def all_stages(self) -> list[Stage]:
        """All of them, as if all runs were finished."""
        scores = self.scores(self.plan.runs) if self.to in ("score", "report") else []
        return [*self.stages(), *scores]

    # -------------------------------------------------------------------------------------------------------- work

    def run(self, runner: Runner) -> list[str]:
        """Make what is not made yet.

        Returns:
            names of the stages that failed
        """
        self._remember_environment()
        failed = runner.run(self.stages())
        if self.to not in ("score", "report"):
            return failed
        finished = self.finished()
        self.restore(finished)
        return failed + runner.run([stage for stage in self.scores(finished) if not stage.missing()])

    def restore(self, finished: Sequence[Run]) -> None:
        """Write the translations of kept runs where they would be."""
        for run in finished:
            entry = self.kept.runs.get(str(run), {})
            if run not in self.kept_runs:
                continue
            for table, path in self.plan.outputs(run).items():
                lines = entry["outputs"].get(str(table))
                if lines is not None and not path.exists():
                    make_folder(path.parent)
                    with atomic_open(path) as file:
                        file.writelines(f"{line}\n" for line in lines)

    def report(self) -> tuple[Path, Path]:
        """Write report.md and report.html from what is there. Raises SyntaxDataError where there are no results."""
        results = self.results()
        if not results.reports:
            hint = "run the recipe first"
            raise SyntaxDataError("there are no results yet", path=self.plan.folder, hint=hint)
        return write_report(self.plan, results)

    def results(self) -> Results:
        """What is known of the recipe's runs."""
        finished = self.finished()
        reports: dict[Table, Mapping[str, Any]] = {}
        for table in self.plan.tables():
            stage = self.plan.score(table, finished)
            entry = self.kept.scores.get(str(table))
            if stage is not None and stage.is_done():
                reports[table] = json.loads(self.plan.score_file(table).read_text(encoding="utf-8"))
            elif entry is not None and entry["key"] == self.score_key(table) and self._holds(entry):
                reports[table] = entry["report"]
        facts = {run: self.facts(run) for run in finished}
        curves = {}
        for run in finished:
            log = self.plan.model(run) / "train.log"
            if log.exists():
                curves[run] = read_curves(log)
        return Results(reports, facts, [*self.kept.environments, *self._environments()], curves)

    def _holds(self, entry: Mapping[str, Any]) -> bool:
        """Whether kept scores are of runs as the recipe has them now."""
        runs = {str(run): run for run in self.plan.runs}
        return all(name in runs and self.plan.key(runs[name]) == key for name, key in entry["runs"].items())

    def score_key(self, table: Table) -> str:
        """What kept scores depend on beside the runs."""
        score = self.plan.recipe.score
        told = {"values", "trees", "perplexity"}
        return fingerprint(str(table), score.model_dump(exclude=told, exclude_defaults=True), self.plan.recipe.baseline)

    def facts(self, run: Run) -> dict[str, Any]:
        """What is told of a run beside its scores: seconds and commands by kind of stage, and values."""
        if run in self.kept_runs:
            return dict(self.kept.runs[str(run)]["facts"])
        recipe = self.plan.recipe
        facts: dict[str, Any] = {"seconds": {}, "commands": [], "values": {}}
        for stage in self.plan.of_run(run):
            note = (read_record(stage.stamp) or {}).get("note") or {}
            before = facts["seconds"].get(stage.kind, 0.0)
            facts["seconds"][stage.kind] = round(before + note.get("seconds", 0.0), 1)
            facts["commands"] += note.get("commands", [])
        if run.system in recipe.score.trees:
            for test in self.plan.tests:
                found = json.loads(self.plan.tree_scores(run, test).read_text(encoding="utf-8"))
                facts["values"][f"UAS, {test}"] = 100 * found["UAS"]["f1"]
        if recipe.score.perplexity:
            log = self.plan.model(run) / "train.log"
            points = read_curves(log).get("valid", {}).get("ppl") if log.exists() else None
            if points:
                facts["values"]["perplexity, valid"] = points[-1][1]
        for name, value in recipe.score.values.items():
            if value.systems is None or run.system in value.systems:
                facts["values"][name] = number_in(self.plan.place(value.file, run), value.key)
        return facts

    def keep(self) -> Path:
        """Put the results into the recipe's file of kept results. Raises SyntaxDataError where it names none."""
        if self.kept_file is None:
            raise SyntaxDataError("the recipe has no `kept`", path=self.plan.path, hint="kept: results.jsonl.gz")
        results, kept = self.results(), Kept()
        kept.environments = list({fingerprint(one): one for one in results.environments}.values())
        for run, facts in results.facts.items():
            outputs = {
                str(table): read_translations(path).lines
                for table, path in self.plan.outputs(run).items()
                if path.exists()
            }
            outputs = outputs or self.kept.runs.get(str(run), {}).get("outputs", {})
            kept.runs[str(run)] = {
                "kind": "run",
                "run": str(run),
                "key": self.plan.key(run),
                "outputs": outputs,
                "facts": facts,
            }
        for table, report in results.reports.items():
            names = [f"{system['name']}" for system in report["systems"]]
            runs = {str(run): self.plan.key(run) for run in results.facts if run.system in names}
            entry = {
                "kind": "scores",
                "table": str(table),
                "key": self.score_key(table),
                "runs": runs,
                "report": report,
            }
            kept.scores[str(table)] = entry
        kept.write(self.kept_file)
        return self.kept_file

    @property
    def _environment_file(self) -> Path:
        return self.plan.folder / "environments.json"

    def _environments(self) -> list[Mapping[str, Any]]:
        try:
            return list(json.loads(self._environment_file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return []

    def _remember_environment(self) -> None:
        before, now = self._environments(), hardware()
        if now not in before:
            make_folder(self.plan.folder)
            write_json(self._environment_file, [*before, now])


def number_in(path: Path, key: str) -> float:
    """A number of a JSON file. Raises SyntaxDataError where it is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for part in key.split("."):
            found = found[int(part)] if isinstance(found, list) else found[part]
        return float(found)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise SyntaxDataError(f"there is no number {key} ({type(error).__name__}: {error})", path=path) from error
