"""Attention whose scores are multiplied by a factor, or have one added.

It is one operation with its own backward pass. With single operations, autograd would store the scores before and after
the factor as well as the weights, each ``[B, H, T, T]``, and compute as many gradients of that size. Here the scores
become the weights in place, only the weights are stored, and their gradient is computed in place too. The function is
``softmax(q kᵀ ⊙ P) v``, for sentences short enough for ``[T, T]`` tensors; for factors with few entries, see
:mod:`fairseq_syntax.model.sparse_factors`. On a CPU, a long sentence with a factor that is 0 outside a window of each
query takes the form of :mod:`fairseq_syntax.model.window_factors` (``layer/pascal@1024`` of ``bench``). PyTorch's fused
attention can add to scores, but not multiply them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_syntax.model.attention import HeadInputs, ScoreTerm, divided
from fairseq_syntax.model.devices import full_precision
from fairseq_syntax.model.fused_attention import plain_attention
from fairseq_syntax.model.window_factors import window_factor_attention

CACHED = 1 << 19  # scores of a part of a batch, 2 MiB in float32


class FactorTerm(ScoreTerm):
    """``S ⊙ P`` on the first heads of a layer, or ``S + P``.

    Args:
        factor: P, [B, 1 or h, T, T]; row: query, column: key; gradients flow through it if it requires them
        num_heads: h; None for all heads
        add: add P instead of multiplying by it
    """

    def __init__(self, factor: Tensor, num_heads: int | None = None, add: bool = False) -> None:
        self.factor, self.heads, self._add = factor, slice(0, num_heads), add
        self.tensors = (factor,) if factor.requires_grad else ()

    def scores(self, scores: Tensor, inputs: HeadInputs | None) -> Tensor:
        factor = inputs.tensors[0] if inputs is not None and self.tensors else self.factor
        return scores + factor.to(scores.dtype) if self._add else scores * factor.to(scores.dtype)

    def attend(self, inputs: HeadInputs, key_padding_mask: Tensor | None) -> Tensor | None:
        if self.tensors:
            return None
        if not self._add and (attended := self._by_windows(inputs, key_padding_mask)) is not None:
            return attended
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        return _DenseFactorAttention.apply(inputs.q, inputs.k, inputs.v, self.factor, mask, self.heads, self._add)

    def _by_windows(self, inputs: HeadInputs, padding: Tensor | None) -> Tensor | None:
        """:meth:`attend` where the factor has windows that are narrow for the length; other heads attend as ever."""
        scaled, others = divided(self.heads, inputs.q, inputs.k, inputs.v)
        attended = window_factor_attention(*scaled, self.factor, padding)
        after = others[1]  # the scaled heads are the first ones
        if attended is None or after is None:
            return attended
        return torch.cat([attended, plain_attention(*after, padding)], dim=1)


class _DenseFactorAttention(torch.autograd.Function):
    """The output [B, H, T, d] of all heads, of which those of ``heads`` have a factor, which gets no gradient."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, factor: Tensor, mask: Tensor | None, heads: slice, add: bool
    ) -> Tensor:
        with full_precision(q):
            factor = factor.to(q.dtype)
            weights = q.new_empty((*q.shape[:3], k.size(2)))
            out = v.new_empty((*q.shape[:3], v.size(3)))
            for rows in _parts(weights):
                part = torch.matmul(q[rows], k[rows].transpose(2, 3), out=weights[rows])
                scaled = part[:, heads]
                scaled.add_(factor[rows]) if add else scaled.mul_(factor[rows])
                if mask is not None:
                    part.masked_fill_(mask[rows], float("-inf"))
                # PyTorch's softmax sums half precision in float32.
                torch.softmax(part, dim=3, out=part)
                torch.matmul(part, v[rows], out=out[rows])
            ctx.save_for_backward(q, k, v, weights, *(() if add else (factor,)))
            ctx.heads = heads
            return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, *factor = ctx.saved_tensors
        parts = []
        for rows in _parts(weights):
            weights_part, grad_part = weights[rows], grad[rows]
            grad_v = weights_part.transpose(2, 3) @ grad_part
            slopes = grad_part @ v[rows].transpose(2, 3)
            slopes = torch._softmax_backward_data(slopes, weights_part, 3, weights.dtype, grad_input=slopes)
            if factor:
                slopes[:, ctx.heads].mul_(factor[0][rows])
            parts.append((slopes @ k[rows], slopes.transpose(2, 3) @ q[rows], grad_v))
        grads = parts[0] if len(parts) == 1 else [torch.cat(of_all) for of_all in zip(*parts)]
        return *grads, None, None, None, None


def _parts(scores: Tensor) -> list[slice]:
    """The batch in parts whose scores [B, H, T, S] stay in a processor's cache; on a GPU the whole batch."""
    each = max(1, CACHED // max(1, scores[0].numel())) if scores.device.type == "cpu" else len(scores)
    return [slice(start, start + each) for start in range(0, len(scores), each)]
