"""Changes to fairseq's processes: several processes without a GPU, several trainings in one, open files, logs."""

from __future__ import annotations

import functools
import logging
import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils
from fairseq.logging import progress_bar
from fairseq.models import distributed_fairseq_model as wrapping
from fairseq.modules import LayerDropModuleList
from torch import distributed, nn

from fairseq_syntax.compat.stopping import forget_counts
from fairseq_syntax.errors import SyntaxDataError

OPEN_FILES = 128  # needed for training
ATTEMPT = "attempt"  # the scheme of an address by which the processes of a restart find each other


def install() -> None:
    """Allow several processes without a GPU, make trainings in one process independent, and open logs once."""
    if not torch.cuda.is_available():
        _run_without_gpus()
        distributed.register_rendezvous_handler(ATTEMPT, _meet_in_attempt)
    _check_dropped_layers()
    _begin_trainings_anew()
    _log_once()


def _run_without_gpus() -> None:
    """Make fairseq's commands run in several processes without GPUs, as they do with GPUs.

    fairseq counts GPUs instead of processes: it fails an assertion, starts no process, or trains independently in each
    process of ``torchrun``. Its default ``--ddp-backend pytorch_ddp`` passes a GPU to PyTorch.
    """
    original, wrapper = utils.call_main, wrapping.DistributedDataParallel

    def call_main(cfg: Any, main: Any, **kwargs: Any) -> None:
        if _start_processes(cfg.distributed_training):
            # Like fairseq's own, with the requested number of processes instead of one per GPU.
            options = cfg.distributed_training
            kwargs["start_rank"], options.distributed_rank = 0, None
            torch.multiprocessing.spawn(
                utils.distributed_main, args=(main, cfg, kwargs), nprocs=options.distributed_world_size
            )
        else:
            original(cfg, main, **kwargs)

    def on_cpus(*args: Any, **kwargs: Any) -> nn.Module:
        return wrapper(*args, **{**kwargs, "device_ids": None, "output_device": None})

    def all_gather_list(data: Any, group: Any = None, max_size: int = 0) -> list[Any]:
        """fairseq's, which takes its buffers from a GPU; ``max_size`` is not needed here."""
        gathered: list[Any] = [None] * utils.get_world_size(group)
        torch.distributed.all_gather_object(gathered, data, group=group)
        return gathered

    utils.call_main = call_main
    utils.all_gather_list = all_gather_list
    wrapping.DistributedDataParallel = on_cpus


def _check_dropped_layers() -> None:
    """Reject ``--encoder-layerdrop`` where PyTorch would wait for gradients of layers that a process has dropped."""
    wrapper = wrapping.DistributedDataParallel

    def checked(*args: Any, **kwargs: Any) -> nn.Module:
        model = args[0] if args else kwargs["module"]
        drops = any(isinstance(part, LayerDropModuleList) and part.p > 0 for part in model.modules())
        if drops and not kwargs.get("find_unused_parameters"):
            message = "leaves a process without the gradients of dropped layers, for which the others wait"
            hint = "give --find-unused-parameters, or --ddp-backend legacy_ddp"
            raise SyntaxDataError(message, option="--encoder-layerdrop or --decoder-layerdrop", hint=hint)
        return wrapper(*args, **kwargs)

    wrapping.DistributedDataParallel = checked


def _start_processes(options: Any) -> bool:
    """Complete fairseq's options for several processes on CPUs; returns whether they still have to be started.

    Raises:
        SyntaxDataError: the number of processes on this machine is unknown
    """
    launched = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= {*os.environ}
    # A launcher with one process sets them too, but then there is no other process.
    if options.distributed_init_method is None and launched and int(os.environ["WORLD_SIZE"]) > 1:
        # How often other nodes have restarted is unknown.
        is_restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        one_node = os.environ.get("GROUP_WORLD_SIZE") == "1"
        options.distributed_init_method = f"{ATTEMPT}://" if is_restarted and one_node else "env://"
        options.distributed_world_size = int(os.environ["WORLD_SIZE"])
        options.distributed_rank = int(os.environ["RANK"])
        options.distributed_no_spawn = True
    if options.distributed_world_size <= 1:
        return False
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


def _meet_in_attempt(url: str, **options: Any) -> Iterator[tuple[distributed.Store, int, int]]:
    """PyTorch's ``env://`` for processes that ``torchrun --max-restarts`` has started again.

    All attempts share a store (https://github.com/pytorch/pytorch/issues/135712), where the new processes may find the
    addresses of ended ones, for which they would wait for half an hour. Here each attempt has its own keys.
    """
    timeout = {name: value for name, value in options.items() if name == "timeout"}
    store, rank, size = next(distributed.rendezvous("env://", **timeout))
    yield distributed.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store), rank, size
    raise RuntimeError("the processes of an attempt meet once")


def _begin_trainings_anew() -> None:
    """Reset the best validation scores of this process, with which fairseq would compare the next training.

    Otherwise the second run of a sweep with fairseq-hydra-train may keep no best checkpoint, and ``--patience`` may end
    it after its first epoch. fairseq keeps the scores as attributes of functions.
    """
    verify = checkpoint_utils.verify_checkpoint_directory

    @functools.wraps(verify)
    def verify_checkpoint_directory(save_dir: str) -> None:
        check_open_files()
        verify(save_dir)
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        forget_counts()

    checkpoint_utils.verify_checkpoint_directory = verify_checkpoint_directory


def _log_once() -> None:
    """Close the file of ``--log-file`` before it is opened again.

    fairseq opens it in each epoch and never closes it: the lines of epoch N would be written N times, and a training of
    many epochs would run out of open files.
    """
    original = progress_bar.progress_bar

    @functools.wraps(original)
    def one_log(*args: Any, log_file: str | None = None, **kwargs: Any) -> progress_bar.BaseProgressBar:
        logger = progress_bar.logger
        for handler in list(logger.handlers) if log_file is not None else ():
            if isinstance(handler, logging.FileHandler):
                logger.removeHandler(handler)
                handler.close()
        return original(*args, log_file=log_file, **kwargs)

    progress_bar.progress_bar = one_log


def check_open_files() -> None:
    """Raise the limit of open files as far as the system allows.

    Raises:
        SyntaxDataError: the limit is so low that a data-loading worker would fail, and training would wait forever
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        message = f"only {hard} files may be open at a time: {OPEN_FILES} are wanted"
        raise SyntaxDataError(message, hint="ulimit -n 1024")
    if 0 <= soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
