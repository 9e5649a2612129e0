"""LaSyn's factorised output layer against the literal form: every latent value's softmax written out, in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.systems.lasyn.softmax import (
    TRUSTED,
    em_loss,
    log_marginal,
    log_matmul_exp,
    search_scores,
    tag_tables,
)

N, V, Z, C = 7, 23, 5, 6


def layer(seed=0, scale=1.0, dtype=torch.float32, far_apart=0.0):
    """h, W, e, W_z and targets. `far_apart` lifts different words of W h and W e until products underflow."""
    make = torch.Generator().manual_seed(seed)
    h, w, e, p = (scale * torch.randn(n, C, generator=make, dtype=torch.float64) for n in (N, V, Z, Z))
    if far_apart:
        w[0], w[1] = 0, 0
        w[0, 0], w[1, 1] = 1, 1
        h[::2, 0] = e[1:, 1] = far_apart
        h[::2, 1] = e[1:, 0] = -far_apart
    y = torch.randint(0, V, (N,), generator=make)
    return [t.to(dtype).requires_grad_() for t in (h, w, e, p)], y


def literal_log_joint(h, w, e, p, y):
    """log P(y_n, z) [N][Z] by loops over positions and latent values: Equation 2 as it stands."""
    rows = []
    for n in range(len(h)):
        prior = torch.log_softmax(p @ h[n], dim=0)
        rows.append(torch.stack([prior[z] + torch.log_softmax(w @ (h[n] + e[z]), dim=0)[y[n]] for z in range(len(e))]))
    return torch.stack(rows)


def double(tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def literal_loss(h, w, e, p, y, smoothing=0.0):
    """Minus the smoothed M-step objective with the posterior fixed, less its entropy (Equation 8), by loops."""
    log_joint = literal_log_joint(h, w, e, p, y)
    gamma = torch.softmax(log_joint, dim=1).detach()
    off = smoothing / (len(w) - 1)
    total = h.new_zeros(())
    for n in range(len(h)):
        prior = torch.log_softmax(p @ h[n], dim=0)
        for z in range(len(e)):
            words = torch.log_softmax(w @ (h[n] + e[z]), dim=0)
            for v in range(len(w)):
                total = total - gamma[n, z] * words[v] * (1 - smoothing if v == y[n] else off)
            total = total - gamma[n, z] * prior[z]
            if gamma[n, z] > 0:
                total = total + gamma[n, z] * gamma[n, z].log()
    return total


def ours(tensors, y, smoothing=0.0, chunk=None):
    h, w, e, p = tensors
    return em_loss(h, w, e, torch.log_softmax(h @ p.t(), dim=1), y, smoothing, chunk)


CASES = [
    pytest.param({}, id="ordinary"),
    pytest.param({"scale": 4.0}, id="large"),
    pytest.param({"far_apart": 100.0}, id="underflow"),
    pytest.param({"far_apart": 1000.0}, id="far underflow"),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 3])
def test_em_loss_and_gradients_equal_the_literal_form(case, smoothing, chunk):
    tensors, y = layer(**case)
    exact = double(tensors)
    # What rounding logits of this magnitude to float32 costs, whoever adds them up.
    atol = max(1e-5, 1e-6 * case.get("far_apart", 0.0))
    expected = literal_loss(*exact, y, smoothing)
    got = ours(tensors, y, smoothing, chunk)
    assert got.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    posterior = torch.softmax(literal_log_joint(*exact, y), dim=1)
    torch.testing.assert_close(got.posterior.double(), posterior, rtol=1e-5, atol=atol)
    nll = -literal_log_joint(*exact, y).logsumexp(dim=1)
    torch.testing.assert_close(got.nll.double(), nll, rtol=1e-5, atol=atol)

    expected.backward()
    got.loss.backward()
    for t, x in zip(tensors, exact):
        size = x.grad.abs().max().item()
        torch.testing.assert_close(t.grad.double(), x.grad, rtol=1e-5, atol=atol * max(size, 1.0))


def test_the_underflow_cases_do_underflow():
    (h, w, e, _), _ = layer(far_apart=100.0)
    exps = ((x - x.amax(dim=1, keepdim=True)).exp() for x in (h @ w.t(), e @ w.t()))
    product = next(exps) @ next(exps).t()
    assert (product < TRUSTED[torch.float32]).any() and (product > 1e-3).any()
    assert (product == 0).any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_observed_values_have_all_of_the_posterior(smoothing):
    tensors, y = layer(far_apart=100.0)
    exact = double(tensors)
    observed = torch.tensor([2, -1, 0, 4, -1, 1, 1])
    h, w, e, p = tensors
    got = em_loss(h, w, e, torch.log_softmax(h @ p.t(), dim=1), y, smoothing, 3, observed)
    total = literal_loss(*[t[1:5:3] if i == 0 else t for i, t in enumerate(exact)], y[1:5:3], smoothing)
    h, w, e, p = exact
    off = smoothing / (V - 1)
    for n in range(N):
        if observed[n] >= 0:
            words = torch.log_softmax(w @ (h[n] + e[observed[n]]), dim=0)
            total = total - torch.log_softmax(p @ h[n], dim=0)[observed[n]]
            total = total - (1 - smoothing - off) * words[y[n]] - off * words.sum()
    assert got.loss.item() == pytest.approx(total.item(), rel=1e-5)
    total.backward()
    got.loss.backward()
    for t, x in zip(tensors, exact):
        size = x.grad.abs().max().item()
        torch.testing.assert_close(t.grad.double(), x.grad, rtol=1e-5, atol=1e-4 * max(size, 1.0))


def test_fishers_identity():
    """With the posterior held fixed, the gradient of the M-step is that of the log marginal likelihood."""
    tensors, y = layer(seed=3)
    exact = double(tensors)
    (-literal_log_joint(*exact, y).logsumexp(dim=1).sum()).backward()
    ours(tensors, y).loss.backward()
    for t, x in zip(tensors, exact):
        torch.testing.assert_close(t.grad.double(), x.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("far_apart", [0.0, 700.0])
def test_gradcheck(far_apart):
    tensors, y = layer(dtype=torch.float64, far_apart=far_apart)
    torch.autograd.gradcheck(lambda *t: ours(t, y).loss, tensors)
    h, w, e, p = tensors
    logits, tags, prior = h @ w.t(), e @ w.t(), torch.log_softmax(h @ p.t(), 1)
    leaves = [t.detach().requires_grad_() for t in (logits, tags, prior)]
    torch.autograd.gradcheck(lambda *t: log_marginal(*t).clamp(min=-1e3), leaves)


def test_one_latent_value_is_a_plain_label_smoothed_softmax():
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    (h, w, e, p), y = layer()
    plain, nll = label_smoothed_nll_loss(torch.log_softmax((h + e[0]) @ w.t(), dim=1), y, 0.1)
    got = ours((h, w, e[:1], p[:1]), y, 0.1)
    assert got.loss.item() == pytest.approx(plain.item(), rel=1e-6)
    assert got.nll.sum().item() == pytest.approx(nll.item(), rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_log_marginal_equals_the_literal_form(case):
    (h, w, e, p), _ = layer(**case)
    got = log_marginal(h @ w.t(), e @ w.t(), torch.log_softmax(h @ p.t(), 1))
    h, w, e, p = double((h, w, e, p))
    expected = torch.stack([literal_log_joint(h, w, e, p, [v] * N).logsumexp(dim=1) for v in range(V)], dim=1)
    atol = max(1e-5, 1e-6 * case.get("far_apart", 0.0))
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=atol)
    torch.testing.assert_close(got.exp().sum(1), torch.ones(N), rtol=0, atol=atol)


@pytest.mark.parametrize("case", CASES)
def test_scores_of_a_search_step_equal_the_literal_form(case):
    (h, w, e, p), _ = layer(**case)
    tables = tag_tables(w.detach(), e.detach())
    assert tables.safe == ("far_apart" not in case and "scale" not in case)
    marginal, rest = search_scores((h @ w.t()).detach() / math.log(2), torch.log_softmax(h @ p.t(), 1).detach(), tables)
    exact = double((h, w, e, p))
    joint = torch.stack([literal_log_joint(*exact, [v] * N) for v in range(V)], dim=1)
    atol = max(1e-5, 1e-6 * case.get("far_apart", 0.0))
    torch.testing.assert_close(marginal.double(), joint.logsumexp(dim=2), rtol=1e-5, atol=atol)
    posterior = torch.softmax(rest[:, None] + tables.by_word, dim=2)
    torch.testing.assert_close(posterior.double(), joint.softmax(dim=2), rtol=1e-5, atol=atol)


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.floats(-300, 300, width=32), min_size=4, max_size=4), min_size=2, max_size=7),
    st.integers(1, 3),
)
def test_log_matmul_exp_of_any_magnitudes(rows, split):
    x, y = torch.tensor(rows[:split]), torch.tensor(rows[split:] or rows)
    x.requires_grad_(), y.requires_grad_()
    got = log_matmul_exp(x, y)
    for i in range(len(x)):
        for j in range(len(y)):
            terms = [a + b for a, b in zip(x[i].tolist(), y[j].tolist())]
            top = max(terms)
            expected = top + math.log(sum(math.exp(t - top) for t in terms))
            assert got[i, j].item() == pytest.approx(expected, rel=1e-5, abs=1e-4)
    got.sum().backward()
    # Every sum's derivative by its terms adds up to one.
    torch.testing.assert_close(x.grad.sum(1), torch.full((len(x),), float(len(y))), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y.grad.sum(1), torch.full((len(y),), float(len(x))), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_are_float32(dtype):
    """A half-precision layer is the float32 layer on logits A rounded to half precision, and nothing else."""
    tensors, y = layer(scale=2.0, dtype=dtype)
    h, w, e, p = tensors
    prior = torch.log_softmax((h @ p.t()).float(), dim=1)
    got = em_loss(h, w, e, prior, y)
    # Half-precision gradients survive only under a loss scale.
    (got.loss * 64).backward()
    logits = (h @ w.t()).detach().double().requires_grad_()
    tags = (e.double() @ w.double().t()).detach()
    norm = torch.stack([(logits + tags[z]).logsumexp(dim=1) for z in range(Z)], dim=1)
    log_joint = logits.gather(1, y[:, None]) + tags[:, y].t() - norm + prior.detach().double()
    nll = -log_joint.logsumexp(dim=1)
    torch.testing.assert_close(got.nll.double(), nll, rtol=1e-5, atol=1e-5)
    nll.sum().backward()
    through_prior = ((prior.detach().exp() - got.posterior).double() @ p.detach().double()) * 64
    expected = logits.grad @ w.detach().double() * 64 + through_prior
    tolerance = 2e-2 if dtype is torch.bfloat16 else 3e-3
    torch.testing.assert_close(h.grad.double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_gpu_rounds_the_gradient_by_the_logits_too(dtype, smoothing):
    """Once, relative to each element, also to those below the smallest of float16, and not the constant of smoothing.

    The expected gradients are those of the literal loss, whose logits are rounded where the layer's product is.
    """
    (h, w, e, p), y = layer(scale=2.0, dtype=dtype)
    scale, gpu = 2.0**12, torch.device("cuda")
    on_gpu = [t.detach().to(gpu).requires_grad_() for t in (h, w, e)]
    prior = torch.log_softmax((h @ p.t()).detach().float(), dim=1)
    got = em_loss(*on_gpu, prior.to(gpu), y.to(gpu), smoothing, chunk=3)
    (got.loss * scale).backward()

    logits = (on_gpu[0] @ on_gpu[1].t()).detach().cpu().double().requires_grad_()
    tags = (e.double() @ w.double().t()).detach().requires_grad_()
    log_words = torch.stack([(logits + tag).log_softmax(dim=1) for tag in tags], dim=1)  # [N, Z, V]
    at_target = log_words[range(N), :, y]
    gamma = torch.softmax(at_target.detach() + prior.double(), dim=1)
    off = smoothing / (V - 1)
    on = 1 - smoothing - off if smoothing else 1.0
    (-(gamma * (on * at_target + off * log_words.sum(dim=2))).sum() * scale).backward()
    slopes, through_tags = logits.grad, tags.grad.t() @ e.double()
    rounding = 2 * torch.finfo(dtype).eps * (slopes.abs() + scale * off)
    rounding[range(N), y] += 1e-7 * scale  # the target's share is subtracted in float32
    assert smoothing or (slopes / scale).abs().min() < 6e-8
    for tensor, by, bound, other, more in (
        (on_gpu[0], slopes, rounding, w.double(), 0 * h.double()),
        (on_gpu[1], slopes.t(), rounding.t(), h.double(), through_tags),
    ):
        error = (tensor.grad.cpu().double() - by @ other - more).abs()
        assert (error <= bound @ other.abs() + 2 * torch.finfo(dtype).eps * more.abs() + 1e-5).all()


def test_mixed_precision_does_not_round_the_sums():
    tensors, y = layer(far_apart=40.0)
    expected = ours(tensors, y)
    h, w, e, p = tensors
    prior = torch.log_softmax(h @ p.t(), dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = em_loss(h, w, e, prior, y)
        summed = log_matmul_exp(h, e)
    torch.testing.assert_close(got.nll, expected.nll)
    torch.testing.assert_close(summed, log_matmul_exp(h, e))


def test_a_position_does_not_depend_on_the_others():
    tensors, y = layer()
    h, w, e, p = (t.detach() for t in tensors)
    together = ours((h, w, e, p), y, 0.1)
    for n in range(N):
        alone = ours((h[n : n + 1], w, e, p), y[n : n + 1], 0.1)
        torch.testing.assert_close(alone.nll[0], together.nll[n])
        torch.testing.assert_close(alone.posterior[0], together.posterior[n])


def test_no_matrix_of_positions_by_values_by_words(monkeypatch):
    """Memory: the peak of a step stays below a tenth of what N x Z x V elements take, and nothing N x V is kept."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.untyped_storage().nbytes() // t.element_size())
            return out

    n, v, z, c, chunk = 64, 512, 16, 8, 16
    h, w, e, p = (torch.randn(r, c, requires_grad=True) for r in (n, v, z, z))
    y = torch.randint(0, v, (n,))
    with Watch():
        ours((h, w, e, p), y, 0.1, chunk).loss.backward()
    assert largest <= max(chunk * v, z * v, v * c)
    largest = 0
    with Watch():
        log_marginal(h @ w.t(), e @ w.t(), torch.log_softmax(h @ p.t(), 1)).sum().backward()
    assert largest <= n * v
