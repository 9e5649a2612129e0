"""Working around fairseq: the types its checkpoints hold, for ``weights_only`` loading, logging left as it was, its own
models in an ensemble with ours, our dropout under its names, several processes where there is no GPU, checkpoints that
a kill leaves whole, and what a run may go on from.
"""

from __future__ import annotations

import argparse
import collections
import functools
import inspect
import logging
import os
import socket
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """Leave logging as it was: importing fairseq's speech tasks and models configures it, down to DEBUG."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    # Notices about optional packages that nothing here uses.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def allow_checkpoint_types() -> None:
    """Let ``torch.load(weights_only=True)`` rebuild the types that fairseq saves: options, metrics, optimizer state.

    Each entry was found necessary: options are a Namespace or an omegaconf tree; ``--eval-bleu`` logs numpy counts;
    a resume on a rank above 0 receives placeholders. None of them runs code when it is loaded.
    """
    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf import DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import AnyNode

    # What rebuilds NumPy's arrays and numbers, under its name before NumPy 2 and since: a checkpoint may have either.
    rebuild = [np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]]
    numpy_names = [(f, f"numpy.{core}.multiarray.{f.__name__}") for f in rebuild for core in ("core", "_core")]

    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            np.ndarray,
            np.dtype,
            *numpy_names,
            np.dtypes.Int64DType,
            np.dtypes.Float64DType,
            DictConfig,
            ListConfig,
            ContainerMetadata,
            Metadata,
            AnyNode,
            typing.Any,
            dict,
            list,
            int,
            collections.defaultdict,
            _TensorPlaceholder,
        ]
    )


def ignore_syntax(model: nn.Module) -> None:
    """Let a model of fairseq's own be in an ensemble with one of ours.

    The search gives all encoders the same batch, and scoring all models; what knows no ``src_syntax`` is to go without.
    """
    encoder = getattr(model, "encoder", None)
    if encoder is None or "src_syntax" in inspect.signature(encoder.forward).parameters:
        return
    encode, forward = encoder.forward_non_torchscript, model.forward

    def encode_without_syntax(net_input: Mapping[str, Tensor]) -> typing.Any:
        return encode({name: value for name, value in net_input.items() if name != "src_syntax"})

    @functools.wraps(forward)  # those who ask see the names that it takes
    def without_syntax(*arguments: typing.Any, src_syntax: typing.Any = None, **inputs: typing.Any) -> typing.Any:
        return forward(*arguments, **inputs)

    encoder.forward_non_torchscript = encode_without_syntax
    model.forward = without_syntax  # type: ignore[method-assign]


def name_dropouts(model: nn.Module) -> None:
    """Let ``--retain-dropout-modules`` find the dropout of our modules by the name of fairseq's, which they extend.

    fairseq looks for the name of the class that a dropout was made in: ``TransformerEncoder``, and not ours.
    """
    from fairseq.models.transformer import transformer_decoder, transformer_encoder
    from fairseq.modules import FairseqDropout

    for module in model.modules():
        own = next((c for c in type(module).__mro__ if c.__module__.startswith("fairseq.")), None)
        for child in module.children():
            if own not in (None, type(module)) and isinstance(child, FairseqDropout):
                name = transformer_encoder.module_name_fordropout(own.__name__)
                child.module_name = transformer_decoder.module_name_fordropout(name)


def processes_without_gpus() -> None:
    """Let fairseq's commands run in several processes where there is no GPU, as they do where there are some.

    fairseq counts processes by GPUs: it stops at an assertion, starts none and ends, or trains once in every process of
    ``torchrun``; and its default, ``--ddp-backend pytorch_ddp``, names a GPU to PyTorch. With GPUs nothing is changed.
    """
    from fairseq.distributed import utils
    from fairseq.models import distributed_fairseq_model as wrapping

    if torch.cuda.is_available() or getattr(utils.call_main, "without_gpus", False):
        return
    original, wrapper = utils.call_main, wrapping.DistributedDataParallel

    def call_main(cfg: typing.Any, main: typing.Any, **kwargs: typing.Any) -> None:
        if _start_processes(cfg.distributed_training, cfg.common.tpu):
            options = cfg.distributed_training
            kwargs["start_rank"], options.distributed_rank = 0, None
            torch.multiprocessing.spawn(
                utils.distributed_main, args=(main, cfg, kwargs), nprocs=options.distributed_world_size
            )
        else:
            original(cfg, main, **kwargs)

    def on_cpus(*args: typing.Any, **kwargs: typing.Any) -> nn.Module:
        return wrapper(*args, **{**kwargs, "device_ids": None, "output_device": None})

    call_main.without_gpus = True  # type: ignore[attr-defined]
    utils.call_main = call_main
    wrapping.DistributedDataParallel = on_cpus


def whole_copies_of_checkpoints() -> None:
    """Let a kill leave every checkpoint whole: ``checkpoint_last.pt`` and ``checkpoint_best.pt``, too.

    fairseq writes one file beside its place and renames it, and copies it over the others, which a kill leaves in part:
    a run could not go on from them. The copies, too, are made beside their places.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    if getattr(checkpoint_utils.PathManager, "copies_are_whole", False):
        return

    class WholeCopies(PathManager):
        copies_are_whole = True

        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> typing.Any:
            if not overwrite or not PathManager.supports_rename(dst_path):
                return PathManager.copy(src_path, dst_path, overwrite=overwrite)
            copied = PathManager.copy(src_path, f"{dst_path}.tmp", overwrite=True)
            PathManager.rename(f"{dst_path}.tmp", dst_path)
            return copied

    checkpoint_utils.PathManager = WholeCopies  # of this module of fairseq alone


