"""Dependency-based relative positions: the difference of two words' depths in the tree instead of their distance.

Omote, Tamura and Ninomiya (2019), Dependency-Based Relative Positional Encoding for Transformer NMT, RANLP. Shaw's
relative positions with ``r(i, j) = clip(depth(j) − depth(i), −k, k)``; the paper combines them with sequential ones.

**No T×T tensor is needed.** There are few depths, and ``r`` depends on a key only through its depth δ. The term added
to the scores is ``G_iδ = q_i · a^K_{clip(δ − depth(i))}`` at ``δ = depth(j)``; it is computed by additional dimensions
of the queries (``G``) and keys (the one-hot depth), as many as there are depths. Likewise, one-hot depths appended to
the values yield each depth's share of the weights, from which the values' term follows. Unless attention weights are
dropped out, plain fused attention is used.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.model.attention import HeadInputs, ScoreTerm, plain_attention
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.relative_positions import (
    RelativeEmbeddings,
    RelativeTerm,
    check_word_order,
    distance_buckets,
    sums_by_bucket,
)
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.model.trees import Forest


def piece_depth(step: Step) -> Tensor:
    """The depth of each piece's word, [B, T] int64; 0 for roots, ``</s>`` and padding."""
    syntax = step.parse
    return step.once("piece depth", lambda: syntax.of_word(Forest.of(syntax).depth, 0))


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
        distance: Shaw's sequential term, in addition
    """

    def __init__(self, depths: DepthBuckets, vectors: Tensor, distance: RelativeTerm | None = None) -> None:
        self._depths, self._vectors, self._distance = depths, vectors, distance

    @property
    def buckets(self) -> Tensor:
        return self._depths.of_pairs[:, None]

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        scores = super().scores(scores, inputs)
        return scores if self._distance is None else self._distance.scores(scores, inputs)

    def output(self, weights: Tensor, inputs: HeadInputs) -> Tensor:
        added = super().output(weights, inputs)
        return added if self._distance is None else added + self._distance.output(weights, inputs)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        if self._distance is not None:
            return None
        B, H, T, d = q.shape
        depths = self._depths.levels
        bucket = self._depths.of_levels[:, None].expand(B, H, T, depths)
        one_hot = self._depths.is_at.to(q.dtype)[:, None].expand(B, H, T, depths)  # [B, H, T, D]
        keys, values = self._vectors.to(q.dtype).unbind()
        by_depth = (q @ keys.t()).gather(3, bucket)  # G, [B, H, T, D]; q includes the factor 1/√d
        wide_q, wide_k, wide_v = (torch.cat(pair, dim=3) for pair in ((q, by_depth), (k, one_hot), (v, one_hot)))
        wide = plain_attention(wide_q, wide_k, wide_v, key_padding_mask)
        out, share = wide.split((d, depths), dim=3)  # share: the total weight of each depth
        return out + sums_by_bucket(share, bucket, keys.size(0)) @ values


class TreePositions(EncoderSystem):
    """A system with relative positions in the tree, in all heads of its layers; a base class."""

    training_needs = inference_needs = frozenset({"tree"})
    reads_queries = True

    def __init__(self, options: Any, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self.embed_dim, self._num_heads = args.encoder_embed_dim, args.encoder_attention_heads

    def embeddings(self, layers: Sequence[int], most: int) -> RelativeEmbeddings:
        """New embeddings of the positions from −k (``most``) to k."""
        return RelativeEmbeddings(layers, 2 * most + 1, self.embed_dim // self._num_heads)

    def fit(self, layer: int, num_heads: int) -> None:
        for embeddings in self.children():
            if isinstance(embeddings, RelativeEmbeddings):
                embeddings.fit(layer, self.embed_dim // num_heads)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        return HeadClaims(scales=frozenset(range(num_heads)))


@dataclass
class DepthConfig(SystemConfig):
    depth_layers: str | None = option(
        None, "encoder layers with relative depth, from 0, comma-separated; -1 is the top layer", "all"
    )
    depth_clip: int = option(2, "depth difference at which positions are clipped", low=1, high=1000)
    depth_sequential: int = option(
        0, "maximum distance of additional sequential relative positions; 0 means none", low=0, high=1000
    )


@register_encoder_system("relative_depth")
class RelativeDepth(TreePositions):
    """Relative depth in all heads of chosen layers, optionally with Shaw's relative positions."""

    config = DepthConfig

    def __init__(self, options: DepthConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self.most, self.sequential = options.depth_clip, options.depth_sequential
        if not self.sequential:  # sequential positions give an unparsed sentence its word order
            check_word_order(args, task)
        self._layers = layer_numbers("--depth-layers", options.depth_layers, args.encoder_layers)
        self.depth = self.embeddings(self._layers, self.most)
        self.distance = self.embeddings(self._layers if self.sequential else (), self.sequential)

    def term(self, step: Step, layer: int) -> ScoreTerm:
        depth, levels = piece_depth(step), len(Forest.of(step.parse).level_sizes)
        buckets = step.once("depth buckets", lambda: DepthBuckets(depth, levels, self.most))
        vectors = step.once("depth vectors", self.depth.by_layer)[layer]
        return DepthTerm(buckets, vectors, self.term_without_parse(step, layer))

    def term_without_parse(self, step: Step, layer: int) -> RelativeTerm | None:
        """The sequential positions, which need no parse; without other positions, they are the model's word order."""
        if not self.sequential:
            return None
        distance = distance_buckets(step.tokens.size(1), self.sequential, step.tokens.device)
        return RelativeTerm(distance, step.once("distance vectors", self.distance.by_layer)[layer])


register_presets("relative_depth_transformer", encoder_syntax="relative_depth")
