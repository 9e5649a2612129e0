"""Reading a recipe: YAML to a checked :class:`.schema.Recipe`, with errors that name the line and what is meant."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.schema import Recipe

# With `extends`, mappings are merged key by key; of these the whole is replaced.
REPLACED = ("systems",)


@dataclass
class Document:
    """A YAML file as plain values, and where each key stands.

    Attributes:
        values: of texts, lists and mappings
        places: by keys from the top, the file and the line of each value
    """

    values: Any
    places: dict[tuple[str, ...], tuple[Path, int]] = field(default_factory=dict)

    def place(self, keys: Sequence[str | int]) -> tuple[Path, int] | None:
        """The file and line of a key, or of the nearest one above it."""
        names = tuple(map(str, keys))
        while names and names not in self.places:
            names = names[:-1]
        return self.places.get(names)


def load(path: str | os.PathLike[str], changes: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe and check it.

    Args:
        changes: values for keys, as in ``{"corpus.data": "multi30k"}``; a value is read as YAML

    Raises:
        SyntaxDataError: what is wrong, with the line
    """
    path = Path(path)
    document = read(path)
    for key, text in (changes or {}).items():
        try:
            _set(document.values, key, yaml.load(text, _Texts))
        except yaml.YAMLError as error:
            raise SyntaxDataError(f"--set {key}: not YAML: {text}") from error
    document.values.setdefault("name", path.stem)
    return check(document, path)


class _Texts(yaml.SafeLoader):
    """Scalars as they are written, but for null and ``<<``."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (of the class, as in PyYAML)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(path: Path, extending: tuple[Path, ...] = ()) -> Document:
    """A recipe's file with what it extends, not checked yet.

    Raises:
        SyntaxDataError: it cannot be read, is not YAML, or extends itself
    """
    try:
        loader = _Texts(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        document = Document(None, dict(_places(node, (), path)))
        document.values = None if node is None else loader.construct_document(node)
    except (OSError, UnicodeDecodeError) as error:
        raise SyntaxDataError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise SyntaxDataError(f"not YAML: {error.problem}", path=path, line=line) from error
    if not isinstance(document.values, dict):
        raise SyntaxDataError("is not a recipe: it should be a mapping of keys such as corpus and systems", path=path)
    base_name = document.values.pop("extends", None)
    if base_name is None:
        return document
    base_path = path.parent / str(base_name)
    if base_path.resolve() in [one.resolve() for one in (*extending, path)]:
        raise SyntaxDataError(f"extends {base_name}, which extends it", path=path)
    base = read(base_path, (*extending, path))
    for key in ("name", "about", "folder", "page", "kept"):  # where and what another recipe is
        base.values.pop(key, None)
    return Document(_merged(base.values, document.values), {**base.places, **document.places})


def _places(node: yaml.Node | None, keys: tuple[str, ...], path: Path) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The keys below a node, with their file and line. Raises SyntaxDataError where one stands twice."""
    if isinstance(node, yaml.SequenceNode):
        for number, one in enumerate(node.value):
            yield (*keys, str(number)), (path, one.start_mark.line + 1)
            yield from _places(one, (*keys, str(number)), path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise SyntaxDataError(f"{key.value} is a key twice, or none", path=path, line=line)
            seen.add(key.value)
            yield (*keys, key.value), (path, line)
            yield from _places(value, (*keys, key.value), path)


def _merged(base: Any, new: Any, keys: tuple[str, ...] = ()) -> Any:
    if not isinstance(base, dict) or not isinstance(new, dict) or keys in [(one,) for one in REPLACED]:
        return new
    merged = {**base, **{key: _merged(base.get(key), value, (*keys, key)) for key, value in new.items()}}
    return {key: value for key, value in merged.items() if value is not None}  # null: not taken over


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a value by its keys; the longest names that are there come first, as a system's may have dots."""
    names = [name for name, one in values.items() if key.startswith(f"{name}.") and isinstance(one, dict)]
    first, dot, rest = key.partition(".")
    if names:
        name = max(names, key=len)
        _set(values[name], key[len(name) + 1 :], value)
    elif dot and values.get(first) is None:
        values[first] = {}
        _set(values[first], rest, value)
    else:
        values[key] = value


def check(document: Document, path: Path) -> Recipe:
    """A document as a recipe.

    Raises:
        SyntaxDataError: the first of its faults, with the line
    """
    try:
        return Recipe.model_validate(document.values)
    except ValidationError as error:
        problems = sorted(error.errors(), key=lambda e: (e["type"] != "extra_forbidden", len(e["loc"])))
        raise _as_data_error(problems, document, path) from None


def _as_data_error(problems: list[Any], document: Document, path: Path) -> SyntaxDataError:
    problem = problems[0]
    context = problem.get("ctx", {})
    keys = (*_keys(document.values, problem["loc"], problem["type"] == "missing"), *context.get("place", ()))
    where, line = document.place(keys) or (path, None)
    name = ".".join(map(str, keys))
    message, hint = problem["msg"].removeprefix("Value error, "), None
    if problem["type"] == "extra_forbidden":
        known = keys_of(keys[:-1])
        close = difflib.get_close_matches(str(keys[-1]).replace("-", "_"), known, n=1, cutoff=0.6)
        message = f"unknown key {keys[-1]}" + (f" in {name.rpartition('.')[0]}" if len(keys) > 1 else "")
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    elif problem["type"] == "missing":
        message = f"{name} is missing"
    elif name:
        value = _value(document.values, keys)
        shown = f", not {value!r}" if isinstance(value, str) and problem["type"] != "recipe" else ""
        message = f"{name}: {message[:1].lower()}{message[1:]}{shown}"
    if len(problems) > 1 and hint is None:
        hint = f"and {len(problems) - 1} more"
    return SyntaxDataError(message, path=where, line=line, hint=hint)


def _keys(values: Any, loc: Sequence[str | int], missing: bool) -> tuple[str | int, ...]:
    """The keys of pydantic's location, without the names of types that it adds for unions."""
    keys: list[str | int] = []
    for part in loc:
        if _value(values, [*keys, part]) is not None or (missing and part is loc[-1]):
            keys.append(part)
    return tuple(keys)


def _value(values: Any, keys: Sequence[str | int]) -> Any:
    for key in keys:
        if isinstance(values, Mapping):
            values = values.get(key)
        elif isinstance(values, list) and str(key).isdigit() and int(key) < len(values):
            values = values[int(key)]
        else:
            return None
    return values


def keys_of(place: Sequence[str | int]) -> list[str]:
    """The keys that a recipe may have at a place, such as ``("systems", "pascal")``."""
    model: Any = Recipe
    for part in place:
        if model is not None and part in model.model_fields:  # else a name, below which the model holds
            model = next(_models(model.model_fields[str(part)].annotation), None)
    extends = ["extends"] if model is Recipe else []
    return [*extends, *model.model_fields] if model is not None else []


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in a type, such as ``System`` in ``dict[str, System] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models(one)
