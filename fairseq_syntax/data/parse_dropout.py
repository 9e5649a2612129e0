"""``--parse-dropout``: hides the parse of some training sentences, so that models learn to translate without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.data.packing import PackedSyntax


def drop_parses(sample: dict[str, Any], share: float, *, seed: int, epoch: int) -> dict[str, Any]:
    """A training batch in which a share of the sentences is treated as having no parse.

    Sentences are drawn in the training process rather than by the loader, whose workers live for several epochs without
    being told the current one.

    Args:
        sample: fairseq's batch from stores, all of whose sentences have a parse; ``id`` [B] are their numbers
        share: the probability, in [0, 1]
        seed, epoch: the draw depends on these and on the sentence number
    """
    keep = uniform(sample["id"], seed, epoch) >= share
    inputs = sample["net_input"]
    packed, layout = inputs["src_syntax"]["packed"], inputs["src_syntax"]["layout"]
    layout = replace(layout, sizes={**layout.sizes, "parsed": len(keep)})
    syntax: PackedSyntax = {"packed": torch.cat([packed, keep.to(packed)]), "layout": layout}
    return {**sample, "net_input": {**inputs, "src_syntax": syntax}}


def uniform(numbers: Tensor, seed: int, epoch: int) -> Tensor:
    """For each sentence a float64 in [0, 1) that depends only on its number [B] int64, the seed and the epoch.

    It is therefore the same in any batch, in any process, and after resuming. The mixing function is SplitMix64's, with
    its unsigned numbers as int64: sums and products have the same bits, and shifts are made logical.
    """
    x = numbers + _signed(((seed << 32) + epoch) * 0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).double() / float(1 << 53)


def _signed(number: int) -> int:
    """The number modulo 2^64, in two's complement."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _shifted(x: Tensor, places: int) -> Tensor:
    return (x >> places) & ((1 << (64 - places)) - 1)
