"""The options of a system as one typed dataclass, in fairseq's convention.

The command line is generated from it, values of Hydra and presets are converted by it, and the system is built from it.
The field ``pascal_heads`` is the option ``--pascal-heads``. An option that neither the command line nor the preset nor
the checkpoint sets has the field's default. Unlike in fairseq's own dataclasses, annotations may be postponed.

A field also declares its valid values. They are checked wherever values come from: the command line, Hydra's YAML, a
checkpoint with overrides, or Python.
"""

from __future__ import annotations

import types
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Optional, TypeVar, get_args, get_type_hints

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_REGISTRY, FairseqTask

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import Range

__all__ = ["SystemConfig", "check_options", "layer_numbers", "option", "option_name", "stored_value"]

# Options that a model sets itself, so that its checkpoint has the names behind its ids (labels, tags). By the option,
# the side ("source" or "target") of the names. Who sets such an option registers it here.
REMEMBERED_NAMES: dict[str, str] = {}
# Likewise options that hold the text of a file, and what that text says.
REMEMBERED_TEXTS: dict[str, str] = {}


@dataclass
class SystemConfig(FairseqDataclass):
    """The options of a system; subclasses are dataclasses whose fields are declared by :func:`option`."""

    def __post_init__(self) -> None:
        check_options(type(self), vars(self))


Config = TypeVar("Config", bound=SystemConfig)


def option(
    default: Any,
    help: str,
    shown: str | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    was: str | None = None,
) -> Any:
    """A field of a configuration.

    Args:
        help: the description for ``--help``, to which the default and the valid values are added
        shown: how ``--help`` writes the default; an empty string omits it
        low, high: inclusive bounds of a number; None for no bound
        choices: the valid values of a string
        was: its field's former name, under which older checkpoints have its value
    """
    metadata: dict[str, Any] = {"was": was}
    notes = []
    bounds = [bound for bound in (default, low, high) if bound is not None]
    if low is not None or high is not None:
        metadata["range"] = Range(type(bounds[0]), low, high)
        notes.append(str(metadata["range"]))
    if choices:
        metadata["choices"] = tuple(choices)
        notes.append(f"one of {', '.join(choices)}")
    shown = str(default) if shown is None else shown
    if shown:
        notes.append(f"default: {shown}")
    metadata["help"] = f"{help} ({'; '.join(notes)})" if notes else help
    return field(default=default, metadata=metadata)


def stored_value(of: Field[Any], options: Mapping[str, Any]) -> Any:
    """The value of a configuration's field in options, which may be older than the field's name; None if not set."""
    value, was = options.get(of.name), of.metadata.get("was")
    return options.get(was) if value is None and was else value


def option_name(field_name: str) -> str:
    """The option's name on the command line."""
    return "--" + field_name.replace("_", "-")


def check_options(config: type, values: Mapping[str, Any]) -> None:
    """Check the values of options, by the names of fields that :func:`option` declares; None is not checked.

    Raises:
        SyntaxDataError: a value is out of range, not a finite number, or not one of the choices
    """
    for f in fields(config):
        value, valid = values.get(f.name), f.metadata.get("range") or f.metadata.get("choices")
        if value is None or valid is None or value in valid:
            continue
        expected = f"one of {', '.join(valid)}" if isinstance(valid, tuple) else valid
        raise SyntaxDataError(f"must be {expected}, not {value}", option=option_name(f.name))


def add_options(parser: ArgumentParser | _ArgumentGroup, config: type[SystemConfig]) -> None:
    """Add the options of a configuration to a parser, without defaults, so that presets can set them."""
    hints = get_type_hints(config)
    for f in fields(config):
        union = isinstance(hints[f.name], types.UnionType)
        # the only form of optional types that fairseq understands
        f.type = Optional[_type(hints[f.name])] if union else hints[f.name]  # type: ignore[assignment]  # noqa: UP045
    gen_parser_from_dataclass(parser, config(), delete_default=True)


def read_options(config: type[Config], args: Namespace) -> Config:
    """The configuration with the values of parsed options.

    Raises:
        SyntaxDataError: a value does not have the option's type, or is not valid
    """
    hints = get_type_hints(config)
    values = {}
    given = args if isinstance(args, Mapping) else vars(args)  # in a checkpoint of plain values, a configuration
    for f in fields(config):
        value = None if f.name == "_name" else stored_value(f, given)
        if value is None:
            continue
        wanted = _type(hints[f.name])
        try:
            values[f.name] = _converted(value, wanted)
        except (TypeError, ValueError) as e:
            message = f"must be of type {wanted.__name__}, not {value!r}"
            raise SyntaxDataError(message, option=option_name(f.name)) from e
    return config(**values)


def _converted(value: Any, wanted: Any) -> Any:
    """Convert a value, which in overrides at generation can be anything. Raises ValueError if it is not of the type."""
    if wanted is bool and not isinstance(value, bool):
        if str(value).lower() not in ("true", "false", "1", "0"):
            raise ValueError(value)
        return str(value).lower() in ("true", "1")
    converted = wanted(value)
    if isinstance(value, float) and converted != value:
        raise ValueError(value)
    return converted


def check_task(task: Any) -> None:
    """Check that a model with systems has this package's task, which provides parses and checks the criterion."""
    if isinstance(task, FairseqTask) and not isinstance(task, TASK_REGISTRY["syntax_translation"]):
        raise SyntaxDataError(
            f"{type(task).__name__} knows of no parse, and of no loss of the model's systems",
            option="--task",
            hint="use --task syntax_translation",
        )


def without_parse(message: str) -> SyntaxDataError:
    """The error for a batch without a parse, such as a batch of another task of fairseq."""
    return SyntaxDataError(
        f"{message}, and this batch has none",
        option="--task",
        hint="use --task syntax_translation; a tool that passes tokens only cannot be used with it",
    )


def _type(hint: Any) -> Any:
    """The type without None: ``int`` for ``int`` and for ``int | None``."""
    return next((t for t in get_args(hint) if t is not type(None)), hint)


def layer_numbers(option: str, text: str | None, total: int) -> tuple[int, ...]:
    """Parse a list of layers: comma-separated numbers from 0; negative ones count from the top layer, −1.

    Args:
        option: the name of the option, for errors
        text: its value; None means all layers
        total: the number of layers

    Raises:
        SyntaxDataError: it is not such a list, or there is no such layer
    """
    if text is None:
        return tuple(range(total))
    try:
        numbers = [int(part) for part in str(text).split(",")]
    except ValueError as e:
        raise SyntaxDataError(f"must be numbers with commas, not {text!r}", option=option) from e
    for number in numbers:
        if not -total <= number < total:
            message = f"there is no layer {number}: they are 0 to {total - 1}, and -1 is the top one"
            raise SyntaxDataError(message, option=option)
    return tuple(dict.fromkeys(number % total for number in numbers))
