"""Label-smoothed cross entropy of a linear output layer, computed in chunks of positions together with its gradient.

With the logits ``A = h W^T + b`` [N, V] of N positions, a target y and smoothing ε, fairseq's loss of a position is

    (1 - ε - ε') (-log p_y) + ε' sum_v (-log p_v),   ε' = ε / (V - 1),   log p = log_softmax(A)

and its gradient by A is ``p - ε' - (1 - ε - ε') [v = y]``, since the weights of the target sum to 1. So one pass over
the logits gives the loss and the gradients by h, W and b, and nothing of size N x V is kept (Wijmans et al. 2025, Cut
Your Losses; Hsu et al. 2024, Liger Kernel). Sums are in float32 (float64 for float64 input) in any precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_syntax.model.devices import autocast_dtype, full_precision, thresholds

# Whether products of half precision on a GPU can be written as they were summed (PyTorch 2.8 and later).
FLOAT32_PRODUCTS = hasattr(torch.ops.aten.mm, "dtype") and torch.version.hip is None


class OutputLoss(NamedTuple):
    """Sums over positions, each a scalar; only ``loss`` has a gradient."""

    loss: Tensor  # label-smoothed
    nll: Tensor  # without smoothing
    correct: Tensor  # int64, the positions whose target is the most probable word; 0 unless counted


def smoothing_weights(smoothing: float, n_words: int) -> tuple[float, float]:
    """The weights of fairseq's label smoothing: ``off`` of each word, and ``on`` of the target in addition.

    ``on + n_words * off`` is 1.
    """
    off = smoothing / (n_words - 1) if smoothing else 0.0
    return off, 1.0 - smoothing - off if smoothing else 1.0


def chunk_size(device: torch.device, n_words: int) -> int:
    """The positions of a chunk: as many as fit into the scratch matrix of the device, but enough for its products."""
    return max(256, thresholds(device).scratch // n_words)


class GradientProducts:
    """The gradients by h [N, C] and W [V, C] of a loss of the logits ``A = h W^T``, from that by A, chunk by chunk.

    Sums are in float32 (float64 for float64). In half precision, NVIDIA's GPUs sum products in float32 at many times
    the speed of products of float32, so there the gradient by A is rounded to the precision of the logits.

    Attributes:
        by_features: [N, C], or None if not wanted; rows of which nothing was added are undefined
        by_weight: [V, C], or None if not wanted
    """

    def __init__(
        self, features: Tensor, weight: Tensor, dtype: torch.dtype, of_features: bool = True, of_weight: bool = True
    ) -> None:
        self._wide = torch.promote_types(dtype, torch.float32)
        self._halves = dtype != self._wide and features.is_cuda and FLOAT32_PRODUCTS
        # float16 has nothing between 6e-8 and 0.
        self._scale = 2.0**10 if self._halves and dtype == torch.float16 else 1.0
        self._weight = weight.to(dtype if self._halves else self._wide)
        self.by_features = torch.empty_like(features, dtype=self._wide) if of_features else None
        self.by_weight = torch.zeros_like(weight, dtype=self._wide) if of_weight else None

    def add(self, rows: slice, grad_logits: Tensor, h: Tensor, scratch: Tensor) -> None:
        """Take the gradient by the logits [n, V] of the features ``h`` [n, C] at ``rows``.

        ``scratch`` is [n, V] in the precision of the logits, and may be overwritten.
        """
        if not self._halves:
            if self.by_features is not None:
                torch.mm(grad_logits, self._weight, out=self.by_features[rows])
            if self.by_weight is not None:
                self.by_weight.addmm_(grad_logits.t(), h.to(self._wide))
            return
        grad_logits = torch.mul(grad_logits, self._scale, out=scratch)
        if self.by_features is not None:
            product = torch.mm(grad_logits, self._weight, out_dtype=self._wide)
            torch.mul(product, 1 / self._scale, out=self.by_features[rows])
        if self.by_weight is not None:
            self.by_weight.add_(torch.mm(grad_logits.t(), h, out_dtype=self._wide), alpha=1 / self._scale)

    def subtract_from_each(self, number: float, sum_features: Tensor, sum_weight: Tensor) -> None:
        """Subtract a number from each element of the gradient by A, whose products are sums over rows [C]."""
        if self.by_features is not None:
            self.by_features -= number * sum_weight
        if self.by_weight is not None:
            self.by_weight -= number * sum_features


class _OutputLossFunction(torch.autograd.Function):
    """Computes the loss and, if requested, its gradients by features, weight and bias."""

    @staticmethod
    def forward(ctx, features, weight, bias, target, smoothing, dtype, chunk, differentiate, count):
        wide = torch.promote_types(dtype, torch.float32)  # of all sums
        n_positions, n_words = len(features), len(weight)
        off, on = smoothing_weights(smoothing, n_words)
        narrow_weight = weight.to(dtype)
        of_features, of_weight, of_bias = (differentiate and needed for needed in ctx.needs_input_grad[:3])
        grads = GradientProducts(features, weight, dtype, of_features, of_weight)
        grad_bias = torch.zeros_like(bias, dtype=wide) if of_bias else None
        target = target[:, None]
        target_logits = features.new_empty((n_positions, 1), dtype=dtype)
        target_scores = torch.empty_like(target_logits, dtype=wide)
        minus_on = torch.full_like(target_scores, -on)
        correct = target.new_zeros(())
        scratch = features.new_empty((min(chunk, n_positions), n_words), dtype=dtype)

        for start in range(0, n_positions, chunk):
            rows = slice(start, min(start + chunk, n_positions))
            h, y = features[rows].to(dtype), target[rows]
            logits = torch.mm(h, narrow_weight.t(), out=scratch[: len(h)])
            if bias is not None:
                logits += bias
            if count:
                correct += logits.argmax(dim=1, keepdim=True).eq(y).sum()
            torch.gather(logits, 1, y, out=target_logits[rows])
            # In place, since memory is slow: an element is written after its row's sum, and not read again.
            out = {"out": logits} if dtype == wide else {"dtype": wide}
            scores = torch.log_softmax(logits, dim=1, **out)
            torch.gather(scores, 1, y, out=target_scores[rows])
            if not (of_features or of_weight or of_bias):
                continue
            # The gradient by the logits, without the constant `off`, whose products are sums.
            grad_logits = scores.exp_().scatter_add_(1, y, minus_on[rows])
            if grad_bias is not None:
                grad_bias += grad_logits.sum(dim=0)
            grads.add(rows, grad_logits, h, logits)

        nll = -target_scores.sum()
        loss = on * nll
        if smoothing:
            sum_features, sum_weight = features.sum(dim=0, dtype=wide), weight.sum(dim=0, dtype=wide)
            norms = target_logits.sum(dtype=wide) + nll  # of the softmax, in logarithms
            logits_sum = sum_features.dot(sum_weight)
            if bias is not None:
                logits_sum += n_positions * bias.sum(dtype=wide)
            loss += off * (n_words * norms - logits_sum)
            grads.subtract_from_each(off, sum_features, sum_weight)
            if grad_bias is not None:
                grad_bias -= off * n_positions
        ctx.dtypes = features.dtype, weight.dtype, bias.dtype if bias is not None else None
        ctx.save_for_backward(grads.by_features, grads.by_weight, grad_bias)
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor, *_) -> tuple[Tensor | None, ...]:
        # In half precision, `grad` is the loss scale, which must be applied before the cast.
        grads = (None if g is None else (g * grad).to(dtype) for g, dtype in zip(ctx.saved_tensors, ctx.dtypes))
        return *grads, None, None, None, None, None, None


def output_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    smoothing: float = 0.0,
    *,
    chunk: int | None = None,
    count: bool = False,
) -> OutputLoss:
    """The label-smoothed cross entropy of the output layer ``features @ weight.T + bias``, summed over positions.

    The logits have the precision that the layer would give them: that of the features, or of automatic mixed precision.

    Args:
        features: h [N, C], the decoder's output at positions that are not padding
        weight: W [V, C]
        bias: b [V], or None
        target: y [N] int64
        smoothing: the probability ε that label smoothing takes from the target, in [0, 1]
        chunk: the number of positions at a time, by default :func:`chunk_size`
        count: whether to count the positions whose target is the most probable word
    """
    dtype = autocast_dtype(features) or features.dtype
    chunk = chunk or chunk_size(features.device, len(weight))
    differentiate = torch.is_grad_enabled()  # inside the function's forward, gradients are disabled
    with full_precision(features):
        arguments = features, weight, bias, target, smoothing, dtype, chunk, differentiate, count
        return OutputLoss(*_OutputLossFunction.apply(*arguments))


# Where the methods between a decoder's features and a criterion's probabilities are defined, if they are only a linear
# layer and a softmax. A subclass that overrides one of them may do anything.
_LINEAR = {
    *("fairseq.models.fairseq_model", "fairseq.models.fairseq_decoder", "fairseq.models.lstm"),
    *("fairseq.models.transformer.transformer_base", "fairseq.models.transformer.transformer_decoder"),
    "fairseq.models.bart.model",
    *("fairseq_syntax.model.transformer", "fairseq_syntax.model.lstm"),
}
_OF_MODEL = ("forward", "get_targets", "get_normalized_probs", "get_normalized_probs_scriptable")
_OF_DECODER = ("forward", "output_layer", "get_normalized_probs", "get_normalized_probs_scriptable")


def output_layer_of(decoder: Any) -> tuple[Tensor, Tensor | None] | None:
    """The weight [V, C] and the bias [V] of a decoder's output layer; None if it is not a linear layer."""
    if getattr(decoder, "adaptive_softmax", None) is not None:
        return None
    layer = getattr(decoder, "output_projection", None) or getattr(decoder, "fc_out", None)
    if layer is None and getattr(decoder, "share_input_output_embed", False):  # fairseq's LSTM
        return decoder.embed_tokens.weight, None
    return (layer.weight, layer.bias) if type(layer) is nn.Linear else None


