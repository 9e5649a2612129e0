"""Structural position representations: absolute and relative positions in the dependency tree.

Wang, Tu, Wang and Shi (2019), Self-Attention with Structural Position Representations, EMNLP, section 3.

- *Absolute*: the sinusoidal encoding of a word's depth, combined with that of its sequential position,
  ``p = tanh(U p_depth + V p_sequence)``.
- *Relative*: relative positions whose buckets are distances in the tree. For an ancestor and a descendant, the distance
  is the signed difference of their depths (positive downward); for other words, the length of the path between them,
  positive if i precedes j and negative otherwise. It is clipped at k.
"""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import ScoreTerm
from fairseq_syntax.model.encoder import register_encoder_system
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.relative_attention import RelativeTerm, TreePositions
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.model.trees import UNCONNECTED, Forest, between_pieces, piece_depth

KINDS = ("absolute", "relative", "both")


def signed_distance(forest: Forest, most: int) -> Tensor:
    """r(i, j) between the words of each line, clipped; words of different sentences get the largest distance.

    Returns:
        [B, W', W'] int64 from −k to k (``most``); row i, column j, words of the line; undefined outside the line
    """
    word = torch.arange(forest.distance.size(1), device=forest.distance.device)
    path = torch.where(forest.distance == UNCONNECTED, most, forest.distance)
    signed = torch.where(word[:, None] < word, path, -path)
    one_dominates = forest.dominates | forest.dominates.transpose(1, 2)
    return torch.where(one_dominates, forest.depth_difference, signed).clamp(-most, most)


def sinusoids(position: Tensor, dim: int) -> Tensor:
    """The sinusoidal encoding as in fairseq: sines, then cosines; if C is odd, the last dimension is 0.

    Args:
        position: [B, T] int64
        dim: C, at least 4

    Returns:
        [B, T, C] float32
    """
    rate = torch.arange(dim // 2, device=position.device).float().mul(-math.log(10000) / (dim // 2 - 1)).exp()
    angle = position[:, :, None] * rate
    return F.pad(torch.cat((angle.sin(), angle.cos()), dim=2), (0, dim % 2))


def structural_buckets(syntax: SyntaxBatch, most: int) -> Tensor:
    """``r(i, j) + k`` between pieces: [B, T, T] int64; row i, column j.

    Pieces of a word have distance 0. ``</s>`` has distance 0 from itself, and from other pieces the distance of a word
    in a later sentence. Rows and columns of padding are undefined.
    """
    words = signed_distance(Forest.of(syntax), most)  # [B, W', W']
    # One more place for "no word": after all others, and with distance 0 from itself.
    words = F.pad(F.pad(words, (0, 1), value=most), (0, 0, 0, 1), value=-most)
    words[:, -1, -1] = 0
    return between_pieces(syntax, words) + most


@dataclass
class StructuralConfig(SystemConfig):
    structural_positions: str = option("both", "which positions in the tree to use", choices=KINDS)
    structural_layers: str | None = option(
        None, "encoder layers with relative positions, from 0, comma-separated; -1 is the top layer", "all"
    )
    structural_clip: int = option(16, "maximum distance in the tree", low=1, high=1000)


@register_encoder_system("structural_positions")
class StructuralPositions(TreePositions):
    """Positions in the tree."""

    config = StructuralConfig

    def __init__(self, options: StructuralConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        kind = options.structural_positions
        if getattr(args, "no_token_positional_embeddings", False) and kind != "relative":
            raise SyntaxDataError(
                f"--structural-positions {kind} changes the positions of tokens, and "
                "--no-token-positional-embeddings leaves those out",
                hint="--structural-positions relative needs none",
            )
        self.most = options.structural_clip
        layers = layer_numbers("--structural-layers", options.structural_layers, args.encoder_layers)
        self._layers = layers if kind != "absolute" else ()
        self.relative = self.embeddings(self._layers, self.most)
        names = ("depth", "sequence") if kind != "relative" else ()
        self.absolute = nn.ModuleDict({name: nn.Linear(self.embed_dim, self.embed_dim, bias=False) for name in names})
        for weight in self.absolute.parameters():
            nn.init.xavier_uniform_(weight)

    def positions(self, positions: Tensor, step: Step) -> Tensor:
        if not self.absolute:
            return positions
        depth = sinusoids(piece_depth(step.parse), self.embed_dim).to(positions.dtype)
        return torch.tanh(self.absolute["depth"](depth) + self.absolute["sequence"](positions))

    def term(self, step: Step, layer: int) -> ScoreTerm:
        syntax = step.parse
        buckets = step.once("structural buckets", lambda: structural_buckets(syntax, self.most))
        return RelativeTerm(buckets, step.once("structural vectors", self.relative.by_layer)[layer])


register_presets("structural_positions_transformer", encoder_syntax="structural_positions")
