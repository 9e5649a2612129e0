"""``--parse-dropout``: hides the parse of some training sentences, so that a model learns to translate without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.data.packing import PackedSyntax

_WORD = 1 << 64


def drop_parses(sample: dict[str, Any], share: float, *, seed: int, epoch: int) -> dict[str, Any]:
    """A training batch in which a share of the sentences is treated as having no parse.

    It is drawn where the batch is trained on, and not where it is loaded: a worker of the loader lives for many epochs,
    and is told of none.

    Args:
        sample: fairseq's batch, whose ``id`` are the sentences' numbers [B]
        share: in [0, 1]
        seed, epoch: what the draw depends on besides the sentence's number
    """
    inputs = sample["net_input"]
    keep = uniform(sample["id"], seed, epoch) >= share
    return {**sample, "net_input": {**inputs, "src_syntax": _keeping(inputs["src_syntax"], keep)}}


def _keeping(syntax: PackedSyntax, keep: Tensor) -> PackedSyntax:
    """The syntax of a batch in which only the sentences in ``keep`` [B] (bool) have a parse."""
    packed, layout = syntax["packed"], syntax["layout"]
    if layout.has_parsed:
        packed, before = packed.split([len(packed) - len(keep), len(keep)])
        keep = keep & before.bool()
    return {"packed": torch.cat([packed, keep.to(packed)]), "layout": replace(layout, has_parsed=True)}


def uniform(numbers: Tensor, seed: int, epoch: int) -> Tensor:
    """For each sentence a float64 in [0, 1) that depends on its number [B] int64, the seed and the epoch alone.

    So it is the same in any batch, in any process, and after a resume. The mixing is that of SplitMix64, whose unsigned
    numbers are int64 here: sums and products have the same bits, and shifts are made those of unsigned numbers.
    """
    x = numbers + _signed(((seed << 32) + epoch) * 0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).double() / float(1 << 53)


def _signed(number: int) -> int:
    """The number modulo 2^64, as two's complement has it."""
    return (number + _WORD // 2) % _WORD - _WORD // 2


def _shifted(x: Tensor, places: int) -> Tensor:
    return (x >> places) & ((1 << (64 - places)) - 1)
