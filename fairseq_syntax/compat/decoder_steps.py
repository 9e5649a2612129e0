"""A step of fairseq's Transformer decoder layers in a search on a CPU, in few operations.

With one sentence, what surrounds the products takes half of a step: modules that call modules, empty masks, weights of
attention that nobody reads. A layer that is fairseq's, with nothing added, computes the same here by functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from fairseq_syntax.compat.packed_weights import is_in_use, multiplied, packed_weight

_OPTIONS = ("c_attn", "attn_ln", "ffn_layernorm", "w_resid")
_NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class DecoderSteps:
    """The plain layers of decoders, which a search calls step by step."""

    def __init__(self, models: list[Any]) -> None:
        decoders = [model.decoder for model in models if hasattr(model, "decoder")]
        modules = dict.fromkeys(module for decoder in decoders for module in decoder.modules())
        self._layers = {module: list(module.modules())[1:] for module in modules if is_plain(module)}
        self._steps: list[tuple[nn.Module, LayerStep]] = []

    def update(self, keeps_attention: bool) -> None:
        """Take the layers' parameters as they are now, except those of layers that are trained or watched by hooks."""
        watched = bool(_global_forward_hooks or _global_forward_pre_hooks)
        self._steps = [
            (layer, LayerStep(layer, keeps_attention))
            for layer, parts in self._layers.items()
            if not (watched or layer.training or any(map(is_watched, parts)))
        ]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A context in which these layers take a :class:`LayerStep`, unless their ``forward`` was replaced."""
        replaced = [(layer, step) for layer, step in self._steps if "forward" not in layer.__dict__]
        for layer, step in replaced:
            layer.__dict__["forward"] = step
        try:
            yield
        finally:
            for layer, _ in replaced:
                layer.__dict__.pop("forward", None)


class LayerStep:
    """A plain decoder layer, whose ``forward`` this replaces."""

    def __init__(self, layer: Any, keeps_attention: bool) -> None:
        self._layer, self._keeps_attention = layer, keeps_attention
        self._activation = layer.activation_fn
        self._to_past, self._to_source = AttentionStep(layer.self_attn), AttentionStep(layer.encoder_attn)
        self._outward, self._inward = linear(layer.fc1), linear(layer.fc2)
        norms: list[Callable[[Tensor], Tensor]] = [norm(getattr(layer, name)) for name in _NORMS]
        no_norms: list[Callable[[Tensor], Tensor]] = [_same] * 3
        self._before, self._after = (norms, no_norms) if layer.normalize_before else (no_norms, norms)

    def __call__(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: Any = None,
        **inputs: Any,
    ) -> tuple[Any, ...]:
        """The layer's output for the next position of each hypothesis, x [1, R, C], and no attention.

        The layer itself computes the first step, with the keys and values of the source, and whatever else is asked of
        it than a step of a plain search.
        """
        past, source = (to.saved(incremental_state) for to in (self._to_past, self._to_source))
        wanted = self._keeps_attention and (inputs.get("need_attn") or inputs.get("need_head_weights"))
        masks = past.get("prev_key_padding_mask"), inputs.get("self_attn_mask"), inputs.get("self_attn_padding_mask")
        if wanted or not past or not source or any(mask is not None for mask in masks) or not is_of_search(x):
            usual = type(self._layer).forward
            outputs: tuple[Any, ...] = usual(
                self._layer, x, encoder_out, encoder_padding_mask, incremental_state, **inputs
            )
            return outputs
        before, after = self._before, self._after
        x = after[0](x + self._to_past.over_past(before[0](x), past))
        x = after[1](x + self._to_source.over_source(before[1](x), source))
        x = after[2](x + self._inward(self._activation(self._outward(before[2](x)))))
        return x, None, None


class AttentionStep:
    """fairseq's attention for one query a hypothesis."""

    def __init__(self, attention: Any) -> None:
        self._attention, self._heads, self._scale = attention, attention.num_heads, attention.scaling
        self._q, self._k, self._v, self._out = (linear(getattr(attention, name)) for name in _PROJECTIONS)

    def saved(self, incremental_state: Any) -> dict[str, Any]:
        """The keys and values of a search, in fairseq's shapes [R, H, T, d], by which it reorders their rows."""
        saved: dict[str, Any] = self._attention._get_input_buffer(incremental_state)
        return saved

    def over_past(self, x: Tensor, saved: dict[str, Any]) -> Tensor:
        """Self-attention [1, R, C] of the last positions x [1, R, C]; their keys and values join the others."""
        q, k, v = (of(x).view(x.size(1), self._heads, 1, -1) for of in (self._q, self._k, self._v))
        saved["prev_key"] = k = torch.cat((saved["prev_key"], k), dim=2)
        saved["prev_value"] = v = torch.cat((saved["prev_value"], v), dim=2)
        return self._out(F.scaled_dot_product_attention(q, k, v, scale=self._scale).view(x.shape))

    def over_source(self, x: Tensor, saved: dict[str, Any]) -> Tensor:
        """Attention [1, R, C] of x [1, R, C] to the source, of which hypotheses are queries to the same keys."""
        k, v = saved["prev_key"], saved["prev_value"]  # [S, H, T, d] for S sentences, or one for each row
        if "mask" not in saved:
            saved["mask"] = additive(saved.get("prev_key_padding_mask"), x.dtype)
        q = self._q(x).view(len(k), -1, self._heads, k.size(3)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=saved["mask"], scale=self._scale)
        return self._out(attended.transpose(1, 2).reshape(x.shape))


