"""Dependency-based relative positions: the difference of two words' depths in the tree instead of their distance.

Omote, Tamura and Ninomiya (2019), Dependency-Based Relative Positional Encoding for Transformer NMT, RANLP. Shaw's
relative positions with ``r(i, j) = clip(depth(j) − depth(i), −k, k)``; the paper combines them with sequential ones,
which are the system ``relative_positions``.

**No T×T tensor is needed.** There are few depths, and ``r`` depends on a key only through its depth δ. The term added
to the scores is ``G_iδ = q_i · a^K_{clip(δ − depth(i))}`` at ``δ = depth(j)``; it is computed by additional dimensions
of the queries (``G``) and keys (the one-hot depth), as many as there are depths. Likewise, one-hot depths appended to
the values yield each depth's share of the weights, from which the values' term follows. Unless attention weights are
dropped out, plain fused attention is used.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fairseq_syntax.model.attention import HeadInputs, ScoreTerm
from fairseq_syntax.model.encoder import register_encoder_system
from fairseq_syntax.model.fused_attention import plain_attention
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.relative_attention import RelativeTerm, TreePositions, sums_by_bucket
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.model.trees import Forest, piece_depth


class DepthBuckets:
    """The buckets of a batch, shared by all layers.

    Args:
        depth: [B, T] int64
        levels: the number of depths in the batch
        most: k
    """

    def __init__(self, depth: Tensor, levels: int, most: int) -> None:
        self._depth, self._most = depth, most
        self.levels = -(-levels // 8) * 8  # fused kernels need a multiple of 8 dimensions
        self._levels = torch.arange(self.levels, device=depth.device)

    def _clipped(self, difference: Tensor) -> Tensor:
        return difference.clamp(-self._most, self._most) + self._most

    @cached_property
    def of_pairs(self) -> Tensor:
        """The bucket of each pair, [B, T, T] int64; row: query, column: key."""
        return self._clipped(self._depth[:, None, :] - self._depth[:, :, None])

    @cached_property
    def of_levels(self) -> Tensor:
        """The bucket of each query with the keys of each depth, [B, T, D] int64."""
        return self._clipped(self._levels - self._depth[:, :, None])

    @cached_property
    def is_at(self) -> Tensor:
        """The one-hot depth of each piece, [B, T, D] float32."""
        return (self._depth[:, :, None] == self._levels).float()


class DepthTerm(RelativeTerm):
    """Relative depth on all heads of a layer.

    Args:
        depths: the buckets of the batch
        vectors: [2, 2k + 1, d], the layer's ``a^K`` and ``a^V``
    """

    def __init__(self, depths: DepthBuckets, vectors: Tensor) -> None:
        self._depths, self.tensors = depths, (vectors,)

    @property
    def buckets(self) -> Tensor:
        return self._depths.of_pairs[:, None]

    def attend(self, inputs: HeadInputs, key_padding_mask: Tensor | None) -> Tensor:
        q, k, v = inputs.q, inputs.k, inputs.v
        B, H, T, d = q.shape
        depths = self._depths.levels
        bucket = self._depths.of_levels[:, None].expand(B, H, T, depths)
        one_hot = self._depths.is_at.to(q.dtype)[:, None].expand(B, H, T, depths)  # [B, H, T, D]
        keys, values = inputs.tensors[0].to(q.dtype).unbind()
        by_depth = (q @ keys.t()).gather(3, bucket)  # G, [B, H, T, D]; q includes the factor 1/√d
        wide_q, wide_k, wide_v = (torch.cat(pair, dim=3) for pair in ((q, by_depth), (k, one_hot), (v, one_hot)))
        wide = plain_attention(wide_q, wide_k, wide_v, key_padding_mask)
        out, share = wide.split((d, depths), dim=3)  # share: the total weight of each depth
        return out + sums_by_bucket(share, bucket, keys.size(0)) @ values


@dataclass
class DepthConfig(SystemConfig):
    depth_layers: str | None = option(
        None, "encoder layers with relative depth, from 0, comma-separated; -1 is the top layer", "all"
    )
    depth_clip: int = option(2, "depth difference at which positions are clipped", low=1, high=1000)


@register_encoder_system("relative_depth")
class RelativeDepth(TreePositions):
    """Relative depth in all heads of chosen layers."""

    config = DepthConfig

    def __init__(self, options: DepthConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self.most = options.depth_clip
        self._layers = layer_numbers("--depth-layers", options.depth_layers, args.encoder_layers)
        self.depth = self.embeddings(self._layers, self.most)

    def term(self, step: Step, layer: int) -> ScoreTerm:
        depth, levels = piece_depth(step.parse), len(Forest.of(step.parse).level_sizes)
        buckets = step.once("depth buckets", lambda: DepthBuckets(depth, levels, self.most))
        return DepthTerm(buckets, step.once("depth vectors", self.depth.by_layer)[layer])


register_presets("relative_depth_transformer", encoder_syntax="relative_depth")
