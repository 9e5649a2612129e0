"""Conversion of trained models to fairseq's own model classes, which do not need this package."""

from __future__ import annotations

import argparse
import io
import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel, TransformerModelBase
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_syntax.corpus.store.flat import FlatSyntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment_head import AlignmentHead
from fairseq_syntax.model.encoder import EncoderSystem, SyntaxTransformerEncoder
from fairseq_syntax.model.language_tokens import LanguageDecoder
from fairseq_syntax.model.options import option_name, read_options
from fairseq_syntax.model.pretrained import PretrainedConfig
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import SyntaxTransformerModel

# Options to drop: files of the training machine, and layers that have been pruned already.
_OF_TRAINING = {"encoder_embed_path", "decoder_embed_path", "encoder_layers_to_keep", "decoder_layers_to_keep"}
# Options of the task and the criterion that some of fairseq's older models read.
_OF_OTHERS = {"criterion", "max_source_positions", "max_target_positions"}
BESIDE = "."  # a checkpoint's data are the folder that it is in
DISTIL = "examples/distillation trains a plain model on this one's translations"


@dataclass
class TrainedModel:
    """A model in evaluation mode with the options of its checkpoint, its task and its alignment head."""

    model: Any
    options: dict[str, Any]
    task: Any
    head: AlignmentHead

    @property
    def pretrained(self) -> dict[str, Any]:
        """The options of imported models that fairseq's Transformer does not have, as far as they are set, by name."""
        if not isinstance(self.model, SyntaxTransformerModel):
            return {}
        return read_options(PretrainedConfig, Namespace(**self.options)).set_options()

    def plain(self, pretrained: bool = False) -> tuple[Any, dict[str, Any]]:
        """Convert the model to one of fairseq's own classes, and compare it with the original; also its options.

        Args:
            pretrained: whether the caller knows :attr:`pretrained` options; a model that has any is returned as this
                package's Transformer without systems

        Raises:
            SyntaxDataError: the model computes at inference what fairseq's classes do not, or the log-probabilities
                differ
        """
        if reason := why_not_plain(self.model):
            raise SyntaxDataError(reason, hint=DISTIL)
        if (names := ", ".join(map(option_name, self.pretrained))) and not pretrained:
            hint = "--to transformers or --to ctranslate2, if they know this kind of model"
            raise SyntaxDataError(f"stock fairseq does not compute {names}", hint=hint)
        if not isinstance(self.model, SyntaxTransformerModel):
            name = ARCH_MODEL_NAME_REGISTRY[self.options.get("arch") or self.options["_name"]]
            return self.model, plain_options(name, self.options)
        if self.pretrained:
            options = {**plain_options("syntax_transformer", self.options), "encoder_syntax": "", "decoder_syntax": ""}
            plain = SyntaxTransformerModel.build_model(Namespace(**options), self.task)
        else:
            options = plain_options("transformer", self.options)
            plain = TransformerModel.build_model(Namespace(**options), self.task)
        # Systems that act only in training have no parameters, so missing or unexpected keys are errors.
        plain.load_state_dict(self.model.state_dict(), strict=True)
        plain.eval()
        check_equal(self.model, lambda batch, _: plain(**batch)[0], self.task, "the plain model")
        return plain, options


def why_not_plain(model: Any) -> str | None:
    """Why stock fairseq cannot run the model at inference; None if it can."""
    if needs := getattr(model, "inference_needs", None):
        systems = [s.name for s in getattr(model.encoder, "systems", {}).values() if s.inference_needs]
        what = "the parser's distribution" if "arcs" in needs else "the parse"
        return f"{' and '.join(systems) or registered_name(model)} reads {what} of each sentence that it translates"
    if not isinstance(model, SyntaxTransformerModel):
        return None if _is_of_fairseq(model) else f"{registered_name(model)} is not a model of fairseq's own"
    if acting := acting_parts(model):
        return f"{' and '.join(acting)} needs no parse, but computes what no plain Transformer does"
    return None


def acting_parts(model: SyntaxTransformerModel, besides: EncoderSystem | None = None) -> list[str]:
    """The names of the encoder's systems, besides one, that change the model's output; if none does, of the decoder."""
    systems = [system for system in model.encoder.systems.values() if system is not besides]
    acting = [system.name for system in systems if _acts(system, model.encoder)]
    if acting or _is_of_fairseq(model.decoder) or isinstance(model.decoder, LanguageDecoder):
        return acting
    return [type(model.decoder).__name__]


def _acts(system: EncoderSystem, encoder: SyntaxTransformerEncoder) -> bool:
    """Whether a system changes the model's output; otherwise it only adds losses in training."""
    claims = [system.claims(layer, encoder.layers[layer].self_attn.num_heads) for layer in system.layers()]
    touches = any(c.scales or c.replaces for c in claims)
    changed = (getattr(type(system), hook) is not getattr(EncoderSystem, hook) for hook in ("embed", "positions"))
    return touches or bool(system.blocks()) or any(changed)


def _is_of_fairseq(module: Any) -> bool:
    return type(module).__module__.split(".")[0] == "fairseq"


def registered_name(model: Any) -> str:
    """The name under which the model is registered, such as ``dlaa_lstm``."""
    return next((name for name, kind in MODEL_REGISTRY.items() if kind is type(model)), type(model).__name__)


def systems_of_model(model: Any) -> list[str]:
    """The names of the systems in a model's encoder, then of those in its decoder."""
    sides = (getattr(model, side, None) for side in ("encoder", "decoder"))
    return [name for side in sides for name in getattr(side, "systems", ())]


