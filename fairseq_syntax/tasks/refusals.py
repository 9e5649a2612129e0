"""What fairseq offers and these systems cannot do: refused before any work, with what to do instead."""

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
from fairseq_syntax.runtime.locks import hold_folder

if TYPE_CHECKING:
    from fairseq_syntax.tasks.config import SyntaxTranslationConfig


@dataclass(frozen=True)
class ModelTraits:
    """What decides which options and criterions a model goes with.

    Attributes:
        losses: names of the losses that its systems have
        adaptive_softmax: its output layer is that of ``--adaptive-softmax-cutoff``
        lstm: it is of the LSTM family
        training_needs, inference_needs: what it needs of a parse in training, and reads of it at inference
        target_training_needs: what it needs of a parse of the target in training
        drops_parses: whether it reads a parse in training as at inference, so that it can be taken away
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
    """Whether an option of fairseq's own has a value: not None, nor its name, in a configuration of the task alone."""
    return option is not None and not str(option).startswith("${")


def check_task(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for options of the task that no model goes with."""
    if cfg.syntax_input == "conllu" and is_set(cfg.constraints):
        raise SyntaxDataError(
            "CoNLL-U has no place for the words that it asks for",
            option="--constraints",
            hint=r"give each sentence a line: its rows joined by \n, their tabs as \t, then tabs and the words",
        )
    if cfg.tpu is True:
        raise SyntaxDataError(
            "fairseq takes --bf16 and --tpu for training on a TPU, which these systems were never run on",
            hint="--amp has mixed precision; fairseq-hydra-train has bfloat16 by common.bf16=true",
        )
    if cfg.ddp_backend == "fully_sharded":
        raise SyntaxDataError(
            "--ddp-backend fully_sharded hides the layers of a model from its systems",
            hint="use --ddp-backend pytorch_ddp or legacy_ddp, and --memory-efficient-fp16 or "
            "--checkpoint-activations where memory is short",
        )


def check_training(cfg: SyntaxTranslationConfig, model: Any, *, one_dictionary: bool) -> None:
    """Raises SyntaxDataError for ways to train that do not run, or that would train something else.

    Args:
        cfg: of the task
        model: options of the model that is to be built
        one_dictionary: whether that of the target is that of the source
    """
    check_one_shard(cfg)
    if cfg.best_checkpoint_metric == "bleu" and not cfg.eval_bleu:
        raise SyntaxDataError("--best-checkpoint-metric bleu is computed with --eval-bleu only", hint="give both")
    without_gpu = cfg.cpu or not torch.cuda.is_available()
    if cfg.fp16 is True and not cfg.memory_efficient_fp16 and without_gpu:
        raise SyntaxDataError("--fp16 needs a GPU", hint="use --amp, or --memory-efficient-fp16")
    if OmegaConf.is_config(model) and "criterion" not in model and ARCH_MODEL_REGISTRY.get(model._name) is LSTMModel:
        raise SyntaxDataError("fairseq's own lstm needs fairseq-train: it looks for --criterion among its options")
    if without_gpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        raise SyntaxDataError(
            "each of these processes would train by itself: fairseq-hydra-train starts one only without a GPU",
            hint="use fairseq-train under torchrun, or with --distributed-world-size",
        )
    for side in ("encoder", "decoder"):
        if getattr(model, f"{side}_xformers_att_config", None):
            raise SyntaxDataError(
                f"--{side}-xformers-att-config: attention that reads a parse is this package's, and would be as it is",
                hint="leave it out",
            )
        if getattr(model, f"{side}_layers_to_keep", None):
            raise SyntaxDataError(
                f"--{side}-layers-to-keep is for a model that is trained",
                hint=f"train with fewer --{side}-layers, or with --{side}-layerdrop",
            )
    if getattr(model, "merge_src_tgt_embed", False) and not one_dictionary:
        raise SyntaxDataError(
            "--merge-src-tgt-embed makes one dictionary of two, and the data are numbered by the two",
            hint="fairseq-preprocess --joined-dictionary, and --share-all-embeddings",
        )


def hold_save_dir(cfg: SyntaxTranslationConfig) -> None:
    """Let a training hold its ``--save-dir``: a second one would write its checkpoints over those of the first.

    Raises:
        SyntaxDataError: another training holds it, or it cannot be written
    """
    # Where fairseq has started a process for each GPU, the options of all of them name the first.
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else cfg.distributed_rank
    if cfg.no_save is not False or rank not in (0, None) or str(cfg.save_dir).startswith("${"):
        return
    with as_data_error(cfg.save_dir):
        os.makedirs(cfg.save_dir, exist_ok=True)
        with open(os.path.join(cfg.save_dir, ".in-use.lock"), "a"):
            pass
    hold_folder(cfg.save_dir)


def check_one_shard(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for ``--num-shards`` where all processes share the data already."""
    if isinstance(cfg.num_shards, int) and cfg.num_shards > 1:
        raise SyntaxDataError(
            "--num-shards is of fairseq-generate; training and validation share the data among their processes",
            hint="leave it out",
        )


def check_whole_sources(cfg: SyntaxTranslationConfig) -> None:
    """Raises SyntaxDataError for ``--truncate-source`` of sentences whose parses are read."""
    if cfg.truncate_source:
        raise SyntaxDataError(
            "--truncate-source would cut sentences and leave their parses whole",
            hint="leave long sentences out with --max-source-positions and --skip-invalid-size-inputs-valid-test",
        )


def check_model(cfg: SyntaxTranslationConfig, traits: ModelTraits) -> None:
    """Raises SyntaxDataError where an option of the task is of no use to a model that is trained, or does it harm."""
    if traits.lstm and cfg.left_pad_target:
        raise SyntaxDataError(
            "--left-pad-target: an LSTM decoder would read the padding before a sentence, "
            "of which there is more or less by what else is in the batch"
        )
    if cfg.parse_dropout and not traits.drops_parses:
        raise SyntaxDataError(
            "--parse-dropout takes the parse from what reads it in training and at inference; this model has nothing "
            "of that"
        )


def check_criterion(criterion: Any, traits: ModelTraits) -> None:
    """Raises SyntaxDataError where a criterion would leave out what the model is trained by, or cannot read it."""
    if traits.losses and not getattr(criterion, "takes_system_losses", False):
        raise SyntaxDataError(
            f"the criterion leaves out losses that the model is trained by: {', '.join(traits.losses)}",
            hint="use --criterion supervised_head, which is label-smoothed cross entropy with these losses, "
            "or turn them off (weight 0)",
        )
    if traits.adaptive_softmax and not isinstance(criterion, AdaptiveLoss):
        raise SyntaxDataError(
            "--adaptive-softmax-cutoff: no other criterion reads such an output layer than fairseq's adaptive_loss",
            hint="use --criterion adaptive_loss --ddp-backend legacy_ddp, without systems that have losses",
        )
    if isinstance(criterion, AdaptiveLoss) and not traits.adaptive_softmax:
        raise SyntaxDataError(
            "fairseq's adaptive_loss reads the output layer of --adaptive-softmax-cutoff, and the model has none",
            hint="give the option; an LSTM has that layer in fairseq-train alone, which names its criterion to it",
        )
    if getattr(criterion, "rdrop_alpha", 0) > 0 and traits.training_needs:
        raise SyntaxDataError(
            "--rdrop-alpha: fairseq's criterion passes each batch twice, and not its parses",
            hint="leave it out, or train a model without a parse by it",
        )
    if traits.lstm and isinstance(criterion, LabelSmoothedCrossEntropyCriterionWithAlignment):
        raise SyntaxDataError(
            "fairseq's criterion for given alignments reads an attention that LSTMs do not give in training",
            hint="train a Transformer with it, or this model with another criterion",
        )
