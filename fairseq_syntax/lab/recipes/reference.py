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

**Inheriting**: `extends: OTHER.yaml` takes the keys of another recipe in the same folder, and
`extends: NAME` in a system those of another system. What the recipe or the system says itself comes
first, key by key, also within sections; lists and the whole of `systems` are replaced. `null` leaves
out a key of the other one. `name`, `about`, `folder`, `page` and `kept` are not inherited."""
_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true, false", "null": ""}


def page() -> str:
    """The reference as Markdown: one table per section, with the top-level keys first."""
    whole = Recipe.model_json_schema()
    sections: dict[str | None, Any] = {None: whole, **{f"#/$defs/{name}": one for name, one in whole["$defs"].items()}}
    parts, seen = [_HEAD], set()
    waiting: list[tuple[str, str | None]] = [("", None)]
    while waiting:
        name, reference = waiting.pop(0)
        if reference in seen:
            continue
        seen.add(reference)
        section = sections[reference]
        head = [f"## {name or 'The file'}", "", _about(section), "", "| key | value | default | |", "|---|---|---|---|"]
        for key, value in section["properties"].items():
            needed = key in section.get("required", ())
            below = _references(value)
            text = value.get("description") or next((_about(sections[one]).split("\n")[0] for one in below), "")
            default = "needed" if needed else _default(value.get("default"))
            head.append(f"| `{key}` | {_type(value)} | {default} | {text} |")
            suffix = {"object": ".NAME", "array": "[]"}.get(value.get("type", ""), "")
            waiting += [(f"{name}.{key}".strip(".") + suffix, one) for one in below]
        parts.append("\n".join(head))
    return "\n\n".join(parts) + "\n"


def _about(section: Mapping[str, Any]) -> str:
    return section.get("description", "").replace("``", "`")


def _references(value: Any) -> list[str]:
    """The sections referenced in a value's schema."""
    if isinstance(value, list):
        return [one for each in value for one in _references(each)]
    if not isinstance(value, Mapping):
        return []
    return [value["$ref"]] if "$ref" in value else [one for each in value.values() for one in _references(each)]


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
        file.write(page())
