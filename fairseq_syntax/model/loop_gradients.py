"""Gradients of tensors that every step of a loop uses, computed by one product after the last step.

A recurrent decoder multiplies by the same weights and reads the same source states in each step. Autograd computes a
gradient of full size per step and sums them. Here each step only records its factors, and the whole gradient is one
matrix product. The values are those of the plain operations. There are no second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.model.precision import autocast_dtype

Log = dict[int, tuple[Tensor, ...]]


class Deferred:
    """A tensor that all steps of a loop use, with a deferred gradient. Create a new one for each pass over the loop.

    Args:
        shared: the tensor; its gradient is the sum over the steps
    """

    def __init__(self, shared: Tensor) -> None:
        dtype = autocast_dtype(shared)
        if dtype is not None:
            shared = shared.to(dtype)
        self.log: Log = {}
        self.calls = 0
        self.shared = _Anchor.apply(shared, self.log, self.total)

    def key(self) -> int:
        """A new number, for a step's record."""
        self.calls += 1
        return self.calls

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        """The gradient of ``shared``, a tensor of this size, from the records of the steps."""
        raise NotImplementedError


class _Anchor(torch.autograd.Function):
    """The identity. Autograd reaches its backward pass after those of all steps.

    It holds no reference to the owner of its output: in such a cycle, all states of an update would stay in memory
    until Python's garbage collector runs.
    """

    @staticmethod
    def forward(ctx: Any, shared: Tensor, log: Log, total: Callable[..., Tensor]) -> Tensor:
        ctx.parts = log, total, shared.size(), shared.dtype
        ctx.set_materialize_grads(False)
        return shared.view_as(shared)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None, None]:
        log, total, size, dtype = ctx.parts
        notes = list(log.values())
        log.clear()
        if notes:
            of_steps = total(notes, size).to(dtype)
            grad = of_steps if grad is None else grad + of_steps
        return grad, None, None


class DeferredLinear(Deferred):
    """``x W'`` with W [O, I] and a new x [N, I] in each step; or M products of x [M, N, I] and W [M, O, I]."""

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Map [N, I] to [N, O]; ``plus`` [N, O] is added (not for M products)."""
        if plus is not None:
            plus = plus.to(self.shared.dtype)
        return _Linear.apply(x.to(self.shared.dtype), self.shared, plus, self.log, self.key())

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        x, grad = (torch.cat(part, dim=-2) for part in zip(*notes))
        return grad.mT @ x


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plus: Tensor | None, log: Log, key: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.note = log, key
        return x @ weight.mT if plus is None else torch.addmm(plus, x, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        log, key = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = x, grad
        return grad @ weight, None, grad if ctx.needs_input_grad[2] else None, None, None


class DeferredStates(Deferred):
    """States [N, S, H]; each step computes their products with a new query, and a weighted sum of them."""

    def dots(self, query: Tensor, plus: Tensor | None = None) -> Tensor:
        """The products of each query [N, H] with its states: [N, S]; ``plus`` [N, S] is added."""
        return self._read(query, plus, False)

    def sums(self, weights: Tensor, plus: Tensor | None = None) -> Tensor:
        """The sums of the states, weighted by ``weights`` [N, S]: [N, H]; ``plus`` [N, H] is added."""
        return self._read(weights, plus, True)

    def _read(self, x: Tensor, plus: Tensor | None, weigh: bool) -> Tensor:
        dtype = self.shared.dtype
        plus = None if plus is None else plus.to(dtype)
        return _Read.apply(x.to(dtype), self.shared, plus, self.log, self.key(), weigh)

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        # The gradient of each step is an outer product of coefficients [N, S] and a vector [N, H].
        coefficient, vector = (torch.stack(part, dim=1) for part in zip(*notes))
        return torch.bmm(coefficient.transpose(1, 2), vector)


def _dots(query: Tensor, states: Tensor, plus: Tensor | None = None) -> Tensor:
    query = query.unsqueeze(2)
    dots = torch.bmm(states, query) if plus is None else torch.baddbmm(plus.unsqueeze(2), states, query)
    return dots.squeeze(2)


def _sums(weights: Tensor, states: Tensor, plus: Tensor | None = None) -> Tensor:
    weights = weights.unsqueeze(1)
    sums = torch.bmm(weights, states) if plus is None else torch.baddbmm(plus.unsqueeze(1), weights, states)
    return sums.squeeze(1)


class _Read(torch.autograd.Function):
    """:func:`_sums` if ``weigh``, else :func:`_dots`; the gradient of each is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, states: Tensor, plus: Tensor | None, log: Log, key: int, weigh: bool) -> Tensor:
        ctx.save_for_backward(x, states)
        ctx.note = log, key, weigh
        return (_sums if weigh else _dots)(x, states, plus)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, states = ctx.saved_tensors
        log, key, weigh = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = (x, grad) if weigh else (grad, x)
        of_x = (_dots if weigh else _sums)(grad, states)
        return of_x, None, grad if ctx.needs_input_grad[2] else None, None, None, None
