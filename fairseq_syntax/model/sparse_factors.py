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
    """The non-zero entries of a factor tensor P `[B, H, T, T]`, every entry once, sorted by query.

    A place (t, b, h) is flattened as `(t * B + b) * H + h`, which is the memory order of projections `[T, B, H * d]`.

    Attributes:
        size: (B, H, T)
        query: [A] int64, the place of each entry's query, ascending
        key: [A] int64, the place of its key: same sentence and head
        factor: [A] float, P[b, h, query, key]
        places: [R] int64, the places that have entries as query, ascending
        row: [A] int64, index of each entry's query in `places`
        counts: [R] int64, number of entries of each row
    """

    size: tuple[int, int, int]
    query: Tensor
    key: Tensor
    factor: Tensor
    places: Tensor
    row: Tensor
    counts: Tensor

    @classmethod
    def of(
        cls, size: tuple[int, int, int], batch: Tensor, head: Tensor, query: Tensor, key: Tensor, factor: Tensor
    ) -> SparseFactors:
        """Collects entries; entries of the same (batch, head, query, key) are summed, as the exponential is not linear.

        Args:
            size: (B, H, T)
            batch, head, query, key: [A] int64 each, 0-based; query and key are columns of the padded batch
            factor: [A] float
        """
        B, H, T = size
        place = (query * B + batch) * H + head
        code, order = torch.sort(place * T + key, stable=True)
        new = torch.ones_like(code, dtype=torch.bool)
        new[1:] = code[1:] != code[:-1]
        factor = factor[order]
        chosen = order[new]
        factor = factor.new_zeros(len(chosen)).index_add_(0, new.cumsum(0) - 1, factor)
        place, key = place[chosen], (key[chosen] * B + batch[chosen]) * H + head[chosen]
        places, row, counts = torch.unique_consecutive(place, return_inverse=True, return_counts=True)
        return cls(size, place, key, factor, places, row, counts)

    def for_every_head(self, heads: int) -> SparseFactors:
        """The same matrix for `heads` heads, from factors of one head."""
        B, H, T = self.size
        if H != 1:
            raise ValueError(f"factors of one head wanted, these have {H}")
        device = self.query.device
        head = torch.arange(heads, device=device)
        places = (self.places[:, None] * heads + head).flatten()
        counts = self.counts[:, None].expand(-1, heads).flatten()
        row = torch.repeat_interleave(
            torch.arange(len(places), device=device), counts, output_size=len(self.key) * heads
        )
        # Each row is a copy of one of this object: the copy's entry minus its row's start, plus the original's start.
        moved = (self.counts.cumsum(0) - self.counts)[:, None].expand(-1, heads).flatten() - (counts.cumsum(0) - counts)
        entry = torch.arange(len(row), device=device) + moved[row]
        key = self.key[entry] * heads + row % heads
        return SparseFactors((B, heads, T), places[row], key, self.factor[entry], places, row, counts)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The factor tensor P `[B, H, T, T]`."""
        B, H, T = self.size
        out = self.factor.new_zeros((T * B * H, T), dtype=dtype)
        out[self.query, self.key // (B * H)] = self.factor.to(dtype)
        return out.view(T, B, H, T).permute(1, 2, 0, 3)


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
    q, k, v = (None if x is None else x.permute(2, 0, 1, 3) for x in (q, k, v))
    return _SparseFactorAttention.apply(q, k, v, factors, key_padding_mask).permute(1, 2, 0, 3)


class _SparseFactorAttention(torch.autograd.Function):
    """Operands and result are [T, B, H, d], seen as one row of d per place; saves the rows of the entries only."""

    @staticmethod
    def forward(ctx, q, k, v, factors: SparseFactors, key_padding_mask):
        T, B, H, d = v.shape
        work = torch.promote_types(v.dtype, torch.float32)
        row = factors.row
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
            q_arc, k_arc = _rows(q, factors.query, work), _rows(k, factors.key, work)
            logit = (q_arc * k_arc).sum(-1) * p

        # A row all of whose keys have entries has no other key of logit 0: its largest logit may be negative, and the
        # subtraction below would cancel to nothing.
        sentence = factors.places % (B * H)
        others = n[sentence // H] - factors.counts
        lowest = torch.zeros_like(others).masked_fill_(others <= 0, float("-inf"))
        m = lowest.scatter_reduce_(0, row, logit, "amax")
        e = torch.exp(logit - m.index_select(0, row))
        rest = torch.exp(-m).masked_fill_(others <= 0, 0)
        norm = torch.zeros_like(m).index_add_(0, row, e).addcmul_(rest, others)
        excess = e - rest.index_select(0, row)
        numerator = total.reshape(B * H, d).index_select(0, sentence) * rest[:, None]
        numerator.index_add_(0, row, v_arc * excess[:, None])
        attended = numerator / norm[:, None]

        out = (total / n[:, None, None]).to(v.dtype).expand(T, B, H, d).contiguous()
        out.view(-1, d).index_copy_(0, factors.places, attended.to(v.dtype))
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
        grad_row = _rows(grad, factors.places, e.dtype)

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
        grad_q.index_add_(0, factors.query, grad_score * k_arc)
        grad_k.index_add_(0, factors.key, grad_score * q_arc)
        grad_q, grad_k = (x.view(T, B, H, d).to(grad.dtype) for x in (grad_q, grad_k))
        return grad_q, grad_k, grad_v, None, None


def _rows(x: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of x `[T, B, H, d]` at flat places: [len(places), d]."""
    return x.reshape(-1, x.shape[-1]).index_select(0, places).to(dtype)
