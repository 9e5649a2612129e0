"""fairseq's options made into its configuration, in a fifth of the time: most of what a tiny command takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from unittest import mock

from fairseq.dataclass import utils
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

_compose = utils.compose


@lru_cache(None)
def _value(override: str) -> object:
    """The value of ``GROUP.NAME=VALUE``, whose grammar takes some milliseconds."""
    return OverridesParser.create().parse_override(override).value()


@lru_cache(None)
def _defaults(groups: tuple[str, ...]) -> DictConfig:
    return _compose("config", overrides=list(groups), strict=False)


def compose(name: str, overrides: Sequence[str], strict: bool) -> DictConfig:
    """Hydra's, for fairseq's configuration: the choice of groups is composed once, values are put in."""
    keys = [override.partition("=")[0] for override in overrides]
    cfg = copy.deepcopy(_defaults(tuple(o for o, key in zip(overrides, keys) if "." not in key)))
    for override, key in zip(overrides, keys):
        if "." in key:
            OmegaConf.update(cfg, key, copy.copy(_value(override)), merge=True)
    return cfg


@contextmanager
def composed_quickly() -> Iterator[None]:
    """Let fairseq compose its configuration by :func:`compose`."""
    with mock.patch.object(utils, "compose", compose):
        yield
