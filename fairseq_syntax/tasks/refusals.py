"""Options of fairseq that would train something else in silence, rejected before any work."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from fairseq.models.lstm import LSTMModel

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.locks import hold_folder
from fairseq_syntax.tasks.config import SyntaxTranslationConfig


def is_set(option: Any) -> bool:
    """Whether a fairseq option has a value: not None, nor an unresolved reference to another group of options."""
    return option is not None and not str(option).startswith("${")


def check_training(cfg: SyntaxTranslationConfig, model: Any, *, one_dictionary: bool) -> None:
    """Raises SyntaxDataError for training options that would train something else.

    Args:
        model: the options of the model
        one_dictionary: whether source and target have the same dictionary
    """
    check_one_shard(cfg)
    # fairseq looks for the default name in --save-dir, and downloads URLs (s3://).
    last = os.path.join(str(cfg.save_dir), "checkpoint_last.pt")
    option, restored = "--restore-file", str(cfg.restore_file) if is_set(cfg.restore_file) else last
    if restored == "checkpoint_last.pt" and is_set(cfg.continue_once) and not os.path.exists(last):
        option, restored = "--continue-once", str(cfg.continue_once)
    if restored not in ("checkpoint_last.pt", last) and "://" not in restored and not os.path.exists(restored):
        raise SyntaxDataError(
            "no such file, and fairseq would train from scratch",
            path=restored,
            option=option,
            hint="its path is not taken from --save-dir; without the option, checkpoint_last.pt there is",
        )
    check_metric_direction(cfg)
    without_gpu = cfg.cpu or not torch.cuda.is_available()
    if without_gpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        raise SyntaxDataError(
            "fairseq-hydra-train has started without this package, so that each process would train by itself",
            hint="install this package, so that Hydra finds it, or use fairseq-train",
        )
    check_precision(cfg)
    for side in ("encoder", "decoder"):
        if getattr(model, f"{side}_xformers_att_config", None):
            message = "replaces fairseq's attention, which the systems do not use"
            raise SyntaxDataError(message, option=f"--{side}-xformers-att-config", hint="leave it out")
    if getattr(model, "merge_src_tgt_embed", False) and not one_dictionary:
        raise SyntaxDataError(
            "merges the two dictionaries, but the data are numbered by the separate ones",
            option="--merge-src-tgt-embed",
            hint="use fairseq-preprocess --joined-dictionary, and --share-all-embeddings",
        )


def check_metric_direction(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError if the worst checkpoint would be saved as the best, by a metric in the wrong direction."""
    name, maximize = str(cfg.best_checkpoint_metric), cfg.maximize_best_checkpoint_metric
    is_cost = name == "ppl" or name.endswith("loss")
    if maximize is True and is_cost:  # outside fairseq's commands, it is neither True nor False
        raise SyntaxDataError(
            f"would save the checkpoint with the highest {name} as the best",
            option="--maximize-best-checkpoint-metric",
            hint="name a score with it: --eval-bleu --best-checkpoint-metric bleu",
        )
    if maximize is False and name.endswith(("bleu", "accuracy", "uas")):
        raise SyntaxDataError(
            "would save the checkpoint with the lowest one as the best",
            option=f"--best-checkpoint-metric {name}",
            hint="give --maximize-best-checkpoint-metric",
        )


def check_precision(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for a precision that needs another device."""
    # Outside fairseq's commands, they are neither True nor False.
    if cfg.tpu is True and find_spec("torch_xla") is None:
        raise SyntaxDataError(
            "fairseq-train trains on a TPU with it, and torch_xla is not installed",
            option="--bf16" if cfg.bf16 is True else "--tpu",
            hint="on a GPU, bfloat16 is common.bf16=true of fairseq-hydra-train; --fp16 and --amp are float16",
        )
    without_gpu = cfg.cpu is True or not torch.cuda.is_available()
    half = cfg.fp16 is True or cfg.bf16 is True
    efficient = cfg.memory_efficient_fp16 is True or cfg.memory_efficient_bf16 is True
    if half and without_gpu and not efficient and cfg.fp16_no_flatten_grads is not True:
        raise SyntaxDataError(
            "fairseq keeps the gradients of half precision in one tensor on a GPU",
            option="--fp16" if cfg.fp16 is True else "common.bf16",
            hint="without one, leave it out, or add --fp16-no-flatten-grads",
        )


def hold_save_dir(cfg: SyntaxTranslationConfig) -> None:
    """Lock ``--save-dir`` for a training, as a second training would overwrite its checkpoints.

    Raises:
        SyntaxDataError: another training holds the lock
    """
    # If fairseq has started one process per GPU, distributed_rank is that of the first in all of them.
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else cfg.distributed_rank
    # Outside fairseq's commands, no_save is neither True nor False.
    if cfg.no_save is False and rank in (0, None) and is_set(cfg.save_dir):
        hold_folder(cfg.save_dir)


def check_one_shard(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for ``--num-shards`` in training and validation, where fairseq ignores it."""
    if isinstance(cfg.num_shards, int) and cfg.num_shards > 1:
        message = "is an option of fairseq-generate; training and validation share the data among their processes"
        raise SyntaxDataError(message, option="--num-shards", hint="leave it out")


def check_model(cfg: SyntaxTranslationConfig, model: Any) -> None:
    """Raises SyntaxDataError for an LSTM whose output would depend on the other sentences of a batch."""
    if isinstance(model, LSTMModel) and cfg.left_pad_target:
        raise SyntaxDataError(
            "an LSTM decoder would read the padding before a sentence, of which there is more or less by what else is "
            "in the batch",
            option="--left-pad-target",
        )


def check_criterion(criterion: Any, model: Any) -> None:
    """Raises SyntaxDataError if a criterion would omit losses of a model, or change batches but not their parses.

    A criterion may check the model itself, by a method ``check_model``.
    """
    if check := getattr(criterion, "check_model", None):
        check(model)
    losses = getattr(model, "losses", ())
    if losses and not getattr(criterion, "takes_system_losses", False):
        raise SyntaxDataError(
            f"omits losses of the model: {', '.join(losses)}",
            option="--criterion",
            hint="use chunked_cross_entropy, which is label-smoothed cross entropy with these losses",
        )
    if getattr(criterion, "rdrop_alpha", 0) > 0 and getattr(model, "training_needs", None):
        raise SyntaxDataError(
            "fairseq's criterion duplicates each batch, but not its parses",
            option="--rdrop-alpha",
            hint="omit it, or use a model that needs no parse",
        )
