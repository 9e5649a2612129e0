"""Results that are kept with a recipe: translations, scores and what is to be told of each run, in one ``.jsonl.gz``.

A line is ``{"kind": "run", "run", "key", "outputs", "facts"}``, ``{"kind": "scores", "table", "key", "runs",
"report"}`` or ``{"kind": "environment", "environment"}``. A run's key is :meth:`.plan.Plan.key`, of all that the recipe
says of how it was trained and translated; results with another key are of another recipe, and are not read. The scores
name the keys of the runs that they are of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open, make_folder, read_lines


@dataclass
class Kept:
    """What a file holds.

    Attributes:
        runs: by ``SYSTEM/SEED``: its line
        scores: by table: its line
        environments: hardware and versions, in the order of their use
    """

    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    environments: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> Kept:
        """Reads a file; nothing where there is none. Raises SyntaxDataError for another file."""
        kept = cls()
        for number, line in enumerate(read_lines(path) if path is not None and path.exists() else (), start=1):
            try:
                entry = json.loads(line)
                if entry["kind"] == "run":
                    kept.runs[entry["run"]] = entry
                elif entry["kind"] == "scores":
                    kept.scores[entry["table"]] = entry
                else:
                    kept.environments.append(entry["environment"])
            except (ValueError, KeyError, TypeError) as error:
                raise SyntaxDataError("is not a result of a recipe", path=path, line=number) from error
        return kept

    def write(self, path: Path) -> None:
        """Writes all of it; the same content gives the same bytes."""
        make_folder(path.parent)
        entries = [{"kind": "environment", "environment": one} for one in self.environments]
        entries += [{**one, "kind": "run"} for one in self.runs.values()]
        entries += [{**one, "kind": "scores"} for one in self.scores.values()]
        with atomic_open(path) as file:  # which compresses without a time
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
