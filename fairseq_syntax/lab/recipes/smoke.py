"""A whole recipe cut down to seconds: a few sentences, narrow models, a few updates, no models of a parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq_syntax.lab.recipes.schema import Filter, ParseSide, Recipe, Subset

PAIRS, FIRST, UPDATES, WIDTH, PIECES = 200, 12, 4, 32, 300
_WIDTHS = ("embed-dim", "ffn-embed-dim", "hidden-size", "out-embed-dim", "embed-path")
_LEFT_OUT = ("fp16", "bf16", "amp", "memory-efficient-fp16", "max-epoch", "update-freq", "patience", "keep-last-epochs")


def smoke(recipe: Recipe) -> Recipe:
    """The recipe for a smoke test: every stage and every system, with one seed."""
    corpus = recipe.corpus.model_copy(
        update={
            "first": FIRST,
            "words": {},
            "download": False,
            "filter": _filter(recipe.corpus.filter),
            "subset": Subset(pairs=PAIRS),
        }
    )
    parse = recipe.parse.model_copy(update={side: _side(getattr(recipe.parse, side)) for side in ("source", "target")})
    systems = {
        name: system.model_copy(
            update={
                "size": _narrow(system.size),
                "train": _short(system.train),
                "options": _narrow(system.options),
                "seeds": None,
                "translate": {key: value for key, value in system.translate.items() if key != "fp16"},
            }
        )
        for name, system in recipe.systems.items()
    }
    size = recipe.pieces.size or PIECES
    size = min(size, PIECES) if isinstance(size, int) else {lang: min(one, PIECES) for lang, one in size.items()}
    translate = recipe.translate.model_copy()
    extra = {key: value for key, value in recipe.translate.options.items() if key != "fp16"}
    translate.__pydantic_extra__ = {**extra, "beam": "2", "max-len-a": "0", "max-len-b": "12"}
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-smoke",
            "folder": None if recipe.folder is None else f"{recipe.folder}-smoke",
            "kept": None,
            "corpus": corpus,
            "parse": parse,
            "pieces": recipe.pieces.model_copy(update={"size": size, "train_lines": 0, "models": {}}),
            "size": _narrow(recipe.size),
            "train": {**_short(recipe.train), "max-update": str(UPDATES), "max-tokens": "1000"},
            "systems": systems,
            "seeds": recipe.seeds[:1],
            "translate": translate,
            # Files with a line for each sentence of a test are of the whole test.
            "score": recipe.score.model_copy(update={"resamples": 20, "trials": 20, "lines": {}, "groups": None}),
            "published": [figures for figures in recipe.published if figures.lines is None],
            "device": "cpu",
            "workers": 1,
        }
    )


def _filter(one: Filter) -> Filter:
    return one.model_copy(update={"languages": False})


def _side(side: ParseSide | None) -> ParseSide | None:
    """A parse by a parser that needs no model, also in place of one that exists: that is of all sentences."""
    if side is None:
        return side
    changes = {"parser": "fairseq_syntax.corpus.parsing.chain", "models": None, "structured": False, "files": None}
    return side.model_copy(update={**changes, "tokenizer": "spaces" if side.tokenizer == "spaces" else "basic"})


def _narrow(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(min(int(value), WIDTH)) if key.endswith(_WIDTHS) and str(value).isdigit() else value
            for key, value in _short(values).items()}  # fmt: skip


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key.replace("_", "-"): value for key, value in values.items()}
    return {key: value for key, value in kept.items() if key not in (*_LEFT_OUT, "max-update", "max-tokens")}
