"""Recording of a model's attention weights as it runs, including what its systems do to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_syntax.model.attention import SyntaxSelfAttention, masked

KINDS = ("encoder", "cross", "decoder")


@contextmanager
def recorded(model: nn.Module, kinds: Sequence[str] = KINDS) -> Iterator[dict[str, list[Tensor]]]:
    """A context in which every attention of a Transformer records the weights of its last call.

    Args:
        kinds: which of :data:`KINDS` to note

    Yields:
        by kind (``encoder``: self-attention of the encoder; ``decoder``: of the decoder; ``cross``: over the source)
        the weights of each layer, [B, H, rows, columns] in float32, as they are used: after all score terms, the
        mask and the softmax. Filled while the model runs.
    """
    weights: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    patched = []
    decoder = getattr(model, "decoder", None)
    needed = getattr(decoder, "need_attn", True)  # False once an LSTM has been made fast
    try:
        for kind, module in _attentions(model):
            if kind not in kinds:
                continue
            note = partial(weights[kind].__setitem__, len(weights[kind]))
            weights[kind].append(torch.empty(0))
            wrapper = _observing if isinstance(module, SyntaxSelfAttention) else _weighing
            # on the object, not on its class: other models keep their own
            module.forward = partial(wrapper, module, module.forward, note)  # type: ignore[method-assign]
            # fairseq hands the rest to PyTorch's function, which returns the mean over the heads only; this keeps it
            # from doing so
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


def _attentions(model: nn.Module) -> Iterator[tuple[str, MultiheadAttention]]:
    for side in ("encoder", "decoder"):
        for layer in getattr(getattr(model, side, None), "layers", ()):
            attention = getattr(layer, "self_attn", None)
            if isinstance(attention, MultiheadAttention):
                yield side, attention
            cross = getattr(layer, "encoder_attn", None)
            if isinstance(cross, MultiheadAttention):
                yield "cross", cross


def _observing(
    module: SyntaxSelfAttention, forward, note, query, key_padding_mask=None, attn_mask=None, *, observe=(), **options
):
    """Run a syntax self-attention with all heads observed; the caller gets those that it asked for."""
    wanted = list(observe)
    out, scores = forward(query, key_padding_mask, attn_mask, observe=range(module.num_heads), **options)
    note(torch.softmax(masked(scores, key_padding_mask, attn_mask).float(), dim=-1))
    return out, scores[:, wanted] if wanted else None


def _weighing(module: MultiheadAttention, forward, note, *arguments, **options):
    """Run fairseq's attention with the weights of each head; the caller gets what it asked for."""
    of_heads = options.pop("need_head_weights", False)
    mean = options.pop("need_weights", True)
    out, weights = forward(*arguments, need_weights=True, need_head_weights=True, **options)
    note(weights.transpose(0, 1).float())
    if not (of_heads or mean):
        return out, None
    return out, weights if of_heads else weights.mean(dim=0)
