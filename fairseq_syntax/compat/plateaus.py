"""A change to ``--lr-scheduler reduce_lr_on_plateau``: a resumed training has the rates of an uninterrupted one.

fairseq saves a checkpoint before its scheduler sees the epoch's validation score, and does not save what the scheduler
has counted. It keeps the rate of the checkpoint if another ``--lr`` is given, which all its other schedulers heed.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

from fairseq.optim.lr_scheduler import reduce_lr_on_plateau
from fairseq.trainer import Trainer

_COUNTED = ("num_bad_epochs", "cooldown_counter")  # PyTorch's names


def install() -> None:
    """Save what the scheduler has counted, and after loading let it see the score of the epoch that had ended."""
    schedule = reduce_lr_on_plateau.ReduceLROnPlateauLRSchedule
    save, load, resume = schedule.state_dict, schedule.load_state_dict, Trainer.load_checkpoint

    @functools.wraps(save)
    def state_dict(self: Any) -> dict[str, Any]:
        return {**save(self), "lr": self.cfg.lr[0], **{name: getattr(self.lr_scheduler, name) for name in _COUNTED}}

    @functools.wraps(load)
    def load_state_dict(self: Any, state: dict[str, Any]) -> None:
        load(self, state)
        for name in _COUNTED:  # older checkpoints do not have them
            setattr(self.lr_scheduler, name, state.get(name, 0))
        self.of_former_rate = self.cfg.lr[0] / state["lr"] if state.get("lr") else 1.0

    @functools.wraps(resume)
    def load_checkpoint(
        self: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        extra_state = resume(self, filename, reset_optimizer, reset_lr_scheduler, *args, **kwargs)
        if extra_state and isinstance(self.lr_scheduler, schedule) and not (reset_optimizer or reset_lr_scheduler):
            # The optimizer's state, with the rate, is loaded after the scheduler's.
            if "lr" not in ast.literal_eval(str(self.cfg.checkpoint.optimizer_overrides)):
                self.optimizer.set_lr(self.get_lr() * getattr(self.lr_scheduler, "of_former_rate", 1.0))
            at = extra_state.get("train_iterator", {})
            if at.get("iterations_in_epoch") == 0 and extra_state.get("val_loss") is not None:
                self.lr_step(at["epoch"] - 1, extra_state["val_loss"])
        return extra_state

    schedule.state_dict, schedule.load_state_dict = state_dict, load_state_dict
    Trainer.load_checkpoint = load_checkpoint
