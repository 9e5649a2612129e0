"""LaSyn's output layer at the cost of one softmax: normalizers, marginals and the EM loss by matrix products.

The word distribution for a latent value z is `softmax(W (h + e_z))`. Composition and output layer are linear, so all
quantities are functions of `A = W h` [N, V] and `B = W e` [Z, V]:

    normalizers   L[n, z] = log sum_v exp(A[n, v] + B[z, v])             = log (exp(A) exp(B)^T)[n, z]
    marginal      log P(v | n) = A[n, v] + log sum_z exp(C[n, z] + B[z, v]),   C[n, z] = log P(z | n) - L[n, z]
    posterior     log P(z | n, v) = log_softmax over z of C[n, z] + B[z, v]

Both sums are products of exponentials, so no array of size N x Z x V is needed. Each factor is taken relative to its
row's maximum. If the maxima of two rows are at different places, their product can underflow in float32; such pairs are
recognized by their small product and recomputed by an ordinary log-sum-exp, a few pairs at a time.

Sizes: N positions, Z latent values, V words, C channels. All sums are in float32 (float64 for float64 input),
regardless of the model's precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_syntax.model.devices import full_precision, thresholds
from fairseq_syntax.model.output_loss import GradientProducts, chunk_size, smoothing_weights

# Products below this are recomputed. Each term lost by underflow is below 1.2e-38, so with fewer than a million words
# the lost terms are less than 2e-7 of any product above it.
TRUSTED = {torch.float32: 1e-25, torch.float64: 1e-250}
LN2 = math.log(2)


def untrusted_pairs(product: Tensor) -> Tensor:
    """The indices [P, 2] of elements of ``product`` [N, M] that underflow may have affected (without NaN)."""
    return (product < TRUSTED[product.dtype]).nonzero()


def pair_batches(pairs: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the two columns of ``pairs`` [P, 2] in batches for which rows of ``width`` fit into a scratch matrix."""
    if len(pairs):
        for part in pairs.split(max(1, thresholds(pairs.device).scratch // width)):
            yield part[:, 0], part[:, 1]


def log_sum_exp_pairs(x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
    """`log sum_k exp(x[i, k] + y[j, k])` [P] for the pairs (i, j) [P, 2], P > 0."""

    def sums(i: Tensor, j: Tensor) -> Tensor:
        return (x[i] + y[j]).logsumexp(dim=1)

    # The backward pass recomputes the rows of each batch, so that no more than a scratch matrix is kept.
    parts = pair_batches(pairs, x.size(1))
    return torch.cat([checkpoint(sums, i, j, use_reentrant=False, preserve_rng_state=False) for i, j in parts])


def log_matmul_exp(x: Tensor, y: Tensor) -> Tensor:
    """`log (exp(x) exp(y)^T)`: the log-sum-exp of the sum of each row of `x` and each row of `y`.

    x: [R, K]; y: [M, K], any float type. Returns [R, M], float32 (float64 for float64 input), differentiable. Exact for
    finite values of any magnitude; costs one matrix product if the ranges of the rows are below 57.
    """
    with full_precision(x):
        x, y = (t if t.dtype in TRUSTED else t.float() for t in (x, y))
        x_peak, y_peak = (t.detach().amax(dim=1, keepdim=True) for t in (x, y))
        product = (x - x_peak).exp() @ (y - y_peak).exp().t()
        pairs = untrusted_pairs(product)
        if not len(pairs):
            return product.log() + x_peak + y_peak.t()
        places = pairs.unbind(dim=1)
        # 1 instead of the product, since the gradient of log(0) would be infinite.
        out = product.index_put(places, torch.ones_like(product[:1, 0])).log() + x_peak + y_peak.t()
        return out.index_put(places, log_sum_exp_pairs(x, y, pairs))


def log_marginal(logits: Tensor, tag_logits: Tensor, log_prior: Tensor) -> Tensor:
    """Log-probabilities of the words with the latent values summed out (Equation 5).

    logits: A [N, V]; tag_logits: B [Z, V]; log_prior: log P(z) [N, Z]. Returns [N, V], normalized, differentiable.
    """
    # The distributions do not depend on the rows' maxima; subtracting them keeps the numbers in float32 sums small.
    logits, tag_logits = (x - x.detach().amax(dim=1, keepdim=True) for x in (logits, tag_logits))
    rest = log_prior - log_matmul_exp(logits, tag_logits)
    return logits + log_matmul_exp(rest, tag_logits.t())


class TagTables(NamedTuple):
    """Tables of the output layer and the latent values, the same in all chunks of a loss or steps of a search."""

    logits: Tensor  # B [Z, V] in float32 (float64 for float64 weights), relative to each row's maximum
    exp: Tensor  # [Z, V], their exponentials
    by_word: Tensor  # [V, Z], the logits transposed, with a word's values adjacent in memory
    safe: bool  # whether no product with `exp` can underflow


def tag_tables(weight: Tensor, embed: Tensor) -> TagTables:
    """The tables for an output layer `weight` [V, C] and latent values `embed` [Z, C]."""
    dtype = weight.dtype if weight.dtype in TRUSTED else torch.float32
    with full_precision(weight):
        logits = embed.to(dtype) @ weight.to(dtype).t()
    logits -= logits.amax(dim=1, keepdim=True)
    # A sum of products contains the term in which the other factor is 1, so it is at least the smallest element here.
    # Checked once for all chunks or steps, since each check synchronizes with the device.
    safe = bool(logits.amin() > math.log(TRUSTED[dtype]))
    return TagTables(logits, logits.exp(), logits.t().contiguous(), safe)


def search_scores(log2_odds: Tensor, log_prior: Tensor, tables: TagTables) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the next word with the latent values summed out, and the terms of the posterior.

    log2_odds: A / ln 2 [R, V], overwritten (the division before the output layer costs nothing, and powers of 2 take
    half the time of powers of e); log_prior: log P(z) [R, Z]. Returns the log marginal [R, V] and C [R, Z], where
    log P(z | v) = log_softmax over z of C[z] + B[z, v]. No gradient.
    """
    log2_odds = log2_odds.to(tables.logits.dtype)
    log2_odds -= log2_odds.amax(dim=1, keepdim=True)
    if not tables.safe:
        logits = log2_odds.mul_(LN2)
        rest = log_prior - log_matmul_exp(logits, tables.logits)
        return logits + log_matmul_exp(rest, tables.by_word), rest
    # Without subtracting maxima.
    exps = log2_odds.exp2()
    with full_precision(exps):
        # In this order, the product is a third faster unless Z is a multiple of 16.
        rest = log_prior - (tables.exp @ exps.t()).log_().t()
        marginal = torch.mm(rest.exp(), tables.exp, out=exps)
    return marginal.log_().add_(log2_odds, alpha=LN2), rest


class EMLoss(NamedTuple):
    """The result of :func:`em_loss`; only ``loss`` has a gradient."""

    loss: Tensor  # [], the negative lower bound of Equation 8, summed over positions; nll.sum() without smoothing
    nll: Tensor  # [N], -log P(y_n) with the latent values summed out (Equation 6)
    posterior: Tensor  # [N, Z], gamma of Equation 10


class _EMLossFunction(torch.autograd.Function):
    """Computes the scalar loss and its gradients together, chunk by chunk.

    The largest matrices are [chunk, V], so the layer needs less memory than a plain softmax over all positions.
    """

    @staticmethod
    def forward(ctx, hidden, weight, embed, log_prior, target, observed, smoothing, differentiate, chunk):
        ctx.dtypes = hidden.dtype, weight.dtype, embed.dtype
        n_words = weight.size(0)
        dtype = log_prior.dtype
        weight32, embed32, weight = weight.to(dtype), embed.to(dtype), weight.to(hidden.dtype)
        off, on = smoothing_weights(smoothing, n_words)
        # All logits are relative to their row's maximum, which does not change probabilities.
        tags, exp_tags, by_word, safe = tag_tables(weight32, embed32)
        tag_sum = tags.sum(dim=1) if smoothing else None
        sum_weight = weight32.sum(dim=0) if smoothing else None
        no_pairs = torch.empty(0, 2, dtype=torch.long, device=tags.device)

        loss, nll, gamma = [], torch.empty_like(log_prior[:, 0]), torch.empty_like(log_prior)
        if differentiate:
            grads = GradientProducts(hidden, weight, hidden.dtype)
            grad_products, grad_targets = torch.zeros_like(tags), torch.zeros_like(by_word)

        scratch = hidden.new_empty((min(chunk, len(hidden)), n_words))
        wide_scratch = scratch if hidden.dtype == dtype else torch.empty_like(scratch, dtype=dtype)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, min(start + chunk, len(hidden)))
            h, y = hidden[rows], target[rows]
            narrow = torch.mm(h, weight.t(), out=scratch[: len(h)])
            peak = narrow.amax(dim=1, keepdim=True).to(dtype)
            exps = torch.sub(narrow, peak, out=wide_scratch[: len(h)])  # A; overwritten below by its exponential
            at_target = exps.gather(1, y[:, None])
            word_sum = (h.to(dtype) @ sum_weight)[:, None] - n_words * peak if smoothing else None
            exps.exp_()
            product = exps @ exp_tags.t()  # [chunk, Z]
            pairs = no_pairs if safe else untrusted_pairs(product)
            norm = product.log()
            if len(pairs):
                logits = torch.mm(h, weight.t()).to(dtype)  # A again, since it was overwritten
                logits.sub_(logits.amax(dim=1, keepdim=True))
                norm[pairs[:, 0], pairs[:, 1]] = log_sum_exp_pairs(logits, tags, pairs)

            # E-step (Equation 10): gamma from log P(y, z) = log P(y | z) + log P(z).
            log_word = by_word[y].add_(at_target).sub_(norm)
            log_joint = log_word + log_prior[rows]
            nll[rows] = -log_joint.logsumexp(dim=1)
            posterior = log_joint.add_(nll[rows, None]).exp_()
            if observed is not None:
                z = observed[rows]
                one_hot = F.one_hot(z.clamp(min=0), posterior.size(1)).to(dtype)
                posterior = torch.where((z >= 0)[:, None], one_hot, posterior)
            gamma[rows] = posterior
            value = nll[rows]  # the bound, for gamma = posterior and without smoothing
            if smoothing or observed is not None:
                if smoothing:
                    sums = cast(Tensor, word_sum) + cast(Tensor, tag_sum)
                    log_word = on * log_word + off * (sums - n_words * norm)
                entropy = torch.special.entr(posterior).sum(dim=1)
                value = -(posterior * (log_word + log_prior[rows])).sum(dim=1) - entropy
            loss.append(value.sum())
            if not differentiate:
                continue

            # M-step (Equation 11) with fixed gamma. The weights of a smoothed target sum to one, so the derivative by a
            # normalizer is gamma, and the one by A is sum_z gamma P(v | z) minus the target.
            share = posterior / product
            if len(pairs):
                share[pairs[:, 0], pairs[:, 1]] = 0
            grad_products.addmm_(share.t(), exps)  # before `exps` is overwritten
            grad_logits = exps.mul_(share @ exp_tags)
            for i, j in pair_batches(pairs, n_words):
                part = (logits[i] + tags[j] - norm[i, j, None]).exp_().mul_(posterior[i, j, None])
                grad_logits.index_add_(0, i, part)
                # grad_products is multiplied by exp_tags at the end, which may be 0 even if this part is not.
                grad_targets.index_add_(1, j, part.t())
            grad_logits.scatter_add_(1, y[:, None], torch.full_like(at_target, -on))
            grad_targets.index_add_(0, y, posterior, alpha=-on)
            grads.add(rows, grad_logits, h, narrow)

        if differentiate:
            grad_tags = grad_products.mul_(exp_tags).add_(grad_targets.t())
            if smoothing:
                grads.subtract_from_each(off, hidden.sum(dim=0, dtype=dtype), sum_weight)
                grad_tags.sub_(off * gamma.sum(dim=0)[:, None])
            grads.by_weight.addmm_(grad_tags.t(), embed32)
            ctx.save_for_backward(grads.by_features, grads.by_weight, grad_tags @ weight32, gamma)
        ctx.mark_non_differentiable(nll, gamma)
        # Without positions, the loss is an empty sum of the right type and device.
        return torch.stack(loss).sum() if loss else nll.sum(), nll, gamma

    @staticmethod
    def backward(ctx, grad: Tensor, *_) -> tuple[Tensor | None, ...]:
        hidden, weight, embed, gamma = ctx.saved_tensors
        # In half precision, `grad` is the loss scale, which must be applied before the cast.
        scaled = [(g * grad).to(t) for g, t in zip((hidden, weight, embed), ctx.dtypes)]
        # The last gradient is that of log P(z).
        return *scaled, gamma * -grad, None, None, None, None, None


def em_loss(
    hidden: Tensor,
    weight: Tensor,
    embed: Tensor,
    log_prior: Tensor,
    target: Tensor,
    smoothing: float = 0.0,
    chunk: int | None = None,
    observed: Tensor | None = None,
) -> EMLoss:
    """One E-step, and the loss of the following M-step with the posterior fixed (Equations 8 to 11).

    hidden: h [N, C], the decoder's output; weight: W [V, C]; embed: e [Z, C]; log_prior: log P(z) [N, Z] in float32
    or float64; target: y [N], int64, without padding. `smoothing` is the probability mass that label smoothing, as in
    fairseq, takes from the target of each log P(y | z); it does not affect the E-step. `chunk`: the number of positions
    at a time (by default :func:`.chunk_size`). `observed`: known values [N] int64, or -1; the
    posterior of a known value is 1.

    The gradient of `loss` is that of -sum_n sum_z gamma log P(y_n, z). Without smoothing, this is the gradient of the
    negative log marginal (Fisher's identity). It is computed together with the value if gradients are enabled.
    """
    chunk = chunk or chunk_size(hidden.device, len(weight))
    differentiate = torch.is_grad_enabled()  # inside the function's forward, gradients are disabled
    with full_precision(hidden):
        return EMLoss(
            *_EMLossFunction.apply(hidden, weight, embed, log_prior, target, observed, smoothing, differentiate, chunk)
        )
