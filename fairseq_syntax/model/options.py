"""A system's options as one typed dataclass, in fairseq's convention.

The command line is made from it, Hydra's values and presets are read by it, and a system is built from it. A field is
an option by its name (``pascal_heads`` is ``--pascal-heads``); what the command line, a preset or a checkpoint does not
set has the field's default. Annotations may be postponed, which fairseq's own dataclasses cannot have.
"""

from __future__ import annotations

import types
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from dataclasses import dataclass, field, fields
from typing import Any, Optional, TypeVar, get_args, get_type_hints

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_REGISTRY, FairseqTask

from fairseq_syntax.errors import SyntaxDataError

__all__ = ["SystemConfig", "layer_numbers", "option"]

# Options that no user gives: a model notes in them the names of what it knows by number, so that its checkpoint has
# them. By the option, the side ("source" or "target") whose names they are; who notes some says so here.
REMEMBERED_NAMES: dict[str, str] = {}
# Likewise options that hold the text of a file, and what that says.
REMEMBERED_TEXTS: dict[str, str] = {}


@dataclass
class SystemConfig(FairseqDataclass):
    """The options of a system; subclasses are dataclasses whose fields are made by :func:`option`."""


Config = TypeVar("Config", bound=SystemConfig)


def option(default: Any, help: str, shown: str | None = None) -> Any:
    """A field of a configuration.

    Args:
        default: its value where none is given
        help: what it is, for ``--help``
        shown: how to write the default there; an empty string leaves it out
    """
    shown = str(default) if shown is None else shown
    return field(default=default, metadata={"help": f"{help} (default: {shown})" if shown else help})


def add_options(parser: ArgumentParser | _ArgumentGroup, config: type[SystemConfig]) -> None:
    """Add the options of a configuration to a parser, without their defaults: so a preset can set what is not given."""
    hints = get_type_hints(config)
    for f in fields(config):
        union = isinstance(hints[f.name], types.UnionType)
        # the one spelling that fairseq knows
        f.type = Optional[_type(hints[f.name])] if union else hints[f.name]  # type: ignore[assignment]  # noqa: UP045
    gen_parser_from_dataclass(parser, config(), delete_default=True)


def read_options(config: type[Config], args: Namespace) -> Config:
    """The configuration that the options say.

    Raises:
        SyntaxDataError: a value is not of the option's type
    """
    hints = get_type_hints(config)
    values = {}
    for f in fields(config):
        value = None if f.name == "_name" else getattr(args, f.name, None)
        if value is None:
            continue
        wanted = _type(hints[f.name])
        try:
            values[f.name] = _converted(value, wanted)
        except (TypeError, ValueError) as e:
            name = "--" + f.name.replace("_", "-")
            raise SyntaxDataError(f"{name} {value}: a value of type {wanted.__name__} is wanted") from e
    return config(**values)


def _converted(value: Any, wanted: Any) -> Any:
    """A value of the type; overrides at generation are whatever the user wrote. Raises ValueError for another one."""
    if wanted is bool and not isinstance(value, bool):
        if str(value).lower() not in ("true", "false", "1", "0"):
            raise ValueError(value)
        return str(value).lower() in ("true", "1")
    found = wanted(value)
    if isinstance(value, float) and found != value:
        raise ValueError(value)
    return found


def check_task(task: Any, model: str) -> None:
    """A model with systems is of this package's task, which brings the parses, and asks its criterion for all losses.

    Raises:
        SyntaxDataError: the task is another one of fairseq's
    """
    if isinstance(task, FairseqTask) and not isinstance(task, TASK_REGISTRY["syntax_translation"]):
        raise SyntaxDataError(
            f"{model} with {type(task).__name__}, another task: that knows of no parse and of no loss of its systems",
            hint="use --task syntax_translation",
        )


def _type(hint: Any) -> Any:
    """``int`` of ``int`` and of ``int | None``."""
    return next((t for t in get_args(hint) if t is not type(None)), hint)


def layer_numbers(name: str, text: str | None, total: int) -> tuple[int, ...]:
    """Layers as a user names them: numbers from 0, with commas; negative ones count from the top, which is -1.

    Args:
        name: the option, such as ``--pascal-layers``
        text: its value; None stands for all layers
        total: how many layers there are

    Raises:
        SyntaxDataError: not such a list, or not one of the layers
    """
    if text is None:
        return tuple(range(total))
    try:
        numbers = [int(part) for part in str(text).split(",")]
    except ValueError as e:
        raise SyntaxDataError(f"{name} {text}: not a list of numbers") from e
    for number in numbers:
        if not -total <= number < total:
            raise SyntaxDataError(f"{name} {text}: there are layers 0 to {total - 1}, and -1 is the top one")
    return tuple(dict.fromkeys(number % total for number in numbers))
