"""fairseq's options made into its configuration, in a tenth of the time: most of what a tiny command takes.

fairseq composes its configuration by Hydra from typed groups of options, resolves references between them, and makes
an untyped configuration of the values. Here that is done once for each choice of groups; each command changes what
its options change. What this does not know is left to fairseq.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from typing import Any
from unittest import mock

from fairseq.dataclass import utils
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.base import Node
from omegaconf.errors import OmegaConfBaseException

_compose = utils.compose
_CONVERTED = {"resolve": True, "enum_to_str": True}  # as fairseq does
_merged: dict[tuple[str, ...], Callable[[], DictConfig]] = {}


@lru_cache(None)
def _defaults(groups: tuple[str, ...]) -> DictConfig:
    """The typed configuration of some groups (``task=syntax_translation``)."""
    return _compose("config", overrides=list(groups), strict=False)


@lru_cache(None)
def _values(groups: tuple[str, ...]) -> DictConfig:
    """The untyped one, with its references resolved."""
    return OmegaConf.create(OmegaConf.to_container(_defaults(groups), **_CONVERTED))


class _Pickler(pickle.Pickler):
    """Types and members of enumerations, which fairseq does not name as pickle asks, stay themselves."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self.shared = shared

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, (type, Enum)):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, shared: list[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self.persistent_load = shared.__getitem__


def _copies(cfg: DictConfig) -> Callable[[], DictConfig]:
    """What makes a deep copy, in a third of the time of one."""
    file, shared = io.BytesIO(), []
    _Pickler(file, shared).dump(cfg)
    return lambda: _Unpickler(file.getvalue(), shared).load()


@lru_cache(None)
def _copies_of_values(groups: tuple[str, ...]) -> Callable[[], DictConfig]:
    return _copies(_values(groups))


def _node(groups: tuple[str, ...], key: str) -> Node | None:
    group, name = key.split(".")
    node = _defaults(groups)._get_node(group)
    return node._get_node(name) if isinstance(node, DictConfig) and not node._is_none() else None


@lru_cache(None)
def _referring(groups: tuple[str, ...]) -> dict[str, list[str]]:
    """The options that have the value of another one, by its name."""
    result: dict[str, list[str]] = {}
    for group, options in _defaults(groups).items_ex(resolve=False):
        for name in options if isinstance(options, DictConfig) and not options._is_none() else ():
            node = _node(groups, f"{group}.{name}")
            if node is not None and node._is_interpolation():
                result.setdefault(str(node._value()), []).append(f"{group}.{name}")
    return result


@lru_cache(None)
def _sketch(groups: tuple[str, ...]) -> DictConfig:
    """The typed configuration again, to see what becomes of a value."""
    return copy.deepcopy(_defaults(groups))


@lru_cache(None)
def _change(groups: tuple[str, ...], override: str) -> list[Any] | None:
    """The untyped value of ``GROUP.NAME=VALUE``, in a list; an empty one where it is the default; None: not known."""
    key = override.partition("=")[0]
    if key.count(".") != 1 or (node := _node(groups, key)) is None:
        return None
    if "${" in override:
        return [] if override == f"{key}='{node._value()}'" else None
    (group, name), sketch = key.split("."), _sketch(groups)
    try:
        OmegaConf.update(sketch, key, OverridesParser.create().parse_override(override).value(), merge=True)
    except OmegaConfBaseException:
        return None  # fairseq says what is wrong with it
    typed = sketch[group]._get_node(name)
    value = OmegaConf.to_container(typed, **_CONVERTED) if OmegaConf.is_config(typed) else typed._value()
    value = value.name if isinstance(value, Enum) else value
    return [] if not node._is_interpolation() and repr(value) == repr(_values(groups)[group][name]) else [value]


class _Converted:
    """A configuration that need not be made an untyped one."""

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg

    def __setitem__(self, group: str, value: Any) -> None:
        self.cfg[group] = value


def compose(name: str, overrides: Sequence[str], strict: bool) -> DictConfig | _Converted:
    """Hydra's, for fairseq's configuration."""
    keys = [override.partition("=")[0] for override in overrides]
    groups = tuple(override for override, key in zip(overrides, keys) if "." not in key)
    changes = {key: _change(groups, override) for override, key in zip(overrides, keys) if "." in key}
    referring = _referring(groups)
    if None in changes.values() or not all(re.fullmatch(r"\$\{\w+\.\w+\}", reference) for reference in referring):
        return _compose(name, overrides=overrides, strict=strict)
    values = {key for override, key in zip(overrides, keys) if "${" not in override}
    cfg = _copies_of_values(groups)()

    def change(key: str, value: Any) -> None:
        group, name = key.split(".")
        cfg[group][name] = copy.copy(value)
        for other in referring.get(f"${{{key}}}", ()):
            if other not in values:
                change(other, value)

    for key, changed in changes.items():
        for value in changed or ():
            change(key, value)
    return _Converted(cfg)


class _QuickOmegaConf(OmegaConf):
    """OmegaConf as fairseq's conversion of options uses it."""

    @staticmethod
    def to_container(cfg: Any, **options: Any) -> Any:
        return cfg if isinstance(cfg, _Converted) else OmegaConf.to_container(cfg, **options)

    @staticmethod
    def create(content: Any) -> Any:
        return content.cfg if isinstance(content, _Converted) else OmegaConf.create(content)

    @staticmethod
    def merge(*configs: Any) -> Any:
        key = tuple(map(repr, configs))
        if key not in _merged:
            _merged[key] = _copies(OmegaConf.merge(*configs))
        return _merged[key]()


@contextmanager
def composed_quickly() -> Iterator[None]:
    """Let fairseq compose its configuration by :func:`compose`."""
    with mock.patch.multiple(utils, compose=compose, OmegaConf=_QuickOmegaConf):
        yield