def checkpoints_to_go_on_from() -> None:
    """Let the task look at a checkpoint that training goes on from, or begins with (``--finetune-from-model``).

    fairseq's trainer keeps the state of the task in checkpoints and shows it to nobody. What is read here is all but
    the numbers, which stay in the file.
    """
    from fairseq.file_io import PathManager
    from fairseq.trainer import Trainer

    load = Trainer.load_checkpoint
    if getattr(load, "asks_the_task", False):
        return

    @functools.wraps(load)
    def load_checkpoint(self: typing.Any, filename: str, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        check = getattr(self.task, "check_checkpoint", None)
        if check is not None and PathManager.isfile(filename):
            check(_without_numbers(PathManager.get_local_path(filename)), self.cfg.model, filename)
        return load(self, filename, *args, **kwargs)

    load_checkpoint.asks_the_task = True  # type: ignore[attr-defined]
    Trainer.load_checkpoint = load_checkpoint


def _without_numbers(path: str) -> dict[str, typing.Any]:
    """A checkpoint whose tensors are still in the file.

    Raises:
        SyntaxDataError: it is no checkpoint, or a part of one
    """
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # of PyTorch before 1.6, as a whole
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what unpickling meets in a damaged file may be any
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        foreign = next((line for line in lines if "Unsupported global" in line or "Unsupported class" in line), None)
        if foreign is not None:
            raise SyntaxDataError(f"holds what is not loaded from a checkpoint: {foreign}", path=path) from error
        raise SyntaxDataError(
            f"no checkpoint that can be read: {lines[0] if lines else 'it ends too early'}",
            path=path,
            hint="go on from an earlier one with --restore-file, or move it away to begin anew",
        ) from error


def _start_processes(options: typing.Any, tpu: bool) -> bool:
    """Complete fairseq's options of several processes on CPUs; whether they are still to be started.

    Raises:
        SyntaxDataError: nothing says how many processes belong to this machine
    """
    if tpu:
        return False
    known = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= {*os.environ}
    # A launcher of one process sets them too; that one has nobody to talk to.
    if options.distributed_init_method is None and known and int(os.environ["WORLD_SIZE"]) > 1:
        options.distributed_init_method = "env://"
        options.distributed_world_size = int(os.environ["WORLD_SIZE"])
        options.distributed_rank = int(os.environ["RANK"])
        options.distributed_no_spawn = True
    if options.distributed_world_size > 1:
        options.distributed_backend = "gloo"
        if options.distributed_no_spawn:
            return False
        if options.distributed_init_method is not None or options.distributed_port > 0:
            raise SyntaxDataError(
                "without GPUs, fairseq does not know how many processes to start here",
                hint="start each by torchrun, or give --distributed-no-spawn and --distributed-rank to each",
            )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            options.distributed_init_method = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        return True
    return False
