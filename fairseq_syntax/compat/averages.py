"""Changes to ``--store-ema``, a moving average of the parameters: it has all of them, from the first update.

fairseq updates the average without its version, so that a model takes it for one of an early release and drops the
normalization after its last layer (``--decoder-normalize-before``). In a checkpoint without an average, it looks for
the parameters after it has released them, or not at all (``--ema-seed-model``).
"""

from __future__ import annotations

import functools
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.ema import ema
from fairseq.trainer import Trainer
from torch import Tensor


def install() -> None:
    """Give each average the version of its model, and let it begin with a checkpoint's parameters."""
    restore, resume = ema.EMA.restore, Trainer.load_checkpoint

    @functools.wraps(restore)
    def restore_with_version(self: Any, state_dict: dict[str, Tensor], build_fp32_params: bool = False) -> None:
        versions = {name: value for name, value in self.model.state_dict().items() if _is_version(name)}
        restore(self, {**state_dict, **versions}, build_fp32_params)

    @functools.wraps(resume)
    def load_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.cfg.ema.store_ema:
            return resume(self, *args, **kwargs)
        load = checkpoint_utils.load_checkpoint_to_cpu
        checkpoint_utils.load_checkpoint_to_cpu = lambda *given, **more: _with_average(load(*given, **more))
        try:
            return resume(self, *args, **kwargs)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = load

    def load_average(path: str) -> dict[str, Any]:
        """For ``--ema-seed-model``."""
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
        return {**state, "model": {name: value.float() for name, value in average_of(state).items()}}

    checkpoint_utils.load_ema_from_checkpoint = load_average
    ema.EMA.restore = restore_with_version
    Trainer.load_checkpoint = load_checkpoint


def _with_average(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint with an average; of what it has none, the parameter."""
    state["extra_state"]["ema"] = average_of(state)
    return state


def average_of(state: dict[str, Any]) -> dict[str, Tensor]:
    """The moving average in a checkpoint, with the model's parameter where fairseq has not stored it."""
    average = {name: value for name, value in state["extra_state"].get("ema", {}).items() if not _is_version(name)}
    return {**state["model"], **average}


def _is_version(name: str) -> bool:
    return name.rpartition(".")[2] == "version"
