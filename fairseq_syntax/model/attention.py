"""Self-attention whose scores a syntax system may change, and from which it may read them.

A system says what it does to the scores by a small value object, a :class:`ScoreTerm`; the attention does not
know the systems. With no term and nothing to observe it is fairseq's own attention, by the same code path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor


class ScoreTerm:
    """What one system does to the scores of some heads of one layer, for one batch.

    Made once per encoder forward and passed down to the layer as an argument, so that activation checkpointing
    recomputes with the same term.

    Attributes:
        heads: the heads that it touches
        without_dropout: its heads have no dropout on attention weights, so that :meth:`attend` may be used in training
    """

    heads: slice = slice(None)
    without_dropout: bool = False

    def scores(self, scores: Tensor, x: Tensor) -> Tensor:
        """The dense reference form.

        Args:
            scores: [B, h, T, T], ``QKᵀ/√d`` of the touched heads, before the padding mask and the softmax
            x: [T, B, C], the layer's input

        Returns:
            [B, h, T, T]
        """
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """Another form of the same function, for all heads of the layer; used where this is the only term, no scores
        are observed, and no weights are dropped.

        Args:
            q, k, v: [B, H, T, d] of all heads; ``q`` is already divided by ``√d``
            key_padding_mask: [B, T], True on padding; None where there is none

        Returns:
            [B, H, T, d], or None where this term has no other form here
        """
        return None


class SyntaxSelfAttention(MultiheadAttention):
    """fairseq's multi-head self-attention, with score terms and observed heads.

    Args:
        embed_dim: C
        num_heads: H
        project_scores: False leaves out the query and key projections, for terms that replace the scores
    """

    def __init__(self, embed_dim: int, num_heads: int, *, project_scores: bool = True, **kwargs) -> None:
        self.project_scores = project_scores
        super().__init__(embed_dim, num_heads, self_attention=True, **kwargs)
        if not project_scores:
            del self.q_proj, self.k_proj

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        terms: Sequence[ScoreTerm] = (),
        observe: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: [T, B, C]
            key_padding_mask: [B, T], True on padding
            attn_mask: [T, T] added to the scores, with no terms and nothing observed only
            terms: applied in turn to the scores of their heads
            observe: heads whose scores are wanted

        Returns:
            [T, B, C], and the observed scores [B, len(observe), T, T] after the terms and before the mask, or None
        """
        if not terms and not observe:
            return super().forward(
                query, query, query, key_padding_mask=key_padding_mask, need_weights=False, attn_mask=attn_mask
            )[0], None
        if attn_mask is not None:
            raise ValueError("an attention mask cannot be combined with score terms")
        length, batch, channels = query.shape
        v = self._split(self.v_proj(query))
        if self.project_scores:
            q, k = self._split(self.q_proj(query) * self.scaling), self._split(self.k_proj(query))
        else:
            q = k = torch.zeros_like(v)
        drop = self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0

        if not observe and len(terms) == 1 and (drop == 0.0 or terms[0].without_dropout):
            attended = terms[0].attend(q, k, v, key_padding_mask)
            if attended is not None:
                return self._merge(attended, length, batch, channels), None

        dense = _hull([t.heads for t in terms] + [slice(i, i + 1) for i in observe], self.num_heads)
        scores = q[:, dense] @ k[:, dense].transpose(2, 3)
        for term in terms:
            start, stop, _ = term.heads.indices(self.num_heads)
            inner = slice(start - dense.start, stop - dense.start)
            changed = term.scores(scores[:, inner], query)
            scores = torch.cat([scores[:, : inner.start], changed, scores[:, inner.stop :]], dim=1)
        observed = scores[:, [i - dense.start for i in observe]] if observe else None
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        # In float32 as fairseq does it: a half-precision softmax loses the small weights.
        weights = self.dropout_module(F.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores))
        out = with_plain_heads(weights @ v[:, dense], dense, q, k, v, key_padding_mask, drop)
        return self._merge(out, length, batch, channels), observed

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, C] to [B, H, T, d]."""
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _merge(self, out: Tensor, length: int, batch: int, channels: int) -> Tensor:
        """[B, H, T, d] to [T, B, C], through the output projection."""
        return self.out_proj(out.permute(2, 0, 1, 3).reshape(length, batch, channels))


def with_plain_heads(
    special: Tensor, heads: slice, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, drop: float = 0.0
) -> Tensor:
    """Join some heads with the others, which take PyTorch's own attention.

    Args:
        special: [B, h, T, d], what the heads ``heads`` attend to
        q, k, v: [B, H, T, d] of all heads; ``q`` is already divided by ``√d``
        key_padding_mask: [B, T], True on padding
        drop: probability to drop a weight of the others

    Returns:
        [B, H, T, d]
    """
    start, stop, _ = heads.indices(q.size(1))
    mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]
    parts = [special]
    for at, side in ((0, slice(0, start)), (len(parts) + 1, slice(stop, q.size(1)))):
        if side.start < side.stop:
            plain = F.scaled_dot_product_attention(
                q[:, side], k[:, side], v[:, side], attn_mask=mask, dropout_p=drop, scale=1.0
            )
            parts.insert(at, plain)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _hull(heads: Sequence[slice], num_heads: int) -> slice:
    """The smallest run of heads that covers all of them."""
    bounds = [h.indices(num_heads)[:2] for h in heads]
    return slice(min(b[0] for b in bounds), max(b[1] for b in bounds))
