"""What a report says first: which system is ahead, by how much, whether that can be told, and what was run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import as_yaml, load_recipe, written_in
from fairseq_syntax.lab.recipes.schema import ParseSide, Recipe
from fairseq_syntax.lab.recipes.smoke import smoke
from fairseq_syntax.lab.scoring.names import LOWER_IS_BETTER, is_too_low, too_low
from fairseq_syntax.lab.scoring.tables import number

# What a result does not depend on.
_ELSEWHERE = (
    "extends",
    "name",
    "about",
    "folder",
    "page",
    "kept",
    "published",
    "threads",
    "workers",
    "score",
    "device",
)
_IN_SCORES = ("score.tokenize", "score.lowercase")
_PLACES = ("corpus.data", "corpus.download", "parse.source.models", "parse.target.models")
_MOST_CHANGES = 8  # that are named


def significance(entry: Mapping[str, Any], metric: str) -> str:
    """Whether a system's gain is significant: ``yes``, ``yes, worse`` or ``no``; ``–`` if it was not tested."""
    tests = entry.get("tests", {}).get(metric, {})
    p = tests.get("holm", {}).get("bootstrap")
    if p is None or p >= 0.05:
        return "–" if p is None else "no"
    return "yes, worse" if (tests["difference"] < 0) is not (metric in LOWER_IS_BETTER) else "yes"


def leader(report: Mapping[str, Any], metric: str, baseline: str) -> str | None:
    """The best system apart from the baseline; None if there is no other, or no baseline."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    scores = {one["name"]: sign * one["mean"][metric] for one in report["systems"] if metric in one["mean"]}
    others = [name for name in scores if name != baseline]
    return max(others, key=scores.__getitem__) if others and baseline in scores else None


def sentence(report: Mapping[str, Any], metric: str, baseline: str, test: str) -> str:
    """Which system is ahead on a test set, by how much, and whether it can be told apart from the baseline."""
    name = leader(report, metric, baseline)
    if name is None:
        return ""
    entries = {one["name"]: one for one in report["systems"]}
    score, base = (entries[one]["mean"][metric] for one in (name, baseline))
    of_both = f"{name} has {number(score)} {metric} on {test}, {baseline} {number(base)}"
    if is_too_low(report, metric):
        return f"{of_both}. {too_low(metric)}."
    better, difference = (score > base) is not (metric in LOWER_IS_BETTER), abs(score - base)
    best = "the best system beside the baseline" if len(entries) > 2 else "the system"
    verdict = significance(entries[name], metric)
    seeds = sorted({len(entries[one]["runs"]) for one in (name, baseline)})
    of_seeds = f"{seeds[0]} seed{'s' * (seeds[0] > 1)}"
    told = {"–": "this was not tested", "no": "which is not significant"}.get(verdict, "which is significant")
    text = f"{of_both}: {best} is {difference:.2f} {'better' if better else 'worse'}, {told} ({of_seeds})."
    mdd = entries[name].get("tests", {}).get(metric, {}).get("detectable")
    if verdict == "no" and mdd is not None:
        text += f" This test would detect a difference of {mdd:.2f} four times in five."
    if seeds[0] == 1 and verdict != "–":
        text += " One seed says nothing of other seeds."
    return text


# ------------------------------------------------------------------------------------------------------ what was run


def pairs_of(facts: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of training pairs that all runs have; None if it differs or is not known."""
    counts = {one.get("pairs") for one in facts}
    return counts.pop() if len(counts) == 1 else None


def caption(plan: Plan, pairs: int | None, seeds: Sequence[int]) -> str:
    """Training pairs, parsers and seeds: ``2,500 training pairs, en parsed by stanza, seeds 1, 2``."""
    parts = [] if pairs is None else [f"{pairs:,} training pairs"]
    parts += [f"{lang} {parsed_by(side)}" for lang, side in plan.sides().items()]
    numbers = ", ".join(map(str, seeds))
    return ", ".join([*parts, *([f"seed{'s' * (len(seeds) > 1)} {numbers}"] if seeds else [])])


def parsed_by(side: ParseSide) -> str:
    """Who parsed a side."""
    return "with given parses" if side.files else f"parsed by {side.parser.rpartition('.')[2]}"


@dataclass(frozen=True)
class Changes:
    """What differs from a recipe as it stands in a file: ``KEY=VALUE``, which ``--set`` takes."""

    file: str
    values: Sequence[str]
    published: bool

    def __str__(self) -> str:
        named = ", ".join(self.values[:_MOST_CHANGES])
        more = len(self.values) - _MOST_CHANGES
        return named + (f" and {more} more" if more > 0 else "")


def changes(plan: Plan) -> Changes:
    """How the settings that results depend on differ from the file that has the published figures, or the recipe's.

    These are changed by ``--set`` and ``--smoke``, and by a recipe that extends a paper's.
    """
    place = plan.path
    try:
        if plan.recipe.published:
            place = written_in(plan.path, "published")
        before = load_recipe(place)
    except (SyntaxDataError, OSError):  # the recipe was not read from a file, or it has been changed since
        return Changes(place.name, (), False)
    return Changes(place.name, _differing(before, plan.recipe), bool(plan.recipe.published))


def _differing(before: Recipe, after: Recipe) -> list[str]:
    """The settings of a recipe that results depend on and that another one does not have, as ``KEY=VALUE``."""
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key) and key not in _PLACES]
    return [
        f"{key}={as_yaml(new.get(key))}" for key in keys if key.partition(".")[0] not in _ELSEWHERE or key in _IN_SCORES
    ]


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; empty ones are left out."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": one for inner, one in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def told(plan: Plan) -> Iterator[str]:
    """Notes on how the run differs from the recipe."""
    if (changed := changes(plan)).values:
        yield f"differs from {changed.file}: {changed}"


def command(plan: Plan) -> str:
    """The command that wrote a report, with all settings that were changed on the command line."""
    words = ["fairseq-syntax", "run", plan.path.name]
    try:
        written = load_recipe(Path(plan.path))
    except (SyntaxDataError, OSError):
        return shlex.join(words)
    if plan.recipe.name == (small := smoke(written)).name:
        written, words = small, [*words, "--smoke"]
    changed = _differing(written, plan.recipe)
    return shlex.join([*words, *(["--set", *changed] if changed else [])])
