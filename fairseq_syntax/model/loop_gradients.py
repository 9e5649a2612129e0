"""Gradients of what a loop uses at every step, made in one product after its last step.

A recurrent decoder multiplies by the same weights and reads the same source states at each step. Autograd makes a
gradient of the full size per step and adds them up. Here a step only notes its part, and the whole gradient is one
matrix product. The values are those of the plain operations; there are no second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.model.precision import autocast_dtype

Log = dict[int, tuple[Tensor, ...]]


class Deferred:
    """Something that the steps of a loop share. Make a new one for each pass over the loop.

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
    """``x W'`` with W [O, I], at every step for another x [N, I]."""

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """[N, I] to [N, O]; ``plus`` [N, O] is added."""
        if plus is not None:
            plus = plus.to(self.shared.dtype)
        return _Linear.apply(x.to(self.shared.dtype), self.shared, plus, self.log, self.key())

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        x, grad = (torch.cat(part) for part in zip(*notes))
        return grad.t() @ x


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plus: Tensor | None, log: Log, key: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.note = log, key
        return x @ weight.t() if plus is None else torch.addmm(plus, x, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        log, key = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = x, grad
        return grad @ weight, None, grad if ctx.needs_input_grad[2] else None, None, None


class DeferredRows(Deferred):
    """A table [R, H] of which each step reads a few rows, ``members`` [N, M] int64."""

    def dots(self, query: Tensor, members: Tensor) -> Tensor:
        """Products of each query [N, H] with its rows: [N, M]."""
        return _Dots.apply(query.to(self.shared.dtype), self.shared, members, self.log, self.key())

    def sums(self, weights: Tensor, members: Tensor) -> Tensor:
        """Sums of rows, weighted by ``weights`` [N, M]: [N, H]."""
        return _Sums.apply(weights.to(self.shared.dtype), self.shared, members, self.log, self.key())

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        # Every note is a sum of coefficient · vector into rows; they may differ in the number of rows that they read.
        vector = torch.cat([note[2] for note in notes])
        rows = torch.cat([members.flatten() for members, _, _ in notes])
        coefficient = torch.cat([factor.flatten() for _, factor, _ in notes])
        reads = torch.cat([members.new_full((members.size(0),), members.size(1)) for members, _, _ in notes])
        if rows.device.type == "cpu":
            return _sum_into_rows_on_cpu(rows, coefficient.float(), vector.float(), reads, shared[0])
        return _sum_into_rows(rows, coefficient.float(), vector.float(), reads, shared[0])


def _sum_into_rows_on_cpu(rows: Tensor, coefficient: Tensor, vector: Tensor, reads: Tensor, count: int) -> Tensor:
    """:func:`_sum_into_rows` as a sparse product: 2 to 4 times as fast on CPUs, but a GPU's waits for the host."""
    source = torch.arange(len(vector)).repeat_interleave(reads, output_size=len(rows))
    places, size = torch.stack((rows, source)), (count, len(vector))
    return torch.sparse.mm(torch.sparse_coo_tensor(places, coefficient, size, check_invariants=False), vector)


def _sum_into_rows(rows: Tensor, coefficient: Tensor, vector: Tensor, reads: Tensor, count: int) -> Tensor:
    """Vectors, weighted and added up in the rows of a table: the gradient of what :func:`_sums` reads.

    Args:
        rows: [N] int64, rows of the table, those of one vector after those of another
        coefficient: [N] float32, by which the vector is multiplied for each of its rows
        vector: [V, H] float32
        reads: [V] int64, rows of each vector; they sum to N
        count: rows of the table

    Returns:
        [count, H] float32
    """
    with torch.enable_grad():
        table = vector.new_zeros(count, vector.size(1)).requires_grad_()
        begin = reads.cumsum(0) - reads
        read = F.embedding_bag(rows, table, begin, mode="sum", per_sample_weights=coefficient)
        return torch.autograd.grad(read, table, vector)[0]


def _dots(query: Tensor, table: Tensor, members: Tensor) -> Tensor:
    return torch.bmm(F.embedding(members, table), query.unsqueeze(2)).squeeze(2)


def _sums(weights: Tensor, table: Tensor, members: Tensor) -> Tensor:
    return F.embedding_bag(members, table, mode="sum", per_sample_weights=weights)


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, table: Tensor, members: Tensor, log: Log, key: int) -> Tensor:
        ctx.save_for_backward(query, table, members)
        ctx.note = log, key
        return _dots(query, table, members)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        query, table, members = ctx.saved_tensors
        log, key = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = members, grad, query
        return _sums(grad.contiguous(), table, members), None, None, None, None


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, table: Tensor, members: Tensor, log: Log, key: int) -> Tensor:
        ctx.save_for_backward(weights, table, members)
        ctx.note = log, key
        return _sums(weights, table, members)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        weights, table, members = ctx.saved_tensors
        log, key = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = members, weights, grad
        return _dots(grad, table, members), None, None, None, None


class DeferredStates(Deferred):
    """States [N, S, H] of which each step reads all."""

    def dots(self, query: Tensor) -> Tensor:
        """Products of each query [N, H] with its states: [N, S]."""
        return _Bmm.apply(query.to(self.shared.dtype), self.shared, self.log, self.key(), False)

    def sums(self, weights: Tensor) -> Tensor:
        """Sums of states, weighted by ``weights`` [N, S]: [N, H]."""
        return _Bmm.apply(weights.to(self.shared.dtype), self.shared, self.log, self.key(), True)

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        # Every note is an outer product of coefficients [N, S] and a vector [N, H].
        coefficient, vector = (torch.stack(part, dim=1) for part in zip(*notes))
        return torch.bmm(coefficient.transpose(1, 2), vector)


class _Bmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, states: Tensor, log: Log, key: int, weigh: bool) -> Tensor:
        ctx.save_for_backward(x, states)
        ctx.note = log, key, weigh
        if weigh:
            return torch.bmm(x.unsqueeze(1), states).squeeze(1)
        return torch.bmm(states, x.unsqueeze(2)).squeeze(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, states = ctx.saved_tensors
        log, key, weigh = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = (x, grad) if weigh else (grad, x)
        if weigh:
            return torch.bmm(states, grad.unsqueeze(2)).squeeze(2), None, None, None, None
        return torch.bmm(grad.unsqueeze(1), states).squeeze(1), None, None, None, None
