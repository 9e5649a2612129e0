"""Attention whose scores are multiplied by a mostly zero factor, in time linear in the length of the sentence.

A factor of 0 gives a logit of 0, and exp(0) = 1. So all keys without an arc have the same weight, and their values
contribute only through one sum per sentence. For the arcs `a` of row `i`, with factors `p` and scores `s`,

    out_i = (Σ_k V_k + Σ_a (exp(s_ia p_ia) - 1) V_a) / (n + Σ_a (exp(s_ia p_ia) - 1)),    n = unpadded length

which is exactly softmax(S ⊙ P) V, in O(T + arcs) and without a tensor `[B, H, T, T]`. Numerator and denominator are
multiplied by exp(-m_i), with m_i the largest logit of the row, so that the exponentials do not overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class SparseFactors:
    """The non-zero entries of a factor tensor P `[B, H, T, T]`, grouped by query.

    A place (t, b, h) is flattened as `(t * B + b) * H + h`, which is the memory order of projections `[T, B, H * d]`.
    Duplicate entries become void instead of being removed, so that the host knows the sizes without waiting for the
    device. Void entries have a factor of 0. Void rows, and entries of heads that do not exist, have the place
    `T * B * H`, one past the last.

    Attributes:
        size: (B, H, T)
        query: [A] int64, the place of each entry's query
        key: [A] int64, the place of its key, with the same sentence and head; arbitrary for void entries
        factor: [A] float, P[b, h, query, key]
        void: [A] bool, True on void entries
        places: [R] int64, the place of each row: those of queries with entries, and void ones
        row: [A] int64, the row of each entry: the index of its query in `places`
        counts: [R] int64, the number of entries of each row
    """

    size: tuple[int, int, int]
    query: Tensor
    key: Tensor
    factor: Tensor
    void: Tensor
    places: Tensor
    row: Tensor
    counts: Tensor

    @classmethod
    def of(
        cls, size: tuple[int, int, int], batch: Tensor, head: Tensor | None, query: Tensor, key: Tensor, factor: Tensor
    ) -> SparseFactors:
        """Collect entries; those with the same (batch, head, query, key) are summed, as the exponential is not linear.

        Args:
            batch, head, query, key: [A] int64 each, 0-based; query and key are columns of the padded batch. Entries
                with a negative head are void; a ``head`` of None repeats all entries for every head
            factor: [A] float
        """
        B, H, T = size
        if head is None:
            head = torch.arange(H, device=batch.device).repeat_interleave(len(batch))
            batch, query, key, factor = (x.repeat(H) for x in (batch, query, key, factor))
        nowhere = T * B * H
        place = torch.where(head < 0, nowhere, (query * B + batch) * H + head)
        code, order = torch.sort(place * T + key, stable=True)
        place, key = place[order], (key * B + batch)[order] * H + head[order].clamp(min=0)
        first = _differs_from_before(code)
        entry = first.cumsum(0) - 1
        total = torch.zeros_like(factor).index_add_(0, entry, factor[order])
        void = ~first | (place == nowhere)
        row = _differs_from_before(place).cumsum(0) - 1
        return cls(
            size,
            place,
            key,
            total[entry].masked_fill(void, 0),
            void,
            torch.full_like(place, nowhere).scatter_(0, row, place),
            row,
            torch.zeros_like(place).index_add_(0, row, (~void).long()),
        )

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The factor tensor P `[B, H, T, T]`."""
        B, H, T = self.size
        out = self.factor.new_zeros(((T * B * H + 1) * T,), dtype=dtype)
        out.index_add_(0, self.query * T + self.key // (B * H), self.factor.to(dtype))
        return out[: T * B * H * T].view(T, B, H, T).permute(1, 2, 0, 3)


def _differs_from_before(x: Tensor) -> Tensor:
    """[A] bool: True where an element of x [A] differs from the one before it, and on the first."""
    return torch.cat([torch.ones_like(x[:1], dtype=torch.bool), x[1:] != x[:-1]])


def sparse_factor_attention(
    q: Tensor | None, k: Tensor | None, v: Tensor, factors: SparseFactors, key_padding_mask: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ ⊙ P) v with padded keys masked: the linear form above, forward and backward.

    Exponentials and sums are computed in float32 at least; the result has the dtype of `v`. Factors get no gradient.

    Args:
        q, k: [B, H, T, d], q already divided by √d; both None if the logits are P itself (LDA)
        v: [B, H, T, d]
        factors: the entries of P, none of them for a padded key
        key_padding_mask: [B, T] bool, True on padding

    Returns:
        [B, H, T, d], a view of memory laid out as [T, B, H, d]. Padded queries get the mean, as in the dense form.
    """
    if factors.size != (v.shape[0], v.shape[1], v.shape[2]):
        raise ValueError(f"factors for (B, H, T) = {factors.size}, values of shape {tuple(v.shape)}")
    rows = (None if x is None else x.permute(2, 0, 1, 3) for x in (q, k, v))
    return _SparseFactorAttention.apply(*rows, factors, key_padding_mask).permute(1, 2, 0, 3)


class _SparseFactorAttention(torch.autograd.Function):
    """Operands and result are [T, B, H, d], with one row of size d per place; only rows of entries are saved."""

    @staticmethod
    def forward(ctx, q, k, v, factors: SparseFactors, key_padding_mask):
        T, B, H, d = v.shape
        work = torch.promote_types(v.dtype, torch.float32)
        row, last = factors.row, T * B * H - 1
        if key_padding_mask is None:
            real = None
            n = torch.full((B,), T, device=v.device, dtype=work)
            total = v.sum(0, dtype=work)
        else:
            real = (~key_padding_mask).t().contiguous()[:, :, None, None]
            n = real.sum(0, dtype=work).view(B).clamp_(min=1)
            total = (v * real).sum(0, dtype=work)
        q_arc, k_arc, v_arc = None, None, _rows(v, factors.key, work)
        logit = p = factors.factor.to(work)
        if q is not None:
            q_arc, k_arc = _rows(q, factors.query.clamp(max=last), work), _rows(k, factors.key, work)
            logit = (q_arc * k_arc).sum(-1) * p
        logit = logit.masked_fill(factors.void, float("-inf"))

        # If all keys of a row have entries, no key has a logit of 0: the largest logit may be negative, and then the
        # excess over `rest` below would cancel.
        sentence = factors.places % (B * H)  # arbitrary for a void row
        n_plain = n[sentence // H] - factors.counts  # keys without an entry
        lowest = torch.zeros_like(n_plain).masked_fill_(n_plain <= 0, float("-inf"))
        m = lowest.scatter_reduce_(0, row, logit, "amax")
        e = torch.exp(logit - m.index_select(0, row))
        rest = torch.exp(-m).masked_fill_(n_plain <= 0, 0)
        norm = torch.zeros_like(m).index_add_(0, row, e).addcmul_(rest, n_plain)
        excess = (e - rest.index_select(0, row)).masked_fill_(factors.void, 0)
        numerator = total.reshape(B * H, d).index_select(0, sentence) * rest[:, None]
        numerator.index_add_(0, row, v_arc * excess[:, None])
        attended = numerator / norm[:, None]

        # One additional place, for void rows.
        out = v.new_empty(T * B * H + 1, d)
        out[:-1].view(T, B, H, d).copy_(total / n[:, None, None])
        out = out.index_copy_(0, factors.places, attended.to(v.dtype))[:-1].view(T, B, H, d)
        ctx.save_for_backward(q_arc, k_arc, v_arc, n, real, sentence, p, e, excess, rest, norm, attended)
        ctx.factors = factors
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q_arc, k_arc, v_arc, n, real, sentence, p, e, excess, rest, norm, attended = ctx.saved_tensors
        factors, row = ctx.factors, ctx.factors.row
        T, B, H, d = grad.shape
        grad = grad.contiguous()
        # A void row reads an arbitrary place; its correction below is exactly 0.
        last = T * B * H - 1
        grad_row = _rows(grad, factors.places.clamp(max=last), e.dtype)

        # Each row gives every value of the sentence the same share, rest / norm (1 / n for a row without entries) ...
        share = grad.sum(0, dtype=e.dtype) / n[:, None, None]
        correction = rest / norm - 1 / n[sentence // H]
        share.view(B * H, d).index_add_(0, sentence, grad_row * correction[:, None])
        grad_v = (share.expand(T, B, H, d) if real is None else share * real).contiguous()
        # ... and the values of its entries the excess over it.
        grad_row = grad_row / norm[:, None]
        grad_arc = grad_row.index_select(0, row)
        grad_v.view(-1, d).index_add_(0, factors.key, grad_arc * excess[:, None])
        grad_v = grad_v.to(grad.dtype)
        if q_arc is None:
            return None, None, grad_v, None, None

        # Subtract before multiplying, so that a row with all its weight on one key gets a gradient of exactly 0.
        grad_logit = (grad_arc * (v_arc - attended.index_select(0, row))).sum(-1) * e
        grad_score = (grad_logit * p)[:, None]
        grad_q, grad_k = (torch.zeros((T * B * H, d), dtype=e.dtype, device=grad.device) for _ in range(2))
        grad_q.index_add_(0, factors.query.clamp(max=last), grad_score * k_arc)
        grad_k.index_add_(0, factors.key, grad_score * q_arc)
        grad_q, grad_k = (x.view(T, B, H, d).to(grad.dtype) for x in (grad_q, grad_k))
        return grad_q, grad_k, grad_v, None, None


def _rows(x: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of x `[T, B, H, d]` at flat places: [len(places), d]."""
    return x.reshape(-1, x.shape[-1]).index_select(0, places).to(dtype)
