"""The reference of a recipe's keys, and its JSON Schema for editors, both made from the models of :mod:`.schema`.

python -m fairseq_syntax.lab.recipes.reference writes docs/recipe-keys.md and recipe.schema.json beside this module.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fairseq_syntax.lab.recipes import schema
from fairseq_syntax.lab.recipes.reading import _models
from fairseq_syntax.lab.recipes.schema import Recipe
from fairseq_syntax.runtime.files import atomic_open

SCHEMA = Path(__file__).with_name("recipe.schema.json")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "recipe-keys.md"

_HEAD = """\
# Recipes: the keys of the YAML file

This reference lists all keys of a recipe. It is generated from `fairseq_syntax/lab/recipes/schema.py`; `fairseq-syntax
run --keys` prints it.

Paths are relative to the recipe's folder; `~` and `$NAME` are expanded. Options of fairseq are written without dashes:
`lr: 0.001`, `amp: true`. `extends: OTHER.yaml` inherits the keys of another recipe in the same folder, except `name`,
`about`, `folder`, `page` and `kept`. `systems` and lists are replaced as a whole, and `null` inherits nothing."""


def page() -> str:
    """The reference as Markdown: a table for each section, the recipe's own keys first."""
    parts, seen = [_HEAD], set()
    waiting: list[tuple[str, type[BaseModel]]] = [("", Recipe)]
    while waiting:
        name, model = waiting.pop(0)
        if model in seen:
            continue
        seen.add(model)
        title = f"## {name}" if name else "## The file"
        head = [title, "", _about(model), "", "| key | value | default | |", "|---|---|---|---|"]
        rows = [f"| `{key}` | {_type(info)} | {_default(info)} | {_text(info)} |" for key, info in _fields(model)]
        parts.append("\n".join([*head, *rows]))
        waiting += [
            (f"{name}.{key}".strip(".") + _suffix(info), one)
            for key, info in _fields(model)
            for one in _models(info.annotation)
        ]
    return "\n\n".join(parts) + "\n"


def json_schema() -> str:
    """The JSON Schema, for ``# yaml-language-server: $schema=…`` and the like."""
    return json.dumps(Recipe.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return list(model.model_fields.items())


def _about(model: type[BaseModel]) -> str:
    return (inspect.getdoc(model) or "").replace("``", "`")


def _suffix(info: FieldInfo) -> str:
    """How the key goes on: ``systems.NAME``, ``commands[]``."""
    origin = get_origin(info.annotation)
    return ".NAME" if origin is dict else "[]" if origin is list else ""


def _type(info: FieldInfo) -> str:
    return _type_of(info.annotation).replace("|", "or")


def _type_of(annotation: Any) -> str:
    if annotation is None or annotation is type(None):
        return ""
    names = {str: "text", int: "whole number", float: "number", bool: "true, false", Any: "anything"}
    if annotation in names:
        return names[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if annotation == schema.Options:
        return "options"
    if origin is list:
        return f"list: {_type_of(inner[0])}"
    if origin is dict:
        return f"by name: {_type_of(inner[1])}"
    return " or ".join(dict.fromkeys(filter(None, map(_type_of, inner))))


def _default(info: FieldInfo) -> str:
    value = info.default
    if value is PydanticUndefined:
        return "needed"
    if value is None or isinstance(value, BaseModel) or value in ([], {}, ""):
        return ""
    shown = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"`{str(shown).lower() if isinstance(value, bool) else shown}`"


def _text(info: FieldInfo) -> str:
    own = info.description or next((_about(one).split("\n")[0] for one in _models(info.annotation)), "")
    return own.replace("|", "\\|")


def main() -> None:
    for path, text in ((PAGE, page()), (SCHEMA, json_schema())):
        with atomic_open(path) as file:
            file.write(text)


if __name__ == "__main__":
    main()
