"""Results stored with a recipe in one ``.jsonl.gz``: translations, scores, and facts about each run.

A line is ``{"kind": "run", "run", "key", "outputs", "facts", …}``, ``{"kind": "scores", "table", "key", "runs",
"report", …}`` or ``{"kind": "environment", "environment"}``. The key of a run is :meth:`.plan.Plan.key`, a fingerprint
of the recipe's settings for its training and translations; scores record the keys of their runs. Both also have
``text``, which is :meth:`.plan.Plan.text_key`, and ``checkpoint``, the recipe's `translate.checkpoint`, if they are
known. Results with another key belong to other settings, and those with another text or checkpoint to others; all are
ignored.
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
    """The content of a file: the lines of runs by ``SYSTEM/SEED``, those of scores by table, and the environments."""

    runs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    scores: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    environments: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> Kept:
        """Read a file; empty if it does not exist. Raises SyntaxDataError if it is not a file of results."""
        kept = cls()
        for number, line in enumerate(read_lines(path) if path is not None and _is_there(path) else (), start=1):
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
        """Write everything; equal content gives equal bytes."""
        make_folder(path.parent)
        entries = [{"kind": "environment", "environment": one} for one in self.environments]
        entries += [{**one, "kind": "run"} for one in self.runs.values()]
        entries += [{**one, "kind": "scores"} for one in self.scores.values()]
        with atomic_open(path) as file:  # compresses without a timestamp
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def _is_there(path: Path) -> bool:
    """Whether there is anything to read, which may fail, as for a loop of links; for ``Path.exists`` it is missing."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
