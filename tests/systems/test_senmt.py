"""SE-NMT: the orders in which its encoders read, and the annotations that they make."""

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


def visit(heads: list[int], word: int, before: list[int], after: list[int]) -> None:
    """Walk a subtree, noting words on the way down and on the way up."""
    before.append(word)
    for child, head in enumerate(heads):
        if head == word and child != word:
            visit(heads, child, before, after)
    after.append(word)


def lstm_by_steps(lstm: torch.nn.LSTM, vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The top layer's states of a one-way LSTM, gate by gate."""
    for layer in range(lstm.num_layers):
        w_x, w_h, b_x, b_h = (getattr(lstm, f"{n}_l{layer}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        h = c = torch.zeros(lstm.hidden_size, dtype=w_x.dtype)
        states = []
        for x in vectors:
            i, f, g, o = (w_x @ x + b_x + w_h @ h + b_h).view(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        vectors = states
    return vectors


@pytest.mark.parametrize("left", [True, False])
def test_annotations_against_recursion(left):
    m = model("senmt_lstm", senmt_hidden_size=6).double()
    ls = [*lines(1, max_words=7), empty_line(), *lines(2, count=2)]
    inputs = net_input(ls, left)
    encoded = m.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
    assert encoded.states.shape[2] == 2 * 8 + 6 + 6
    for b, line in enumerate(ls):
        embedded = m.encoder.embed_tokens(torch.tensor(line.tokens))
        pieces_of = [[i for i, of in enumerate(line.word_of_piece) if of == w] for w in range(len(line.heads))]
        words = [sum(embedded[i] for i in pieces) / len(pieces) for pieces in pieces_of]
        pre: list[int] = []
        post: list[int] = []
        for root, head in enumerate(line.heads):
            if head == root:
                visit(line.heads, root, pre, post)
        by_child = dict(zip(post, lstm_by_steps(m.encoder.child_enriched, [words[w] for w in post])))
        by_head = dict(zip(pre, lstm_by_steps(m.encoder.head_enriched, [words[w] for w in pre])))
        sequential, _ = m.encoder.lstm(embedded[:, None])
        for i in range(len(inputs["src_tokens"][0])):
            expected = torch.zeros(28, dtype=torch.float64)
            if i < len(line.tokens):
                expected[:16] = sequential[i, 0]
            if i < len(line.word_of_piece):
                w = line.word_of_piece[i]
                expected[16:] = torch.cat((by_child[w], by_head[w]))
            torch.testing.assert_close(encoded.states[i, b], expected)


def test_same_alone_and_in_any_batch():
    check_same_in_any_batch(model("senmt_lstm"))


def test_search_with_beams():
    check_search(model("senmt_lstm"))


def test_half_precision():
    check_half_precision("senmt_lstm")


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_parse_matters_and_everything_is_trained(bidirectional):
    check_the_parse_matters("senmt_lstm", encoder_bidirectional=bidirectional, encoder_layers=1, decoder_layers=1)
