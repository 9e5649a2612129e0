"""PASCAL and LDD that read a parent head below: their factors by loops, and the model without a parse."""

import math
import random
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from data_errors import data_error
from random_parses import EOS, PAD, Line, pad, random_line
from tiny_syntax import check_same_in_any_batch, encode, sample, tiny_model, tiny_task

from fairseq_syntax.corpus.segmentation import word_marks
from fairseq_syntax.systems import predicted_parse
from fairseq_syntax.systems.predicted_parse import (
    PredictedConfig,
    PredictedPascal,
    WordColumns,
    find_words,
    ldd_factor,
    pascal_factor,
    predicted_parents,
)

LINES = [random_line(random.Random(seed), max_words=7) for seed in range(5)]
NAMES = ("predicted_pascal", "predicted_ldd")
# Symbol 4 continues a word, 5 is punctuation, all others begin a word.
STARTS = torch.tensor([number != 4 for number in range(20)])
ENDS = torch.tensor([number == 5 for number in range(20)])


def words_by_loops(tokens: list[int]) -> list[list[int]]:
    """The places of each word of one line without ``</s>``."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if place == 0 or token != 4 or tokens[place - 1] == 5:
            words.append([])
        words[-1].append(place)
    return words


@pytest.mark.parametrize("left", [False, True])
def test_factors_by_loops(left):
    rng = random.Random(1)
    lines = [[rng.choice([4, 4, 5, 6, 7]) for _ in range(n)] for n in (6, 1, 0, 9)]
    width = 1 + max(map(len, lines))
    tokens = torch.tensor(
        [[PAD] * (width - len(l) - 1) + [*l, EOS] if left else [*l, EOS] + [PAD] * (width - len(l) - 1) for l in lines]
    )
    torch.manual_seed(0)
    scores = torch.randn(len(lines), width, width)
    words = find_words(tokens, PAD, EOS, STARTS, ENDS)
    parents = predicted_parents(scores, words)
    pascal, ldd = pascal_factor(parents, words, 0.7), ldd_factor(parents, words)
    for b, line in enumerate(lines):
        start = width - len(line) - 1 if left else 0
        actual = words_by_loops(line)
        for word in actual:
            row = [math.exp(float(scores[b, start + word[0], start + other[0]])) for other in actual]
            for i in word:
                for j in range(len(line) + 1):  # </s> is a place, and no word
                    density = sum(
                        p / sum(row) * math.exp(-((j - sum(other) / len(other)) ** 2) / 1.4) / math.sqrt(1.4 * math.pi)
                        for p, other in zip(row, actual)
                    )
                    assert float(pascal[b, start + i, start + j]) == pytest.approx(density, abs=1e-6)
                    chosen = next((p for p, other in zip(row, actual) if j in other), 0.0)
                    assert float(ldd[b, start + i, start + j]) == pytest.approx(chosen / sum(row), abs=1e-6)
        end = start + len(line)
        predicted = [math.exp(-((j - len(line)) ** 2) / 1.4) / math.sqrt(1.4 * math.pi) for j in range(len(line) + 1)]
        assert torch.allclose(pascal[b, end, start : end + 1], torch.tensor(predicted), atol=1e-6)
        assert ldd[b, end].eq(0).all() and ldd[b, :, end].eq(0).all()


def test_word_marks_of_each_kind():
    marks = word_marks(["hou@@", "se", "￭."], "subword_nmt")
    assert [m.ends for m in marks] == [False, True, True] and not any(m.starts for m in marks)
    marks = word_marks(["▁hou", "se", ".", "▁", "▁(", "10"], "sentencepiece")
    assert [m.starts for m in marks] == [True, False, True, True, True, False]
    assert [m.ends for m in marks] == [False, False, True, False, True, False]
    assert word_marks(["a", "b"], None) == [(True, True)] * 2


def build(name, head="supervised_heads", **options):
    options = {"parent_layer": 0, "child_weight": 0.0, "lisa_layer": 0, **options}
    return tiny_model("syntax_transformer", encoder_syntax=f"{head},{name}", **options)


@pytest.mark.parametrize("head", ["supervised_heads", "lisa"])
@pytest.mark.parametrize("name", NAMES)
def test_no_parse_is_needed_at_inference_and_the_batch_does_not_matter(name, head):
    model = build(name, head).eval()
    assert not model.inference_needs and model.training_needs == {"tree"}
    check_same_in_any_batch(model, LINES, syntax=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_above_attends_by_the_head_below(name):
    """Other scores of the parent head, and nothing else changed in its layer, are other states above."""
    model = build(name).eval()
    plain = tiny_model("syntax_transformer", encoder_syntax="supervised_heads", parent_layer=0, child_weight=0.0).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    first, other = (encode(m, LINES[:1], True, syntax=False)[0] for m in (model, plain))
    assert not torch.allclose(first, other, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_reaches_the_head_when_it_is_told_to(name):
    def gradient(updates, **options):
        model = build(name, **options)
        model.set_num_updates(updates)
        # The head's own attention is cut off, so that only the factor leads back to its queries.
        attention = model.encoder.layers[0].self_attn
        with torch.no_grad():
            attention.v_proj.weight.zero_()
            attention.v_proj.bias.zero_()
            attention.q_proj.weight.mul_(5)
        model(**sample(LINES, left=True)["net_input"])[0].square().sum().backward()
        return float(attention.q_proj.weight.grad.abs().sum())

    assert gradient(999) == gradient(10**6, parent_gradient_after=-1) == 0
    assert gradient(1000) > 0 and gradient(0, parent_gradient_after=0) > 0


@pytest.mark.parametrize("name", NAMES)
def test_checkpointed_activations_give_the_same_gradients(name):
    actual = []
    for checkpointed in (False, True):
        model = build(name, checkpoint_activations=checkpointed, parent_gradient_after=0)
        model(**sample(LINES, left=True)["net_input"])[0].square().sum().backward()
        actual.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert actual[0].keys() == actual[1].keys()
    assert all(torch.allclose(g, actual[1][n], atol=1e-5) for n, g in actual[0].items())


def test_the_given_parse_in_training_falls_away():
    model = build("predicted_pascal", given_parse=1.0, given_parse_updates=10)
    system = model.encoder.systems["predicted_pascal"]
    states = []
    for updates, training in ((0, True), (10, True), (0, False)):
        model.train(training)
        system.set_num_updates(updates)
        with torch.no_grad():
            states.append(encode(model, LINES, True))
    given, later, inference = states
    assert any(not torch.allclose(a, b, atol=1e-5) for a, b in zip(given, later))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(later, inference))


def test_a_given_head_that_the_marks_join_to_another_word():
    """``▁l' homme ▁dort``, where nothing marks *homme*: both words have the column of the first."""
    line = Line(heads=[1, 2, 2], pieces=[1, 1, 1], labels=[(1, 1, 1)] * 3, tokens=[7, 4, 6, EOS])
    model = build("predicted_ldd", given_parse=1.0).train()
    system = model.encoder.systems["predicted_ldd"]
    system.starts.copy_(STARTS), system.ends.copy_(ENDS)
    factors = []
    system.factor = lambda parents, words: factors.append(ldd_factor(parents, words)) or factors[-1]
    encode(model, [line], False)
    assert factors[0][0].tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0] * 4]


