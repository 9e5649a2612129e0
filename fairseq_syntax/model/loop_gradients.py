"""Gradients of what a loop uses at every step, made in one product after its last step.

A recurrent decoder multiplies by the same weights and reads the same source states at each step. Autograd makes a
gradient of the full size per step and adds them up. Here a step only notes its part, and the whole gradient is one
matrix product. The values are those of the plain operations; there are no second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.model.precision import autocast_dtype

Log = dict[int, tuple[Tensor, ...]]


class Deferred:
    """A tensor that all steps of a loop use, and whose gradient is computed after the last. One is for one pass.

    Args:
        shared: the tensor; its gradient is that of the sum over the steps
    """

    def __init__(self, shared: Tensor) -> None:
        dtype = autocast_dtype(shared)
        if dtype is not None:
            shared = shared.to(dtype)
        self.log: Log = {}
        self.calls = 0
        self.shared = _Anchor.apply(shared, self.log, self.total)

    def key(self) -> int:
        """A number for a step."""
        self.calls += 1
        return self.calls

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        """The gradient of ``shared``, of that size, from what the steps have noted."""
        raise NotImplementedError


class _Anchor(torch.autograd.Function):
    """The identity. Autograd reaches it once all steps have been through their backward pass.

    It has no reference to who holds its output: that would be a cycle, and all of an update's states would wait in it
    for Python's collector.
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
    """``x W'`` with W [O, I], at every step for another x [N, I]; or for M products of [M, N, I] and [M, O, I]."""

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """[N, I] to [N, O]; ``plus`` [N, O] is added, to one product only."""
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
    """States [N, S, H] of which each step compares all with another vector, and adds them up by weights."""

    def dots(self, query: Tensor, plus: Tensor | None = None) -> Tensor:
        """Products of each query [N, H] with its states: [N, S]; ``plus`` [N, S] is added."""
        return self._read(query, plus, False)

    def sums(self, weights: Tensor, plus: Tensor | None = None) -> Tensor:
        """Sums of the states, weighted by ``weights`` [N, S]: [N, H]; ``plus`` [N, H] is added."""
        return self._read(weights, plus, True)

    def _read(self, x: Tensor, plus: Tensor | None, weigh: bool) -> Tensor:
        dtype = self.shared.dtype
        plus = None if plus is None else plus.to(dtype)
        return _Read.apply(x.to(dtype), self.shared, plus, self.log, self.key(), weigh)

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        # Every note is an outer product of coefficients [N, S] and a vector [N, H].
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
    """:func:`_sums` if ``weigh``, else :func:`_dots`; each is the other's gradient."""

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
