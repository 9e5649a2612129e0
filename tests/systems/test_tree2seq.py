"""Tree2Seq: the way up, the way down, the start of the decoder and the attention over tokens and nodes."""

import pytest
import torch
from lstm_models import (
    check_half_precision,
    check_same_in_any_batch,
    check_search,
    check_the_parse_matters,
    empty_line,
    lines,
    model,
    net_input,
)

ARCH = "tree2seq_lstm"


def children(heads: list[int], word: int) -> list[int]:
    return [w for w, head in enumerate(heads) if head == word and w != word]


def way_up(up, heads, x, node) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """h and c of a node and all below it (Tai et al. 2015, Equations 2 to 8), one gate and one child at a time."""
    W = dict(zip("fiuo", up.input.weight.chunk(4)))
    b = dict(zip("fiuo", up.input.bias.chunk(4)))
    U = {"f": up.forget.weight, **dict(zip("iuo", up.others.weight.chunk(3)))}
    actual = {}
    for child in children(heads, node):
        actual |= way_up(up, heads, x, child)
    total = torch.zeros_like(x[node])
    for child in children(heads, node):
        total = total + actual[child][0]
    i, u, o = (W[g] @ x[node] + U[g] @ total + b[g] for g in "iuo")
    c = i.sigmoid() * u.tanh()
    for child in children(heads, node):
        h_k, c_k = actual[child]
        c = c + (W["f"] @ x[node] + U["f"] @ h_k + b["f"]).sigmoid() * c_k
    return actual | {node: (o.sigmoid() * c.tanh(), c)}


def way_down(cell, heads, upward, node, above) -> dict[int, torch.Tensor]:
    """The states of a node and all below it, from the state above it."""
    state = cell(upward[node][None], above[None])[0]  # PyTorch's own cell
    result = {node: state}
    for child in children(heads, node):
        result |= way_down(cell, heads, upward, child, state)
    return result


def encoded_by_recursion(m, line, states, hiddens, cells):
    """The nodes of one line, and h and c of each layer at the start, from its states [n, E] and last states [L, E]."""
    encoder = m.encoder
    pieces_of = [[i for i, of in enumerate(line.word_of_piece) if of == w] for w in range(len(line.heads))]
    x = [sum(states[i] for i in pieces) / len(pieces) for pieces in pieces_of]
    roots = [w for w, head in enumerate(line.heads) if head == w]
    up = {}
    for root in roots:
        up |= way_up(encoder.up, line.heads, x, root)
    nodes = {w: h for w, (h, _) in up.items()}
    if encoder.down is not None:
        upward, nodes = nodes, {}
        for root in roots:
            nodes |= way_down(encoder.down.cell, line.heads, upward, root, torch.zeros_like(states[0]))
    h_root = c_root = torch.zeros_like(states[0])
    if roots:
        h_root, c_root = (sum(up[root][part] for root in roots) / len(roots) for part in (0, 1))
    starts = []
    for start, h, c in zip(encoder.start, hiddens, cells):
        W, b = start.gates.weight.chunk(5), start.gates.bias.chunk(5)
        i, f_seq, f_root, u, o = (w @ torch.cat((h, h_root)) + bias for w, bias in zip(W, b))
        cell = i.sigmoid() * u.tanh() + f_seq.sigmoid() * c + f_root.sigmoid() * c_root
        starts.append((o.sigmoid() * cell.tanh(), cell))
    return [nodes[w] for w in range(len(line.heads))], starts


@pytest.mark.parametrize("bottom_up", [True, False])
def test_encoder_and_attention_against_recursion(bottom_up):
    m = model(ARCH, tree2seq_bottom_up=bottom_up).double()
    ls = [*lines(1, max_words=7), empty_line(), *lines(2, count=2)]
    inputs = net_input(ls)
    encoded = m.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
    columns = inputs["src_tokens"].size(1)
    attention = m.decoder.attention
    memory = attention.remember(encoded)
    hidden = torch.randn(len(ls), 10, dtype=torch.float64) * 2
    out, read = attention(hidden, memory, step=0)
    over_source = attention.over_source(read[:, None], encoded)[:, 0]
    for b, line in enumerate(ls):
        sequential, (h, c) = m.encoder.lstm(m.encoder.embed_tokens(torch.tensor(line.tokens))[:, None])
        sequential, h, c = sequential[:, 0], *(t.view(2, 2, 8).flatten(1) for t in (h[:, 0], c[:, 0]))
        nodes, starts = encoded_by_recursion(m, line, sequential, h, c)
        for layer, (expected_h, expected_c) in enumerate(starts):
            torch.testing.assert_close(encoded.hiddens[layer, b], expected_h)
            torch.testing.assert_close(encoded.cells[layer, b], expected_c)
        places = [*sequential, *nodes]
        weights = torch.stack([(attention.input_proj.weight @ hidden[b]) @ s for s in places])
        weights = weights.softmax(0, dtype=torch.float32)
        context = sum(weight * s for weight, s in zip(weights, places))
        expected = torch.tanh(attention.output_proj.weight @ torch.cat((context, hidden[b])))
        torch.testing.assert_close(out[b], expected, atol=1e-6, rtol=1e-5)
        n = len(line.tokens)
        over_pieces = torch.zeros(columns)
        over_pieces[:n] = weights[:n]
        for i, w in enumerate(line.word_of_piece):
            over_pieces[i] += weights[n + w] / line.pieces[w]
        torch.testing.assert_close(over_source[b], over_pieces)
    torch.testing.assert_close(over_source.sum(1), torch.ones(len(ls)))


@pytest.mark.parametrize("bottom_up", [True, False])
def test_same_alone_and_in_any_batch(bottom_up):
    check_same_in_any_batch(model(ARCH, tree2seq_bottom_up=bottom_up))


def test_search_with_beams():
    check_search(model(ARCH))


def test_half_precision():
    check_half_precision(ARCH)


@pytest.mark.parametrize("bottom_up", [True, False])
def test_the_parse_matters_and_everything_is_trained(bottom_up):
    check_the_parse_matters(ARCH, tree2seq_bottom_up=bottom_up)
