"""Changes to when fairseq's training stops: a run that was interrupted or is repeated stops where others do.

fairseq looks at ``--max-update`` and ``--stop-time-hours`` only after an update, so a training that is done, when its
command is run again, is trained for one update more. It does not save what ``--patience`` counts, so each interruption
begins to count anew; and after a score that is not a number, it counts all as worse.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

from fairseq.trainer import Trainer

from fairseq_syntax.compat.best_checkpoints import comparable

logger = logging.getLogger(__name__)

COUNTED = ("best", "num_runs")  # fairseq's attributes of the function that stops early
SAVED = "early_stopping"  # their name in a checkpoint's extra_state


def install() -> None:
    """Save what ``--patience`` counts in checkpoints, and end a training that is done when it is loaded."""
    save, load = Trainer.save_checkpoint, Trainer.load_checkpoint

    @functools.wraps(save)
    def save_counts(self: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        counts = {name: value for of in _counts() for name, value in of.items() if name in COUNTED}
        return save(self, filename, {**extra_state, SAVED: counts} if counts else extra_state)

    @functools.wraps(load)
    def load_counts(
        self: Any, filename: str, reset_optimizer: bool = False, *args: Any, reset_meters: bool = False, **kwargs: Any
    ) -> Any:
        _compare_numbers()
        extra_state = load(self, filename, reset_optimizer, *args, reset_meters=reset_meters, **kwargs)
        # As fairseq does with the best score so far.
        is_continued = extra_state is not None and not reset_optimizer and not reset_meters
        counts = extra_state.get(SAVED, {}) if is_continued else {}
        for of in _counts():
            of.update(counts)
        limits, patience = self.cfg.optimization, self.cfg.checkpoint.patience
        # The time in the checkpoint is the same for all processes, which all have to end.
        hours = extra_state.get("previous_training_time", 0) / 3600 if is_continued else 0
        has_passed = 0 < limits.max_update <= self.get_num_updates() or 0 < limits.stop_time_hours < hours
        if has_passed or 0 < patience <= counts.get("num_runs", 0):
            logger.info("%s: the training is done", filename)
            self.cfg.optimization.max_epoch = -1  # fairseq's loop over epochs, which begins next, ends there
        return extra_state

    Trainer.save_checkpoint = save_counts
    Trainer.load_checkpoint = load_counts


def forget_counts() -> None:
    """Begin to count anew, in the next training of this process."""
    for of in _counts():
        for name in COUNTED:
            of.pop(name, None)


def _compare_numbers() -> None:
    """Let a validation score that is NaN count as the worst."""
    for module in _modules():
        if not hasattr(module.should_stop_early, "__wrapped__"):
            module.should_stop_early = _comparing(module.should_stop_early)


def _comparing(original: Any) -> Any:
    @functools.wraps(original)
    def should_stop_early(cfg: Any, valid_loss: Any) -> Any:
        return original(cfg, comparable(cfg.checkpoint, valid_loss))

    return should_stop_early


def _counts() -> Iterator[dict[str, Any]]:
    """The attributes of fairseq's function that stops early."""
    yield from (vars(module.should_stop_early) for module in _modules())


def _modules() -> Iterator[Any]:
    """The modules that have the function: under ``python -m``, fairseq's has another name."""
    for name in ("fairseq_cli.train", "__main__"):
        if hasattr(module := sys.modules.get(name), "should_stop_early"):
            yield module
