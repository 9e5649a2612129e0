"""DLAA: dependency blocks, attention over them, and the LSTM decoder around it."""

import gc
import logging
import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from fairseq.models.lstm import LSTMModel
from hypothesis import given, settings
from hypothesis import strategies as st
from lstm_models import (
    check_same_in_any_batch,
    check_search,
    check_the_parse_matters,
    empty_line,
    lines,
    model,
    net_input,
)
from matrix_part import examples, of_ten_seconds
from random_parses import EOS, PAD, Line, batch, flat, pad, random_line, random_tree

from fairseq_syntax.model.loop_gradients import DeferredLinear, DeferredStates
from fairseq_syntax.model.lstm import SyntaxLSTMModel
from fairseq_syntax.model.lstm_attention import GlobalAttention
from fairseq_syntax.model.neighbourhoods import RELATIONS, flat_relatives, relatives, word_means
from fairseq_syntax.systems.dlaa import ALIGNMENTS, DLAAModel


def block_by_loops(heads: list[int], j: int, size: int) -> list[int]:
    """METHODS: itself, its parent, children, siblings; then nearest neighbours, left and right in turn."""
    block = [j]
    if heads[j] != j:
        block.append(heads[j])
    for k, head in enumerate(heads):
        if head == j and k != j:
            block.append(k)
    if heads[j] != j:
        for k, head in enumerate(heads):
            if head == heads[j] and k not in (j, head):
                block.append(k)
    for distance in range(1, len(heads)):
        for k in (j - distance, j + distance):
            if 0 <= k < len(heads) and k not in block:
                block.append(k)
    return block[:size]


# -- blocks ----------------------------------------------------------------------------------------------------------


def blocks(heads: list[int], size: int = 10) -> list[list[int]]:
    members, present = relatives(torch.tensor([heads]), torch.tensor([len(heads)]), size, RELATIONS)
    return [m[p].tolist() for m, p in zip(members[0], present[0])]


def test_block_of_root_leaf_and_inner_word():
    #         0  1  2  3  4  5
    heads = [1, 3, 1, 3, 3, 4]
    assert blocks(heads)[3] == [3, 1, 4, 2, 5, 0]  # root: children 1 and 4, neighbours 2, 5 (nearer than 0)
    assert blocks(heads)[1] == [1, 3, 0, 2, 4, 5]  # parent 3, children 0 and 2, sibling 4
    assert blocks(heads)[0] == [0, 1, 2, 3, 4, 5]  # leaf: parent 1, sibling 2


def test_more_relatives_than_places_are_cut_in_order():
    heads = [12] * 13  # a root with twelve children
    assert blocks(heads)[12] == [12, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert blocks(heads)[11] == [11, 12, 0, 1, 2, 3, 4, 5, 6, 7]


def test_roots_of_one_line_are_not_siblings():
    heads = [0, 0, 2, 2]
    assert blocks(heads, size=2) == [[0, 1], [1, 0], [2, 3], [3, 2]]


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 10]), st.booleans())
def test_blocks_of_a_batch_against_loops(seed, size, left):
    rng = random.Random(seed)
    ls = [random_line(rng, max_words=9) for _ in range(4)]
    ls.insert(rng.randrange(5), Line(list([1] * 15), random_tree(rng, 15), [(1, 1, 1)] * 15, [4] * 15 + [EOS]))
    members, present = flat_relatives(batch(ls, left), size, RELATIONS)
    at = 0
    for line in ls:
        for j in range(len(line.heads)):
            expected = [at + k for k in block_by_loops(line.heads, j, size)]
            row = members[at + j]
            assert row[present[at + j]].tolist() == expected
            assert (row[~present[at + j]] == len(members)).all()
        at += len(line.heads)


def test_block_size_is_that_of_the_line_where_it_is_short():
    members, present = flat_relatives(batch([Line([1], [0], [(1, 1, 1)], [5, EOS])], True), 10, RELATIONS)
    assert members.tolist() == [[0]] and present.all()


@pytest.mark.parametrize("left", [True, False])
def test_word_means_against_loops(left):
    ls = lines(1)
    syntax = batch(ls, left)
    states = torch.randn(syntax.size[1], len(ls), 3)
    expected = []
    for b, line in enumerate(ls):
        first = syntax.size[1] - len(line.tokens) if left else 0
        for w in range(len(line.pieces)):
            columns = [first + i for i, of in enumerate(line.word_of_piece) if of == w]
            expected.append(sum(states[c, b] for c in columns) / len(columns))
    means = word_means(states, syntax)
    torch.testing.assert_close(means[:-1], torch.stack(expected))
    assert not means[-1].any()


