"""Self-attention whose scores syntax systems can change and read.

A system describes its change of the scores by a small value object, a :class:`ScoreTerm`; the attention does not
know the systems. Without terms and observed heads, it runs fairseq's own attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_syntax.model.fused_attention import FusedAttention, additive_mask, plain_attention

__all__ = ["HeadInputs", "ScoreTerm"]

IncrementalState = dict[str, dict[str, Tensor | None]]  # of fairseq's search, by module and name


class HeadInputs(NamedTuple):
    """The inputs of the heads of a term, for T queries and S keys (T = S in an encoder).

    Attributes:
        x: [T, B, C], the input of the attention at the queries
        memory: [S, B, C], its input at the keys, which in search are those of all steps
        q: [B, h, T, d], the queries of the term's heads, already divided by ``√d``
        k, v: [B, h, S, d], their keys and values
        tensors: :attr:`ScoreTerm.tensors` of the term
    """

    x: Tensor
    memory: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    tensors: tuple[Tensor, ...] = ()


class ScoreTerm:
    """A system's change of the scores or values of some heads, in one layer and for one batch.

    It is created once per forward pass and passed to the layer as an argument, so that activation checkpointing
    recomputes the layer with the same term.

    Attributes:
        heads: the heads that are changed
        without_dropout: whether these heads have no dropout on attention weights, so that training can use
            :meth:`attend`
        tensors: results of other layers that the term uses and that need a gradient. Activation checkpointing only sees
            arguments of the layer, as which they are passed; use :attr:`HeadInputs.tensors`, not these
    """

    heads: slice = slice(None)
    without_dropout: bool = False
    tensors: tuple[Tensor, ...] = ()

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        """The changed scores [B, h, T, S] of the term's heads: the dense reference form.

        Args:
            scores: [B, h, T, S], ``QKᵀ/√d``, before the masks and the softmax
        """
        return scores

    def output(self, weights: Tensor, inputs: HeadInputs) -> Tensor | None:
        """What is added to the heads' output [B, h, T, d], such as ``Σ_j weights_ij a_ij``; None for nothing.

        Args:
            weights: [B, h, T, S], after the softmax and dropout
        """
        return None

    def attend(self, inputs: HeadInputs, key_padding_mask: Tensor | None) -> Tensor | None:
        """A faster form of the same function for all heads, [B, H, T, d]; None if there is none for these inputs.

        It is used if this is the only term, no scores are observed, and no weights are dropped.

        Args:
            inputs: of all heads of the layer
            key_padding_mask: [B, T], True on padding; None if there is no padding
        """
        return None


class WhereParsed(ScoreTerm):
    """A term for the sentences that have a parse (``parsed`` [B] bool); the others have another, or plain attention."""

    def __init__(self, term: ScoreTerm, parsed: Tensor, otherwise: ScoreTerm | None = None) -> None:
        self.heads, self.without_dropout, self.tensors = term.heads, term.without_dropout, term.tensors
        self._term, self._otherwise = term, otherwise or ScoreTerm()
        self._parsed = parsed[:, None, None, None]

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        return torch.where(self._parsed, self._term.scores(scores, inputs), self._otherwise.scores(scores, inputs))

    def output(self, weights: Tensor, inputs: HeadInputs) -> Tensor | None:
        added, otherwise = self._term.output(weights, inputs), self._otherwise.output(weights, inputs)
        if added is None and otherwise is None:
            return None
        return torch.where(self._parsed, 0.0 if added is None else added, 0.0 if otherwise is None else otherwise)

    def attend(self, inputs: HeadInputs, key_padding_mask: Tensor | None) -> Tensor | None:
        if type(self._otherwise) is not ScoreTerm:
            return None
        attended = self._term.attend(inputs, key_padding_mask)
        if attended is None:
            return None
        return torch.where(self._parsed, attended, plain_attention(inputs.q, inputs.k, inputs.v, key_padding_mask))


class SyntaxSelfAttention(FusedAttention):
    """fairseq's multi-head self-attention, with score terms and observed heads.

    Args:
        project_scores: whether there are query and key projections; a layer whose scores are all replaced needs none
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
        tensors: Sequence[Tensor] = (),
        incremental_state: IncrementalState | None = None,
        **unused: Any,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Attend.

        Args:
            query: [T, B, C]
            key_padding_mask, attn_mask: as in :func:`.causal_mask`
            terms: applied to the scores of their heads, in this order
            observe: the heads whose scores are returned
            tensors: :attr:`ScoreTerm.tensors` of all terms, concatenated
            incremental_state: the state of a decoder's search: ``query`` is [1, B, C], and the keys are of all steps
            unused: fairseq's, without effect in self-attention

        Returns:
            [T, B, C], and the scores [B, T, T] of each observed head, after the terms and before the mask
        """
        if not terms and (not observe or incremental_state is not None):
            return super().forward(
                query,
                query,
                query,
                key_padding_mask=key_padding_mask,
                incremental_state=incremental_state,
                need_weights=False,
                attn_mask=attn_mask,
            )[0], ()
        if self.project_scores:
            q, k, v = self.project(query, (self.q_proj, self.k_proj, self.v_proj))  # [B, H, T, d] each
        else:
            (v,) = self.project(query, (self.v_proj,))
            q = k = torch.zeros_like(v)  # a term replaces the scores; only the shape is used
        if not terms:
            out = plain_attention(q, k, v, key_padding_mask, self.drop, attn_mask, self.scaling)
            return self.merge(out), _HeadScores.apply(q, k, tuple(observe), self.scaling)
        q = q * self.scaling
        memory = query
        if incremental_state is not None:
            k, v, memory, key_padding_mask = self._with_past(k, v, query, key_padding_mask, incremental_state)

        alone = not observe and len(terms) == 1 and attn_mask is None and incremental_state is None
        if alone and (self.drop == 0.0 or terms[0].without_dropout):
            inputs = HeadInputs(query, memory, q, k, v, tuple(tensors))
            attended = terms[0].attend(inputs, key_padding_mask)  # [B, H, T, d]
            if attended is not None:
                return self.merge(attended), ()

        # From the first to the last head that has a term or is observed.
        spans = [term.heads.indices(self.num_heads)[:2] for term in terms]
        bounds = [*spans, *((i, i + 1) for i in observe)]
        dense = slice(min(start for start, _ in bounds), max(stop for _, stop in bounds))
        (q_dense, k_dense, v_dense), others = divided(dense, q, k, v)
        scores = q_dense @ k_dense.transpose(2, 3)  # [B, h, T, S]
        remaining = iter(tensors)
        placed: list[tuple[ScoreTerm, slice, HeadInputs]] = []  # heads count from the first one of the dense part
        for term, (start, stop) in zip(terms, spans):
            heads = slice(start - dense.start, stop - dense.start)
            q_term, k_term, v_term = (of_heads(x, heads) for x in (q_dense, k_dense, v_dense))
            inputs = HeadInputs(query, memory, q_term, k_term, v_term, tuple(islice(remaining, len(term.tensors))))
            placed.append((term, heads, inputs))
            scores = with_heads(scores, heads, term.scores(of_heads(scores, heads), inputs))
        observed = [scores[:, i - dense.start] for i in observe]
        mask = additive_mask(key_padding_mask, attn_mask, scores.dtype)
        # PyTorch's softmax sums half precision in float32.
        all_weights = F.softmax(scores if mask is None else scores + mask, dim=-1).type_as(scores)
        weights = self.dropout_module(all_weights)
        for term, heads, _ in placed:
            if self.drop and term.without_dropout:
                weights = with_heads(weights, heads, of_heads(all_weights, heads))
        out = weights @ v_dense  # [B, h, T, d]
        for term, heads, inputs in placed:
            if (added := term.output(of_heads(weights, heads), inputs)) is not None:
                out = with_heads(out, heads, of_heads(out, heads) + added)
        before, after = (part and plain_attention(*part, key_padding_mask, self.drop, attn_mask) for part in others)
        return self.merge(*(part for part in (before, out, after) if part is not None)), observed

    def _with_past(
        self, k: Tensor, v: Tensor, x: Tensor, padding: Tensor | None, incremental_state: IncrementalState
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Keys and values [B, H, S, d], inputs [S, B, C] and padding [B, S] of all steps of a search.

        They are stored in fairseq's incremental state, whose rows the search reorders.
        """
        saved = self._get_input_buffer(incremental_state)
        x = x.transpose(0, 1)  # [B, T, C]: everything that is stored has the rows of the search first
        if "prev_key" in saved:
            k, v, x = (
                torch.cat([past, now], dim=-2)
                for past, now in ((saved["prev_key"], k), (saved["prev_value"], v), (saved["prev_input"], x))
            )
        padding = self._append_prev_key_padding_mask(
            padding, saved.get("prev_key_padding_mask"), len(k), k.size(2), static_kv=False
        )
        saved |= {"prev_key": k, "prev_value": v, "prev_input": x, "prev_key_padding_mask": padding}
        self._set_input_buffer(incremental_state, saved)
        return k, v, x.transpose(0, 1), None if padding is None else padding.bool()