def unwrapped(model: Any) -> Any:
    """The model within the wrappers of distributed training."""
    while hasattr(model, "module"):
        model = model.module
    return model


def is_linear(model: Any) -> bool:
    """Whether a model's probabilities are the softmax of a linear layer on its decoder's features."""
    model = unwrapped(model)
    decoder = getattr(model, "decoder", None)
    if decoder is None or output_layer_of(decoder) is None:
        return False
    methods = [(model, name) for name in _OF_MODEL] + [(decoder, name) for name in _OF_DECODER]
    return all(getattr(getattr(type(one), name, None), "__module__", None) in _LINEAR for one, name in methods)


@contextmanager
def output_layer_replaced(model: Any, by: Callable[[Tensor, Tensor, Tensor | None], Any]) -> Iterator[None]:
    """Let ``by`` take the features [B, T, C], weight and bias of a :func:`linear <is_linear>` model's output layer.

    What it returns is the first output of the model's ``forward``. So a loss is computed within the forward pass, where
    wrappers for distributed training expect every use of a parameter.
    """
    decoder = unwrapped(model).decoder

    def output_layer(features: Tensor) -> Any:
        weight, bias = cast(tuple[Tensor, Tensor | None], output_layer_of(decoder))
        return by(features, weight, bias)

    decoder.output_layer = output_layer
    try:
        yield
    finally:
        del decoder.output_layer
