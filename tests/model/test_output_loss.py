"""The loss of the output layer against loops in float64, and the criterion against fairseq's."""

import copy
import math

import lstm_models
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerDecoder, TransformerModel
from random_parses import EOS, pad
from tiny_syntax import dictionary, tiny_model, tiny_task
from toy_data import logged

from fairseq_syntax.criterions.chunked_cross_entropy import ChunkedCrossEntropyCriterion
from fairseq_syntax.model.output_loss import is_linear, output_loss

N, V, C = 7, 11, 5


def layer(scale=1.0, dtype=torch.float64, has_bias=True):
    """h, W, b and y."""
    make = torch.Generator().manual_seed(1)
    h, w, b = (scale * torch.randn(*size, generator=make, dtype=torch.float64) for size in ((N, C), (V, C), (V,)))
    tensors = [t.to(dtype).requires_grad_() for t in ((h, w, b) if has_bias else (h, w))]
    return tensors, torch.randint(0, V, (N,), generator=make)


def by_loops(h, w, b, y, smoothing):
    """Loss, negative log-likelihood, and gradients by h, W and b, one number at a time."""
    loss = nll = 0.0
    gh, gw, gb = ([[0.0] * C for _ in range(rows)] for rows in (N, V, 1))
    gb = [0.0] * V
    off = smoothing / (V - 1)
    for n in range(N):
        logits = [sum(h[n][c] * w[v][c] for c in range(C)) + b[v] for v in range(V)]
        top = max(logits)
        norm = top + math.log(sum(math.exp(a - top) for a in logits))
        nll += norm - logits[y[n]]
        for v in range(V):
            share = 1 - smoothing if v == y[n] else off
            loss += share * (norm - logits[v])
            slope = math.exp(logits[v] - norm) - share
            gb[v] += slope
            for c in range(C):
                gh[n][c] += slope * w[v][c]
                gw[v][c] += slope * h[n][c]
    return loss, nll, [gh, gw, gb]


