"""DBSA: what each side's head is trained towards, by loops; its loss; and search one token at a time."""

import math
import random

import pytest
import torch
from random_parses import Line, batch, flat, random_line
from tiny_syntax import sample, tiny_model

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.losses import system_losses
from fairseq_syntax.systems.dbsa import source_targets, target_targets

LINES = [random_line(random.Random(seed), max_words=5) for seed in range(5)]
TARGETS = [random_line(random.Random(10 + seed), max_words=4) for seed in range(5)]


def attached(line: Line, chain: bool) -> tuple[list[int], list[int]]:
    """For each piece of a line the piece that it attaches to; and the pieces that stand for words."""
    last = [start + pieces - 1 for start, pieces in zip(line.starts, line.pieces)]
    actual = []
    for place, word in enumerate(line.word_of_piece):
        if chain:
            actual.append(place + 1 if place < last[word] else last[line.heads[word]])
        else:
            actual.append(line.starts[line.heads[word]] if place == line.starts[word] else line.starts[word])
    return actual, last if chain else line.starts


def in_decoder(line: Line, chain: bool) -> tuple[list[int], list[int], list[int]]:
    """The same in the decoder, one place later, without what is to come; and the words whose head is there."""
    actual, words = attached(line, chain)
    seen = [place + 1 for place in words if actual[place] <= place]
    return [min(place, to) + 1 if to > place else to + 1 for place, to in enumerate(actual)], words, seen


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("chain", [False, True])
def test_targets_of_the_encoder_by_loops(chain, left):
    syntax = batch(LINES, left)
    targets = source_targets(syntax, chain)
    for b, line in enumerate(LINES):
        start = syntax.size[1] - len(line.tokens) if left else 0
        actual, words = attached(line, chain)
        actual.append(len(actual))  # </s>
        assert targets.real[b].nonzero().flatten().tolist() == [start + i for i in range(len(line.tokens))]
        assert targets.parent[b, targets.real[b]].tolist() == [start + to for to in actual]
        assert targets.word[b].nonzero().flatten().tolist() == [start + i for i in words]
        assert targets.seen.equal(targets.word)


@pytest.mark.parametrize("chain", [False, True])
def test_targets_of_the_decoder_by_loops(chain):
    targets = target_targets(batch(TARGETS, left=False), chain)
    for b, line in enumerate(TARGETS):
        actual, words, seen = in_decoder(line, chain)
        assert targets.real[b].nonzero().flatten().tolist() == [i + 1 for i in range(len(actual))]
        assert targets.parent[b, targets.real[b]].tolist() == actual
        assert targets.word[b].nonzero().flatten().tolist() == [i + 1 for i in words]
        assert targets.seen[b].nonzero().flatten().tolist() == seen


def with_targets(lines=LINES, targets=TARGETS, left=True) -> dict:
    """A batch whose targets have parses."""
    given = sample(lines, left)
    width = max(len(t.tokens) for t in targets)
    given["target"] = torch.tensor([t.tokens + [1] * (width - len(t.tokens)) for t in targets])
    before = [[2, *t.tokens[:-1]] + [1] * (width - len(t.tokens)) for t in targets]
    given["net_input"]["prev_output_tokens"] = torch.tensor(before)
    given["tgt_syntax"] = flat(targets)
    given["ntokens"] = sum(len(t.tokens) for t in targets)
    return given


@pytest.mark.parametrize("chain", [False, True])
def test_losses_by_loops(chain):
    model = tiny_model("dbsa_transformer", dbsa_weight=0.25, dbsa_decoder_weight=2.0, dbsa_chain=chain).eval()
    given = with_targets()
    with torch.no_grad():
        _, extra = model(**given["net_input"])
        total, log = system_losses(model, extra, given)
    scores = {"dbsa": extra["encoder_step"].scores[1, 0], "dbsa_decoder": extra["decoder_step"].scores[0, 0]}
    nll, hits, words = dict.fromkeys(scores, 0.0), dict.fromkeys(scores, 0), dict.fromkeys(scores, 0)
    for b, (line, target) in enumerate(zip(LINES, TARGETS)):
        start = scores["dbsa"].size(1) - len(line.tokens)
        actual, stand = attached(line, chain)
        actual.append(len(actual))  # </s>
        there, stand_there, seen = in_decoder(target, chain)
        rows = [("dbsa", start + i, start + to, range(start, start + len(line.tokens))) for i, to in enumerate(actual)]
        rows += [("dbsa_decoder", i + 1, to, range(i + 2)) for i, to in enumerate(there)]
        asked = {"dbsa": [start + i for i in stand], "dbsa_decoder": seen}
        candidates = {"dbsa": asked["dbsa"], "dbsa_decoder": [i + 1 for i in stand_there]}
        for name, i, to, keys in rows:
            row = scores[name][b, i].double()
            nll[name] += math.log(sum(math.exp(row[j]) for j in keys)) - float(row[to])
            if i in asked[name]:
                best = max((j for j in candidates[name] if j in keys), key=lambda j, row=row: float(row[j]))
                words[name] += 1
                hits[name] += best == to
    for name in scores:
        assert float(log[f"{name}_nll"]) == pytest.approx(nll[name], rel=1e-5)
        assert (int(log[f"{name}_correct"]), int(log[f"{name}_words"])) == (hits[name], words[name])
    assert float(total) == pytest.approx(0.25 * nll["dbsa"] + 2.0 * nll["dbsa_decoder"], rel=1e-5)


