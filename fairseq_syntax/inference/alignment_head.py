"""Alignments from one decoder attention head, and the file that records the choice of the head.

Which head of which layer aligns best depends on the model (Garg et al. 2019; Chen et al. 2020, who also use the row of
the step that *reads* a piece instead of the one that writes it). So the head is chosen on sentence pairs
(:mod:`fairseq_syntax.use.alignment_choice`) and recorded next to the checkpoint. Without a choice, it is fairseq's: the
mean of the heads of the last layer, or of the heads that the model was trained to align with.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import Weights
from fairseq_syntax.inference.recorded_attention import KINDS, recorded
from fairseq_syntax.inference.spelling import places_of_pieces
from fairseq_syntax.runtime.digests import file_sha256
from fairseq_syntax.runtime.manifest import read_sealed, write_sealed

__all__ = ["AlignmentHead"]
logger = logging.getLogger(__name__)
_AGAIN = "choose again with fairseq-syntax align --choose"


@dataclass(frozen=True)
class AlignmentHead:
    """The attention head that alignments are read from.

    Attributes:
        layer: the decoder layer, 0-based; None for an LSTM, which has one attention
        heads: the number of the layer's first heads that are averaged if ``head`` is None; 0 means all
        head: the single head, 0-based
        shift: 0 for the row of the step that writes a piece, 1 for the step that reads it
    """

    layer: int | None = None
    head: int | None = None
    heads: int = 0
    shift: int = 0

    def __str__(self) -> str:
        """The name of the head, with 0-based layers and heads."""
        heads = f"mean of {self.heads or 'all'} heads" if self.head is None else f"head {self.head}"
        name = "the attention" if self.layer is None else f"layer {self.layer}, {heads}"
        return f"{name}, one step later" if self.shift else name

    def pick(self, layers: Sequence[Tensor]) -> Tensor:
        """The weights [B, T, S] of this head, from the attention over the source of all layers, [B, H, T, S] each."""
        weights = layers[self.layer or 0]
        if self.head is not None:
            return weights[:, self.head]
        return weights[:, : self.heads or weights.size(1)].mean(dim=1)


def default_head(model: Any) -> AlignmentHead:
    """fairseq's default: the last layer, unless the model has ``--alignment-layer`` and ``--alignment-heads``."""
    layers = _cross_attentions(model)
    if not layers:
        return AlignmentHead()
    options = getattr(model, "args", None) or getattr(model, "cfg", None)
    layer = getattr(options, "alignment_layer", None)
    layer = len(layers) - 1 if layer is None else layer % len(layers)
    return AlignmentHead(layer, heads=getattr(options, "alignment_heads", None) or 0)


def _cross_attentions(model: Any) -> list[Any]:
    """The attention modules over the source in a Transformer's decoder; empty for an LSTM."""
    layers: Any = getattr(model.decoder, "layers", ())
    return [layer.encoder_attn for layer in layers if getattr(layer, "encoder_attn", None) is not None]


def head_path(checkpoint: str | os.PathLike[str]) -> Path:
    """The file that records the head chosen for a checkpoint: ``NAME.alignment.json`` next to ``NAME.pt``."""
    return Path(checkpoint).with_suffix(".alignment.json")


def save_head(head: AlignmentHead, checkpoint: str | os.PathLike[str], **about: Any) -> Path:
    """Save the head next to its checkpoint, with the checkpoint's SHA-256 and how the head was chosen."""
    path = head_path(checkpoint)
    write_sealed(path, {**asdict(head), "checkpoint": file_sha256(checkpoint), "chosen": about})
    return path


def load_head(checkpoint: str | os.PathLike[str], model: Any) -> AlignmentHead:
    """The head that was chosen for a checkpoint, otherwise :func:`default_head`.

    The default is also used, with a warning, if the file belongs to another checkpoint, such as a previous one of the
    same name.
    """
    path = head_path(checkpoint)
    if not path.exists():
        return default_head(model)
    if read_sealed(path, _AGAIN)["checkpoint"] != file_sha256(checkpoint):
        logger.warning("%s was chosen for another model than %s, and is not used; %s", path, checkpoint, _AGAIN)
        return default_head(model)
    return read_head(path, model)


def read_head(path: Path, model: Any) -> AlignmentHead:
    """Read a file of :func:`save_head`, and check that the model has the head.

    Raises:
        SyntaxDataError: there is no such file, it is damaged, or the model does not have the head
    """
    values = read_sealed(path, _AGAIN)
    head = AlignmentHead(**{f.name: values[f.name] for f in fields(AlignmentHead)})
    layers = _cross_attentions(model)
    if head.layer is None:
        fits = not layers
    else:
        fits = head.layer < len(layers) and (head.head or 0) < layers[head.layer].num_heads
    if not fits:
        message = f"names layer {head.layer}, head {head.head}, which the model does not have"
        raise SyntaxDataError(message, path=path, hint=_AGAIN)
    return head


