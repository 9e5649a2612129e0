"""Changes to ``--fp16`` and ``--amp``.

With ``--fp16``, parameters and gradients are converted together, in one call. fairseq keeps a copy of the parameters in
float32. It converts each gradient to it, and each parameter from it, by a call of its own: two kernels per parameter, a
third of all that an update of the base Transformer starts on a GPU. The numbers are the same.

With ``--amp``, gradients are divided once by the scale that the loss was multiplied by. fairseq divides them when it
computes their norm, and again when it updates: it names the optimizer to PyTorch's scaler once without its wrapper and
once with it, and the scaler takes these for two. Adam's steps do not depend on the scale but for ``--adam-eps``, which
has 128 times its effect, doubled with every 2,000 updates, when the scale grows; other optimizers take steps that are
as much too short. The scale starts and grows as ``--amp-init-scale`` and ``--amp-scale-window`` say; fairseq starts
from ``--fp16-init-scale``, and takes ``--amp-init-scale`` for the window.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from fairseq.dataclass.configs import CommonConfig
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
from torch import Tensor

fairseqs_conversions = _FP16OptimizerMixin._sync_fp16_grads_to_fp32, _FP16OptimizerMixin._sync_fp32_params_to_fp16
_fairseqs_amp = AMPOptimizer.__init__


def gradients_to_float32(self: Any) -> None:
    """Copy the gradients of the parameters in half precision to those in float32."""
    if not self._needs_sync:
        return
    self._needs_sync = False
    targets, sources = [], []
    for p, p32, part in _pairs(self):
        if not p.requires_grad:
            continue
        if p32.grad is None:
            p32.grad = torch.zeros_like(p32)
        target = p32.grad.data if part is None else p32.grad.data[part].view_as(p)
        if p.grad is None:
            target.zero_()
        else:
            targets.append(target)
            sources.append(p.grad.data)
    _copy(targets, sources)


def parameters_to_half(self: Any) -> None:
    """Copy the parameters in float32 to those in half precision."""
    targets, sources = [], []
    for p, p32, part in _pairs(self):
        if part is not None or p.requires_grad:
            targets.append(p.data)
            sources.append(p32.data if part is None else p32.data[part].view_as(p))
    _copy(targets, sources)


def _pairs(optimizer: Any) -> Iterator[tuple[Tensor, Tensor, slice | None]]:
    """The parameters in half precision, each with the one in float32 that has its numbers, and its part of that."""
    if not optimizer.has_flat_params:
        yield from ((p, p32, None) for p, p32 in zip(optimizer.fp16_params, optimizer.fp32_params))
        return
    begins = dict.fromkeys(optimizer.fp32_params, 0)  # by device
    for p in optimizer.fp16_params:
        begin = begins[p.device.index]
        begins[p.device.index] = end = begin + p.numel()
        yield p, optimizer.fp32_params[p.device.index], slice(begin, end)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def update_with_scale(self: Any) -> None:
    """Update the parameters with the optimizer whose gradients ``clip_grad_norm`` has divided by the scale."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


@functools.wraps(_fairseqs_amp)
def amp_with_its_options(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """fairseq's, with a scaler of these options; without ``--amp-init-scale``, from ``--fp16-init-scale`` as before."""
    _fairseqs_amp(self, cfg, *args, **kwargs)
    options, default = cfg.common, CommonConfig().amp_init_scale
    scale = options.fp16_init_scale if options.amp_init_scale == default else options.amp_init_scale
    window = {} if options.amp_scale_window is None else {"growth_interval": options.amp_scale_window}
    self._grad_scaler = torch.cuda.amp.GradScaler(init_scale=scale, **window)


def install() -> None:
    """Let fairseq's optimizers of ``--fp16`` and ``--amp`` use these functions."""
    AMPOptimizer.__init__ = amp_with_its_options
    AMPOptimizer.step = update_with_scale
    _FP16OptimizerMixin._sync_fp16_grads_to_fp32 = gradients_to_float32
    _FP16OptimizerMixin._sync_fp32_params_to_fp16 = parameters_to_half
