"""fairseq options that these systems do not support, rejected before any work, with what to use instead."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.lstm import LSTMModel
from omegaconf import OmegaConf

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error

if TYPE_CHECKING:
    from fairseq_syntax.tasks.config import SyntaxTranslationConfig


@dataclass(frozen=True)
class ModelTraits:
    """The properties of a model that decide which options and criterions it supports.

    Attributes:
        losses: the names of the losses of its systems
        adaptive_softmax: whether its output layer is that of ``--adaptive-softmax-cutoff``
        lstm: whether it is an LSTM
        training_needs, inference_needs: what it needs of the source's parse in training and at inference
        target_training_needs: what it needs of the target's parse in training
        drops_parses: whether it reads a parse in training and at inference, so that ``--parse-dropout`` applies
    """

    losses: tuple[str, ...] = ()
    adaptive_softmax: bool = False
    lstm: bool = False
    training_needs: frozenset[str] = frozenset()
    inference_needs: frozenset[str] = frozenset()
    target_training_needs: frozenset[str] = frozenset()
    drops_parses: bool = False

    @classmethod
    def of(cls, model: Any) -> ModelTraits:
        return cls(
            losses=getattr(model, "losses", ()),
            adaptive_softmax=getattr(getattr(model, "decoder", None), "adaptive_softmax", None) is not None,
            lstm=isinstance(model, LSTMModel),
            training_needs=getattr(model, "training_needs", frozenset()),
            inference_needs=getattr(model, "inference_needs", frozenset()),
            target_training_needs=getattr(model, "target_training_needs", frozenset()),
            drops_parses=getattr(model, "drops_parses", bool(getattr(model, "inference_needs", ()))),
        )


def is_set(option: Any) -> bool:
    """Whether a fairseq option has a value: not None, nor an unresolved reference to another group of options."""
    return option is not None and not str(option).startswith("${")


def check_task(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for task options that no model supports."""
    if cfg.syntax_input == "conllu" and is_set(cfg.constraints):
        raise SyntaxDataError(
            "CoNLL-U input has no field for constraints",
            option="--constraints",
            hint=r"give each sentence a line: its rows joined by \n, their tabs as \t, then tabs and the words",
        )
    if cfg.tpu is True:
        raise SyntaxDataError(
            "fairseq trains on a TPU with it, and these systems have not been tested on one",
            option="--bf16, --tpu",
            hint="use --amp for mixed precision; for bfloat16, use fairseq-hydra-train with common.bf16=true",
        )
    if cfg.ddp_backend == "fully_sharded":
        raise SyntaxDataError(
            "fully_sharded hides the layers of a model from its systems",
            option="--ddp-backend",
            hint="use pytorch_ddp or legacy_ddp; to save memory, --memory-efficient-fp16 or --checkpoint-activations",
        )


def check_training(cfg: SyntaxTranslationConfig, model: Any, *, one_dictionary: bool) -> None:
    """Raises SyntaxDataError for training options that would fail or train something else.

    Args:
        cfg: the options of the task
        model: the options of the model
        one_dictionary: whether source and target have the same dictionary
    """
    check_one_shard(cfg)
    if cfg.best_checkpoint_metric == "bleu" and not cfg.eval_bleu:
        message = "bleu is computed with --eval-bleu only"
        raise SyntaxDataError(message, option="--best-checkpoint-metric", hint="give both")
    # fairseq looks for the default name in --save-dir, and downloads URLs (s3://).
    last = os.path.join(str(cfg.save_dir), "checkpoint_last.pt")
    restored = str(cfg.restore_file) if is_set(cfg.restore_file) else last
    if restored not in ("checkpoint_last.pt", last) and "://" not in restored and not os.path.exists(restored):
        raise SyntaxDataError(
            "no such file, and fairseq would train from scratch",
            path=restored,
            option="--restore-file",
            hint="its path is not taken from --save-dir; without the option, checkpoint_last.pt there is",
        )
    without_gpu = cfg.cpu or not torch.cuda.is_available()
    if cfg.fp16 is True and not cfg.memory_efficient_fp16 and without_gpu:
        raise SyntaxDataError("needs a GPU", option="--fp16", hint="use --amp, or --memory-efficient-fp16")
    if OmegaConf.is_config(model) and "criterion" not in model and ARCH_MODEL_REGISTRY.get(model._name) is LSTMModel:
        message = "fairseq's own lstm looks for --criterion among its options"
        raise SyntaxDataError(message, option="--arch", hint="use fairseq-train")
    if without_gpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        raise SyntaxDataError(
            "each of these processes would train by itself: fairseq-hydra-train starts one only without a GPU",
            hint="use fairseq-train under torchrun, or with --distributed-world-size",
        )
    for side in ("encoder", "decoder"):
        if getattr(model, f"{side}_xformers_att_config", None):
            message = "replaces fairseq's attention, which the systems do not use"
            raise SyntaxDataError(message, option=f"--{side}-xformers-att-config", hint="leave it out")
        if getattr(model, f"{side}_layers_to_keep", None):
            raise SyntaxDataError(
                "prunes a trained model",
                option=f"--{side}-layers-to-keep",
                hint=f"train with fewer --{side}-layers, or with --{side}-layerdrop",
            )
    if getattr(model, "merge_src_tgt_embed", False) and not one_dictionary:
        raise SyntaxDataError(
            "merges the two dictionaries, but the data are numbered by the separate ones",
            option="--merge-src-tgt-embed",
            hint="use fairseq-preprocess --joined-dictionary, and --share-all-embeddings",
        )


