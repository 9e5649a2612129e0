"""Relative positions: attention by the distance of two tokens, without a parse.

Shaw, Uszkoreit and Vaswani (2018), Self-Attention with Relative Position Representations, NAACL, equations 3 and 4,
with ``r(i, j) = clip(j − i, −k, k)``. This is the baseline of systems that measure the distance in the tree instead,
and of supervised heads, which may learn to attend to neighbouring words.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_syntax.model.attention import ScoreTerm
from fairseq_syntax.model.encoder import register_encoder_system
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.relative_attention import RelativeSystem, RelativeTerm
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets


def distance_buckets(length: int, most: int, device: torch.device) -> Tensor:
    """``r(i, j) + k``: [1, T, T] int64 for T = ``length`` and k = ``most``; row i, column j."""
    place = torch.arange(length, device=device)
    return (place - place[:, None]).clamp(-most, most)[None] + most


@dataclass
class RelativeConfig(SystemConfig):
    relative_layers: str | None = option(
        None, "encoder layers with relative positions, from 0, comma-separated; -1 is the top layer", "all"
    )
    relative_clip: int = option(16, "distance at which positions are clipped", low=1, high=1000)


@register_encoder_system("relative_positions")
class RelativePositions(RelativeSystem):
    """Relative positions in all heads of chosen layers."""

    config = RelativeConfig

    def __init__(self, options: RelativeConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self.most = options.relative_clip
        self._layers = layer_numbers("--relative-layers", options.relative_layers, args.encoder_layers)
        self.distance = self.embeddings(self._layers, self.most)

    def term(self, step: Step, layer: int) -> ScoreTerm:
        buckets = step.once("distances", lambda: distance_buckets(step.tokens.size(1), self.most, step.tokens.device))
        return RelativeTerm(buckets, step.once("distance vectors", self.distance.by_layer)[layer])


register_presets("relative_positions_transformer", encoder_syntax="relative_positions")
