"""What the systems of a model add to a translation loss.

A criterion that calls :func:`system_losses` says so by the attribute ``takes_system_losses = True``; the task refuses
one that does not for a model whose systems have losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.heads import HeadLoss, HeadSystem, Step


def supervising(systems: Mapping[str, HeadSystem]) -> list[HeadSystem]:
    """Those of the systems that have losses."""
    return [system for system in systems.values() if system.supervises()]


def system_losses(model: Any, extra: Any) -> tuple[Tensor | float, dict[str, Tensor]]:
    """The sum of what the systems ask for.

    Args:
        model: a ``syntax_transformer``, or an LSTM of this project; any other has no such loss
        extra: the second output of its forward

    Returns:
        the loss to add (0.0 where no system asks for one) and entries for the logging output, the same entries in
        every step: zeros where a layer was left out (``--encoder-layerdrop``)

    Raises:
        SyntaxDataError: a system is trained by the parse, and the batch has none
    """
    total: Tensor | float = 0.0
    log: dict[str, Tensor] = {}
    found: list[tuple[str, HeadLoss]] = []
    for system in supervising(getattr(getattr(model, "encoder", None), "systems", {})):
        step: Step = extra["encoder_step"]
        if step.syntax is None:
            raise SyntaxDataError(
                f"{system.name} learns from the parse, and this batch has none", hint="use --task syntax_translation"
            )
        for name, place in system.supervises().items():
            part = system.loss(name, step.scores[place], step) if place in step.scores else None
            if part is None:
                zero = step.padding.new_zeros((), dtype=torch.int64)
                part = HeadLoss(zero, zero, zero, zero, zero)
            found.append((name, part))
    if isinstance(extra, Mapping):  # fairseq's LSTMs have the attention in this place, and ours their losses
        found += extra.get("decoder_losses", {}).items()
    for name, part in found:
        total = total + part.loss
        for what in ("nll", "tokens", "correct", "words"):
            log[f"{name}_{what}"] = getattr(part, what).detach()
    return total, log


def reduce_head_metrics(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
    """Log what :func:`system_losses` noted: NAME_loss in bits per token, and NAME_uas in percent of the words."""
    for name in sorted({key.removesuffix("_nll") for log in logging_outputs for key in log if key.endswith("_nll")}):
        nll, tokens, correct, words = (
            sum(log.get(f"{name}_{what}", 0) for log in logging_outputs)
            for what in ("nll", "tokens", "correct", "words")
        )
        if tokens > 0:
            metrics.log_scalar(f"{name}_loss", nll / tokens / math.log(2), tokens, round=3)
        if words > 0:
            metrics.log_scalar(f"{name}_uas", 100.0 * correct / words, words, round=2)
