"""Conversion of trained models to fairseq's own model classes, which do not need this package."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
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
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import SyntaxTransformerModel

TRANSFORMER = "transformer"
# What a checkpoint must not ask for again: files of the machine that trained it, and layers that are pruned by now.
_OF_TRAINING = {"encoder_embed_path", "decoder_embed_path", "encoder_layers_to_keep", "decoder_layers_to_keep"}
# What fairseq's older models read of their options though it belongs to the task and the criterion.
_OF_OTHERS = {"criterion", "max_source_positions", "max_target_positions"}
DISTIL = "examples/distillation trains a plain model on this one's translations"


def why_not_plain(model: Any) -> str | None:
    """Why stock fairseq cannot run the model at inference; None if it can."""
    needs: frozenset[str] = getattr(model, "inference_needs", frozenset())
    if needs:
        systems = [s.name for s in getattr(model.encoder, "systems", {}).values() if s.inference_needs]
        what = "the parser's distribution" if "arcs" in needs else "the parse"
        return f"{' and '.join(systems) or model_name(model)} reads {what} of each sentence that it translates"
    if isinstance(model, SyntaxTransformerModel):
        acting = [s.name for s in model.encoder.systems.values() if acts_at_inference(s, model.encoder)]
        if acting:
            return f"{' and '.join(acting)} needs no parse, but its encoder computes what no plain Transformer does"
        if type(model.decoder).__module__.split(".")[0] != "fairseq":
            return f"{type(model.decoder).__name__} needs no parse, but it computes what no plain Transformer does"
        return None
    if type(model).__module__.split(".")[0] != "fairseq":
        return f"{model_name(model)} is no model of fairseq's own"
    return None


def model_name(model: Any) -> str:
    """The name under which the model is registered, such as ``dlaa_lstm``."""
    names = [name for name, kind in MODEL_REGISTRY.items() if kind is type(model)]
    return names[0] if names else type(model).__name__


def system_names(model: Any) -> list[str]:
    """The systems of a model's encoder, then those of its decoder."""
    sides = (getattr(model, side, None) for side in ("encoder", "decoder"))
    return [name for side in sides for name in getattr(side, "systems", ())]


def acts_at_inference(system: EncoderSystem, encoder: SyntaxTransformerEncoder) -> bool:
    """Whether a system changes the encoder's output; otherwise it acts in training only, by its losses."""
    claims = [system.claims(layer, encoder.layers[layer].self_attn.num_heads) for layer in system.layers()]
    touches = any(c.scales or c.replaces for c in claims)
    changed = (getattr(type(system), hook) is not getattr(EncoderSystem, hook) for hook in ("embed", "positions"))
    return touches or bool(system.blocks()) or any(changed)


def plain_model(model: Any, options: Mapping[str, Any], task: SyntaxTask) -> tuple[Any, dict[str, Any]]:
    """Convert a model to one of fairseq's own; also its options.

    Args:
        model: fairseq's own, or a Transformer whose systems act in training alone
        options: those of its checkpoint
        task: the task that it was loaded with

    Raises:
        SyntaxDataError: it is none (:func:`why_not_plain`)
    """
    if reason := why_not_plain(model):
        raise SyntaxDataError(reason, hint=DISTIL)
    if not isinstance(model, SyntaxTransformerModel):
        name = ARCH_MODEL_NAME_REGISTRY[options.get("arch") or options["_name"]]
        return model, plain_options(name, options)
    chosen = plain_options(TRANSFORMER, options)
    plain = TransformerModel.build_model(Namespace(**chosen), task)
    # Systems that act in training alone have no parameters; a key too many or too few is an error.
    plain.load_state_dict(model.state_dict(), strict=True)
    return plain.eval(), chosen


def plain_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that fairseq's model of that name has, as plain values.

    Args:
        name: a key of fairseq's registry of models
        options: by their names in the namespace
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    MODEL_REGISTRY[name].add_args(parser)
    # All of fairseq's models, with a dataclass or without, give their options to a parser.
    names = {action.dest for action in parser._actions} - _OF_TRAINING
    if not issubclass(MODEL_REGISTRY[name], TransformerModelBase):
        names |= _OF_OTHERS
    return {"_name": name, "arch": name, **{k: _value(v) for k, v in options.items() if k in names}}


