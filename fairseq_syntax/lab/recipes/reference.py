"""The reference of recipe keys, generated from the models in :mod:`.schema`.

``python -m fairseq_syntax.lab.recipes.reference`` writes docs/recipe-keys.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_syntax.lab.recipes.schema import Recipe
from fairseq_syntax.runtime.files import atomic_open

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recipe-keys.md"

_HEAD = """\
# Recipes: the keys of the YAML file

This reference lists all keys of a recipe. It is generated from `fairseq_syntax/lab/recipes/schema.py`; `fairseq-syntax
run --keys` prints it.

Paths are relative to the recipe's folder; `~` and `$NAME` are expanded. Options of fairseq are written without dashes:
`lr: 0.001`, `amp: true`.

**Inheriting**: `extends: OTHER.yaml` takes the keys of another recipe, whose path is given from the folder of
this one, and `extends: NAME` in a system those of another system. What the recipe or the system says
itself comes first, key by key, also within sections; lists and the whole of `systems` are replaced.
`null` leaves out a key of the other one. `name`, `about`, `folder`, `page` and `kept` are not inherited."""
_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false", "null": ""}


def keys_page() -> str:
    """The reference as Markdown: one table per section, with the top-level keys first."""
    whole = Recipe.model_json_schema()
    sections = {f"#/$defs/{name}": section for name, section in whole["$defs"].items()}
    parts = [_HEAD]
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", whole)]
    for name, section in waiting:  # which grows
        head = [f"## {name or 'The file'}", "", _about(section), "", "| key | value | default | |", "|---|---|---|---|"]
        for key, value in section["properties"].items():
            below = [sections[reference] for reference in _references(value)]
            text = value.get("description") or (_about(below[0]).split("\n")[0] if below else "")
            default = "needed" if key in section.get("required", ()) else _default(value.get("default"))
            head.append(f"| `{key}` | {_type(value)} | {default} | {text} |")
            suffix = {"object": ".NAME", "array": "[]"}.get(value.get("type", ""), "")
            for one in below:
                if all(one is not other for _, other in waiting):
                    waiting.append((f"{name}.{key}".strip(".") + suffix, one))
        parts.append("\n".join(head))
    return "\n\n".join(parts) + "\n"


def _about(section: Mapping[str, Any]) -> str:
    return section.get("description", "").replace("``", "`")


def _references(value: Any) -> list[str]:
    """The sections referenced in a value's schema."""
    if isinstance(value, Mapping):
        return [value["$ref"]] if "$ref" in value else _references(list(value.values()))
    return [one for each in value for one in _references(each)] if isinstance(value, list) else []


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        return "section"
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(filter(None, map(_type, value["anyOf"]))))
    if value.get("type") == "array":
        return f"list: {_type(value['items'])}"
    if value.get("type") == "object":
        inner = next(iter(value.get("patternProperties", {}).values()), value.get("additionalProperties"))
        inner = inner if isinstance(inner, Mapping) else {}  # a value of any type
        return "options" if len(inner.get("anyOf", ())) > 2 else f"by name: {_type(inner)}"
    return _TYPES[value["type"]] if "type" in value else "anything"


def _default(value: Any) -> str:
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    shown = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"`{str(shown).lower() if isinstance(value, bool) else shown}`"


if __name__ == "__main__":
    with atomic_open(PAGE) as file:
        file.write(keys_page())
