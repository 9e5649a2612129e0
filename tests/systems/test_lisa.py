"""LISA: the biaffine head against loops, its loss, and the given parse in its place."""

import copy
import math
import random
from argparse import Namespace

import pytest
import torch
from data_errors import data_error
from random_parses import batch, flat, pad, random_line, random_tree
from tiny_syntax import sample, tiny_model

from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.losses import system_losses
from fairseq_syntax.systems.lisa import Biaffine, Lisa, LisaConfig

LINES = [random_line(random.Random(seed)) for seed in range(4)]


def test_biaffine_by_loops():
    torch.manual_seed(1)
    layer, x = Biaffine(5, 3).double(), torch.randn(4, 2, 5, dtype=torch.float64)
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    scores = layer(x)
    for b in range(2):
        for i in range(4):
            for j in range(4):
                q = [max(0.0, v) for v in layer.query(x[i, b]).tolist()] + [1.0]
                k = [max(0.0, v) for v in layer.key(x[j, b]).tolist()]
                expected = sum(q[m] * layer.weight[m, n].item() * k[n] for m in range(4) for n in range(3))
                assert scores[b, i, j].item() == pytest.approx(expected)


@pytest.mark.parametrize("left", [True, False])
def test_loss_by_loops(left):
    """Every piece of a word looks for the first piece of the word's parent; a root's pieces for its own first piece."""
    args = Namespace(encoder_layers=1, encoder_embed_dim=16, encoder_attention_heads=4)
    lisa = Lisa(LisaConfig(lisa_head=2, lisa_weight=0.5), args, None)
    syntax, tokens = batch(LINES, left), pad(LINES, left)
    torch.manual_seed(0)
    scores = torch.randn(len(LINES), *syntax.size[1:] * 2)
    expected = 0.0
    for b, line in enumerate(LINES):
        offset = syntax.size[1] - len(line.tokens) if left else 0
        for i, word in enumerate(line.word_of_piece):
            row = [scores[b, i + offset, j + offset].item() for j in range(len(line.tokens))]
            expected += math.log(sum(map(math.exp, row))) - row[line.starts[line.heads[word]]]
    assert lisa.supervises() == {"lisa": (0, 2)} and torch.equal(syntax.padding, tokens.eq(1))
    part = lisa.loss("lisa", scores, Step.of(syntax))
    assert part.nll.item() == pytest.approx(expected, rel=1e-5)
    assert part.loss.item() == pytest.approx(0.5 * expected, rel=1e-5)  # a joint probability: a sum, not a mean
    assert part.tokens == sum(sum(line.pieces) for line in LINES)


def test_the_heads_own_queries_and_keys_do_not_matter_and_the_biaffine_does():
    model = tiny_model("lisa_transformer", lisa_layer=0, lisa_head=1).eval()
    net_input = sample(LINES, True, syntax=False)["net_input"]
    before = model(**net_input)[0]
    attention = model.encoder.layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight.view(4, 4, 16)[1] += 1
        attention.k_proj.weight.view(4, 4, 16)[1] += 1
        assert torch.equal(model(**net_input)[0], before)
        attention.q_proj.weight.view(4, 4, 16)[2] += 1
        assert not torch.allclose(model(**net_input)[0], before)
        model.encoder.systems["lisa"].biaffine.weight.mul_(-3)
        scores = model(**net_input)[1]["encoder_step"].scores[0, 1]
    x = model.encoder.forward_embedding(net_input["src_tokens"])[0]
    x = x.masked_fill(net_input["src_tokens"].eq(1)[:, :, None], 0).transpose(0, 1)
    torch.testing.assert_close(scores, model.encoder.systems["lisa"].biaffine(x))


def test_no_parse_is_needed_at_inference_and_none_changes_anything():
    model = tiny_model("lisa_transformer").eval()
    assert model.inference_needs == frozenset() and model.training_needs == {"tree"}
    with_parse, without = sample(LINES, True), sample(LINES, True, syntax=False)
    assert torch.equal(model(**with_parse["net_input"])[0], model(**without["net_input"])[0])


@pytest.mark.parametrize("left", [True, False])
def test_gold_parents_take_the_place_of_predicted_ones_at_inference(left):
    model = tiny_model("lisa_transformer", lisa_gold=True, lisa_layer=0).eval()
    assert model.inference_needs == {"tree"}
    batched = sample(LINES, left)
    weights = {}
    values = model.encoder.layers[0].self_attn.v_proj
    values.register_forward_hook(lambda _, args, out: weights.__setitem__("v", out))
    model.encoder.layers[0].self_attn.out_proj.register_forward_pre_hook(
        lambda _, args: weights.__setitem__("out", args[0])
    )
    logits = model(**batched["net_input"])[0]
    for b, line in enumerate(LINES):  # head 0 gives each piece the value of its parent's first piece
        offset = batched["net_input"]["src_tokens"].shape[1] - len(line.tokens) if left else 0
        for i, word in enumerate(line.word_of_piece):
            parent = line.starts[line.heads[word]] + offset
            torch.testing.assert_close(weights["out"][i + offset, b, :4], weights["v"][parent, b, :4])
    other = copy.deepcopy(LINES)
    other[0].heads = random_tree(random.Random(5), len(other[0].heads))
    batched["net_input"]["src_syntax"] = flat(other)
    changed = model(**batched["net_input"])[0]
    assert not torch.allclose(changed[0], logits[0]) and torch.equal(changed[1:], logits[1:])
    loss, log = system_losses(model, model(**batched["net_input"])[1], batched)
    assert loss == 0 and log == dict.fromkeys(("lisa_nll", "lisa_tokens", "lisa_correct", "lisa_words"), 0)
    with data_error(option="--task"):
        model(**sample(LINES, left, syntax=False)["net_input"])
    # Training goes on with its own predictions, and learns from them.
    model.train()
    assert system_losses(model, model(**batched["net_input"])[1], batched)[1]["lisa_nll"] > 0


def test_gold_of_a_sentence_without_a_parse_is_predicted():
    gold, predicting = (tiny_model("lisa_transformer", lisa_gold=on, lisa_layer=0).eval() for on in (True, False))
    predicting.load_state_dict(gold.state_dict())
    inputs = sample(LINES, True)["net_input"]
    predicted = predicting(**inputs)[0]
    inputs["src_syntax"].parsed = torch.tensor([i % 2 == 0 for i in range(len(LINES))])
    mixed = gold(**inputs)[0]
    torch.testing.assert_close(mixed[1::2], predicted[1::2])
    assert not torch.allclose(mixed[0], predicted[0])


def test_what_gold_parents_attend_to_is_not_scaled_by_another_system():
    """PASCAL would take -10,000 of a far token near the 0 of the parent: refused; in other heads they go together."""
    for systems in ("lisa,pascal", "pascal,lisa"):
        options = {"encoder_syntax": systems, "lisa_layer": 0, "pascal_heads": 2}
        tiny_model("syntax_transformer", **options)  # what is predicted may be scaled
        with data_error("pascal", "lisa", "head 0"):
            tiny_model("syntax_transformer", lisa_gold=True, **options)
        tiny_model("syntax_transformer", lisa_gold=True, lisa_head=2, **options)


def test_gold_in_half_precision_is_finite():
    model = tiny_model("lisa_transformer", lisa_gold=True).eval().half()
    assert torch.isfinite(model(**sample(LINES, True)["net_input"])[0]).all()
