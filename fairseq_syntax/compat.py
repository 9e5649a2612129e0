"""Working around fairseq: the types its checkpoints hold, for ``weights_only`` loading, logging left as it was, its own
models in an ensemble with ours, our dropout under its names, several processes where there is no GPU, checkpoints that
a kill leaves whole and damage does not pass in, what a run may go on from, and raw text in the hub's interface.
"""

from __future__ import annotations

import argparse
import collections
import functools
import inspect
import logging
import os
import resource
import socket
import time
import typing
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines

_EARLIER = "take an earlier one, as with --restore-file, or a copy of it"


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


def saving_again_from_the_start() -> None:
    """Let a second attempt to save a checkpoint write over the first: fairseq writes it after what there is of that."""
    from fairseq import checkpoint_utils

    if getattr(checkpoint_utils._torch_persistent_save, "begins_anew", False):
        return
    original = checkpoint_utils._torch_persistent_save

    @functools.wraps(original)
    def _torch_persistent_save(obj: typing.Any, f: typing.Any) -> None:
        if isinstance(f, str) or not f.seekable():
            original(obj, f)
            return
        start = f.tell()
        for seconds in (2.5, 2.5, None):
            try:
                torch.save(obj, f)
                return
            except Exception:
                if seconds is None:
                    raise
                time.sleep(seconds)
                f.seek(start)
                f.truncate()

    _torch_persistent_save.begins_anew = True  # type: ignore[attr-defined]
    checkpoint_utils._torch_persistent_save = _torch_persistent_save


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
            hint=_EARLIER,
        ) from error


def checked_checkpoints() -> None:
    """Let a damaged checkpoint be an error, wherever fairseq reads it: PyTorch does not compare the archive's CRCs."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    load = checkpoint_utils.load_checkpoint_to_cpu
    if getattr(load, "checks_archives", False):
        return

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: typing.Any, **kwargs: typing.Any) -> dict[str, typing.Any]:
        local = PathManager.get_local_path(path)
        check_archive(local)
        try:
            return load(path, *args, **kwargs)
        except Exception:
            _without_numbers(local)  # says what is wrong with the file, if it is the file
            raise

    load_checkpoint_to_cpu.checks_archives = True  # type: ignore[attr-defined]
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def check_archive(path: str | os.PathLike[str]) -> None:
    """Make sure that a checkpoint's archive is as it was written; one of before PyTorch 1.6 has nothing to tell by.

    Raises:
        SyntaxDataError: a record is not what its CRC says, or the archive has no end
    """
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PK\x03\x04":
                return
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # what is met in a damaged archive may be any
        raise SyntaxDataError(f"no checkpoint that can be read: {error}", path=path, hint=_EARLIER) from error
    if damaged is not None:
        raise SyntaxDataError(f"is damaged: {damaged} is not what was written", path=path, hint=_EARLIER)


def embeddings_with_or_without_a_header() -> None:
    """Let ``--encoder-embed-path`` take files with and without a first line of sizes, which fairseq skips unseen."""
    from fairseq import utils

    def parse_embedding(embed_path: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number, line in enumerate(read_lines(embed_path), start=1):
            word, *numbers = line.rstrip().split(" ")
            if number == 1 and len(numbers) == 1 and (word + numbers[0]).isdigit():
                continue
            try:
                found[word] = torch.tensor([float(value) for value in numbers])
            except ValueError as error:
                raise SyntaxDataError(f"not a word and its vector: {error}", path=embed_path, line=number) from None
            if len(found[word]) != len(next(iter(found.values()))):
                message = f"a vector of {len(numbers)} numbers, and that of the first word is of another length"
                raise SyntaxDataError(message, path=embed_path, line=number)
        return found

    utils.parse_embedding = parse_embedding


def trainings_begin_by_themselves() -> None:
    """Let a training begin without the best score of the last one of this process, to which fairseq compares its own.

    As in a sweep of fairseq-hydra-train, of which the second run would keep no best checkpoint. And whether checkpoints
    can be written is asked by our task, which knows whether there will be any.
    """
    from fairseq import checkpoint_utils

    verify = checkpoint_utils.verify_checkpoint_directory
    if getattr(verify, "forgets_the_best", False):
        return

    @functools.wraps(verify)
    def verify_checkpoint_directory(save_dir: str) -> None:
        check_open_files()
        with suppress(OSError):
            verify(save_dir)
        if hasattr(checkpoint_utils.save_checkpoint, "best"):
            del checkpoint_utils.save_checkpoint.best

    verify_checkpoint_directory.forgets_the_best = True  # type: ignore[attr-defined]
    checkpoint_utils.verify_checkpoint_directory = verify_checkpoint_directory


def check_open_files(wanted: int = 128) -> None:
    """Raise the limit of open files as far as the system lets it.

    Raises:
        SyntaxDataError: it is so low that a worker that loads data would fail at it, for which training waits for ever
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SyntaxDataError(f"only {hard} files may be open at a time: {wanted} are wanted", hint="ulimit -n 1024")
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def raw_text_in_the_hub_interface() -> None:
    """Let ``from_pretrained(…).translate("raw text")`` parse and cut the text as fairseq-interactive does.

    fairseq's interface knows ``--bpe`` alone, and would take each word for a piece.
    """
    from fairseq import hub_utils

    base = hub_utils.GeneratorHubInterface
    if getattr(base, "asks_the_task", False):
        return

    class GeneratorHubInterface(base):  # type: ignore[misc, valid-type]
        asks_the_task = True

        def __init__(self, cfg: typing.Any, task: typing.Any, models: typing.Any) -> None:
            super().__init__(cfg, task, models)
            self.bpe: typing.Any
            self._cuts = self.bpe is None and hasattr(task, "encode_raw")
            if self._cuts:
                self.bpe = task.build_bpe(cfg.bpe)

        def encode(self, sentence: str) -> Tensor:
            """Tokens [T] of a text."""
            return self.task.encode_raw([sentence])[0] if self._cuts else super().encode(sentence)

        def sample(
            self, sentences: typing.Any, beam: int = 1, verbose: bool = False, **kwargs: typing.Any
        ) -> typing.Any:
            """The best translation of each text, or of one."""
            if not self._cuts or isinstance(sentences, str):
                return super().sample(sentences, beam, verbose, **kwargs)
            hypotheses = self.generate(self.task.encode_raw(sentences), beam, verbose, **kwargs)
            return [self.decode(best[0]["tokens"]) for best in hypotheses]

    hub_utils.GeneratorHubInterface = GeneratorHubInterface


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
