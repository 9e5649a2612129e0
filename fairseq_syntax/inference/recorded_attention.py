"""Recording of a model's attention weights while it runs, including the changes of its systems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_syntax.model.attention import SyntaxSelfAttention
from fairseq_syntax.model.fused_attention import additive_mask

KINDS = ("encoder", "cross", "decoder")


@contextmanager
def recorded(model: nn.Module, kinds: Sequence[str] = KINDS) -> Iterator[dict[str, list[Tensor]]]:
    """A context in which every attention of a Transformer records the weights of its last call.

    Yields:
        by kind (``encoder`` and ``decoder``: their self-attention; ``cross``: over the source) the weights of each
        layer, [B, H, rows, columns] float32, after all score terms, the mask and the softmax. They are filled in while
        the model runs.
    """
    weights: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    patched = []
    decoder = getattr(model, "decoder", None)
    needed = getattr(decoder, "need_attn", True)  # False in an LSTM after make_generation_fast_
    try:
        for kind, module in _attentions(model, kinds):
            note = partial(weights[kind].__setitem__, len(weights[kind]))
            weights[kind].append(torch.empty(0))
            wrapper = _observing if isinstance(module, SyntaxSelfAttention) else _weighing
            # On the instance and not on the class, so that other models are unaffected.
            module.forward = partial(wrapper, module, module.forward, note)  # type: ignore[method-assign]
            # Otherwise fairseq would call PyTorch's function, which returns only the mean over heads.
            patched.append((module, module.skip_embed_dim_check))
            module.skip_embed_dim_check = True
        if decoder is not None:
            decoder.need_attn = True
        yield weights
    finally:
        if decoder is not None:
            decoder.need_attn = needed
        for module, flag in patched:
            del module.forward
            module.skip_embed_dim_check = flag


def _attentions(model: nn.Module, kinds: Sequence[str]) -> Iterator[tuple[str, MultiheadAttention]]:
    for side in ("encoder", "decoder"):
        for layer in getattr(getattr(model, side, None), "layers", ()):
            for kind, name in ((side, "self_attn"), ("cross", "encoder_attn")):
                attention = getattr(layer, name, None)
                if kind in kinds and isinstance(attention, MultiheadAttention):
                    yield kind, attention


def _observing(
    module: SyntaxSelfAttention, forward, note, query, key_padding_mask=None, attn_mask=None, *, observe=(), **options
):
    """Run a syntax self-attention with all heads observed; return the scores that the caller requested."""
    out, scores = forward(query, key_padding_mask, attn_mask, observe=range(module.num_heads), **options)
    mask = additive_mask(key_padding_mask, attn_mask, torch.float32)
    of_heads = torch.stack(scores, dim=1).float()
    note(torch.softmax(of_heads if mask is None else of_heads + mask, dim=-1))
    return out, [scores[head] for head in observe]


def _weighing(module: MultiheadAttention, forward, note, *arguments, **options):
    """Run fairseq's attention with the weights of each head; return the weights that the caller requested."""
    of_heads = options.pop("need_head_weights", False)
    mean = options.pop("need_weights", True)
    out, weights = forward(*arguments, need_weights=True, need_head_weights=True, **options)
    note(weights.transpose(0, 1).float())
    if not (of_heads or mean):
        return out, None
    return out, weights if of_heads else weights.mean(dim=0)