@pytest.mark.parametrize("scale", [1.0, 30.0])  # the larger: log-probabilities down to -10,000
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("smoothing", "chunk"), [(0.0, 3), (0.1, 3), (0.1, None), (1.0, 7)])
def test_loss_and_gradients_are_those_of_loops(smoothing, chunk, has_bias, scale):
    tensors, y = layer(scale, has_bias=has_bias)
    h, w, b = ([*tensors, torch.zeros(V)])[:3]
    expected, nll, grads = by_loops(h.tolist(), w.tolist(), b.tolist(), y.tolist(), smoothing)
    actual = output_loss(h, w, b if has_bias else None, y, smoothing, chunk=chunk, count=True)
    (3 * actual.loss).backward()
    assert actual.loss.item() == pytest.approx(expected, rel=1e-10)
    assert actual.nll.item() == pytest.approx(nll, rel=1e-10) and not actual.nll.requires_grad
    assert actual.correct.item() == (h @ w.t() + b).argmax(dim=1).eq(y).sum()
    for tensor, grad in zip(tensors, grads):
        torch.testing.assert_close(tensor.grad / 3, torch.tensor(grad, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_only_gradients_that_are_needed():
    """A frozen embedding has none, and validation none at all."""
    (h, w, b), y = layer()
    both = torch.autograd.grad(output_loss(h, w, b, y, 0.1).loss, (h, b))
    w.requires_grad_(False)
    output_loss(h, w, b, y, 0.1).loss.backward()
    torch.testing.assert_close((h.grad, b.grad), both)
    with torch.no_grad():
        assert not output_loss(h, w, b, y, 0.1).loss.requires_grad


def test_no_positions():
    (h, w, b), y = layer()
    loss = output_loss(h[:0], w, b, y[:0], 0.1).loss
    loss.backward()
    assert loss == 0 and not w.grad.any() and not b.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_logits_and_gradients_only(dtype):
    """The sums are float32, and a loss scale reaches the gradients before they are rounded."""
    (h, w), y = layer(2.0, dtype, has_bias=False)
    scale = 2.0**12
    actual = output_loss(h, w, None, y, 0.1)
    (actual.loss * scale).backward()
    logits = (h @ w.t()).detach().double().requires_grad_()
    scores = logits.log_softmax(dim=1)
    off = 0.1 / (V - 1)
    expected = -(0.9 - off) * scores[range(N), y].sum() - off * scores.sum()
    expected.backward()
    assert actual.nll.dtype == torch.float32
    assert actual.nll.item() == pytest.approx(-scores[range(N), y].sum().item(), rel=1e-6)
    assert actual.loss.item() == pytest.approx(expected.item(), rel=1e-4)  # the sum of all logits is not rounded
    for tensor, grad in ((h, logits.grad @ w.double()), (w, logits.grad.t() @ h.double())):
        exact = (scale * grad).to(dtype)  # one rounding; in float16, elements below 6e-8 would be lost without scale
        torch.testing.assert_close(tensor.grad, exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_gpu_rounds_the_gradient_by_the_logits_too(dtype, smoothing):
    """Once, relative to each element, also to those below the smallest of float16; without a bias of the sums."""
    (h, w), y = layer(4.0, dtype, has_bias=False)
    scale = 2.0**12
    on_gpu = [t.detach().cuda().requires_grad_() for t in (h, w)]
    (output_loss(*on_gpu, None, y.cuda(), smoothing, chunk=4).loss * scale).backward()
    logits = (on_gpu[0] @ on_gpu[1].t()).detach().cpu().double().requires_grad_()
    share = torch.full((N, V), smoothing / (V - 1), dtype=torch.float64)
    share[range(N), y] = 1 - smoothing
    (-(share * logits.log_softmax(dim=1)).sum()).backward()
    assert logits.softmax(dim=1).min() < 6e-8
    slopes = scale * logits.grad
    rounding = 2 * torch.finfo(dtype).eps * (slopes.abs() + scale * smoothing / (V - 1))
    rounding[range(N), y] += 1e-7 * scale  # the target's share is subtracted in float32
    for tensor, by, bound, other in (
        (on_gpu[0], slopes, rounding, w.double()),
        (on_gpu[1], slopes.t(), rounding.t(), h.double()),
    ):
        error = (tensor.grad.cpu().double() - by @ other).abs()
        assert (error <= bound @ other.abs() + 1e-5).all()


def test_mixed_precision_rounds_the_logits_as_the_layer_would():
    (h, w, b), y = layer(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        actual = output_loss(h, w, b, y, 0.1, chunk=2)
        logits = torch.nn.functional.linear(h, w, b)
    assert logits.dtype == torch.bfloat16
    assert actual.nll.item() == pytest.approx(-logits.float().log_softmax(1)[range(N), y].sum().item(), rel=5e-3)
    actual.loss.backward()
    assert w.grad.dtype == torch.float32


# ----------------------------------------------------------------------------------------------------- the criterion


def batch():
    """Four sentences of different lengths; the models here read no parse."""
    d, lines = dictionary(), sorted(lstm_models.lines(2, count=4), key=lambda line: -len(line.tokens))
    rows = [[4 + (7 * i + j) % 12 for j in range(length)] + [EOS] for i, length in enumerate((3, 5, 1, 4))]
    target = torch.full((4, 6), d.pad())
    for row, tokens in zip(target, rows):
        row[: len(tokens)] = torch.tensor(tokens)
    previous = torch.cat([torch.full((4, 1), EOS), target[:, :-1]], dim=1)
    source = {"src_tokens": pad(lines, True), "src_lengths": torch.tensor([len(line.tokens) for line in lines])}
    net_input = {**source, "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(d.pad()).sum()), "nsentences": 4}


MODELS = {
    "transformer": lambda: tiny_model("transformer"),
    "tied": lambda: tiny_model("transformer", share_decoder_input_output_embed=True, decoder_output_dim=16),
    "dropped": lambda: tiny_model("transformer", decoder_layers=2, encoder_layerdrop=0.5, dropout=0.3),
    "checkpointed": lambda: tiny_model("transformer", checkpoint_activations=True),
    "syntax": lambda: tiny_model("relative_positions_transformer"),
    "lstm": lambda: lstm_models.model("lstm", scale=1),
    "tied lstm": lambda: lstm_models.model(
        "local_attention_lstm", scale=1, decoder_out_embed_dim=12, share_decoder_input_output_embed=True
    ),
    "bart": lambda: tiny_model("bart_base", encoder_layers=1, decoder_layers=1),
}
OTHERS = {"lasyn": lambda: tiny_model("lasyn_transformer")}
KINDS = ChunkedCrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion


def results(criterion, model, sample):
    """Loss, sample size, log and gradients of a step with a loss scale."""
    model = copy.deepcopy(model).train()
    torch.manual_seed(4)
    loss, size, log = criterion(model, sample)
    (loss * 8 / size).backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), size, log, grads


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_the_criterion_is_fairseqs(name):
    model = {**MODELS, **OTHERS}[name]()
    sample = batch()
    assert is_linear(model) == (name in MODELS)
    arguments = tiny_task(), True, 0.1, 1, True  # of sentences, all but the first token, with the accuracy
    with logged("fairseq_syntax.criterions.chunked_cross_entropy") as messages:
        loss, size, log, grads = results(ChunkedCrossEntropyCriterion(*arguments), model, sample)
    assert bool(messages.getvalue()) == (name in OTHERS)
    expected, expected_size, expected_log, expected_grads = results(
        LabelSmoothedCrossEntropyCriterion(*arguments), model, sample
    )
    assert size == expected_size == 4
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert log.keys() == expected_log.keys()
    for key in log:
        assert float(log[key]) == pytest.approx(float(expected_log[key]), rel=1e-6)
    assert grads.keys() == expected_grads.keys()
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for key, grad in grads.items():
        torch.testing.assert_close(grad, expected_grads[key], rtol=1e-6, atol=1e-6 * largest)


def test_an_output_layer_of_ones_own_is_respected():
    """Subclasses may change what lies between features and probabilities. (fairseq cannot train the adaptive one.)"""

    class Doubled(TransformerDecoder):
        def output_layer(self, features):
            return 2 * super().output_layer(features)

    class Tempered(TransformerModel):
        def get_normalized_probs(self, net_output, log_probs, sample=None):
            return super().get_normalized_probs((net_output[0] / 2, *net_output[1:]), log_probs, sample)

    doubled, tempered = tiny_model("transformer"), tiny_model("transformer")
    doubled.decoder.__class__, tempered.__class__ = Doubled, Tempered
    for model in (doubled, tempered, tiny_model("transformer", adaptive_softmax_cutoff="8")):
        assert not is_linear(model)
        with torch.no_grad():
            torch.testing.assert_close(*(kind(tiny_task(), False, 0.1)(model, batch())[0] for kind in KINDS))


def test_statistics_of_validation_are_fairseqs():
    model, values = tiny_model("transformer").eval(), []
    for kind in KINDS:
        with torch.no_grad(), metrics.aggregate() as aggregate:
            kind.reduce_metrics([kind(tiny_task(), False, 0.1, 0, True)(model, batch())[2]] * 2)
        values.append(aggregate.get_smoothed_values())
    assert {"loss", "nll_loss", "ppl", "accuracy"} <= values[0].keys() == values[1].keys()
    assert values[0] == pytest.approx(values[1], abs=1e-3)


def test_an_error_leaves_the_model_as_it_was():
    model = tiny_model("transformer")
    sample = batch()
    before = model(**sample["net_input"])[0]
    with pytest.raises(TypeError):
        ChunkedCrossEntropyCriterion(tiny_task(), False, 0.1)(model, {**sample, "net_input": {"x": 1}})
    torch.testing.assert_close(model(**sample["net_input"])[0], before)


def test_nothing_of_tokens_times_vocabulary_is_kept():
    """Of what the backward pass needs, nothing is larger than the parameters and the features."""
    h, w = torch.randn(600, 8, requires_grad=True), torch.randn(500, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        output_loss(h, w, None, torch.zeros(600, dtype=torch.long), 0.1).loss.backward()
    assert kept and max(kept) <= max(h.numel(), w.numel())