@torch.no_grad()
def attention_weights(
    model: Any, net_input: dict[str, Any], targets: Sequence[Tensor], kinds: Sequence[str] = KINDS
) -> dict[str, list[Tensor]]:
    """The attention of a model while it is forced to produce given translations.

    Args:
        net_input: fairseq's, with ``src_tokens`` [B, S] and the other inputs of the encoder
        targets: B translations, int64, each ending in ``</s>``

    Returns:
        for each of ``kinds`` that the model has, the weights of each layer, [B, H, rows, columns] float32 (for an LSTM,
        one layer with one head). Rows and columns are the columns of ``src_tokens`` or the steps, 0-based, without
        language tokens. Rows after the end of a translation are undefined.
    """
    tokens = net_input["src_tokens"]
    pad, eos = model.decoder.dictionary.pad(), model.decoder.dictionary.eos()
    previous = collate_tokens(targets, pad, eos, move_eos_to_beginning=True).to(tokens)
    accepted = inspect.signature(model.forward).parameters  # a plain model in an ensemble has no src_syntax
    inputs = {name: value for name, value in net_input.items() if name in accepted}
    with recorded(model, kinds) as weights:
        out = model(**{**inputs, "prev_output_tokens": previous})
    if not weights["cross"] and isinstance(out[1], Tensor) and out[1].dim() == 3:
        # An LSTM, whose encoder moves padding to the right: back to the columns of src_tokens.
        left = tokens.ne(pad).int().argmax(dim=1)
        column = torch.arange(tokens.size(1), device=tokens.device)[None] - left[:, None]
        index = column.clamp(min=0)[:, None].expand(-1, previous.size(1), -1)
        weights["cross"] = [out[1].float().gather(2, index)[:, None]]
    # Without a language token, which has the source's last column and follows the decoder's start.
    source, target = slice(tokens.size(1)), slice(-previous.size(1), None)
    kept = {"encoder": (source, source), "cross": (target, source), "decoder": (target, target)}
    return {
        kind: [layer[:, :, kept[kind][0], kept[kind][1]] for layer in layers]
        for kind, layers in weights.items()
        if layers
    }


def source_attention(model: Any, net_input: dict[str, Any], targets: Sequence[Tensor]) -> list[Tensor]:
    """The attention over the source of each layer, [B, H, T, S]: ``cross`` of :func:`attention_weights`."""
    weights = attention_weights(model, net_input, targets, ("cross",))
    if not weights:
        raise SyntaxDataError("the model does not attend to the source, so there is nothing to align by")
    return weights["cross"]


class Aligner:
    """Reads alignments between pieces from a model, or their mean over several models.

    Args:
        models: the models, in evaluation mode and on the same device
        heads: the head of each model
    """

    def __init__(self, models: Sequence[Any], heads: Sequence[AlignmentHead]) -> None:
        self.models, self.heads = models, heads

    def weights(self, net_input: dict[str, Any], targets: Sequence[Tensor]) -> list[Weights]:
        """The weights of each sentence, [target pieces, source pieces] float32; see :func:`attention_weights`."""
        total: list[Weights] = []
        for model, head in zip(self.models, self.heads):
            attention = head.pick(source_attention(model, net_input, targets))
            pieces = list(cut(attention, net_input["src_tokens"], targets, head.shift, model.decoder.dictionary))
            total = [a + b for a, b in zip(total, pieces)] if total else pieces
        return [(weights / len(self.models)).astype(np.float32) for weights in total]

    def of_hypotheses(self, net_input: dict[str, Any], tokens: Sequence[Sequence[Tensor]]) -> list[list[Weights]]:
        """:meth:`weights` of the n best translations of each sentence."""
        # Sentences may have different numbers of hypotheses; shorter lists are filled with their last one.
        most = max(map(len, tokens), default=0)
        by_rank = [self.weights(net_input, [best[min(rank, len(best) - 1)] for best in tokens]) for rank in range(most)]
        return [[weights[number] for weights in by_rank[: len(best)]] for number, best in enumerate(tokens)]


def cut(attention: Tensor, tokens: Tensor, targets: Sequence[Tensor], shift: int, dictionary: Any) -> Iterator[Weights]:
    """The attention [B, T, S] over the source tokens [B, S], of the pieces of each sentence alone.

    Args:
        shift: see :class:`AlignmentHead`
        dictionary: the target's
    """
    for rows, source, target in zip(attention.cpu(), tokens.cpu(), targets):
        columns = torch.nonzero(source.ne(dictionary.pad())).squeeze(1)[:-1]
        steps = [place + shift for place in places_of_pieces(target, dictionary)]
        yield rows[steps][:, columns].numpy()
