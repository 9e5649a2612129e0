"""Averages of checkpoints: of the last or best N of a training, and the moving average of one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.compat.averages import average_of
from fairseq_syntax.compat.checkpoints import check_archive, load_mapped
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import StrPath, as_data_error, atomic_open_binary
from fairseq_syntax.tasks.checkpoint_checks import check_trained

_EPOCH = re.compile(r"checkpoint(\d+)\.pt")
_UPDATES = re.compile(r"checkpoint_\d+_(\d+)\.pt")
_BEST = re.compile(r"checkpoint\.best_(.+)_(-?\d+\.?\d*)\.pt")


def last_checkpoints(folder: StrPath, number: int) -> list[Path]:
    """The last checkpoints of a folder: those of epochs, or of ``--save-interval-updates`` if there are none of epochs.

    Raises:
        SyntaxDataError: there are fewer
    """
    for kind in (_EPOCH, _UPDATES):
        files = [(int(match[1]), path) for path in Path(folder).iterdir() if (match := kind.fullmatch(path.name))]
        if files:
            break
    hint = f"train with --keep-last-epochs {number} and without --no-epoch-checkpoints"
    return _as_many(folder, [path for _, path in sorted(files)][-number:], number, "of epochs or updates", hint)


def best_checkpoints(folder: StrPath, number: int) -> list[Path]:
    """The best checkpoints of a folder, of those of ``--keep-best-checkpoints``, in the order of their scores.

    Raises:
        SyntaxDataError: there are fewer, or there are some by several metrics
    """
    matches = [(match, path) for path in Path(folder).iterdir() if (match := _BEST.fullmatch(path.name))]
    if len(metrics := {match[1] for match, _ in matches}) > 1:
        message = f"there are checkpoints by several metrics: {', '.join(sorted(metrics))}"
        raise SyntaxDataError(message, path=folder, hint="name the files to average")
    files = [path for _, path in sorted(matches, key=lambda pair: float(pair[0][2]))]
    options = (load_mapped(str(files[0])).get("cfg") or {}).get("checkpoint", {}) if files else {}
    if options.get("maximize_best_checkpoint_metric"):
        files.reverse()
    hint = f"train with --keep-best-checkpoints {number}"
    return _as_many(folder, files[:number], number, "of the best", hint)


def _as_many(folder: StrPath, files: list[Path], number: int, kind: str, hint: str) -> list[Path]:
    if len(files) < number:
        raise SyntaxDataError(f"has {len(files)} checkpoints {kind}, not {number}", path=folder, hint=hint)
    return files


def average(paths: Sequence[StrPath], *, moving: bool = False) -> dict[str, Any]:
    """The mean of the parameters of checkpoints, computed in float64, in a checkpoint without optimizer state.

    Everything but floating-point parameters, such as the options, is that of the last checkpoint.

    Args:
        moving: average the moving averages of ``--store-ema`` instead of the parameters

    Raises:
        SyntaxDataError: a file is not a checkpoint, or those of different models; or it has no moving average
    """
    total: dict[str, Tensor] = {}
    first: dict[str, Any] = {}
    files = [os.fspath(path) for path in paths]
    for path in files:
        check_archive(path)
        state = load_mapped(path)
        if "model" not in state:
            raise SyntaxDataError("not a checkpoint of fairseq: there is no model in it", path=path)
        if moving and "ema" not in (state.get("extra_state") or {}):
            raise SyntaxDataError("has no moving average", path=path, hint="train with --store-ema")
        model = average_of(state) if moving else state["model"]
        if first:
            _check_alike(first, state, path)
        else:
            first = {**state, "model": {name: value.shape for name, value in model.items()}}
        for name, value in model.items():
            if value.is_floating_point():
                total[name] = total[name] + value.double() if name in total else value.double()
    mean = {n: (total[n] / len(files)).to(v.dtype) if n in total else v for n, v in model.items()}
    rest = {name: value for name, value in (state.get("extra_state") or {}).items() if not name.startswith("ema")}
    rest["averaged"] = [os.path.basename(path) for path in files]
    result = {**state, "model": mean, "extra_state": rest}
    result.pop("last_optimizer_state", None)
    return result


def _check_alike(first: dict[str, Any], state: dict[str, Any], path: str) -> None:
    """Raise SyntaxDataError if the parameters of two checkpoints do not correspond to each other."""
    hint = "average checkpoints of one training, or of the same model and data"
    if {name: value.shape for name, value in state["model"].items()} != first["model"]:
        raise SyntaxDataError("has other parameters than the first checkpoint", path=path, hint=hint)
    if first.get("cfg"):
        check_trained(state, first["cfg"]["model"], path)
    vocabularies = ((one.get("task_state") or {}).get("dictionaries") for one in (first, state))
    if None not in (pair := tuple(vocabularies)) and pair[0] != pair[1]:
        raise SyntaxDataError("was trained with another dictionary than the first", path=path, hint=hint)


def save_checkpoint(state: dict[str, Any], path: StrPath) -> None:
    """Write a checkpoint atomically."""
    with atomic_open_binary(path) as file, as_data_error(path):
        torch.save(state, file)
