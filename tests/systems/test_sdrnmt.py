"""SDRNMT-1 and -2: the convolution over dependency units, and the two ways of using it."""

import pytest
import torch
from lstm_models import (
    check_same_in_any_batch,
    check_search,
    check_the_parse_matters,
    empty_line,
    lines,
    model,
    net_input,
)
from random_parses import batch

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.lstm_attention import Encoded
from fairseq_syntax.model.neighbourhoods import flat_relatives
from fairseq_syntax.systems.sdrnmt import UNIT, UnitConvolution, unit_vectors

ARCHS = ("sdrnmt1_lstm", "sdrnmt2_lstm")


def unit_by_loops(heads: list[int], j: int, size: int) -> list[int]:
    """Equation 9: parent (of a root itself), siblings, children."""
    unit = [heads[j]]
    if heads[j] != j:
        unit += [k for k, head in enumerate(heads) if head == heads[j] and k not in (j, head)]
    return (unit + [k for k, head in enumerate(heads) if head == j and k != j])[:size]


@pytest.mark.parametrize("size", [2, 10])
def test_units_against_loops(size):
    ls = lines(1, count=8, max_words=14)
    members, present = flat_relatives(batch(ls, True), size, UNIT)
    at = 0
    for line in ls:
        for j in range(len(line.heads)):
            expected = [at + k for k in unit_by_loops(line.heads, j, size)]
            assert members[at + j][present[at + j]].tolist() == expected
        at += len(line.heads)


@pytest.mark.parametrize("kernel", [1, 3, 6])
def test_convolution_is_conv1d_with_its_gradients(kernel):
    torch.manual_seed(1)
    convolution = UnitConvolution(5, 7, kernel, unit_size=6).double()
    words = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    members = torch.randint(0, 10, (9, 4))
    ours = convolution(words, members)

    parameters = (words, convolution.spare, convolution.conv.weight, convolution.conv.bias)
    rows = []
    for unit in members.tolist():
        places = [words[k] if k < 9 else convolution.spare for k in unit] + [convolution.spare] * 2
        rows.append(torch.stack(places, dim=1))
    plain = torch.tanh(convolution.conv(torch.stack(rows)).amax(dim=2))
    torch.testing.assert_close(ours, plain)
    probe = torch.randn_like(plain)
    # Where several places of a unit hold the same words, amax shares the gradient among them; the sum is the same.
    torch.testing.assert_close(
        torch.autograd.grad(ours, parameters, probe), torch.autograd.grad(plain, parameters, probe)
    )


@pytest.mark.parametrize("left", [True, False])
def test_unit_vectors_of_words_of_several_pieces(left):
    ls = lines(2)
    syntax = batch(ls, left)
    convolution = UnitConvolution(4, 3)
    x = torch.randn(syntax.size[1], len(ls), 4)
    expected = []
    for b, line in enumerate(ls):
        first = syntax.size[1] - len(line.tokens) if left else 0
        columns = [[first + i for i, of in enumerate(line.word_of_piece) if of == w] for w in range(len(line.pieces))]
        embedded = [x[c, b].mean(dim=0) for c in columns]
        for w in range(len(line.pieces)):
            unit = [embedded[k] for k in unit_by_loops(line.heads, w, 10)]
            unit += [convolution.spare] * (10 - len(unit))
            expected.append(torch.tanh(convolution.conv(torch.stack(unit, dim=1)[None]).amax(dim=2))[0])
    vectors = unit_vectors(convolution, x, syntax)
    torch.testing.assert_close(vectors[:-1], torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert not vectors[-1].any()


def test_encoders_read_the_vectors_of_their_words():
    ls = [*lines(2), empty_line()]
    syntax = batch(ls, left=False)
    one, two = (model(arch, sdrnmt_channels=6).encoder for arch in ARCHS)
    x = torch.randn(syntax.size[1], len(ls), 12)
    both = one.embed(x, syntax)
    torch.testing.assert_close(both[:, :, :12], x)
    states, hiddens, _ = two.enrich(Encoded(*[x] * 4, syntax=syntax), x).second
    vectors = unit_vectors(one.convolution, x, syntax)
    units = unit_vectors(two.convolution, x, syntax)
    at = 0
    for b, line in enumerate(ls):
        n = len(line.pieces)
        expected = [vectors[at + w] for w in line.word_of_piece]
        expected += [torch.zeros(6)] * (syntax.size[1] - len(expected))
        torch.testing.assert_close(both[:, b, 12:], torch.stack(expected))
        if n:
            alone, _ = two.unit_lstm(units[at : at + n, None])
            torch.testing.assert_close(states[:n, b], alone[:, 0], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(hiddens[-1, b, :8], alone[-1, 0, :8], atol=1e-5, rtol=1e-4)
        at += n


def test_both_contexts_share_their_weights():
    m = model("sdrnmt2_lstm", sdrnmt_weight=0.3, sdrnmt_channels=6)
    attention = m.decoder.attention
    ls = [*lines(3), empty_line()]
    inputs = net_input(ls)
    encoded = m.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
    hidden = torch.randn(2 * len(ls), 10) * 2
    out, weights = attention(hidden, attention.remember(encoded), step=0)
    for b, line in enumerate(ls):
        n = len(line.tokens)
        unit_states = [encoded.second[0][w, b] for w in line.word_of_piece] + [torch.zeros(16)]
        streams = [
            (attention.words, hidden[b], encoded.states[:n, b], out[b]),
            (attention.units, hidden[len(ls) + b], unit_states, out[len(ls) + b]),
        ]
        mixed_from = [
            torch.stack([(a.input_proj.weight @ h) @ s for s in states]).softmax(0) for a, h, states, _ in streams
        ]
        mixed = 0.3 * mixed_from[0] + 0.7 * mixed_from[1]
        torch.testing.assert_close(weights[b, :n], mixed, atol=1e-5, rtol=1e-4)
        for a, h, states, actual in streams:
            context = sum(weight * s for weight, s in zip(mixed, states))
            expected = torch.tanh(a.output_proj.weight @ torch.cat((context, h)))
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
def test_same_alone_and_in_any_batch(arch):
    check_same_in_any_batch(model(arch, sdrnmt_channels=6))


@pytest.mark.parametrize("arch", ARCHS)
def test_search_with_beams(arch):
    check_search(model(arch, sdrnmt_channels=6))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_parse_matters_and_everything_is_trained(arch):
    check_the_parse_matters(arch, sdrnmt_channels=6)


def test_a_kernel_larger_than_a_unit():
    with pytest.raises(SyntaxDataError) as refusal:
        model("sdrnmt1_lstm", sdrnmt_kernel=11)
    assert refusal.value.option == "--sdrnmt-kernel"
