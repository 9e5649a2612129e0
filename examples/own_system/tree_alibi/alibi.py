"""Attention with linear biases by the distance of words in the dependency tree instead of in the text.

Press, Smith and Lewis (2022), Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation,
ICLR, section 3: head h of H subtracts ``m_h · d(i, j)`` from its scores, with the slopes ``m_h = 2^(−8h/H)``, h from 1.
Here d(i, j) is the number of edges between the words of tokens i and j.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_syntax.model.dense_factors import FactorTerm
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.model.trees import piece_distance


def slopes(heads: int, steepness: float, device: torch.device) -> Tensor:
    """``m_h = 2^(−steepness · h / H)`` for h from 1 to H, [H] float32."""
    return torch.exp2(-steepness * torch.arange(1, heads + 1, device=device) / heads)


@dataclass
class TreeAlibiConfig(SystemConfig):
    alibi_layers: str | None = option(
        None, "encoder layers with linear biases, from 0, comma-separated; -1 is the top layer", "all"
    )
    alibi_steepness: float = option(8.0, "the last head's slope is 2 to the minus this", low=0, high=100)


@register_encoder_system("tree_alibi")
class TreeAlibi(EncoderSystem):
    """Linear biases in all heads of chosen layers; it has no parameters."""

    config = TreeAlibiConfig
    training_needs = inference_needs = frozenset({"tree"})

    def __init__(self, options: TreeAlibiConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self._layers = layer_numbers("--alibi-layers", options.alibi_layers, args.encoder_layers)
        self._heads = dict.fromkeys(self._layers, args.encoder_attention_heads)

    def fit(self, layer: int, num_heads: int) -> None:
        self._heads[layer] = num_heads  # another system may set it

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        return HeadClaims(scales=frozenset(range(num_heads)))

    def term(self, step: Step, layer: int) -> FactorTerm:
        # Without a path, to another sentence of the line or to </s>, there is no bias.
        distance = piece_distance(step.parse).clamp(min=0)  # [B, T, T]
        slope = slopes(self._heads[layer], self.options.alibi_steepness, distance.device)
        return FactorTerm(-slope[:, None, None] * distance[:, None], add=True)


register_presets("tree_alibi_transformer", encoder_syntax="tree_alibi")
