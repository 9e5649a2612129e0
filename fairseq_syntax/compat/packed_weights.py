"""Weights of a decoder laid out for the products of a search, in which a few rows meet a large matrix.

In each step PyTorch's CPU library rearranges a weight matrix before it multiplies a few rows by it, which costs as much
as the product. oneDNN, which PyTorch brings, multiplies by a matrix that was rearranged once: with 5 rows, weights of
8,000 x 256 and one thread (AVX2), that takes half the time, and with 60 rows 0.8 of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST = 1 << 18  # elements of a weight from which on the other call pays
MOST = 1 << 27  # elements of all packed weights of a process, 512 MiB


class Packed(NamedTuple):
    """A weight in oneDNN's layout, and what it was made from, whose memory is kept so that no other weight gets it."""

    weight: Tensor
    source: Tensor
    version: int

    def is_of(self, weight: Tensor) -> bool:
        """Whether a layer's weight is still the one that was packed."""
        same = weight.data_ptr() == self.source.data_ptr() and weight.shape == self.source.shape
        return same and version(weight) == self.version


# For each linear layer its packed weight, which all searches with a model share.
_packed: WeakKeyDictionary[nn.Linear, Packed] = WeakKeyDictionary()


class PackedWeights:
    """The large weights of decoders on a CPU in float32, packed when a search starts.

    Only those of models that were prepared for inference, since training changes parameters without a trace. They are
    kept beside the models' own, the largest first and not more than :data:`MOST`, and made anew if a model was moved,
    converted or loaded meanwhile.
    """

    def __init__(self, models: list[Any]) -> None:
        decoders = [model.decoder for model in models if hasattr(model, "decoder") and is_prepared(model)]
        modules = dict.fromkeys(module for decoder in decoders for module in decoder.modules())
        large = [m for m in modules if type(m) is nn.Linear and m.weight.numel() >= SMALLEST]
        self._layers = sorted(large, key=lambda layer: -layer.weight.numel())

    def update(self) -> None:
        """Pack the weights that are not packed, or not as they are now."""
        for layer in self._layers:
            weight = layer.weight.detach()
            if not fits(weight):
                _packed.pop(layer, None)
            elif (packed := _packed.get(layer)) is None or not packed.is_of(weight):
                _packed.pop(layer, None)
                if weight.numel() + sum(other.weight.numel() for other in _packed.values()) <= MOST:
                    _packed[layer] = Packed(reordered(weight), weight, version(weight))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A context in which the layers multiply by their packed weights, unless their ``forward`` was replaced."""
        replaced = []
        for layer in self._layers:
            packed = _packed.get(layer)
            if packed is not None and "forward" not in layer.__dict__:
                # Not by setattr, with which a module takes longer than a small product.
                layer.__dict__["forward"] = partial(product, layer, packed.weight)
                replaced.append(layer)
        try:
            yield
        finally:
            for layer in replaced:
                layer.__dict__.pop("forward", None)


def product(layer: nn.Linear, packed: Tensor, x: Tensor) -> Tensor:
    """What a layer gives for ``x`` [..., C], by its packed weight unless gradients or less precision are asked for."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or x.dtype != torch.float32:
        return F.linear(x, layer.weight, layer.bias)
    return multiplied(x, packed, layer.bias)


def version(weight: Tensor) -> int:
    """How often a weight was changed in place; of tensors made in inference mode, nobody knows."""
    return 0 if weight.is_inference() else weight._version


def reordered(weight: Tensor) -> Tensor:
    """A weight [V, C] in oneDNN's layout."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def multiplied(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer's output [..., V] for ``x`` [..., C], by its packed weight."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def is_in_use(layer: Any) -> bool:
    """Whether a search, in this thread or another, lets a layer multiply by its packed weight now."""
    forward = layer.__dict__.get("forward")
    return isinstance(forward, partial) and forward.func is product


def packed_weight(layer: nn.Linear) -> Tensor | None:
    """A layer's packed weight, if it has one."""
    packed = _packed.get(layer)
    return None if packed is None else packed.weight


def is_prepared(model: Any) -> bool:
    """Whether fairseq has prepared a model for inference, after which it is not trained."""
    return getattr(model, "_is_generation_fast", False)


def fits(weight: Tensor) -> bool:
    """Whether a weight can be packed."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and not weight.is_mkldnn and has_packing()


@cache
def has_packing() -> bool:
    """Whether this PyTorch multiplies by packed weights, on the processors on which that was found to be faster."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    x, weight = torch.rand(3, 16), torch.rand(32, 16)
    try:
        out = multiplied(x, reordered(weight), None)
    except (AttributeError, RuntimeError, NotImplementedError):  # an older PyTorch, or one without oneDNN
        return False
    return torch.allclose(out, F.linear(x, weight), atol=1e-4)
