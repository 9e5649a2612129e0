"""A check before training that validation logs the metric by which fairseq chooses the best checkpoint.

fairseq looks for ``--best-checkpoint-metric`` after the first validation, and ends in a KeyError if it is not there, so
the first epoch is lost.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from fairseq_syntax.errors import SyntaxDataError, similar

DEFAULT_METRIC = "loss"  # which every criterion logs


def install() -> None:
    """Check the metric when fairseq-train looks for a checkpoint, which is after loading the validation data."""
    load = Trainer.load_checkpoint

    @functools.wraps(load)
    def load_after_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_best_metric(self)
        return load(self, *args, **kwargs)

    Trainer.load_checkpoint = load_after_check


def check_best_metric(trainer: Any) -> None:
    """Validate on one batch, and raise SyntaxDataError if it does not log ``--best-checkpoint-metric``.

    Nothing is computed for the default, the loss. Random generators do not advance.
    """
    cfg = trainer.cfg
    metric, subset = cfg.checkpoint.best_checkpoint_metric, cfg.dataset.valid_subset.split(",")[0]
    if metric == DEFAULT_METRIC or cfg.dataset.disable_validation or subset not in trainer.task.datasets:
        return
    batches = trainer.get_valid_iterator(subset, disable_iterator_cache=True).next_epoch_itr(
        shuffle=False, set_dataset_epoch=False
    )
    devices = [torch.cuda.current_device()] if trainer.cuda else []
    with torch.random.fork_rng(devices), metrics.aggregate(new_root=True) as logged:
        trainer.valid_step(next(iter(batches)))
    names = {name for name in logged.get_smoothed_values() if not name.startswith("_")} | {"num_updates"}
    if metric not in names:
        hint = similar(metric, names) or f"it logs {', '.join(sorted(names))}; --eval-bleu adds bleu"
        message = f"validation logs no {metric}"
        raise SyntaxDataError(message, option="--best-checkpoint-metric", hint=hint)
