"""Adam in one pass and conversions of half precision together, with fairseq's numbers; gradients of ``--amp``."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fairseq.dataclass.configs import CommonConfig
from fairseq.optim.adam import Adam
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
from omegaconf import OmegaConf

from fairseq_syntax import register
from fairseq_syntax.compat.adam import fairseqs_step
from fairseq_syntax.compat.half_precision import fairseqs_conversions

register()


def fairseqs(of: list[torch.nn.Parameter] | list[dict], **options: object) -> Adam:
    optimizer = Adam(of, **options)
    optimizer.step = lambda: fairseqs_step(optimizer)
    return optimizer


def parameters(dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((5, 7), (3,), (), (2, 3, 4))]


def gradients(of: list[torch.nn.Parameter], update: int) -> None:
    """One parameter gets none in some updates, as in a layer that is dropped."""
    torch.manual_seed(100 + update)
    for number, p in enumerate(of):
        p.grad = None if number == 1 and update % 3 == 1 else torch.randn_like(p)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "eps": 1e-3}, {"amsgrad": True}])
def test_one_pass_is_the_same_adam(options):
    ours, theirs = parameters(), parameters()
    groups = [[{"params": of[:2]}, {"params": of[2:], "lr": 0.1}] for of in (ours, theirs)]
    ours_adam, theirs_adam = (
        kind(of, lr=0.01, betas=(0.9, 0.98), **options) for kind, of in zip((Adam, fairseqs), groups)
    )
    for update in range(7):
        for of in (ours, theirs):
            gradients(of, update)
        ours_adam.step(), theirs_adam.step()
        if update == 3:  # a checkpoint of one is one of the other
            states = [copy.deepcopy(one.state_dict()) for one in (ours_adam, theirs_adam)]
            assert states[0]["state"][1]["step"] == states[1]["state"][1]["step"] == 3
            ours_adam.load_state_dict(states[1]), theirs_adam.load_state_dict(states[0])
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_it_is_one_kernel(monkeypatch):
    calls: list[int] = []
    fused = torch._fused_adamw_

    def noting(of: list[torch.Tensor], *others: object, **options: object) -> None:
        calls.append(len(of))
        fused(of, *others, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", noting)
    of = parameters(torch.float32)
    optimizer = Adam(of)
    gradients(of, 0)
    optimizer.step()
    assert calls == [4]
    of[0].grad = torch.randn(7, 5).T  # of another layout: as fairseq does it
    optimizer.step(lambda: 3.0)
    assert calls == [4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_fairseqs(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    for kind, of in ((Adam, ours), (fairseqs, theirs)):
        optimizer = kind(of, lr=0.01)
        gradients(of, 0)
        optimizer.step()
    assert all(map(torch.equal, ours, theirs))


class Halves(_FP16OptimizerMixin):
    """What fairseq's optimizer of ``--fp16`` converts, in one flat tensor or in one for each parameter."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.fp16_params, self._needs_sync = parameters(torch.float16), True
        gradients(self.fp16_params, 1)  # one of them has none
        if flat:
            whole = torch.nn.Parameter(torch.cat([p.data.float().flatten() for p in self.fp16_params]) + 0.3)
            whole.grad = torch.ones_like(whole)
            self.fp32_params = {None: whole}
        else:
            self.fp32_params = [torch.nn.Parameter(p.data.float() + 0.3) for p in self.fp16_params]

    def tensors(self) -> list[torch.Tensor]:
        singles = list(self.fp32_params.values() if isinstance(self.fp32_params, dict) else self.fp32_params)
        return [*self.fp16_params, *singles, *(p.grad for p in singles)]


@pytest.mark.parametrize("flat", [True, False])
def test_half_precision_is_converted_together(flat, monkeypatch):
    ours, theirs, lists = Halves(flat), Halves(flat), []
    together = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, of: (lists.append(len(to)), together(to, of)))
    ours._sync_fp16_grads_to_fp32(), ours._sync_fp32_params_to_fp16()
    assert lists == [3, 4] and not ours._needs_sync
    for convert in fairseqs_conversions:
        convert(theirs)
    assert all(map(torch.equal, ours.tensors(), theirs.tensors()))
    ours.fp16_params[0].grad += 1
    ours._sync_fp16_grads_to_fp32()
    assert lists == [3, 4], "converted once in an update"


def of_amp(weight: torch.nn.Parameter, **options: object) -> AMPOptimizer:
    """An optimizer of ``--amp`` whose steps are half as long as its gradients."""
    sgd = OmegaConf.create({"_name": "sgd", "lr": [0.5], "momentum": 0, "weight_decay": 0})
    return AMPOptimizer.build_optimizer(SimpleNamespace(optimizer=sgd, common=CommonConfig(**options)), [weight])


@pytest.mark.parametrize(
    ("options", "scale", "window"),
    [
        ({}, 128, 2000),
        ({"amp_init_scale": 8}, 8, 2000),
        ({"fp16_init_scale": 4}, 4, 2000),
        ({"fp16_init_scale": 4, "amp_init_scale": 8, "amp_scale_window": 2}, 8, 2),
    ],
)
def test_the_scale_of_amp_starts_and_grows_as_it_is_given(options, scale, window, monkeypatch):
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))
    weight = torch.nn.Parameter(torch.tensor([3.0, -1.0]))
    optimizer, scales = of_amp(weight, **options), []
    assert optimizer.scaler.get_growth_interval() == window
    for _ in range(5):
        optimizer.zero_grad()
        optimizer.backward(weight.sum())
        scales.append(optimizer.scaler.get_scale())
        optimizer.step()
    growing = [scale * 2 ** (update // window) for update in range(5)]
    assert scales == growing


@pytest.mark.parametrize("clips", [True, False])
def test_amp_divides_gradients_by_the_scale_once(clips, monkeypatch):
    """By an optimizer whose steps are as long as its gradients."""
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))
    weight = torch.nn.Parameter(torch.tensor([3.0, -1.0]))
    optimizer = of_amp(weight)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.backward((weight * torch.tensor([2.0, 4.0])).sum())
        if clips:
            assert float(optimizer.clip_grad_norm(0.0)) == pytest.approx(20**0.5)
        optimizer.step()
    assert weight.tolist() == [1.0, -5.0]
    optimizer.backward((weight * torch.inf).sum())
    if clips:
        assert not optimizer.clip_grad_norm(0.0).isfinite()
    optimizer.step()
    assert weight.tolist() == [1.0, -5.0] and optimizer.scaler.get_scale() == 64, "too large: no step, half the scale"
