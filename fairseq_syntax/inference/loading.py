"""Trained models from their files: the one way in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils

from fairseq_syntax.errors import SyntaxDataError


class Loaded(NamedTuple):
    """Models in evaluation mode on one device, the configuration of the last one, and their task."""

    models: list[Any]
    cfg: Any
    task: Any


def load_models(
    paths: Sequence[str | os.PathLike[str]],
    data: str | os.PathLike[str] | None = None,
    *,
    task: Any = None,
    device: str | None = None,
    **overrides: Any,
) -> Loaded:
    """Load checkpoints of one task.

    Args:
        data: the binarized data, whose dictionaries, labels and segmentation are used (default: those of training)
        task: use this one in place of the first checkpoint's
        device: default: the GPU where there is one
        overrides: other values of options that are in the checkpoints

    Raises:
        SyntaxDataError: there is no such checkpoint, or its data directory is gone
    """
    names = [os.fspath(path) for path in paths]
    for name in names:
        if not os.path.isfile(name):
            raise SyntaxDataError("no such checkpoint", path=name)
    # Validation by BLEU is of training; its options may name files of the machine that trained.
    options = {"eval_bleu": False, **overrides, **({} if data is None else {"data": os.fspath(data)})}
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(names, arg_overrides=options, task=task)
    except FileNotFoundError as error:
        raise SyntaxDataError(
            f"the model's data cannot be read: {error}", path=names[0], hint="say where they are with --data"
        ) from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    for model in models:
        model.eval()
    return Loaded([model.to(device) for model in models], cfg, task)