def plain_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, of all, that the model with this key in fairseq's registry has, as plain Python values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    MODEL_REGISTRY[name].add_args(parser)
    # All fairseq models, with or without a dataclass, can add their options to a parser.
    names = {action.dest for action in parser._actions} - _OF_TRAINING
    if not issubclass(MODEL_REGISTRY[name], TransformerModelBase):
        names |= _OF_OTHERS
    return {"_name": name, "arch": name, **_values({k: v for k, v in options.items() if k in names})}


def checkpoint(
    parameters: Mapping[str, Tensor], options: Mapping[str, Any], task: Any, name: str = "translation"
) -> dict[str, Any]:
    """A checkpoint that contains only plain values.

    PyTorch loads it with ``weights_only``. fairseq's own checkpoints contain a Namespace, which must be allowed first.

    Args:
        parameters: those of the model
        options: those of the model, such as :meth:`TrainedModel.plain` returns
        name: the task that it is for: fairseq's ``translation`` or this package's
    """
    of_side = ("{}_lang", "left_pad_{}", "max_{}_positions")
    names = [name.format(side) for side in ("source", "target") for name in of_side]
    cfg = _values(OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True))
    cfg["model"] = dict(options)
    cfg["criterion"] = {"_name": "cross_entropy", "sentence_avg": False}
    cfg["task"] = {"_name": name, "data": BESIDE, **_values({name: getattr(task.cfg, name) for name in names})}
    # Without a history, fairseq takes it for a checkpoint of its oldest format and fails.
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "", "lr_scheduler_state": {}}
    copies: dict[tuple[int, torch.Size], Tensor] = {}  # one of each parameter, whatever its names

    def copied(tensor: Tensor) -> Tensor:
        return copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().cpu().clone())

    return {
        "args": None,
        "cfg": cfg,
        "model": {name: copied(tensor) for name, tensor in parameters.items()},
        "optimizer_history": [{**history, "num_updates": 0}],
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
        # Without segmentations, which would also say whether words are those of a parse.
        **({} if name == "translation" else {"task_state": {**task.state_dict(), "segmentations": {}}}),
    }


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint. On a full disk it raises OSError, where PyTorch would raise an error of its own."""

    failed: list[OSError] = []

    class Remembering(io.FileIO):
        def write(self, data: Any, /) -> int:
            try:
                return super().write(data)
            except OSError as error:
                failed.append(error)
                raise

    with io.BufferedWriter(Remembering(path, "w")) as file:
        try:
            torch.save(state, file)
        except Exception:
            if failed:
                raise failed[0] from None
            raise


def _values(options: Any) -> dict[str, Any]:
    """Options as plain Python values; what JSON does not have is written as text."""
    values: dict[str, Any] = json.loads(
        json.dumps(options, default=lambda value: value.value if isinstance(value, Enum) else str(value))
    )
    return values


@torch.no_grad()
def check_equal(
    model: Any,
    scores_of: Callable[[dict[str, Any], Tensor], Tensor],
    task: SyntaxTask,
    other: str,
    columns: Sequence[str] = (),
) -> None:
    """Compare the log-probabilities of two models on random tokens in a padded batch.

    Args:
        scores_of: the other model, as a function of a batch (``src_tokens``, ``src_lengths``, ``prev_output_tokens``)
            and its targets [B, T] that returns logits [B, T, V] or the targets' log-probabilities [B, T]
        other: the name of the other model, for the error
        columns: the columns of the parse that the model reads; the batch then has ``src_syntax``, with one-piece words

    Raises:
        SyntaxDataError: the log-probabilities differ
    """
    pad, eos = task.source_dictionary.pad(), task.source_dictionary.eos()
    generator = torch.Generator().manual_seed(1)
    sizes = len(task.source_dictionary), len(task.target_dictionary)
    # Ids below 4 are fairseq's special symbols.
    source, target = (torch.randint(4, max(5, size), (3, 9), generator=generator) for size in sizes)
    source[:, -1] = target[:, -1] = eos
    source[1, :2] = source[2, :4] = pad  # the shortest last, as fairseq's LSTMs require
    lengths = source.ne(pad).sum(dim=1)
    # As in fairseq's training, </s> moves from the end to the beginning.
    previous = target.roll(1, dims=1)
    batch: dict[str, Any] = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
    if columns:
        words = lengths - 1
        zeros = torch.zeros(int(words.sum()), dtype=torch.long)
        labels: dict[str, Any] = dict.fromkeys(("deprel", "upos", "xpos"), zeros)
        for column in columns:
            labels[column] = torch.randint(0, len(task.labels("source")[column]), zeros.shape, generator=generator)
        pieces = torch.ones_like(zeros)
        batch["src_syntax"] = FlatSyntax(
            n_pieces=words, n_words=words, pieces=pieces, head=zeros, n_tree_arcs=None, **labels
        )
    ours, theirs = model(**batch)[0].float().log_softmax(-1), scores_of(batch, target).float()
    if theirs.dim() == 3:
        theirs = theirs.log_softmax(-1)
    else:
        ours = ours.gather(2, target[..., None])[..., 0]
    difference = (ours - theirs).abs().max().item()
    # Not `difference >= 1e-3`, which is false for NaN.
    if not difference < 1e-3:
        message = f"{other} is not equivalent: log-probabilities differ by {difference:.2g}"
        raise SyntaxDataError(message, hint=DISTIL)
