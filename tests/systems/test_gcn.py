"""The syntactic GCN: its layer, its place in an LSTM and in a Transformer."""

import pytest
import torch
from data_errors import data_error
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
from random_parses import EOS, Line, batch
from tiny_syntax import sample, tiny_model

from fairseq_syntax.systems.gcn import GCNConfig, GraphConvolution, SyntacticGCN

OPTIONS = [{}, {"gcn_after": "embeddings", "gcn_layers": 2, "gcn_no_gates": True, "gcn_words": "first"}]


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(5)
    for p in module.parameters():
        torch.nn.init.normal_(p)
    return module.double().eval()


def layer_by_edges(layer: GraphConvolution, h: list[torch.Tensor], line) -> list[torch.Tensor]:
    """h' of the words of a line, one edge u → v at a time."""
    bias = layer.label_bias.weight.chunk(2, dim=1)
    out = []
    for v, head in enumerate(line.heads):
        edges = [(v, "loop", None)]
        if head != v:
            edges.append((head, "down", line.labels[v][0]))
        edges += [(u, "up", line.labels[u][0]) for u, its in enumerate(line.heads) if its == v and u != v]
        total = torch.zeros_like(h[v])
        for u, direction, label in edges:
            number = ("up", "down", "loop").index(direction)
            W = (layer.upward, layer.downward, layer.loop)[number].weight
            message = W @ h[u] + (layer.loop.bias if label is None else bias[number][label])
            if layer.gate is not None:
                gate = layer.gate.weight[number] @ h[u] + layer.gate.bias[number]
                if label is not None:
                    gate = gate + layer.label_gate.weight[label, number]
                message = message * torch.sigmoid(gate)
            total = total + message
        out.append(total.clamp(min=0))
    return out


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("layers, gates, word_state", [(1, True, "mean"), (2, True, "first"), (2, False, "mean")])
def test_against_loops_over_edges(layers, gates, word_state, left):
    options = GCNConfig(gcn_layers=layers, gcn_no_gates=not gates, gcn_words=word_state)
    gcn = randomised(SyntacticGCN(options, 4, 6))
    ls = [*lines(1, max_words=7), empty_line(), *lines(2, count=2)]
    syntax = batch(ls, left)
    x = torch.randn(syntax.size[1], len(ls), 4, dtype=torch.float64)
    actual = gcn(x, syntax)
    for b, line in enumerate(ls):
        first = syntax.size[1] - len(line.tokens) if left else 0
        expected = x[:, b].clone()
        pieces_of = [[first + i for i, of in enumerate(line.word_of_piece) if of == w] for w in range(len(line.heads))]
        states = [x[i[0], b] if word_state == "first" else sum(x[c, b] for c in i) / len(i) for i in pieces_of]
        for layer in gcn.layers:
            new = layer_by_edges(layer, states, line)
            for columns, add in zip(pieces_of, new):
                expected[columns] += add
            states = [state + add for state, add in zip(states, new)]
        torch.testing.assert_close(actual[:, b], expected)


def test_edge_dropout():
    """In training each direction of each edge is there, scaled up, or not; else all are."""
    layer = randomised(GraphConvolution(3, 5, gates=False, edge_dropout=0.5))
    with torch.no_grad():
        layer.loop.bias.fill_(100)  # ReLU hides nothing
    h = torch.randn(2, 3, dtype=torch.float64)
    parent, label = torch.tensor([1, 1]), torch.tensor([2, 0])
    up, down = layer.label_bias.weight[2].split(3)
    up, down = layer.upward.weight @ h[0] + up, layer.downward.weight @ h[1] + down
    possible = [layer.loop(h) + torch.stack((2 * d * down, 2 * u * up)) for d in (0, 1) for u in (0, 1)]
    layer.train()
    seen = set()
    for _ in range(50):
        out = layer(h, parent, label)
        (which,) = [i for i, p in enumerate(possible) if torch.allclose(out, p)]
        seen.add(which)
    assert seen == {0, 1, 2, 3}
    layer.eval()
    torch.testing.assert_close(layer(h, parent, label), layer.loop(h) + torch.stack((down, up)))


