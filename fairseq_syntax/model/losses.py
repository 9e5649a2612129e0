"""The systems' losses, which criteria add to the translation loss.

A criterion that calls :func:`system_losses` declares ``takes_system_losses = True``; the task rejects other criteria
for models whose systems have losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.packing import target_syntax
from fairseq_syntax.model.heads import HeadLoss, Step
from fairseq_syntax.model.options import without_parse
from fairseq_syntax.model.output_loss import unwrapped


def without_alignment(model: Any) -> dict[str, Any]:
    """The argument of a Transformer's forward by which no layer returns its attention to the source, for alignments."""
    return {"alignment_layer": -1} if isinstance(unwrapped(model), TransformerModelBase) else {}


def system_losses(model: Any, extra: Any, sample: Mapping[str, Any]) -> tuple[Tensor | float, dict[str, Tensor]]:
    """The sum of the systems' losses (0.0 if there are none), and entries for the logging output.

    The entries are the same in every step: they are zero if the layer was dropped (``--encoder-layerdrop``).

    Args:
        model: any model; only those of this package have such losses
        extra: the second output of its forward
        sample: fairseq's batch, for the target's syntax

    Raises:
        SyntaxDataError: a system learns from the parse, and the batch has none
    """
    total: Tensor | float = 0.0
    log: dict[str, Tensor] = {}
    for name, part in _losses_by_name(model, extra, sample):
        total = total + part.loss
        for what in ("nll", "tokens", "correct", "words"):
            log[f"{name}_{what}"] = getattr(part, what).detach()
    return total, log


def _losses_by_name(model: Any, extra: Any, sample: Mapping[str, Any]) -> Iterator[tuple[str, HeadLoss]]:
    """The losses of a Transformer's systems, zeros for those of dropped layers; or those of an LSTM's attention."""
    for side in ("encoder", "decoder"):
        for system in getattr(getattr(model, side, None), "systems", {}).values():
            if not (losses := system.supervises()):
                continue
            step: Step = extra[f"{side}_step"]
            target = target_syntax(sample) if side == "decoder" and step.syntax is None else None
            if target is not None:
                step.syntax = SyntaxBatch(target, sample["target"], model.decoder.padding_idx)
            if step.syntax is None:
                raise without_parse(f"{system.name} learns from the parse")
            for name, place in losses.items():
                part = system.loss(name, step.scores[place], step) if place in step.scores else None
                if part is None:
                    zero = step.padding.new_zeros((), dtype=torch.int64)
                    part = HeadLoss(zero, zero, zero, zero, zero)
                yield name, part
    if isinstance(extra, Mapping):  # fairseq's LSTMs return the attention here, ours a dictionary
        yield from extra.get("decoder_losses", {}).items()


def sums_on_host(logging_outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The sum of each entry of the logging outputs, as a number on the host.

    All tensors on a device are read at once. fairseq's meters would wait for the device for each tensor, up to four
    times.
    """
    sums: dict[str, Any] = {}
    for output in logging_outputs:
        for name, value in output.items():
            sums[name] = sums[name] + value if name in sums else value
    tensors = {name: value for name, value in sums.items() if torch.is_tensor(value)}
    if tensors:
        sums.update(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True))
    return sums


def reduce_head_metrics(sums: Mapping[str, float]) -> None:
    """Log NAME_loss, in bits per token, and NAME_uas, in percent of the words, from :func:`sums_on_host`."""
    for name in sorted(key.removesuffix("_nll") for key in sums if key.endswith("_nll")):
        nll, tokens, correct, words = (sums[f"{name}_{what}"] for what in ("nll", "tokens", "correct", "words"))
        if tokens > 0:
            metrics.log_scalar(f"{name}_loss", nll / tokens / math.log(2), tokens, round=3)
        if words > 0:
            metrics.log_scalar(f"{name}_uas", 100.0 * correct / words, words, round=2)