def additive(padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores of padded keys [S, T], as [S, 1, 1, T]; None if there are none."""
    if padding is None or not padding.any():
        return None
    zeros = torch.zeros(padding.shape, dtype=dtype)
    return zeros.masked_fill(padding.bool(), -torch.inf)[:, None, None]


def linear(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The function of a linear layer, by its packed weight if there is one."""
    packed = packed_weight(layer)
    if packed is not None:
        return partial(multiplied, packed=packed, bias=layer.bias)
    return partial(F.linear, weight=layer.weight, bias=layer.bias)


def norm(layer: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    """The function of a layer's normalization."""
    shape = list(layer.normalized_shape)
    return partial(torch.layer_norm, normalized_shape=shape, weight=layer.weight, bias=layer.bias, eps=layer.eps)


def _same(x: Tensor) -> Tensor:
    return x


def is_of_search(x: Tensor) -> bool:
    """Whether x [T, R, C] is one position a row, on a CPU, without gradients and in one precision."""
    is_step = len(x) == 1 and x.device.type == "cpu"
    return is_step and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def is_watched(module: Any) -> bool:
    """Whether something was added to a part of a layer: a hook, dropout in inference, or another ``forward``."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    drops = isinstance(module, FairseqDropout) and module.apply_during_inference
    return bool(hooks) or drops or ("forward" in module.__dict__ and not is_in_use(module))


def is_plain(layer: Any) -> bool:
    """Whether a module is a decoder layer of fairseq's, without the options that a :class:`LayerStep` has not."""
    base = TransformerDecoderLayerBase
    if not isinstance(layer, base) or layer.encoder_attn is None:
        return False
    if not all(is_fairseqs(getattr(type(layer), name), base) for name in ("forward", "residual_connection")):
        return False
    attentions = layer.self_attn, layer.encoder_attn
    if layer.cross_self_attention or not all(is_plain_attention(attention) for attention in attentions):
        return False
    linears = [layer.fc1, layer.fc2, *(getattr(of, name) for of in attentions for name in _PROJECTIONS)]
    return (
        all(getattr(layer, name, None) is None for name in _OPTIONS)
        and all(type(part) is nn.Linear for part in linears)
        and all(type(getattr(layer, name)) is nn.LayerNorm for name in _NORMS)
    )


def is_plain_attention(module: Any) -> bool:
    """Whether a module is fairseq's attention, without keys of its own (``--add-bias-kv``), which each row adds."""
    if not isinstance(module, MultiheadAttention) or module.bias_k is not None or module.add_zero_attn:
        return False
    # A subclass may change any of the methods that fairseq's ``forward`` calls.
    known = type(module) is MultiheadAttention or "searches_as_fairseq" in vars(type(module))
    return known and is_fairseqs(MultiheadAttention.forward, MultiheadAttention)


def is_fairseqs(method: Any, of: type) -> bool:
    """Whether a method is the one that a class of fairseq has, which nobody has replaced or wrapped."""
    return method.__module__ == of.__module__ and not hasattr(method, "__wrapped__")
