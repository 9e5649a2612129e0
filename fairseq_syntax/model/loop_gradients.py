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


class _DeferredReads(Deferred):
    """Vectors that each step compares with others, and adds up by weights.

    ``members`` [N, M] int64 are the rows of a table that are read; without them it is all states of each sentence.
    """

    def dots(self, query: Tensor, members: Tensor | None = None) -> Tensor:
        """Products of each query [N, H] with its vectors: [N, M]."""
        return _Read.apply(query.to(self.shared.dtype), self.shared, members, self.log, self.key(), False)

    def sums(self, weights: Tensor, members: Tensor | None = None) -> Tensor:
        """Sums of its vectors, weighted by ``weights`` [N, M]: [N, H]."""
        return _Read.apply(weights.to(self.shared.dtype), self.shared, members, self.log, self.key(), True)


class DeferredRows(_DeferredReads):
    """A table [R, H] of which each step reads a few rows."""

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        # Every note is a sum of coefficient · vector into rows; they may differ in the number of rows that they read.
        vector = torch.cat([note[2] for note in notes])
        rows = torch.cat([members.flatten() for members, _, _ in notes])
        coefficient = torch.cat([factor.flatten() for _, factor, _ in notes])
        reads = torch.cat([members.new_full((members.size(0),), members.size(1)) for members, _, _ in notes])
        into_rows = _sum_into_rows_on_cpu if rows.device.type == "cpu" else _sum_into_rows
        return into_rows(rows, coefficient.float(), vector.float(), reads, shared[0])


class DeferredStates(_DeferredReads):
    """States [N, S, H] of which each step reads all."""

    @staticmethod
    def total(notes: list[tuple[Tensor, ...]], shared: torch.Size) -> Tensor:
        # Every note is an outer product of coefficients [N, S] and a vector [N, H].
        coefficient, vector = (torch.stack(part, dim=1) for part in list(zip(*notes))[1:])
        return torch.bmm(coefficient.transpose(1, 2), vector)


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


def _dots(query: Tensor, shared: Tensor, members: Tensor | None) -> Tensor:
    vectors = shared if members is None else F.embedding(members, shared)
    return torch.bmm(vectors, query.unsqueeze(2)).squeeze(2)


def _sums(weights: Tensor, shared: Tensor, members: Tensor | None) -> Tensor:
    if members is None:
        return torch.bmm(weights.unsqueeze(1), shared).squeeze(1)
    return F.embedding_bag(members, shared, mode="sum", per_sample_weights=weights.contiguous())


class _Read(torch.autograd.Function):
    """:func:`_sums` if ``weigh``, else :func:`_dots`; each is the other's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shared: Tensor, members: Tensor | None, log: Log, key: int, weigh: bool) -> Tensor:
        ctx.save_for_backward(x, shared, members)
        ctx.note = log, key, weigh
        return (_sums if weigh else _dots)(x, shared, members)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, shared, members = ctx.saved_tensors
        log, key, weigh = ctx.note
        if ctx.needs_input_grad[1]:
            log[key] = (members, x, grad) if weigh else (members, grad, x)
        return (_dots if weigh else _sums)(grad, shared, members), None, None, None, None, None