# -- gradients of a loop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "linears", "states"])
def test_deferred_gradients_are_those_of_the_plain_operations(kind):
    g = torch.Generator().manual_seed(1)

    def rand(*size):
        return torch.randn(size, generator=g, dtype=torch.float64)

    shared = {"linear": rand(5, 4), "linears": rand(2, 5, 4), "states": rand(3, 6, 4)}[kind].requires_grad_()
    start = rand(2, 3, 4).requires_grad_() if kind == "linears" else rand(3, 4).requires_grad_()
    more = rand(3, 6), rand(3, 4)

    def loop(deferred: bool) -> torch.Tensor:
        x = start
        if kind != "states":
            f = DeferredLinear(shared) if deferred else lambda x: torch.einsum("...ni,...oi->...no", x, shared)
            for _ in range(4):
                x = torch.tanh(f(x))[..., :4] + x
        else:
            d = DeferredStates(shared)
            for plus, also in ((None, None), (x @ start.t() @ more[0], x), more, (None, None)):
                w = d.dots(x, plus) if deferred else (shared * x[:, None]).sum(2) + (0 if plus is None else plus)
                w = w.softmax(1)
                y = d.sums(w, also) if deferred else (shared * w[:, :, None]).sum(1) + (0 if also is None else also)
                x = x + y
        return (x**2).sum()

    plain, ours = loop(False), loop(True)
    torch.testing.assert_close(ours, plain)
    expected = torch.autograd.grad(plain, (shared, start))
    for _ in range(2):  # a second backward pass over the same loop gives the same again
        torch.testing.assert_close(
            torch.autograd.grad(ours, (shared, start), retain_graph=True), expected, rtol=1e-5, atol=1e-6
        )


def test_a_shared_tensor_may_also_be_used_otherwise():
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    linear = DeferredLinear(weight)
    x = torch.randn(2, 3, dtype=torch.float64)
    (grad,) = torch.autograd.grad(linear(x).sum() + linear.shared.sum(), weight)
    torch.testing.assert_close(grad, torch.ones(3, 1, dtype=torch.float64) * x.sum(0) + 1)


def test_a_compiled_loop_has_the_same_gradients():
    weight, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)

    def loop() -> torch.Tensor:
        linear = DeferredLinear(weight)
        return torch.tanh(linear(torch.tanh(linear(x)))).sum()

    (expected,), (grad,) = (torch.autograd.grad(run(), weight) for run in (loop, torch.compile(loop, backend="eager")))
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("kind", [DeferredLinear, DeferredStates])
def test_nothing_waits_for_pythons_collector(kind):
    """Else the states of updates would pile up, most of all on a GPU, of whose memory the collector knows nothing."""
    gc.collect()
    gc.disable()
    try:
        deferred = kind(torch.randn(2, 3, 4, requires_grad=True).double() * 1)
        deferred.shared.sum().backward()
        alive = weakref.ref(deferred)
        del deferred
        assert alive() is None
    finally:
        gc.enable()


# -- the decoder -----------------------------------------------------------------------------------------------------


class Plain(SyntaxLSTMModel):
    @classmethod
    def build_attention(cls, args, hidden_size, source_size):
        return GlobalAttention(hidden_size, source_size)


