"""What the encoder's systems add to a translation loss: any criterion can take it, and any system can ask for it.

A system asks by a method ``losses(scores, syntax, padding, sample_size)`` that returns a :class:`HeadLoss` by name, and
by the heads it observes, whose scores it gets by (layer, head).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairseq.logging import metrics
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError


class HeadLoss(NamedTuple):
    """What one supervised head adds; all are scalars.

    Attributes:
        loss: weighted, and scaled like the translation loss
        nll: summed over the rows that are supervised
        tokens: the number of those rows
        correct, words: how many words have the right parent, of how many; 0 of 0 where that was not counted
    """

    loss: Tensor
    nll: Tensor
    tokens: Tensor
    correct: Tensor
    words: Tensor


def encoder_losses(
    model: Any, extra: Mapping[str, Any], sample: Mapping[str, Any], sample_size: Any
) -> tuple[Tensor | float, dict[str, Tensor]]:
    """The sum of what the encoder's systems ask for.

    Args:
        model: a ``syntax_transformer``
        extra: the second output of its forward
        sample: fairseq's batch
        sample_size: what the loss will be divided by

    Returns:
        the loss to add (0.0 where no system asks for one) and entries for the logging output

    Raises:
        SyntaxDataError: a system is trained by the parse, and the batch has none
    """
    encoder, net_input = model.encoder, sample["net_input"]
    systems = [s for s in getattr(encoder, "systems", {}).values() if hasattr(s, "losses") and s.layers()]
    if not systems:
        return 0.0, {}
    if net_input.get("src_syntax") is None:
        raise SyntaxDataError(
            f"{systems[0].name} learns from the parse, and this batch has none", hint="use --task syntax_translation"
        )
    tokens = net_input["src_tokens"]
    padding = tokens.eq(encoder.padding_idx)
    syntax = SyntaxBatch(net_input["src_syntax"], tokens, encoder.padding_idx)
    scores = observed_scores(encoder, extra["attention_scores"])
    total: Tensor | float = 0.0
    log: dict[str, Tensor] = {}
    for system in systems:
        for name, part in system.losses(scores, syntax, padding, sample_size).items():
            total = total + part.loss
            for what in ("nll", "tokens", "correct", "words"):
                log[f"{name}_{what}"] = getattr(part, what).detach()
    return total, log


def observed_scores(encoder: Any, attention_scores: Mapping[int, Tensor]) -> dict[tuple[int, int], Tensor]:
    """The scores [B, T, T] of each observed (layer, head), from those of each layer [B, n, T, T]."""
    found = {}
    for layer, scores in attention_scores.items():
        heads = [h for s in encoder.systems.values() if layer in s.layers() for h in s.observed_heads(layer)]
        found.update({(layer, head): scores[:, i] for i, head in enumerate(heads)})
    return found


def reduce_head_metrics(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
    """Log what :func:`encoder_losses` noted: NAME_loss in bits per token, and NAME_uas in percent of the words."""
    for name in sorted({key.removesuffix("_nll") for log in logging_outputs for key in log if key.endswith("_nll")}):
        nll, tokens, correct, words = (
            sum(log.get(f"{name}_{what}", 0) for log in logging_outputs)
            for what in ("nll", "tokens", "correct", "words")
        )
        if tokens > 0:
            metrics.log_scalar(f"{name}_loss", nll / tokens / math.log(2), tokens, round=3)
        if words > 0:
            metrics.log_scalar(f"{name}_uas", 100.0 * correct / words, words, round=2)
