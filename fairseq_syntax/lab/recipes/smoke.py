"""A version of a recipe that runs in seconds: few sentences, narrow models, few updates, no parser models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq_syntax.corpus.parsing.parser import WITHOUT_MODELS
from fairseq_syntax.lab.recipes.schema import Recipe, Subset

PAIRS, FIRST, UPDATES, WIDTH, PIECES = 200, 12, 4, 32, 300
_WIDTHS = ("embed-dim", "ffn-embed-dim", "hidden-size", "out-embed-dim", "embed-path")
_LEFT_OUT = ("fp16", "bf16", "amp", "memory-efficient-fp16", "max-epoch", "update-freq", "patience", "keep-last-epochs",
             "max-update", "max-tokens")  # fmt: skip
_TRAIN = {"max-update": str(UPDATES), "max-tokens": "1000"}
_TRANSLATE = {"beam": "2", "max-len-a": None, "max-len-b": "12"}


def smoke(recipe: Recipe) -> Recipe:
    """The recipe for a smoke test: every stage and every system, with one seed."""
    small = recipe.model_copy(deep=True)
    small.name = f"{recipe.name}-smoke"
    small.folder = recipe.folder and f"{recipe.folder}-smoke"
    small.device, small.workers, small.seeds = "cpu", 1, recipe.seeds[:1]
    small.kept, small.page = None, None  # what is next to the recipe is of the recipe itself
    small.corpus.first, small.corpus.subset = FIRST, Subset(pairs=PAIRS)
    small.corpus.words, small.corpus.download, small.corpus.filter.languages = {}, False, False
    for side in filter(None, (small.parse.source, small.parse.target)):
        # a parser that needs no model, also instead of an existing parse, which covers all sentences
        side.parser, side.models, side.structured, side.files = WITHOUT_MODELS, None, False, None
        side.tokenizer = "spaces" if side.tokenizer == "spaces" else "basic"
    size = small.pieces.size or PIECES
    small.pieces.size = min(size, PIECES) if isinstance(size, int) else {k: min(n, PIECES) for k, n in size.items()}
    small.pieces.models = {}
    small.size, small.train = _cut(recipe.size), {**_cut(recipe.train), **_TRAIN}
    for system in small.systems.values():
        system.size, system.train, system.options = map(_cut, (system.size, system.train, system.options))
        system.translate.pop("fp16", None)
    if small.translate.checkpoint.startswith("average"):  # a few updates end within the first epoch
        small.translate.checkpoint = "last"
    # beam, lenpen and so on, which are not fields of the section
    small.translate.__pydantic_extra__ = {**recipe.translate.options, "fp16": None, **_TRANSLATE}
    # Files with one line per sentence belong to the whole test set.
    small.score.resamples, small.score.trials, small.score.lines, small.score.groups = 20, 20, {}, None
    small.published = [figures for figures in recipe.published if figures.lines is None]
    return small


def _cut(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace options of fairseq-train by fast ones: narrow layers, float32, no limits."""
    return {
        key: str(min(int(value), WIDTH)) if key.endswith(_WIDTHS) and str(value).isdigit() else value
        for key, value in values.items()
        if key not in _LEFT_OUT
    }