def hold_save_dir(cfg: SyntaxTranslationConfig) -> None:
    """Lock ``--save-dir`` for a training, as a second training would overwrite its checkpoints.

    Raises:
        SyntaxDataError: another training holds the lock, or the folder is not writable
    """
    from fairseq_syntax.runtime.locks import hold_folder

    # If fairseq has started one process per GPU, distributed_rank is that of the first in all of them.
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else cfg.distributed_rank
    # Outside fairseq's commands, no_save is neither True nor False.
    if cfg.no_save is not False or rank not in (0, None) or not is_set(cfg.save_dir):
        return
    # This detects a folder that is not writable, which locking would accept.
    with as_data_error(cfg.save_dir):
        os.makedirs(cfg.save_dir, exist_ok=True)
        with open(os.path.join(cfg.save_dir, ".in-use.lock"), "a"):
            pass
    hold_folder(cfg.save_dir)


def check_one_shard(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for ``--num-shards`` in commands that distribute the data themselves."""
    if isinstance(cfg.num_shards, int) and cfg.num_shards > 1:
        message = "is an option of fairseq-generate; training and validation share the data among their processes"
        raise SyntaxDataError(message, option="--num-shards", hint="leave it out")


def check_datasets(cfg: SyntaxTranslationConfig, *, reads_parses: bool) -> None:
    """Raises SyntaxDataError for dataset options that fail, or that would change sentences but not their parses."""
    if cfg.num_batch_buckets:
        raise SyntaxDataError("does not run on NumPy 2", option="--num-batch-buckets", hint="leave it out")
    if cfg.truncate_source and reads_parses:
        raise SyntaxDataError(
            "would cut sentences, but not their parses",
            option="--truncate-source",
            hint="skip long sentences with --max-source-positions and --skip-invalid-size-inputs-valid-test",
        )


def check_model(cfg: SyntaxTranslationConfig, traits: ModelTraits) -> None:
    """Raises SyntaxDataError for task options that are useless or harmful for the trained model."""
    if traits.lstm and cfg.left_pad_target:
        raise SyntaxDataError(
            "an LSTM decoder would read the padding before a sentence, of which there is more or less by what else is "
            "in the batch",
            option="--left-pad-target",
        )
    if cfg.parse_dropout and not traits.drops_parses:
        raise SyntaxDataError(
            "drops the parse in training, but this model does not read one at inference",
            option="--parse-dropout",
        )


def check_criterion(criterion: Any, traits: ModelTraits) -> None:
    """Raises SyntaxDataError if a criterion would omit losses of the model, or cannot use its output."""
    if traits.losses and not getattr(criterion, "takes_system_losses", False):
        raise SyntaxDataError(
            f"omits losses of the model: {', '.join(traits.losses)}",
            option="--criterion",
            hint="use supervised_head, which is label-smoothed cross entropy with these losses, or turn them off "
            "(weight 0)",
        )
    if traits.adaptive_softmax and not isinstance(criterion, AdaptiveLoss):
        raise SyntaxDataError(
            "only fairseq's adaptive_loss can train this output layer",
            option="--adaptive-softmax-cutoff",
            hint="use --criterion adaptive_loss --ddp-backend legacy_ddp, without systems that have losses",
        )
    if isinstance(criterion, AdaptiveLoss) and not traits.adaptive_softmax:
        raise SyntaxDataError(
            "adaptive_loss reads the output layer of --adaptive-softmax-cutoff, and the model has none",
            option="--criterion",
            hint="give that option; an LSTM has that layer in fairseq-train alone, which names its criterion to it",
        )
    if getattr(criterion, "rdrop_alpha", 0) > 0 and traits.training_needs:
        raise SyntaxDataError(
            "fairseq's criterion duplicates each batch, but not its parses",
            option="--rdrop-alpha",
            hint="omit it, or use a model that needs no parse",
        )
    if traits.lstm and isinstance(criterion, LabelSmoothedCrossEntropyCriterionWithAlignment):
        raise SyntaxDataError(
            "fairseq's alignment criterion needs attention weights that LSTMs do not return in training",
            option="--criterion",
            hint="use a Transformer, or another criterion",
        )