@pytest.mark.parametrize("side, layer", [("encoder", 1), ("decoder", 0)])
def test_scores_by_loops(side, layer):
    """``s_ij = Σ_ab q_ia U_ab k_jb + Σ_b u_b k_jb`` with q and k linear in the layer's input, negative too."""
    model = tiny_model("dbsa_transformer").eval()
    seen = {}
    stack = getattr(model, side)
    stack.layers[layer].self_attn.register_forward_pre_hook(lambda _, args: seen.__setitem__("x", args[0]))
    with torch.no_grad():
        step = model(**with_targets()["net_input"])[1][f"{side}_step"]
    biaffine = stack.systems["dbsa"].biaffine
    weights = {name: p.detach().double().numpy() for name, p in biaffine.named_parameters()}
    x = seen["x"].double().numpy()  # [T, B, C]
    q = x @ weights["query.weight"].T + weights["query.bias"]
    k = x @ weights["key.weight"].T + weights["key.bias"]
    assert q.min() < 0 > k.min()
    for b in range(x.shape[1]):
        for i in range(len(x)):
            for j in range(len(x)):
                row = sum(q[i, b, a] * weights["weight"][a] for a in range(q.shape[2])) + weights["weight"][-1]
                assert float(step.scores[layer, 0][b, i, j]) == pytest.approx(float(row @ k[j, b]), abs=1e-4)


def test_search_one_token_at_a_time_is_the_whole_decoder():
    model = tiny_model("dbsa_transformer", decoder_layers=2, dbsa_decoder_layer=0).eval()
    given = with_targets([LINES[0], LINES[0], LINES[1], LINES[1]], TARGETS[:4])["net_input"]  # beams of two
    given.pop("src_syntax")  # no parse is needed
    with torch.no_grad():
        encoded = model.encoder(given["src_tokens"], given["src_lengths"])
        tokens = given["prev_output_tokens"]
        whole, _ = model.decoder(tokens, encoder_out=encoded)
        state: dict = {}
        for t in range(tokens.size(1)):
            one, _ = model.decoder(tokens[:, : t + 1], encoder_out=encoded, incremental_state=state)
            real = tokens[:, t].ne(1)
            assert torch.allclose(one[real, 0], whole[real, t], atol=1e-5)
            change = torch.tensor([1, 0, 3, 2])  # hypotheses of a sentence change places
            tokens, whole = tokens[change], whole[change]
            model.decoder.reorder_incremental_state_scripting(state, change)
            encoded = model.encoder.reorder_encoder_out(encoded, change)


def test_a_sentence_does_not_depend_on_its_batch():
    model = tiny_model("dbsa_transformer").eval()
    with torch.no_grad():
        together, extra = model(**with_targets()["net_input"])
        sums = 0.0
        for i in range(len(LINES)):
            one = with_targets(LINES[i : i + 1], TARGETS[i : i + 1], left=False)
            alone, its_extra = model(**one["net_input"])
            assert torch.allclose(alone[0], together[i, : alone.size(1)], atol=1e-5)
            sums += float(system_losses(model, its_extra, one)[0])
        assert sums == pytest.approx(float(system_losses(model, extra, with_targets())[0]), rel=1e-4)


def test_padding_on_the_left_of_the_target():
    """Under the causal mask its queries have no key; the losses and all gradients are those of padding on the right."""
    model = tiny_model("dbsa_transformer", decoder_layers=2, dbsa_decoder_layer=0)
    given, left = with_targets(), with_targets()
    for tokens in (left["target"], left["net_input"]["prev_output_tokens"]):
        for row in tokens:
            row[:] = row.roll(int(row.eq(1).sum()))
    gradients = []
    for padded in (given, left):
        model.zero_grad()
        logits, extra = model(**padded["net_input"])
        loss = system_losses(model, extra, padded)[0]
        real = padded["target"].ne(1)
        loss = loss + torch.nn.functional.cross_entropy(logits[real], padded["target"][real], reduction="sum")
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for right, other in zip(*gradients):
        assert torch.allclose(right, other, atol=1e-4)


def test_both_heads_learn_from_their_losses_and_each_side_stands_alone():
    model = tiny_model("dbsa_transformer")
    given = with_targets()
    system_losses(model, model(**given["net_input"])[1], given)[0].backward()
    for side in (model.encoder, model.decoder):
        for parameter in side.systems["dbsa"].parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0
    assert tiny_model("syntax_transformer", encoder_syntax="dbsa").losses == ("dbsa",)
    assert tiny_model("syntax_transformer", decoder_syntax="dbsa").losses == ("dbsa_decoder",)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = tiny_model("dbsa_transformer").to(dtype)
    given = with_targets()
    loss, _ = system_losses(model, model(**given["net_input"])[1], given)
    assert loss.isfinite() and loss.dtype == torch.float32


def test_a_head_that_the_layer_does_not_have():
    with pytest.raises(SyntaxDataError):
        tiny_model("dbsa_transformer", dbsa_head=7)
