"""Gradients of tensors that every step of a loop uses, computed by one product after the last step.

A recurrent decoder multiplies by the same weights and reads the same source states in each step. Autograd computes a
gradient of full size per step and sums them. Here each step only records its factors, and the whole gradient is one
matrix product. The values are those of the plain operations. There are no second derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.model.devices import autocast_dtype

# The factors of each step's gradient, left' right. By step, so that a second backward pass does not add them twice.
Log = dict[object, tuple[Tensor, Tensor]]


class Deferred:
    """A matrix W [..., O, I] that all steps of a loop multiply by; a new one for each pass over the loop.

    Attributes:
        shared: W, whose gradient is the sum over the steps
    """

    def __init__(self, matrix: Tensor) -> None:
        dtype = autocast_dtype(matrix)
        matrix = matrix if dtype is None else matrix.to(dtype)
        # torch.compile would drop what the steps' backward passes record, so it gets plain operations.
        self._log: Log | None = None if torch.compiler.is_compiling() else {}
        self.shared: Tensor = matrix if self._log is None else _Anchor.apply(matrix, self._log)

    def _product(self, x: Tensor, plus: Tensor | None, transposed: bool) -> Tensor:
        """``x W'`` if ``transposed``, else ``x W``; ``plus`` is added."""
        dtype = self.shared.dtype
        x, plus = x.to(dtype), plus if plus is None else plus.to(dtype)
        if self._log is None or torch.compiler.is_compiling():
            return _multiply(x, self.shared, plus, transposed)
        return _Product.apply(x, self.shared, plus, transposed, self._log)


class DeferredLinear(Deferred):
    """``x W'`` with W [O, I] and a new x [N, I] in each step; or M products of x [M, N, I] and W [M, O, I]."""

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Map [N, I] to [N, O]; ``plus`` [N, O] is added."""
        return self._product(x, plus, True)


class DeferredStates(Deferred):
    """States [N, S, H]; each step computes their products with a new query, and a weighted sum of them."""

    def dots(self, query: Tensor, plus: Tensor | None = None) -> Tensor:
        """The products of each query [N, H] with its states: [N, S]; ``plus`` [N, S] is added."""
        return self._product(query[:, None], None if plus is None else plus[:, None], True).squeeze(1)

    def sums(self, weights: Tensor, plus: Tensor | None = None) -> Tensor:
        """The sums of the states, weighted by ``weights`` [N, S]: [N, H]; ``plus`` [N, H] is added."""
        return self._product(weights[:, None], None if plus is None else plus[:, None], False).squeeze(1)


class _Anchor(torch.autograd.Function):
    """The identity. Autograd reaches its backward pass after those of all steps.

    It holds no reference to the owner of its output: in such a cycle, all states of an update would stay in memory
    until Python's garbage collector runs.
    """

    @staticmethod
    def forward(ctx: Any, shared: Tensor, log: Log) -> Tensor:
        ctx.log, ctx.dtype = log, shared.dtype
        ctx.set_materialize_grads(False)
        return shared.view_as(shared)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        if ctx.log:
            left, right = (torch.cat(factors, dim=-2) for factors in zip(*ctx.log.values()))
            ctx.log.clear()
            of_steps = (left.mT @ right).to(ctx.dtype)
            grad = of_steps if grad is None else grad + of_steps
        return grad, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, plus: Tensor | None, transposed: bool, log: Log) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.transposed, ctx.log, ctx.step = transposed, log, object()
        return _multiply(x, matrix, plus, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.log[ctx.step] = (grad, x) if ctx.transposed else (x, grad)
        of_x = grad @ (matrix if ctx.transposed else matrix.mT)
        return of_x, None, grad if ctx.needs_input_grad[2] else None, None, None


def _multiply(x: Tensor, matrix: Tensor, plus: Tensor | None, transposed: bool) -> Tensor:
    factor = matrix.mT if transposed else matrix
    if plus is None:
        return x @ factor
    return torch.addmm(plus, x, factor) if x.dim() == 2 else torch.baddbmm(plus, x, factor)
