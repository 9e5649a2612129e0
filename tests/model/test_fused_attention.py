"""Fused attention: the results and gradients of fairseq's, and where fairseq's own code runs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fairseq.modules import MultiheadAttention
from torch import nn

from fairseq_syntax.model.attention import SyntaxSelfAttention
from fairseq_syntax.model.fused_attention import FusedAttention, additive_mask, fuse

C, H, T, S, B = 16, 4, 5, 7, 3


def attention(kind: str) -> tuple[nn.Module, nn.Module]:
    """fairseq's and ours, with the same parameters, in float64."""
    torch.manual_seed(1)
    source = {"self_attention": True} if kind == "self" else {"encoder_decoder_attention": True, "kdim": 12, "vdim": 12}
    theirs = MultiheadAttention(C, H, **source).double()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    holder = nn.Sequential(MultiheadAttention(C, H, **source).double())
    fuse(holder)
    assert type(holder[0]) is FusedAttention
    holder[0].load_state_dict(theirs.state_dict())
    return theirs, holder[0]


def padding(length: int, left: bool) -> torch.Tensor:
    mask = torch.zeros(B, length, dtype=torch.bool)
    mask[0, :2] = left
    mask[1, -1:] = not left
    return mask


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("left", [True, False, None])
@pytest.mark.parametrize("kind", ["self", "causal", "source"])
def test_it_is_fairseqs(kind, left, training, monkeypatch):
    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, **_: x.softmax(dim))  # its own is in float32
    of_source = kind == "source"
    x, memory = torch.randn(T, B, C, dtype=torch.float64), torch.randn(S, B, 12, dtype=torch.float64)
    mask = None if left is None else padding(S if of_source else T, left)
    future = torch.full((T + 2, T + 2), -torch.inf, dtype=torch.float64).triu(1)[:T, :T] if kind == "causal" else None
    seen = torch.ones(T, B, dtype=torch.bool)
    if kind == "causal" and mask is not None:
        seen = ~mask.t()  # with padding on the left, the padding itself sees no key
    results = []
    for one in attention("source" if of_source else "self"):
        one.train(training)
        given = [x.clone().requires_grad_(), memory.clone().requires_grad_()]
        keys = given[1] if of_source else given[0]
        options = {"static_kv": True} if of_source else {"attn_mask": future}
        out, weights = one(given[0], keys, keys, key_padding_mask=mask, need_weights=False, **options)
        assert weights is None and out.shape == (T, B, C)
        result = torch.where(seen[:, :, None], out, 0.0)
        if not (kind == "causal" and left):  # fairseq's gradients are NaN there
            result.square().sum().backward()
        results.append([result, *(t.grad for t in (*given, *one.parameters()) if t.grad is not None)])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_what_fairseqs_code_does(monkeypatch):
    """Weights that are asked for, search, and projections that are more than linear layers."""
    calls = []
    forward = MultiheadAttention.forward
    monkeypatch.setattr(MultiheadAttention, "forward", lambda *a, **k: (calls.append(1), forward(*a, **k))[1])
    _, ours = attention("self")
    x = torch.randn(T, B, C, dtype=torch.float64)
    ours(x, x, x, need_weights=False)
    assert not calls
    ours(x, x, x)
    ours(x, x, x, need_weights=False, incremental_state={})
    ours(x, x + 1, x, need_weights=False)
    ours.k_proj.register_forward_pre_hook(lambda *_: None)  # as quantization noise does
    ours(x, x, x, need_weights=False)
    assert len(calls) == 4


def test_the_mask_is_made_once_and_needs_no_copy():
    mask, other = padding(T, True), padding(T, True)
    future = torch.full((9, 9), -torch.inf).triu(1)
    make = partial(additive_mask, mask)
    alone, both = make(None, torch.float32), make(future[:T, :T], torch.float32)
    assert make(future[:T, :T], torch.float32) is both and make(None, torch.half) is not alone
    assert additive_mask(other, None, torch.float32) is not alone
    assert alone.tolist() == torch.zeros(B, 1, 1, T).masked_fill(mask[:, None, None], -torch.inf).tolist()
    expected = future[:T, :T].masked_fill(mask[:, None, None], -torch.inf)
    expected[0, :, :2] = 0  # queries on padding, which would see no key
    assert both.tolist() == expected.tolist()
    assert all(stride % 8 == 0 for m in (alone, both) for stride in m.stride()[:3])
    assert additive_mask(None, None, torch.float32) is None


def test_observed_scores_and_their_gradients():
    torch.manual_seed(1)
    ours = SyntaxSelfAttention(C, H).double()
    x = torch.randn(T, B, C, dtype=torch.float64)
    mask = padding(T, False)
    out, scores = ours(x, mask, observe=[2, 0])
    plain, none = ours(x, mask)
    assert torch.equal(out, plain) and not none
    q, k = (layer(x).view(T, B, H, -1) for layer in (ours.q_proj, ours.k_proj))
    for head, actual in zip((2, 0), scores, strict=True):
        expected = torch.einsum("tbd,sbd->bts", q[:, :, head] / 2, k[:, :, head])
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    weights = [torch.randn_like(one) for one in scores]
    of = ours.q_proj.weight, ours.k_proj.weight
    actual = torch.autograd.grad(sum((one * w).sum() for one, w in zip(scores, weights)), of)
    again = (torch.einsum("tbd,sbd->bts", q[:, :, head] / 2, k[:, :, head]) for head in (2, 0))
    expected = torch.autograd.grad(sum((one * w).sum() for one, w in zip(again, weights)), of)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
