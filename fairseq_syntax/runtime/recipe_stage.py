"""The stage of a recipe that a training is, which its checkpoints and its log tell."""

from __future__ import annotations

import re

# In the environment of a recipe's training: the fingerprint of its stage, which its checkpoints record.
STAGE_VARIABLE = "FAIRSEQ_SYNTAX_STAGE"
_STARTS = re.compile(r"\bstage (\w+) of a recipe, from update (\d+)$", re.MULTILINE)


def start_of_stage(stage: str, update: int) -> str:
    """The line of a training's log with which a stage, by its fingerprint, starts or resumes."""
    return f"stage {stage} of a recipe, from update {update}"


def starts_in(log: str) -> list[tuple[str, int]]:
    """The stages and updates of all lines of :func:`start_of_stage` in a log."""
    return [(stage, int(update)) for stage, update in _STARTS.findall(log)]
