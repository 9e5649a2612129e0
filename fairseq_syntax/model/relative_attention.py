"""Relative positions in the scores and values of attention heads (Shaw, Uszkoreit and Vaswani, 2018).

    e_ij = q_i · (k_j + a^K_{r(i,j)}) / √d          out_i = Σ_j softmax(e)_ij (v_j + a^V_{r(i,j)})

A system assigns each pair of places one of R buckets ``r(i, j)``. The embeddings ``a`` have the size of a head and are
shared by the heads.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import HeadInputs, ScoreTerm
from fairseq_syntax.model.encoder import EncoderSystem
from fairseq_syntax.model.heads import HeadClaims, HeadSystem
from fairseq_syntax.model.task import SyntaxTask


class RelativeEmbeddings(nn.Module):
    """``a^K`` and ``a^V`` of several layers: one vector per bucket for the keys and one for the values.

    Layers with the same head size share a parameter, since on a GPU the optimizer launches some ten kernels for each.

    Args:
        layers: the layers' numbers
        buckets: R
        dim: d
    """

    def __init__(self, layers: Sequence[int], buckets: int, dim: int) -> None:
        super().__init__()
        self._buckets, self._dims = buckets, dict.fromkeys(layers, dim)
        self._make()

    def _make(self) -> None:
        self.vectors = nn.ParameterDict()  # by d: [layers, 2, R, d]
        for dim in sorted(set(self._dims.values())):
            vectors = torch.empty(len(self._layers_of(dim)), 2, self._buckets, dim)
            for matrix in vectors.flatten(0, 1):
                nn.init.xavier_uniform_(matrix)
            self.vectors[str(dim)] = nn.Parameter(vectors)

    def _layers_of(self, dim: int) -> list[int]:
        return [layer for layer, size in self._dims.items() if size == dim]

    def fit(self, layer: int, dim: int) -> None:
        """Set the head size of a layer, if it is one of these; the embeddings of all layers are initialised again."""
        if self._dims.get(layer, dim) != dim:
            self._dims[layer] = dim
            self._make()

    def by_layer(self) -> dict[int, Tensor]:
        """``a^K`` and ``a^V`` of each layer, [2, R, d]; if called once per step, one kernel joins all gradients."""
        parts = ((self._layers_of(int(dim)), vectors.unbind()) for dim, vectors in self.vectors.items())
        return {layer: part for layers, unbound in parts for layer, part in zip(layers, unbound)}


class RelativeTerm(ScoreTerm):
    """The two formulas above, with a bucket for each pair.

    Args:
        buckets: [B or 1, T, T] int64, r(i, j) from 0 to R − 1; row: query, column: key
        vectors: [2, R, d], ``a^K`` and ``a^V`` of the layer
    """

    def __init__(self, buckets: Tensor, vectors: Tensor) -> None:
        self._buckets, self.tensors = buckets, (vectors,)

    @property
    def buckets(self) -> Tensor:
        """r(i, j), the same for all heads: [B or 1, 1, T, T]."""
        return self._buckets[:, None]

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        # Not in __init__, since a checkpointed layer runs twice. One unbind joins both gradients in one kernel.
        keys, self._values = inputs.tensors[0].to(inputs.q.dtype).unbind()
        by_bucket = inputs.q @ keys.t()  # [B, H, T, R]; q holds the 1/√d
        return scores + by_bucket.gather(3, self.buckets.expand_as(scores))

    def output(self, weights: Tensor, inputs: HeadInputs) -> Tensor:
        values = self._values.to(weights.dtype)
        return sums_by_bucket(weights, self.buckets.expand_as(weights), values.size(0)) @ values


def sums_by_bucket(weights: Tensor, buckets: Tensor, number: int) -> Tensor:
    """The sum of the weights [B, H, T, N] in each of the R buckets: [B, H, T, R], with the dtype of the weights.

    Sums are computed in float32 at least; half precision would lose small weights of long lines.

    Args:
        buckets: [B, H, T, N] int64, from 0 to R − 1
        number: R
    """
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    zeros = wide.new_zeros(*weights.shape[:3], number)
    return zeros.scatter_add_(3, buckets, wide).to(weights.dtype)


class RelativeSystem(EncoderSystem):
    """A system with relative positions in all heads of its layers; a base class."""

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


class TreePositions(RelativeSystem):
    """A system with positions in the tree; a base class."""

    training_needs = inference_needs = frozenset({"tree"})

    def __init__(self, options: Any, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        no_others = getattr(args, "no_token_positional_embeddings", False)
        self._unordered_without_parse = no_others and bool(task.cfg.parse_dropout)

    def connect(self, systems: Mapping[str, HeadSystem]) -> None:
        without_parse = any(isinstance(one, RelativeSystem) and not one.inference_needs for one in systems.values())
        if self._unordered_without_parse and not without_parse:
            raise SyntaxDataError(
                "--parse-dropout: without token positions, a sentence without its parse would have no word order",
                hint="leave out either that or --no-token-positional-embeddings, or add the system relative_positions",
            )