class _HeadScores(torch.autograd.Function):
    """``QKᵀ/√d`` of some heads, [B, T, T] each, from the queries and keys [B, H, T, d] of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, heads: tuple[int, ...], scale: float) -> tuple[Tensor, ...]:
        ctx.save_for_backward(q, k)
        ctx.heads, ctx.scale = heads, scale
        return tuple(_scaled(q[:, head], k[:, head].transpose(1, 2), scale) for head in heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        grad_q, grad_k = torch.zeros_like(q), torch.zeros_like(k)
        for head, grad in zip(ctx.heads, grads):
            _scaled(grad, k[:, head], ctx.scale, out=grad_q[:, head])
            _scaled(grad.transpose(1, 2), q[:, head], ctx.scale, out=grad_k[:, head])
        return grad_q, grad_k, None, None


def _scaled(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """A multiple of the products of a [B, M, K] and b [B, K, N], in one operation."""
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale, out=out)


Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys and values


# Slicing and concatenating copy, twice more in the backward pass. These functions copy nothing for all heads.
def of_heads(x: Tensor, heads: slice) -> Tensor:
    """The selected heads of ``x`` [B, H, …]."""
    return x if heads.stop - heads.start == x.size(1) else x[:, heads]


def with_heads(x: Tensor, heads: slice, value: Tensor) -> Tensor:
    """``x`` [B, H, …] with the selected heads replaced by ``value`` [B, h, …]."""
    if heads.stop - heads.start == x.size(1):
        return value
    return torch.cat([x[:, : heads.start], value, x[:, heads.stop :]], dim=1)


def divided(heads: slice, q: Tensor, k: Tensor, v: Tensor) -> tuple[Heads, tuple[Heads | None, Heads | None]]:
    """Queries, keys and values [B, H, T, d] of the selected heads, and of those before and after them (None if none).

    ``split`` and not slices, since its gradient is one concatenation.
    """
    start, stop, _ = heads.indices(q.size(1))
    sizes = [start, stop - start, q.size(1) - stop]
    if sizes[0] == sizes[2] == 0:
        return (q, k, v), (None, None)
    parts = list(zip(*(x.split([size for size in sizes if size], dim=1) for x in (q, k, v)), strict=True))
    before = parts.pop(0) if sizes[0] else None
    return parts[0], (before, parts[1] if sizes[2] else None)
