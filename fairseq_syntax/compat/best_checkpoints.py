"""A change to ``--keep-best-checkpoints N``: the N best checkpoints are kept, whatever came first.

fairseq saves a checkpoint only if it is better than the worst that it has kept, even if it has kept fewer than N: after
a good first epoch, none is added. It tells equal scores apart by random digits, so one may overwrite another. And a
score that is not a number would be the best for ever, since no other is less.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import re
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager


def install() -> None:
    """Let fairseq save all checkpoints but the best ones, and then keep those."""
    save = checkpoint_utils.save_checkpoint

    @functools.wraps(save)
    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        rest = copy.copy(cfg)
        rest.keep_best_checkpoints = 0
        score = comparable(cfg, val_loss)
        saved = save(rest, trainer, epoch_itr, score)
        is_saving = not cfg.no_save and trainer.should_save_checkpoint_on_current_rank
        if cfg.keep_best_checkpoints > 0 and score is not None and math.isfinite(score) and is_saving:
            _keep_best(cfg, trainer, epoch_itr, float(score), saved)
        return saved

    # fairseq's function keeps its best score as an attribute of the one that has its name in the module.
    checkpoint_utils.save_checkpoint = save_checkpoint


def comparable(cfg: Any, score: Any) -> Any:
    """A validation score, or the worst that there is in place of NaN."""
    is_nan = score is not None and math.isnan(score)
    return (-math.inf if cfg.maximize_best_checkpoint_metric else math.inf) if is_nan else score


def _keep_best(cfg: Any, trainer: Any, epoch_itr: Any, score: float, saved: str | None) -> None:
    """Add the current checkpoint to the best ones if it is one of them, and remove the one that no longer is.

    Args:
        score: of the validation
        saved: a file of this checkpoint, which is copied, if there is one
    """
    sign = -1 if cfg.maximize_best_checkpoint_metric else 1
    suffix = re.escape(f"{trainer.checkpoint_suffix}.pt")
    # fairseq's names: the score with three decimals, and further digits to tell equal scores apart
    kind = re.compile(rf"checkpoint\.best_{re.escape(cfg.best_checkpoint_metric)}_(-?\d+\.\d{{3}})(\d*){suffix}")
    files = filter(None, map(kind.fullmatch, PathManager.ls(cfg.save_dir)))
    kept = {match[0]: (sign * float(match[1]), int(match[2] or 0)) for match in files}
    of_equals = {digits for of, digits in kept.values() if of == sign * float(f"{score:.3f}")}
    digits = next(digits for digits in itertools.count() if digits not in of_equals)
    name = f"checkpoint.best_{cfg.best_checkpoint_metric}_{score:.3f}{digits}{trainer.checkpoint_suffix}.pt"
    kept[name] = sign * float(f"{score:.3f}"), digits
    best = sorted(kept, key=kept.__getitem__)
    path = os.path.join(cfg.save_dir, name)
    if name in best[: cfg.keep_best_checkpoints]:
        if saved is not None and not cfg.write_checkpoints_asynchronously:
            checkpoint_utils.PathManager.copy(saved, path, overwrite=True)
        else:
            state = {"train_iterator": epoch_itr.state_dict(), "val_loss": score}
            trainer.save_checkpoint(path, {**state, "best": checkpoint_utils.save_checkpoint.best})
    for worse in best[cfg.keep_best_checkpoints :]:
        if worse != name:
            os.remove(os.path.join(cfg.save_dir, worse))