def checkpoint(model: Any, options: Mapping[str, Any], task: SyntaxTask) -> dict[str, Any]:
    """A checkpoint of fairseq's ``translation`` task that PyTorch loads with ``weights_only``: plain values alone.

    fairseq's own have a Namespace in them, which PyTorch refuses unless a program allows it.

    Args:
        model: one of fairseq's
        options: of :func:`plain_options`
        task: the languages, and the side of the padding
    """
    cfg = _values(OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True))
    cfg["model"] = dict(options)
    cfg["criterion"] = {"_name": "cross_entropy", "sentence_avg": False}
    cfg["task"] = {
        "_name": "translation",
        "data": ".",
        "source_lang": task.cfg.source_lang,
        "target_lang": task.cfg.target_lang,
        "left_pad_source": bool(task.cfg.left_pad_source),
        "left_pad_target": bool(task.cfg.left_pad_target),
        "max_source_positions": int(task.cfg.max_source_positions),
        "max_target_positions": int(task.cfg.max_target_positions),
    }
    return {
        "args": None,
        "cfg": cfg,
        "model": {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()},
        # Without these, fairseq takes it for one of its oldest, and fails at keys of those.
        "optimizer_history": [
            {
                "criterion_name": "CrossEntropyCriterion",
                "optimizer_name": "",
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }


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
        scores_of: the other's logits [B, T, V] of a batch ``src_tokens``, ``src_lengths``, ``prev_output_tokens`` and
            its targets [B, T]; or its log-probabilities [B, T] of the targets
        other: what the other is
        columns: labels of the parse that the model reads; then the batch has ``src_syntax``, in which a piece is a word

    Raises:
        SyntaxDataError: log-probabilities differ
    """
    pad, eos = task.source_dictionary.pad(), task.source_dictionary.eos()
    generator = torch.Generator().manual_seed(1)
    sizes = len(task.source_dictionary), len(task.target_dictionary)
    # Ids below 4 are fairseq's special symbols.
    source, target = (torch.randint(4, max(5, size), (3, 9), generator=generator) for size in sizes)
    source[:, -1] = target[:, -1] = eos
    source[1, :2] = source[2, :4] = pad  # the shortest comes last, which an LSTM of fairseq's asks for
    lengths = source.ne(pad).sum(dim=1)
    batch: dict[str, Any] = {"src_tokens": source, "src_lengths": lengths}
    # As fairseq trains: </s> goes from the end to the beginning.
    batch["prev_output_tokens"] = target.roll(1, dims=1)
    if columns:
        zeros = torch.zeros(int((lengths - 1).sum()), dtype=torch.long)
        labels = dict.fromkeys(("deprel", "upos", "xpos"), zeros)
        for column in columns:
            labels[column] = torch.randint(0, len(task.source_labels[column]), zeros.shape, generator=generator)
        batch["src_syntax"] = FlatSyntax(
            n_pieces=lengths - 1,
            n_words=lengths - 1,
            pieces=torch.ones_like(zeros),
            head=zeros,
            deprel=labels["deprel"],
            upos=labels["upos"],
            xpos=labels["xpos"],
            n_tree_arcs=None,
        )
    ours, theirs = model(**batch)[0].float().log_softmax(-1), scores_of(batch, target).float()
    if theirs.dim() == 3:
        theirs = theirs.log_softmax(-1)
    else:
        ours = ours.gather(2, target[..., None])[..., 0]
    difference = (ours - theirs).abs().max().item()
    # Not `difference >= 1e-3`, which does not hold of NaN.
    if not difference < 1e-3:
        message = f"{other} is not equivalent: log-probabilities differ by {difference:.2g}"
        raise SyntaxDataError(message, hint=DISTIL)


@dataclass
class TrainedModel:
    """A model in evaluation mode, its options, task and alignment head."""

    model: Any
    options: dict[str, Any]
    task: Any
    head: AlignmentHead

    def plain(self) -> tuple[Any, dict[str, Any]]:
        """The model as one of fairseq's own, verified against the original, and its options.

        Raises:
            SyntaxDataError: as :func:`plain_model`, or log-probabilities differ
        """
        model, options = plain_model(self.model, self.options, self.task)
        check_equal(self.model, lambda batch, _: model(**batch)[0], self.task, "the plain model")
        return model, options


def _value(value: Any) -> Any:
    """An option's value as a plain Python value."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float, bool)):
        # Enumerations of fairseq are strings too, of types of their own.
        # bool first: a truth value is an int, too.
        return next((kind(value) for kind in (bool, str, int, float) if isinstance(value, kind)), None)
    if isinstance(value, (list, tuple)):
        return [_value(v) for v in value]
    if isinstance(value, Mapping):
        return _values(value)
    return str(value)


def _values(mapping: Any) -> dict[str, Any]:
    return {str(key): _value(value) for key, value in mapping.items()}
