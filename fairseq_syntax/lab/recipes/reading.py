"""Reading of recipes: YAML to a validated :class:`.schema.Recipe`, with errors that name the line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.recipes.schema import Recipe
from fairseq_syntax.runtime.files import errors_in, read_lines

LARGEST = 100_000  # values of a recipe
_OF_SYSTEM = ("options", "size", "train", "translate")
_NOT_INHERITED = ("name", "about", "folder", "page", "kept")  # describe the other recipe itself


@dataclass
class Document:
    """A YAML file: its strings, lists and mappings, and the file and line of each value, by its path of keys."""

    values: Any
    places: dict[tuple[str, ...], tuple[Path, int | None]]

    def place(self, keys: Sequence[str], path: Path) -> tuple[Path, int | None]:
        """The file and line of a key, or of its closest known parent; otherwise the given file."""
        above = (self.places.get(tuple(keys[:depth])) for depth in range(len(keys), 0, -1))
        return next(filter(None, above), (path, None))


def load_recipe(path: str | os.PathLike[str], changes: Mapping[str, str] | None = None) -> Recipe:
    """Read and validate a recipe. Raises SyntaxDataError with the line of the first error.

    Args:
        changes: new values for keys, as in ``{"corpus.data": "multi30k"}``; values are parsed as YAML
    """
    path = Path(path)
    document = read_document(path)
    if "extends" in (changes or {}):
        raise SyntaxDataError("extends cannot be set: the recipe has been read", option="--set")
    for key, text in (changes or {}).items():
        try:
            value = _loaded(text)[1]
            keys = _set(document.values, key, value)
        except yaml.YAMLError as error:
            raise SyntaxDataError(f"--set {key}: not YAML: {text}") from error
        if value is None and keys[0] != "systems":  # the default, as null in a recipe that extends another
            reduce(getitem, keys[:-1], document.values).pop(keys[-1])
        for depth in range(1, len(keys) + 1):
            document.places.setdefault(_dashed(keys[:depth]), (path, None))
    document.values = _with_dashes(document.values)
    document.values.setdefault("name", path.stem)
    systems = document.values.get("systems")
    if isinstance(systems, dict):
        document.values["systems"] = {name: _system(systems, name, document, path) for name in systems}
    try:
        return Recipe.model_validate(document.values)
    except ValidationError as error:
        raise _as_data_error(error.errors(), document, path) from None


def written_in(path: Path, key: str) -> Path:
    """The file in which a top-level key of a recipe stands: the recipe's, or that of one that it extends."""
    return read_document(path).place([key], path)[0]


class _Texts(yaml.SafeLoader):
    """A loader that keeps scalars as strings, except null, since YAML 1.1 reads the language ``no`` as False."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (a class attribute, as in PyYAML)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def as_yaml(value: Any) -> str:
    """A value of a recipe as YAML in one line: plain where it reads the same."""
    if isinstance(value, list):
        plain = "[" + ", ".join(map(str, value)) + "]"
    else:
        plain = "null" if value is None else str(value)
    try:
        is_same = yaml.load(plain, _Texts) == value
    except yaml.YAMLError:
        is_same = False
    return plain if is_same else json.dumps(value, ensure_ascii=False)


def read_document(path: Path, extending: tuple[Path, ...] = ()) -> Document:
    """Read a recipe with the recipes that it extends, without validating it."""
    try:
        with errors_in(path):
            node, values = _loaded("\n".join(read_lines(path)))
        document = Document(_with_dashes(values), dict(_places(node, (), path)))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise SyntaxDataError(f"not YAML: {error.problem}", path=path, line=line) from error
    except yaml.reader.ReaderError as error:
        line = next((n for n, row in enumerate(read_lines(path), 1) if chr(error.character) in row), None)
        raise SyntaxDataError(f"not YAML: the character U+{error.character:04X}", path=path, line=line) from error
    if not isinstance(document.values, dict):
        raise SyntaxDataError("is not a recipe: it should be a mapping of keys such as corpus and systems", path=path)
    base_name = document.values.pop("extends", None)
    if base_name is None:
        return document
    base_path = path.parent / str(base_name)
    if base_path.resolve() in [one.resolve() for one in (*extending, path)]:
        raise SyntaxDataError(f"extends {base_name}, which extends it", path=path)
    base = read_document(base_path, (*extending, path))
    return Document(_extended(base.values, document.values), {**base.places, **document.places})


def _loaded(text: str) -> tuple[yaml.Node | None, Any]:
    """The nodes of YAML and their values. Raises SyntaxDataError if they are too many or too deep to be a recipe's."""
    loader = _Texts(text)
    try:
        node = loader.get_single_node()  # composed once, for both the places and the values of keys
        if node is not None and _count(node, {}) > LARGEST:
            raise SyntaxDataError(f"has more than {LARGEST:,} values, with those that aliases repeat")
        return node, None if node is None else loader.construct_document(node)
    except RecursionError:
        raise SyntaxDataError("is nested too deeply") from None


def _count(node: yaml.Node, counts: dict[yaml.Node, int | None]) -> int:
    """The number of values in a node, of which an alias repeats all. Raises SyntaxDataError if one repeats itself."""
    if node not in counts:
        counts[node] = None  # until its parts are counted
        parts = [node.value] if isinstance(node, yaml.ScalarNode) else list(node.value)
        inner = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        counts[node] = 1 + sum(_count(one, counts) for one in inner if isinstance(one, yaml.Node))
    count = counts[node]
    if count is None:
        raise SyntaxDataError("an alias contains itself", line=node.start_mark.line + 1)
    return count