def test_with_the_given_parse_it_is_pascal():
    """With every sentence's own parse and no words of several pieces, the mixture is PASCAL's one Gaussian."""
    lines = [random_line(random.Random(seed)) for seed in range(4)]
    for line in lines:
        line.pieces = [1] * len(line.heads)
        line.tokens = [4 + t % 16 for t in range(len(line.heads))] + [EOS]
    model = build("predicted_pascal", given_parse=1.0)
    pascal = tiny_model(
        "syntax_transformer", encoder_syntax="supervised_heads,pascal", parent_layer=0, pascal_layers="1"
    )
    pascal.load_state_dict(model.state_dict(), strict=False)
    for one, other in zip(encode(model, lines, True), encode(pascal, lines, True)):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    "names, options, named",
    [
        ("predicted_pascal", {}, ["predicted_pascal"]),
        (
            "supervised_heads,lisa,predicted_ldd",
            {"lisa_layer": 1, "lisa_head": 2, "parent_layer": 0},
            ["predicted_ldd", "2"],
        ),
        ("supervised_heads,predicted_pascal", {"parent_layer": 0, "predicted_layers": "0"}, ["layer 0"]),
        ("supervised_heads,predicted_pascal", {}, ["encoder layer 2"]),  # the parent head is in the top layer
        (
            "supervised_heads,predicted_pascal",
            {"parent_layer": 0, "predicted_heads": 9},
            ["predicted_pascal", "heads 0 to 3"],
        ),
    ],
)
def test_options_that_cannot_be(names, options, named):
    with data_error(*named):
        tiny_model("syntax_transformer", encoder_syntax=names, **options)


def test_a_dropped_layer_leaves_the_layers_above_plain():
    model = build("predicted_pascal", encoder_layerdrop=0.5)
    plain = tiny_model("syntax_transformer", encoder_syntax="supervised_heads", parent_layer=0, encoder_layerdrop=0.5)
    plain.load_state_dict(model.state_dict(), strict=False)
    ran: list[int] = []
    for number in range(2):
        model.encoder.layers[number].register_forward_hook(lambda *_, number=number: ran.append(number))
    seen = set()
    for seed in range(8):
        ran.clear()
        outputs = []
        for each in (model, plain):
            torch.manual_seed(seed)
            outputs.append(torch.cat(encode(each, LINES, True)))
        seen.add(tuple(ran))
        assert torch.equal(*outputs) == (ran != [0, 1])
    assert seen >= {(0, 1), (1,)}


def test_words_are_found_from_the_tokens():
    tokens = pad(LINES, left=True)
    words = find_words(tokens, PAD, EOS, torch.ones(20).bool(), torch.ones(20).bool())
    assert isinstance(words, WordColumns) and words.begins.equal(words.real) and words.first.equal(words.middle.long())


def test_a_model_finds_words_by_the_marks_of_its_dictionary(monkeypatch):
    """Those that begin a word as such, and those after which one begins as such."""
    seen = []

    def noting(tokens, pad, eos, starts, ends):
        seen.append((starts, ends))
        return find_words(tokens, pad, eos, starts, ends)

    monkeypatch.setattr(predicted_parse, "find_words", noting)
    system = PredictedPascal(PredictedConfig(), Namespace(encoder_layers=2), tiny_task())
    system.starts, system.ends = STARTS.float(), ENDS.float()
    tokens = torch.tensor([[4, 5, 6, EOS]])
    system._factor(SimpleNamespace(tokens=tokens, scores={(0, 0): torch.zeros(1, 4, 4)}, syntax=None))
    assert seen[0][0].equal(STARTS) and seen[0][1].equal(ENDS) and not STARTS.equal(ENDS)
