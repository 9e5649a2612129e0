"""Attention of long sentences whose scores are multiplied by a factor that is 0 outside a window of each query.

A factor of 0 gives a logit of 0, whatever the score. So all keys outside a window act as one key: its logit is the
logarithm of their number n, and its value the mean of theirs, since

    n exp(0) · (Σ V_k / n) = Σ exp(0) V_k.

If the queries of a sentence are sorted by the middle of their windows, a block of them has windows that lie close
together. Its attention is that of a block of queries to the few keys between the first and the last column of its
windows, and to one more key for the rest: products of dense matrices, in time linear in the length where windows do
not grow with it. This is exactly ``softmax(q kᵀ ⊙ P) v``. It is for CPUs: the sizes of the blocks depend on the data,
and the host would wait for a GPU to tell them. For factors with few entries anywhere, see
:mod:`fairseq_syntax.model.sparse_factors`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Measured on one core with 4 heads of size 64 and windows of 25 keys: at 256 tokens, the copies take the time that the
# products save.
SHORTEST, ROWS = 384, 64


class WindowBlock(NamedTuple):
    """Queries of a sentence and the columns of their windows.

    Attributes:
        sentence: its row in the batch
        queries: [R] int64, columns of the padded batch
        start, stop: the columns of the keys; all other keys are outside the windows of all these queries
        others: the number of those
    """

    sentence: int
    queries: Tensor
    start: int
    stop: int
    others: int


class Windows(NamedTuple):
    """The windows of a batch.

    Attributes:
        blocks: in the order of sentences, and of their sorted queries
        order: [B * T] int64, the place t * B + b of each query in the order of the blocks
        keys: for each sentence, the columns [start, stop) of the keys that are not padding
    """

    blocks: list[WindowBlock]
    order: Tensor
    keys: list[tuple[int, int]]

    @classmethod
    def of(cls, factor: Tensor, mask: Tensor | None) -> Windows | None:
        """The windows of a factor; None if they would save less than a third of the scores.

        Args:
            factor: P, [B, h, T, T]
            mask: [B, T] bool, True on padding; None if there is none
        """
        B, _, T, _ = factor.shape
        keys = [(0, T)] * B
        if mask is not None:
            real = ~mask
            counts, starts = real.sum(1).tolist(), real.byte().argmax(1).tolist()
            keys = [(start, start + n) for start, n in zip(starts, counts, strict=True)]
            if not all(row[start:stop].all() for row, (start, stop) in zip(real, keys, strict=True)):
                return None  # padding between words, which no loader makes
        inside = (factor != 0).any(1)
        # [B, T] each; a row without an entry has the empty window [T, 0), which widens no other.
        empty = ~inside.any(2)
        first = inside.byte().argmax(2).masked_fill(empty, T)
        last = (T - inside.flip(2).byte().argmax(2)).masked_fill(empty, 0)
        # The rows of ignored parents, with a factor of 1 everywhere, come last, so that they widen few blocks.
        order = (first + last + 4 * T * (last - first > T // 2)).argsort(dim=1, stable=True)
        starts, stops = (x.gather(1, order).split(ROWS, dim=1) for x in (first, last))
        starts = torch.stack([x.amin(1) for x in starts], dim=1).tolist()
        stops = torch.stack([x.amax(1) for x in stops], dim=1).tolist()
        blocks: list[WindowBlock] = []
        for b, (begin, end) in enumerate(keys):
            for queries, start, stop in zip(order[b].split(ROWS), starts[b], stops[b], strict=True):
                start = min(max(start, begin), end)
                stop = max(min(stop, end), start)
                blocks.append(WindowBlock(b, queries, start, stop, end - begin - (stop - start)))
        if 3 * sum(len(block.queries) * (block.stop - block.start) for block in blocks) > 2 * B * T * T:
            return None
        return cls(blocks, (order * B + torch.arange(B)[:, None]).flatten(), keys)

    def sorted(self, x: Tensor) -> list[Tensor]:
        """The rows of x [B, H, T, d] of each block, [H, R, d]."""
        B, H, T, d = x.shape
        rows = x.permute(2, 0, 1, 3).reshape(T * B, H * d).index_select(0, self.order).view(-1, H, d).transpose(0, 1)
        return list(rows.split([len(block.queries) for block in self.blocks], dim=1))

    def unsorted(self, blocks: list[Tensor], like: Tensor) -> Tensor:
        """The inverse of :meth:`sorted`: [B, H, T, d], a view of memory laid out as [T, B, H, d]."""
        B, H, T, d = like.shape
        rows = torch.cat([block.transpose(0, 1) for block in blocks]).view(T * B, H * d)
        return torch.empty_like(rows).index_copy_(0, self.order, rows).view(T, B, H, d).permute(1, 2, 0, 3)


def window_factor_attention(
    q: Tensor, k: Tensor, v: Tensor, factor: Tensor, key_padding_mask: Tensor | None = None
) -> Tensor | None:
    """``softmax(q kᵀ ⊙ P) v`` with padded keys masked, [B, H, T, d]; None where this form would not be the faster one.

    Args:
        q, k, v: [B, H, T, d], q already divided by √d
        factor: P, [B, 1 or H, T, T]; it gets no gradient
        key_padding_mask: [B, T] bool, True on padding
    """
    if q.device.type != "cpu" or q.dtype not in (torch.float32, torch.float64) or q.size(2) < SHORTEST:
        return None
    windows = Windows.of(factor, key_padding_mask)
    return None if windows is None else _WindowFactorAttention.apply(q, k, v, factor, windows)


class _WindowFactorAttention(torch.autograd.Function):
    """Only weights and factors of the blocks are saved, a fraction of the scores."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, factor: Tensor, windows: Windows) -> Tensor:
        totals = [v[b, :, start:stop].sum(1) for b, (start, stop) in enumerate(windows.keys)]
        outputs, saved = [], []
        for block, queries in zip(windows.blocks, windows.sorted(q), strict=True):
            keys, values = _keys_and_values(k, v, totals[block.sentence], block)
            weights = queries @ keys.transpose(1, 2)
            part = factor[block.sentence, :, block.queries, block.start : block.stop].to(q.dtype)
            weights[:, :, :-1].mul_(part)
            weights[:, :, -1] = math.log(block.others) if block.others else -math.inf
            torch.softmax(weights, dim=2, out=weights)
            outputs.append(weights @ values)
            saved += [part, weights]
        ctx.save_for_backward(q, k, v, *totals, *saved)
        ctx.windows = windows
        return windows.unsorted(outputs, q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        windows, (q, k, v, *rest) = ctx.windows, ctx.saved_tensors
        totals, saved = rest[: len(q)], iter(rest[len(q) :])
        grads_q = []
        grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
        grad_totals = [torch.zeros_like(total)[:, None] for total in totals]
        for block, queries, grad_out in zip(windows.blocks, windows.sorted(q), windows.sorted(grad), strict=True):
            b, columns = block.sentence, slice(block.start, block.stop)
            part, weights = next(saved), next(saved)
            keys, values = _keys_and_values(k, v, totals[b], block)
            grad_values = weights.transpose(1, 2) @ grad_out
            # A part of the gradient of the mean goes to each value outside: to all, but for those of the block.
            share = grad_values[:, -1:] / max(block.others, 1)
            grad_totals[b] += share
            grad_v[b, :, columns] += grad_values[:, :-1] - share
            grad_scores = torch._softmax_backward_data(grad_out @ values.transpose(1, 2), weights, 2, weights.dtype)
            grad_scores[:, :, :-1].mul_(part)
            grad_scores[:, :, -1] = 0  # a constant
            grads_q.append(grad_scores @ keys)
            grad_k[b, :, columns] += (grad_scores.transpose(1, 2) @ queries)[:, :-1]
        for b, (start, stop) in enumerate(windows.keys):
            grad_v[b, :, start:stop] += grad_totals[b]
        return windows.unsorted(grads_q, q), grad_k, grad_v, None, None


def _keys_and_values(k: Tensor, v: Tensor, total: Tensor, block: WindowBlock) -> tuple[Tensor, Tensor]:
    """Keys and values [H, n + 1, d] of a block, the last of them for all keys outside its windows."""
    b, columns = block.sentence, slice(block.start, block.stop)
    keys, values = F.pad(k[b, :, columns], (0, 0, 0, 1)), F.pad(v[b, :, columns], (0, 0, 0, 1))
    if block.others:
        values[:, -1] = (total - values.sum(1)) / block.others
    return keys, values
