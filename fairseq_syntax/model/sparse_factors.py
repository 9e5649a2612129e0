"""Attention whose scores are multiplied by a mostly zero factor, in time linear in the length of the sentence.

A factor of 0 makes a logit of 0, and exp(0) = 1, so all keys without an arc have the same weight and their values enter
only through one sum per sentence. With `a` running over the arcs of row `i`, `p` their factors and `s` their scores

    out_i = (Σ_k V_k + Σ_a (exp(s_ia p_ia) - 1) V_a) / (n + Σ_a (exp(s_ia p_ia) - 1)),    n = unpadded length

which is softmax(S ⊙ P) V exactly, at O(T + arcs) and without any tensor of `[B, H, T, T]`. Numerator and denominator
are multiplied by exp(-m_i), m_i the largest logit of the row, so that no score is too large.
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
    There are as many entries and rows as were given, of which some may be void: how many there are is known on the
    host, and no device has to be waited for. Void entries have a factor of 0; void rows, and the entries of heads that
    do not exist, have the place `T * B * H`, one past the last.

    Attributes:
        size: (B, H, T)
        query: [A] int64, the place of each entry's query
        key: [A] int64, the place of its key: same sentence and head; any place where the entry is void
        factor: [A] float, P[b, h, query, key]
        void: [A] bool, True on entries that do not count
        places: [R] int64, the places that have entries as query, and void ones
        row: [A] int64, index of each entry's query in `places`
        counts: [R] int64, number of entries of each row
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
        cls,
        size: tuple[int, int, int],
        batch: Tensor,
        head: Tensor | None,
        query: Tensor,
        key: Tensor,
        factor: Tensor,
    ) -> SparseFactors:
        """Collects entries; entries of the same (batch, head, query, key) are summed, as the exponential is not linear.

        Args:
            size: (B, H, T)
            batch, head, query, key: [A] int64 each, 0-based; query and key are columns of the
                padded batch. An entry whose head is negative is left out; None gives all entries
                to every head
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
    """[A] bool: True where an element of x [A] is another than the one before it, and on the first."""
    return torch.cat([torch.ones_like(x[:1], dtype=torch.bool), x[1:] != x[:-1]])


def sparse_factor_attention(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    factors: SparseFactors,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ ⊙ P) v with padded keys masked: the linear form above, forward and backward.

    Exponentials and sums are taken in float32 at least; the result has the dtype of `v`. The factors get no gradient.

    Args:
        q, k: [B, H, T, d], q already divided by √d; both None where the logits are P itself (LDA)
        v: [B, H, T, d]
        factors: the entries of P; none of them may point at a padded key
        key_padding_mask: [B, T] bool, True on padding

    Returns:
        [B, H, T, d], a view of memory laid out as [T, B, H, d]. Padded queries get the mean, as in the dense form.
    """
    if factors.size != (v.shape[0], v.shape[1], v.shape[2]):
        raise ValueError(f"factors for (B, H, T) = {factors.size}, values of shape {tuple(v.shape)}")
    rows = (None if x is None else x.permute(2, 0, 1, 3) for x in (q, k, v))
    return _SparseFactorAttention.apply(*rows, factors, key_padding_mask).permute(1, 2, 0, 3)


class _SparseFactorAttention(torch.autograd.Function):
    """Operands and result are [T, B, H, d], seen as one row of d per place; saves the rows of the entries only."""

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

        # A row all of whose keys have entries has no other key of logit 0: its largest logit may be negative, and the
        # subtraction below would cancel to nothing.
        sentence = factors.places % (B * H)  # of a void row some sentence's
        others = n[sentence // H] - factors.counts
        lowest = torch.zeros_like(others).masked_fill_(others <= 0, float("-inf"))
        m = lowest.scatter_reduce_(0, row, logit, "amax")
        e = torch.exp(logit - m.index_select(0, row))
        rest = torch.exp(-m).masked_fill_(others <= 0, 0)
        norm = torch.zeros_like(m).index_add_(0, row, e).addcmul_(rest, others)
        excess = (e - rest.index_select(0, row)).masked_fill_(factors.void, 0)
        numerator = total.reshape(B * H, d).index_select(0, sentence) * rest[:, None]
        numerator.index_add_(0, row, v_arc * excess[:, None])
        attended = numerator / norm[:, None]

        # One place more than there are, for void rows.
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
        # A void row reads some place, and its correction below is exactly 0.
        last = T * B * H - 1
        grad_row = _rows(grad, factors.places.clamp(max=last), e.dtype)

        # Every value of a sentence gets the same share from a row, rest / norm (1 / n from a row without entries) ...
        share = grad.sum(0, dtype=e.dtype) / n[:, None, None]
        correction = rest / norm - 1 / n[sentence // H]
        share.view(B * H, d).index_add_(0, sentence, grad_row * correction[:, None])
        grad_v = (share.expand(T, B, H, d) if real is None else share * real).contiguous()
        # ... and those with an entry the excess over it.
        grad_row = grad_row / norm[:, None]
        grad_arc = grad_row.index_select(0, row)
        grad_v.view(-1, d).index_add_(0, factors.key, grad_arc * excess[:, None])
        grad_v = grad_v.to(grad.dtype)
        if q_arc is None:
            return None, None, grad_v, None, None

        # The difference before the product, so that a row with all its weight on one key gets a gradient of exactly 0.
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