def test_where_it_acts_in_an_lstm():
    ls = lines(3)
    inputs = net_input(ls, left=False)
    syntax = batch(ls, left=False)
    after, before = model("gcn_lstm"), model("gcn_lstm", gcn_after="embeddings")
    with torch.no_grad():
        encoded = after.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
        lengths = [inputs["src_lengths"]] * 2
        embedded = after.encoder.embed_tokens(inputs["src_tokens"]).transpose(0, 1)
        states, hiddens, _ = after.encoder.run(after.encoder.lstm, embedded, *lengths)
        torch.testing.assert_close(encoded.states, after.encoder.gcn(states, syntax))
        torch.testing.assert_close(encoded.hiddens, hiddens)
        encoded = before.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
        x = before.encoder.embed_tokens(inputs["src_tokens"]).transpose(0, 1)
        states, _, _ = before.encoder.run(before.encoder.lstm, before.encoder.gcn(x, syntax), *lengths)
        torch.testing.assert_close(encoded.states, states)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lstm_same_alone_and_in_any_batch(options):
    check_same_in_any_batch(model("gcn_lstm", **options))


def test_lstm_search_with_beams():
    check_search(model("gcn_lstm"))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lstm_half_precision(options):
    check_half_precision("gcn_lstm", **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lstm_the_parse_matters_and_everything_is_trained(options):
    check_the_parse_matters("gcn_lstm", **options)


# -- in a Transformer ------------------------------------------------------------------------------------------------


def encode(m, ls, left):
    inputs = sample(ls, left)["net_input"]
    return m.encoder(inputs["src_tokens"], src_syntax=inputs["src_syntax"], return_all_hiddens=True)


@pytest.mark.parametrize("after", ["embeddings", "0", None])
def test_where_it_acts_in_a_transformer(after):
    """The layers before are those of the plain Transformer; then the GCN has been applied once."""
    plain, m = tiny_model("syntax_transformer").eval(), tiny_model("gcn_transformer", gcn_after=after).eval()
    m.load_state_dict(plain.state_dict(), strict=False)
    ls = lines(3)
    number = {"embeddings": 0, "0": 1, None: 2}[after]  # of the encoder's states: the embeddings, then the layers
    with torch.no_grad():
        theirs, ours = encode(plain, ls, True)["encoder_states"], encode(m, ls, True)["encoder_states"]
        real = batch(ls, True).real.t()
        for i in range(number):
            torch.testing.assert_close(ours[i], theirs[i])
        expected = m.encoder.systems["gcn"].gcn(theirs[number], batch(ls, True))
        torch.testing.assert_close(ours[number][real], expected[real])
        assert (ours[number] - theirs[number])[real].abs().max() > 1e-2


@pytest.mark.parametrize("options", [{}, {"gcn_after": "0", "gcn_layers": 2, "gcn_words": "first"}], ids=str)
def test_transformer_same_alone_and_in_any_batch(options):
    m = tiny_model("gcn_transformer", **options).eval()
    ls = [*lines(4), empty_line(), *lines(5, count=2, max_words=12)]
    with torch.no_grad():
        for left in (True, False):
            logits = m(**sample(ls, left)["net_input"])[0]
            for i, line in enumerate(ls):
                alone = m(**sample([line], left)["net_input"])[0]
                torch.testing.assert_close(logits[i], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_transformer_half_precision(dtype):
    ls = [*lines(4), empty_line()]
    m = tiny_model("gcn_transformer").eval()
    expected = m(**sample(ls, True)["net_input"])[0]
    with torch.autocast("cpu", dtype=dtype):
        mixed = m(**sample(ls, True)["net_input"])[0]
    whole = m.to(dtype)(**sample(ls, True)["net_input"])[0]
    for logits in (mixed, whole):
        torch.testing.assert_close(logits.float(), expected, atol=0.1, rtol=0.1)
    whole.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in m.parameters() if p.grad is not None)


def test_transformer_the_parse_matters_beside_pascal_with_recomputed_activations():
    options = {
        "encoder_syntax": "pascal,gcn",
        "gcn_after": "0",
        "gcn_edge_dropout": 0.3,
        "checkpoint_activations": True,
    }
    m = tiny_model("syntax_transformer", **options)
    line = Line([1] * 5, [2, 2, 2, 2, 2], [(1, 1, 1)] * 5, [5, 6, 7, 8, 9, EOS])
    relabelled = Line(line.pieces, line.heads, [(2, 1, 1)] * 5, line.tokens)
    logits, _ = m(**sample([line, *lines(5)], True)["net_input"])
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in m.encoder.systems["gcn"].parameters())
    m.eval()
    with torch.no_grad():
        for layer in m.encoder.systems["gcn"].gcn.layers:
            torch.nn.init.normal_(layer.label_bias.weight)
        with_label = m(**sample([line], True)["net_input"])[0]
        assert (with_label - m(**sample([relabelled], True)["net_input"])[0]).abs().max() > 1e-3
    with data_error("gcn"):
        m(**sample([line], True, syntax=False)["net_input"])