def _system(systems: dict[str, Any], name: str, document: Document, path: Path, extending: tuple[str, ...] = ()) -> Any:
    """A system merged with the one it extends. Raises SyntaxDataError if that is missing, or for a cycle."""
    system = systems[name]
    base = system.get("extends") if isinstance(system, dict) else None
    if not isinstance(base, str):  # None, or an error that the schema reports
        return system
    extending = (*extending, name)
    if base not in systems or base in extending:
        where, line = document.place(("systems", name, "extends"), path)
        if base in extending:
            raise SyntaxDataError(f"systems.{name} extends {base}, which extends it", path=where, line=line)
        hint = meant(base, systems)
        raise SyntaxDataError(f"systems.{name}: no system is called {base}", path=where, line=line, hint=hint)
    return _extended(_system(systems, base, document, path, extending), system, ("systems", name))


def _places(node: yaml.Node | None, keys: tuple[str, ...], path: Path) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The keys below a node with their file and line. Raises SyntaxDataError if a key occurs twice or has no value."""
    if isinstance(node, yaml.SequenceNode):
        for number, one in enumerate(node.value):
            yield (*keys, str(number)), (path, one.start_mark.line + 1)
            yield from _places(one, (*keys, str(number)), path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            below = _dashed((*keys, str(key.value)))
            if not isinstance(key, yaml.ScalarNode) or below[-1] in seen:
                raise SyntaxDataError(f"{key.value} is a duplicate key, or not a key", path=path, line=line)
            seen.add(below[-1])
            if isinstance(value, yaml.ScalarNode) and value.style is None and not value.value:
                hint = "decimals have a point" if below[-1].isdecimal() else f"`{below[-1]}: null` leaves it out"
                raise SyntaxDataError(f"{'.'.join(below)} has no value", path=path, line=line, hint=hint)
            yield below, (path, line)
            yield from _places(value, below, path)


def _dashed(keys: tuple[str, ...]) -> tuple[str, ...]:
    """A path of keys, at whose end an option of fairseq has dashes: ``max_update`` is the option ``max-update``."""
    *above, last = keys
    if last == "user-dir" and len(above) in (0, 2) and above[:1] in ([], ["systems"]):
        return (*above, "user_dir")  # written as the option
    is_option = (
        above in (["size"], ["train"], ["translate"])
        or (len(above) == 3 and above[0] == "systems" and above[2] in _OF_SYSTEM)
        or (len(above) == 4 and above[:2] == ["translate", "variants"] and above[3] == "options")
    )
    return (*above, str(last).replace("_", "-")) if is_option else keys


def _with_dashes(values: Any, keys: tuple[str, ...] = ()) -> Any:
    """Values with options in one spelling, so that each replaces the other; of two spellings, the last counts."""
    if not isinstance(values, dict):
        return values
    return {_dashed((*keys, key))[-1]: _with_dashes(value, (*keys, key)) for key, value in values.items()}


def _extended(base: Any, new: Any, keys: tuple[str, ...] = ()) -> Any:
    """Merge a recipe or a system (at ``keys``) with the one that it extends."""
    inherited = {k: v for k, v in base.items() if k not in _NOT_INHERITED} if isinstance(base, dict) else base
    return _merged(inherited, new, keys)


def _merged(base: Any, new: Any, keys: tuple[str, ...]) -> Any:
    """Merge values key by key; each system of a recipe is replaced as a whole."""
    if not isinstance(base, dict) or not isinstance(new, dict) or keys == ("systems",):
        return new
    merged = base | {key: _merged(base.get(key), value, (*keys, key)) for key, value in new.items()}
    if keys[:1] == ("systems",):  # null in a system also removes options from the recipe's `size` or `train`
        return merged
    return {key: value for key, value in merged.items() if value is not None}


def _set(values: dict[str, Any], key: str, value: Any) -> tuple[str, ...]:
    """Set a value by its dotted key, and return its path of keys; names of systems may contain dots themselves."""
    names = [name for name in values if key.startswith(f"{name}.")]
    name = max(names, key=len, default=key.partition(".")[0])
    rest = key[len(name) + 1 :]
    if not rest:
        values[name] = value
        return (name,)
    if not isinstance(values.get(name), dict):
        values[name] = {}
    return (name, *_set(values[name], rest, value))


def _as_data_error(problems: list[Any], document: Document, path: Path) -> SyntaxDataError:
    """Convert the first of pydantic's errors, with its line in the recipe."""
    problem = problems[0]
    keys: list[str] = []
    for part in map(str, problem["loc"]):  # without the type names that pydantic adds for unions
        if (*keys, part) in document.places or problem["type"] == "missing":
            keys.append(part)
    keys += problem.get("ctx", {}).get("place", ())
    where, line = document.place(keys, path)
    message = problem["msg"].removeprefix("Value error, ")
    message = f"{'.'.join(keys)}: {message[:1].lower()}{message[1:]}" if keys else message
    if isinstance(problem["input"], str):
        message += f", not {problem['input']!r}"
    hint = f"and {len(problems) - 1} more" if len(problems) > 1 else None
    return SyntaxDataError(message, path=where, line=line, hint=hint)
