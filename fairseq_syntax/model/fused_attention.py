"""fairseq's attention in fewer operations: one product for projections of an input, and PyTorch's fused attention.

fairseq projects queries, keys and values by three products, makes the mask anew in every layer, and computes the
attention over the source step by step. Of the kernels that an update of the base Transformer starts on a GPU, half are
of attention; these forms need less than half as many. The function is the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

# Of 16 bytes: otherwise PyTorch copies a mask in every layer.
ALIGNMENT = 8


class FusedAttention(MultiheadAttention):
    """Multi-head self-attention or attention over the source, with the parameters and results of fairseq's.

    Search, which keeps keys and values of earlier steps, and calls that ask for weights run fairseq's code; so do
    layers with quantization or other changes of the projections.
    """

    searches_as_fairseq = True  # hypotheses can share what it keeps of their source

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: Any = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """fairseq's arguments and results, with the shapes of :class:`fairseq.modules.MultiheadAttention`."""
        weights = need_weights or need_head_weights or before_softmax
        if weights or incremental_state is not None or key is None or not self._fuses(query, key, value):
            return super().forward(
                query,
                key,
                value,
                key_padding_mask,
                incremental_state,
                need_weights,
                static_kv,
                attn_mask,
                before_softmax,
                need_head_weights,
            )
        if self.self_attention:
            q, k, v = self.project(query, (self.q_proj, self.k_proj, self.v_proj))
        else:
            (q,), (k, v) = self.project(query, (self.q_proj,)), self.project(key, (self.k_proj, self.v_proj))
        attended = plain_attention(q, k, v, key_padding_mask, self.drop, attn_mask, self.scaling)
        return self.merge(attended), None

    def _fuses(self, query: Tensor, key: Tensor, value: Tensor | None) -> bool:
        one_source = query is key is value if self.self_attention else self.encoder_decoder_attention and key is value
        others = self.use_xformers or self.add_zero_attn or self.skip_embed_dim_check or self.onnx_trace
        return (
            one_source
            and not others
            and self.bias_k is None
            and query.size(1) == key.size(1)
            and all(map(_is_plain, (self.q_proj, self.k_proj, self.v_proj, self.out_proj)))
        )

    @property
    def drop(self) -> float:
        """The dropout probability of the weights, 0 where none are dropped."""
        module = self.dropout_module
        return module.p if self.training or module.apply_during_inference else 0.0

    def project(self, x: Tensor, layers: Sequence[nn.Module]) -> Sequence[Tensor]:
        """The projections of x [T, B, C] by linear layers, each split into heads: [B, H, T, d]."""
        if len(layers) > 1 and self.training and all(map(_is_plain, layers)):
            weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
            both = F.linear(x.flatten(0, 1), weight, bias).view(*x.shape[:2], len(layers), self.num_heads, -1)
            # unbind first: its gradient is one tensor with the layout of the product.
            return [one.permute(1, 2, 0, 3) for one in both.unbind(2)]
        # Otherwise joining the weights would take longer than the products of a short sentence.
        return [layer(x).unflatten(2, (self.num_heads, -1)).permute(1, 2, 0, 3) for layer in layers]

    def merge(self, *parts: Tensor) -> Tensor:
        """Join heads, in one or several parts [B, h, T, d], and apply the output projection: [T, B, C]."""
        rows = [part.permute(2, 0, 1, 3) for part in parts]
        return self.out_proj((rows[0] if len(rows) == 1 else torch.cat(rows, dim=2)).flatten(2))


def _is_plain(layer: nn.Module) -> bool:
    """Whether a linear layer is nothing but that; quantization noise is a hook."""
    hooks = layer._forward_pre_hooks or layer._forward_hooks
    return type(layer) is nn.Linear and layer.bias is not None and not hooks


def fuse(model: nn.Module) -> None:
    """Let all of fairseq's attention in a model be this one."""
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = FusedAttention


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Tensor | None,
    drop: float = 0.0,
    attn_mask: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """PyTorch's attention, in a fused kernel if the device has one: [B, H, T, d].

    Args:
        q, k, v: [B, H, T or S, d]
        key_padding_mask, attn_mask: as in :func:`causal_mask`
        drop: the dropout probability of the weights
        scale: what the scores are multiplied by; 1 for queries that are already divided by ``√d``
    """
    mask = additive_mask(key_padding_mask, attn_mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop, scale=scale)


def additive_mask(key_padding_mask: Tensor | None, attn_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What masks add to scores, 0 or −inf: [B, 1, 1 or T, S]; None for no masks.

    It is kept with the padding mask, which all layers of a step share.

    Args:
        key_padding_mask, attn_mask: as in :func:`causal_mask`
        dtype: that of the queries
    """
    if key_padding_mask is None:
        return None if attn_mask is None else attn_mask.to(dtype)
    # Slices of one future mask are tensors of their own.
    future = attn_mask if attn_mask is None or attn_mask._base is None else attn_mask._base
    compiles = torch.compiler.is_compiling()  # it would refuse an attribute of a tensor
    kept = None if compiles else getattr(key_padding_mask, "_additive", None)
    if kept is not None and kept[0] is future and kept[1].dtype == dtype:
        return kept[1]
    B, S = key_padding_mask.shape
    T = 1 if attn_mask is None else attn_mask.size(0)
    aligned = -(-S // ALIGNMENT) * ALIGNMENT
    mask = torch.zeros(B, 1, T, aligned, dtype=dtype, device=key_padding_mask.device)[:, :, :, :S]
    if attn_mask is None:
        mask.masked_fill_(key_padding_mask[:, None, None, :], float("-inf"))
    else:
        mask.copy_(causal_mask(attn_mask, key_padding_mask))
    if not compiles:
        key_padding_mask._additive = future, mask  # type: ignore[attr-defined]
    return mask


def causal_mask(attn_mask: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """The mask [B, 1, T, S] of both the future and padding, to be added to the scores.

    With padding on the left, a query on padding has no unmasked key. It sees all keys instead, since the softmax of a
    fully masked row is NaN, which would reach all gradients. Its output is not used: padding is never a key.

    Args:
        attn_mask: [T, S], with −inf where the future is masked
        key_padding_mask: [B, S], True on padding; None if there is no padding
    """
    if key_padding_mask is None:
        return attn_mask
    mask = attn_mask.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
    return mask.masked_fill(mask.isneginf().all(dim=-1, keepdim=True), 0.0)
