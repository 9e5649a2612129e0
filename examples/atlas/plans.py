"""What the recipes of the atlas have, of which the tables say how much has been run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_syntax.lab.recipes.layout import Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.running import Work

HERE = Path(__file__).resolve().parent
LANGUAGES = ("libreoffice", *(f"libreoffice-{language}" for language in ("fr", "hu", "tr", "zh_cn", "ja")))
TUNED = tuple(name.replace("libreoffice", "tuned") for name in LANGUAGES)  # the main comparison
TUNED_OTHERS = "tuned-others"  # of the first language
BASELINES = {"German": "baseline", "Japanese": "baseline-ja"}

# The number of seeds of each system, by corpus.
Planned = Mapping[str, Mapping[str, int]]


def planned_seeds(*recipes: str) -> dict[str, dict[str, int]]:
    """The seeds of the recipes' systems, by the name of the recipe."""
    read = [load_recipe(HERE / f"{name}.yaml") for name in recipes]
    return {str(recipe.name): dict.fromkeys(recipe.systems, len(recipe.seeds)) for recipe in read}


def seeds_of_recipes(*recipes: str) -> dict[str, Sequence[int]]:
    """The seeds of recipes, by their names."""
    return {str(recipe.name): recipe.seeds for recipe in (load_recipe(HERE / f"{name}.yaml") for name in recipes)}


def systems_in(names: Sequence[str] | Mapping[str, int], baseline: str) -> dict[str, list[str]]:
    """The systems beside a baseline, ``BASELINE+SYSTEM``, each with its control parses, ``BASELINE+SYSTEM.CONTROL``."""
    found: dict[str, list[str]] = {}
    for name in names:
        system, _, control = name.removeprefix(f"{baseline}+").rpartition(".")
        if name.startswith(f"{baseline}+"):
            if f"{baseline}+{system}" in names:
                found.setdefault(system, []).append(control)
            else:
                found.setdefault(name.removeprefix(f"{baseline}+"), [])
    return found


def systems_of(recipe: str) -> list[str]:
    """The systems of a recipe."""
    return list(load_recipe(HERE / f"{recipe}.yaml").systems)


def validated(recipe: str) -> dict[str, Mapping[str, float]]:
    """The scores of a recipe's systems on the validation set, as they are kept."""
    path = HERE / f"{recipe}.yaml"
    report = Work(Plan(load_recipe(path), path)).results().reports.get(Scored("validation"), {"systems": []})
    return {system["name"]: system["mean"] for system in report["systems"]}


def setting(recipe: str, system: str) -> list[str]:
    """Positions, dropout, rate and number of updates of a system."""
    read = load_recipe(HERE / f"{recipe}.yaml")
    options = {**read.train, **read.systems[system].train}
    positions = read.systems[system].about or "relative, and sinusoids"
    return [positions, *(str(options[name]) for name in ("dropout", "lr", "max-update"))]
