"""Patches of checkpointing: safe types, integrity checks, atomic copies, checks before a resume."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import re
import time
import zipfile
from collections import ChainMap, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from fairseq_syntax import plugins
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.recipe_stage import STAGE_VARIABLE, start_of_stage

_train_logger = logging.getLogger("fairseq_cli.train")  # whose lines --log-file has
# In PyTorch's errors of what it does not load with weights_only: the function or class.
_UNSAFE = re.compile(r"(?:GLOBAL|[Uu]nsupported class|unrecognized function) <?(?:built-in function |class ')?([\w.]+)")
_UNREAD = re.compile(r"WeightsUnpickler error:\s*(.+)")  # after the same advice
_STAGE = "stage"  # in extra_state
_EARLIER = "take an earlier one, as with --restore-file, or a copy of it"


def install() -> None:
    """Make fairseq load what it saves, detect damage, write atomically, and check plugins and resumed checkpoints."""
    _allow_types()
    plugins.NAMED["arch"] = ChainMap(ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY)
    plugins.NAMED["task"] = TASK_REGISTRY
    save, load = checkpoint_utils._torch_persistent_save, checkpoint_utils.load_checkpoint_to_cpu
    go_on, keep = Trainer.load_checkpoint, Trainer.save_checkpoint

    class WholeCopies(PathManager):
        """fairseq's file operations, with atomic copies.

        fairseq writes a checkpoint atomically, but copies it to ``checkpoint_last.pt`` and ``checkpoint_best.pt``,
        which a kill would leave incomplete.
        """

        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
            if not overwrite or not PathManager.supports_rename(dst_path):
                return PathManager.copy(src_path, dst_path, overwrite=overwrite)
            copied = PathManager.copy(src_path, f"{dst_path}.tmp", overwrite=True)
            PathManager.rename(f"{dst_path}.tmp", dst_path)
            return copied

    @functools.wraps(save)
    def save_from_the_start(obj: Any, f: Any) -> None:
        """Make a second attempt to save overwrite the first; fairseq would append to the partial file."""
        if isinstance(f, str) or not f.seekable():
            save(obj, f)
            return
        start = f.tell()
        for seconds in (2.5, 2.5, None):  # three attempts with pauses, as in fairseq
            try:
                torch.save(obj, f)
                return
            except Exception:
                if seconds is None:
                    raise
                time.sleep(seconds)
                f.seek(start)
                f.truncate()

    @functools.wraps(load)
    def load_checked(path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Verify the archive's CRCs, since PyTorch does not, and whether the model's names are known here."""
        local = PathManager.get_local_path(path)
        check_archive(local)
        try:
            state = load(path, *args, **kwargs)
        except Exception:
            load_mapped(local)  # explains the error if the file causes it
            raise
        plugins.check_checkpoint(state, path)
        return state

    @functools.wraps(go_on)
    def ask_the_task(self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        """Let the task begin, and check the checkpoint from which training resumes or which it takes parameters from.

        fairseq's trainer stores the task's state in checkpoints but does not let the task check it.
        """
        if (begin := getattr(self.task, "begin_training", None)) is not None:
            begin()
        _check_stage(self.cfg.checkpoint.save_dir)
        check = getattr(self.task, "check_checkpoint", None)
        if check is not None and PathManager.isfile(filename):
            check(load_mapped(PathManager.get_local_path(filename)), self.cfg.model, filename)
        extra_state = go_on(self, filename, *args, **kwargs)
        if stage := os.environ.get(STAGE_VARIABLE):
            _train_logger.info(start_of_stage(stage, self.get_num_updates()))
        return extra_state

    @functools.wraps(keep)
    def save_plugins(self: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        """Record the plugins that are loaded in training, and the recipe's stage, if it is one."""
        stage = {_STAGE: name} if (name := os.environ.get(STAGE_VARIABLE)) else {}
        return keep(self, filename, {**extra_state, plugins.RECORD: plugins.record(), **stage})

    checkpoint_utils.PathManager = WholeCopies  # only in this module of fairseq
    checkpoint_utils._torch_persistent_save = save_from_the_start
    checkpoint_utils.load_checkpoint_to_cpu = load_checked
    Trainer.load_checkpoint = ask_the_task
    Trainer.save_checkpoint = save_plugins


def _check_stage(save_dir: str) -> None:
    """Check that all checkpoints with which a recipe's interrupted training resumes are its own.

    fairseq would resume from a copy of another seed's ``checkpoint_last.pt``, and keep another's ``checkpoint_best.pt``
    if no later one is better.

    Raises:
        SyntaxDataError: one cannot be read, or another stage saved it
    """
    if not (stage := os.environ.get(STAGE_VARIABLE)):
        return
    for path in sorted(Path(save_dir).glob("*.pt")):
        check_archive(path)
        saved_by = (load_mapped(str(path)).get("extra_state") or {}).get(_STAGE)  # none before version 0.2
        if saved_by not in (None, stage):
            message = "is a checkpoint of another training, and this one would resume with it"
            raise SyntaxDataError(message, path=path, hint="put its own in its place, or remove this one")


def _allow_types() -> None:
    """Let ``torch.load(weights_only=True)`` rebuild the types that fairseq saves; none of them runs code when loaded.

    Options are a Namespace or an omegaconf tree, ``--eval-bleu`` logs NumPy counts, and resuming on a rank above 0
    receives placeholders.
    """
    # The functions that rebuild NumPy arrays and scalars, under their names before and since NumPy 2.
    rebuild = [np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]]
    numpy_names = [(f, f"numpy.{core}.multiarray.{f.__name__}") for f in rebuild for core in ("core", "_core")]
    arrays: list[Any] = [np.ndarray, np.dtype, *numpy_names, np.dtypes.Int64DType, np.dtypes.Float64DType]
    options: list[Any] = [argparse.Namespace, DictConfig, ListConfig, ContainerMetadata, Metadata, AnyNode, Any]
    plain: list[Any] = [dict, list, int, defaultdict, _TensorPlaceholder]
    torch.serialization.add_safe_globals([*arrays, *options, *plain])


def load_mapped(path: str) -> dict[str, Any]:
    """Load a checkpoint, memory-mapped. Raises SyntaxDataError if it is invalid or incomplete."""
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of PyTorch before 1.6 cannot be memory-mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a damaged file can raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["it ends too early"]
        if unsafe := _UNSAFE.search(str(error)):  # PyTorch's own message advises to load it nevertheless
            message = f"holds {unsafe[1]}, which is not loaded, since it may run code"
            hint = "checkpoints hold tensors, numbers and options; take one from where you trust it"
            raise SyntaxDataError(message, path=path, hint=hint) from error
        reason = unread[1] if (unread := _UNREAD.search(str(error))) else lines[0]
        raise SyntaxDataError(f"no checkpoint that can be read: {reason}", path=path, hint=_EARLIER) from error


def check_archive(path: str | os.PathLike[str]) -> None:
    """Verify the CRCs of a checkpoint's archive (before PyTorch 1.6 there are none). Raises SyntaxDataError."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PK\x03\x04":
                return
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # reading a damaged archive can raise anything
        raise SyntaxDataError(f"no checkpoint that can be read: {error}", path=path, hint=_EARLIER) from error
    if damaged is not None:
        raise SyntaxDataError(f"is damaged: the checksum of {damaged} is wrong", path=path, hint=_EARLIER)
