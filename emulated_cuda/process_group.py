"""A process group by the name of NCCL: collectives of device tensors, by way of copies on the host and gloo."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

c10d: Any = dist.distributed_c10d
group: Any = dist.ProcessGroup


class HostCopies(group):
    """Collectives over gloo for tensors of CUDA devices. Each waits until it is done."""

    @dataclass
    class Options:
        """What PyTorch says to NCCL's own group."""

        is_high_priority_stream: bool = False
        _timeout: timedelta = timedelta(minutes=10)
        global_ranks_in_group: Any = None
        group_name: str = ""
        split_from: Any = None
        split_color: int = 0

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        super().__init__(rank, size)
        self._gloo = c10d.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
        self._name = options.group_name

    def _set_sequence_number_for_group(self) -> None:
        """For a check of NCCL's that is not made here."""

    def getBackendName(self) -> str:
        return "nccl"

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def _through_host(self, call: Any, tensors: list[torch.Tensor], *more: Any) -> Any:
        _check(tensors)
        host = [tensor.cpu() for tensor in tensors]
        work = call(host, *more)
        work.wait()
        for tensor, value in zip(tensors, host, strict=True):
            tensor.copy_(value)
        return work

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._through_host(self._gloo.allreduce, tensors, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors[:-1]:
            self.allreduce([tensor])
        return self.allreduce(tensors[-1:])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._through_host(self._gloo.broadcast, tensors, opts or dist.BroadcastOptions())

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._through_host(self._gloo.reduce, tensors, opts or dist.ReduceOptions())

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _check([*inputs, *(tensor for tensors in outputs for tensor in tensors)])
        host = [[torch.empty_like(tensor, device="cpu") for tensor in tensors] for tensors in outputs]
        work = self._gloo.allgather(host, [tensor.cpu() for tensor in inputs])
        work.wait()
        for tensors, values in zip(outputs, host, strict=True):
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        return work

    def _allgather_base(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather([list(output.chunk(self.size()))], [value])

    def barrier(self, opts: Any = None) -> Any:
        work = self._gloo.barrier()
        work.wait()
        return work


def _check(tensors: list[torch.Tensor]) -> None:
    """Refuse what NCCL alone refuses."""
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError("No backend type associated with device type cpu")
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")


def register() -> None:
    """Let ``init_process_group("nccl")`` make such a group."""
    if not dist.is_available():
        return
    c: Any = torch._C
    c._nccl_version, c._nccl_version_suffix = lambda: (2 << 32) | (27 << 16), lambda: b""  # which DDP asks for
    modules: tuple[Any, ...] = (dist, c10d)
    for module in modules:
        module.is_nccl_available = lambda: True
        module.ProcessGroupNCCL = HostCopies