@pytest.mark.parametrize("layers", [1, 2])
def test_with_global_attention_the_model_is_fairseqs_lstm(layers):
    theirs = model("lstm", encoder_layers=layers, decoder_layers=layers)
    from argparse import Namespace

    from fairseq.models.lstm import base_architecture
    from lstm_models import SIZES, dictionary

    args = Namespace(criterion="cross_entropy", **{**SIZES, "encoder_layers": layers, "decoder_layers": layers})
    base_architecture(args)
    d = dictionary()
    ours = Plain.build_model(args, Namespace(source_dictionary=d, target_dictionary=d)).eval()
    assert isinstance(theirs, LSTMModel)
    ours.load_state_dict(theirs.state_dict())
    batch_ = sorted(lines(2), key=lambda l: -len(l.tokens))  # fairseq's wants them sorted
    inputs = net_input(batch_)
    inputs.pop("src_syntax")
    torch.testing.assert_close(ours(**inputs), theirs(**inputs), atol=1e-5, rtol=1e-4)
    grads = []
    for m in (ours.train(), theirs.train()):
        for module in m.modules():
            if hasattr(module, "p"):
                module.p = 0.0
            if isinstance(module, torch.nn.LSTM):
                module.dropout = 0.0
        loss = F.cross_entropy(m(**inputs)[0].flatten(0, 1), inputs["prev_output_tokens"].flatten())
        grads.append(torch.autograd.grad(loss, [p for _, p in sorted(m.named_parameters())]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_attention_against_loops(alignment):
    m = model("dlaa_lstm", dlaa_block_size=4, dlaa_alignment=alignment)
    attention = m.decoder.attention
    ls = [*lines(3, max_words=9), empty_line()]
    inputs = net_input(ls)
    encoded = m.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
    memory = attention.remember(encoded)
    hidden = torch.randn(len(ls), 10) * 3
    out, read = attention(hidden, memory, step=0)
    over_source = attention.over_source(read[:, None], encoded)[:, 0]
    W_a, W_c = attention.input_proj.weight, attention.output_proj.weight
    v, W_p = attention.position.score.weight[0], attention.position.hidden_proj.weight
    for b, line in enumerate(ls):
        h = hidden[b]
        states = []
        for w in range(len(line.pieces)):
            pieces = [encoded.states[i, b] for i, of in enumerate(line.word_of_piece) if of == w]
            states.append(sum(pieces) / len(pieces))
        context, expected_weights = torch.zeros(16), torch.zeros(inputs["src_tokens"].size(1))
        if states:
            p = (len(states) - 1) * torch.sigmoid(v @ torch.tanh(W_p @ h)).item()
            low = int(p)
            parts = [(low, 1 - (p - low)), (min(low + 1, len(states) - 1), p - low)]
            if alignment != "interpolate":
                parts = [(round(p), 1.0)]
            for word, share in parts:
                block = block_by_loops(line.heads, word, 4)
                weights = torch.stack([(W_a @ h) @ states[k] for k in block]).softmax(0)
                for k, weight in zip(block, weights):
                    if alignment == "gaussian":
                        weight = weight * torch.exp(torch.tensor(-((k - p) ** 2) / (2 * 1.0**2)))
                    context = context + share * weight * states[k]
                    for i, of in enumerate(line.word_of_piece):
                        if of == k:
                            expected_weights[i] += share * weight / line.pieces[k]
        torch.testing.assert_close(out[b], torch.tanh(W_c @ torch.cat((context, h))), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(over_source[b], expected_weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_same_alone_and_in_any_batch(alignment):
    check_same_in_any_batch(model("dlaa_lstm", dlaa_block_size=4, dlaa_alignment=alignment))


def test_search_with_beams():
    check_search(model("dlaa_lstm", dlaa_block_size=3))


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_gradient_of_the_predictor(alignment, caplog):
    with caplog.at_level(logging.WARNING):
        m = model("dlaa_lstm", dlaa_block_size=3, dlaa_alignment=alignment)
    inputs = net_input(lines(7))
    loss = F.cross_entropy(m(**inputs)[0].flatten(0, 1), inputs["prev_output_tokens"].flatten())
    loss.backward()
    position = m.decoder.attention.position
    grads = [position.hidden_proj.weight.grad, position.score.weight.grad]
    if alignment == "hard":
        assert all(g is None or not g.any() for g in grads)
        assert "no gradient" in caplog.text
    else:
        assert all(g.abs().max() > 1e-6 for g in grads)
        assert not caplog.text


def test_the_parse_matters():
    # With two words in a block, a word's parent decides which state is read besides its own.
    check_the_parse_matters("dlaa_lstm", dlaa_block_size=2)


def test_needs():
    assert DLAAModel.training_needs == DLAAModel.inference_needs == {"tree"}


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("alignment, follows", [("interpolate", True), ("hard", False)])
def test_predicted_positions_follow_the_alignment(alignment, follows):
    """Copying a sentence aligns target word t with source word t: p_t must come to be t, from p_t = middle at first."""
    rng = random.Random(1)

    def copying(count: int):
        ls = []
        for _ in range(count):
            n = rng.randint(9, 12)
            tokens = [rng.randrange(4, 20) for _ in range(n)]
            ls.append(Line([1] * n, random_tree(rng, n), [(1, 1, 1)] * n, [*tokens, EOS]))
        target = pad(ls, left=False)
        prev = torch.cat((torch.full((count, 1), EOS), target[:, :-1]), dim=1)
        return {
            "src_tokens": pad(ls, left=True),
            "src_lengths": torch.tensor([len(l.tokens) for l in ls]),
            "prev_output_tokens": prev,
            "src_syntax": flat(ls),
        }, target

    def distance(m) -> float:
        """Mean |p_t − t| over the words of a batch."""
        inputs, target = copying(32)
        seen = []
        attention = m.decoder.attention
        weights = attention.weights
        attention.weights = lambda hidden, position, *rest: seen.append(position) or weights(hidden, position, *rest)
        with torch.no_grad():
            m(**inputs)
        attention.weights = weights
        away = (torch.stack(seen, dim=1) - torch.arange(len(seen))).abs()
        return away[target > EOS].mean().item()

    sizes = dict.fromkeys(
        (
            "encoder_embed_dim",
            "decoder_embed_dim",
            "encoder_hidden_size",
            "decoder_hidden_size",
            "decoder_out_embed_dim",
        ),
        48,
    )
    m = model(
        "dlaa_lstm",
        **sizes,
        encoder_layers=1,
        decoder_layers=1,
        dropout=0.0,
        dlaa_block_size=2,
        dlaa_alignment=alignment,
    )
    with torch.no_grad():
        for p in m.parameters():
            p.div_(5)
    m.train()
    before = distance(m)
    optimizer = torch.optim.Adam(m.parameters(), lr=3e-3)
    for _ in range(150):
        inputs, target = copying(24)
        loss = F.cross_entropy(m(**inputs)[0].flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        optimizer.step()
    after = distance(m)
    assert before > 2
    assert after < 0.8 if follows else after > 2
