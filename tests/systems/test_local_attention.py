"""Luong's local attention, monotonic and predictive."""

import math

import pytest
import torch
import torch.nn.functional as F
from lstm_models import check_same_in_any_batch, check_search, empty_line, lines, model, net_input

from fairseq_syntax.model.position_attention import LogGaussian
from fairseq_syntax.systems.local_attention import KINDS, LocalAttentionModel


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 4, 30])
def test_attention_against_loops(kind, step):
    window = 2
    m = model("local_attention_lstm", local_attention=kind, local_window=window)
    attention = m.decoder.attention
    ls = [*lines(3, max_words=9), empty_line()]
    inputs = net_input(ls)
    encoded = m.encoder(inputs["src_tokens"], inputs["src_lengths"])
    memory = attention.remember(encoded)
    hidden = torch.randn(len(ls), 10, generator=torch.Generator().manual_seed(step)) * 3
    out, read = attention(hidden, memory, step)
    over_source = attention.over_source(read[:, None], encoded)[:, 0]
    W_a, W_c = attention.input_proj.weight, attention.output_proj.weight
    for b, line in enumerate(ls):
        h, S = hidden[b], len(line.tokens)
        if kind == "monotonic":
            p = min(step, S - 1)
        else:
            v, W_p = attention.position.score.weight[0], attention.position.hidden_proj.weight
            p = S * torch.sigmoid(v @ torch.tanh(W_p @ h)).item()
        inside = [s for s in range(S) if p - window <= s <= p + window]
        weights = torch.stack([(W_a @ h) @ encoded.states[s, b] for s in inside]).softmax(0)
        context, expected = torch.zeros(16), torch.zeros(inputs["src_tokens"].size(1))
        for s, weight in zip(inside, weights):
            if kind == "predictive":
                weight = weight * math.exp(-((s - p) ** 2) / (2 * (window / 2) ** 2))
            context = context + weight * encoded.states[s, b]
            expected[s] = weight
        torch.testing.assert_close(out[b], torch.tanh(W_c @ torch.cat((context, h))), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(over_source[b], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_same_alone_and_in_any_batch(kind):
    check_same_in_any_batch(model("local_attention_lstm", local_attention=kind, local_window=2))


@pytest.mark.parametrize("kind", KINDS)
def test_search_with_beams(kind):
    check_search(model("local_attention_lstm", local_attention=kind, local_window=2))


def test_gradient_of_the_predictor():
    m = model("local_attention_lstm", local_window=2)
    inputs = net_input(lines(7))
    F.cross_entropy(m(**inputs)[0].flatten(0, 1), inputs["prev_output_tokens"].flatten()).backward()
    assert m.decoder.attention.position.hidden_proj.weight.grad.abs().max() > 1e-6


def test_no_parse_is_needed():
    assert LocalAttentionModel.training_needs == LocalAttentionModel.inference_needs == frozenset()
    inputs = net_input(lines(8))
    m = model("local_attention_lstm")
    with_parse = m(**inputs)
    inputs.pop("src_syntax")
    torch.testing.assert_close(m(**inputs), with_parse)


def test_the_gaussians_gradient():
    place, position = torch.arange(7), torch.tensor([0.3, 2.0, 5.9], dtype=torch.float64, requires_grad=True)
    factor, square = LogGaussian.apply(place, position, 1.5)
    torch.testing.assert_close(factor.exp(), (-((place - position[:, None]) ** 2) / (2 * 1.5**2)).exp())
    assert not square.requires_grad
    assert torch.autograd.gradcheck(lambda p: LogGaussian.apply(place, p, 1.5)[0], position)
