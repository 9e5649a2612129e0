"""PASCAL: parent-scaled self-attention.

Bugliarello and Okazaki (2020), Enhancing Machine Translation with Dependency-Aware Self-Attention, ACL, section 2.
The scores of some heads of a layer are multiplied by a Gaussian around the middle of each token's parent.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.model.attention import HeadInputs, ScoreTerm, divided, with_plain_heads
from fairseq_syntax.model.dense_factors import dense_factor_attention
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.thresholds import thresholds
from fairseq_syntax.model.transformer import register_presets

# Smaller factors are set to 0. This changes nothing in float32 or float64: exp() of a score below 1e20 times such a
# factor is 1, and a weight times such a factor vanishes beside any other. It avoids denormal numbers (below 1e-38 in
# float32, 14 standard deviations away), with which a product takes some hundred cycles on many processors.
NEGLIGIBLE = 1e-30


def gaussian_window(distance: Tensor, variance: float) -> Tensor:
    """``exp(−d² / 2σ²)``, elementwise; exactly 0 if below :data:`NEGLIGIBLE`.

    Args:
        distance: d, any shape, float
        variance: σ²
    """
    exponent = distance.square() * (-0.5 / variance)
    # The clamp prevents denormal numbers in the first place.
    return F.threshold(exponent.clamp(min=-80).exp(), NEGLIGIBLE, 0.0)


def gaussian(parent: Tensor, position: Tensor, variance: float) -> Tensor:
    """Equation 3: ``d = exp(−(j − p)² / 2σ²) / √(2πσ²)``, elementwise.

    A value that cannot affect a score is exactly 0.

    Args:
        parent: p, the middle position of a token's parent, which may be a half
        position: j, counted from the same origin; broadcasts with ``parent``
        variance: σ²
    """
    return gaussian_window(position - parent, variance) / math.sqrt(2 * math.pi * variance)


def one_hot(parent: Tensor, position: Tensor) -> Tensor:
    """The parent-only factor: 1 at ``round(p)`` (halves to even), 0 elsewhere; arguments as in :func:`gaussian`.

    Positions must be counted from the sentence's first piece. From the left edge of a padded batch, rounding would
    depend on the padding.
    """
    return (position == parent.round()).to(parent.dtype)


class ParentTerm(ScoreTerm):
    """Equation 2: ``N = S ⊙ D`` on the first heads, or ``S + D``.

    Args:
        num_heads: h_P, the number of scaled heads; None for all
        parent: [B, T] float, the middle position of each token's parent
        position: [B, T], the position of each token, counted from the same origin
        factor: the elementwise function (parent, position) → d
        ignored: [B, T] bool, True where the token's row of D leaves the scores unchanged
        add: add D instead of multiplying by it
        fused: use FlexAttention
    """

    def __init__(
        self,
        num_heads: int | None,
        parent: Tensor,
        position: Tensor,
        factor: Callable[[Tensor, Tensor], Tensor],
        ignored: Tensor | None = None,
        add: bool = False,
        fused: bool = False,
    ) -> None:
        self.heads = slice(0, num_heads)
        self._parent, self._position, self._factor = parent, position.to(parent.dtype), factor
        self._ignored, self._add, self._fused = ignored, add, fused

    @cached_property
    def distance(self) -> Tensor:
        """D, [B, 1, T, T]; rows are tokens t, columns are keys j."""
        distance = self._factor(self._parent[:, :, None], self._position[:, None, :])
        if self._ignored is not None:
            distance = distance.masked_fill(self._ignored[:, :, None], 0.0 if self._add else 1.0)
        return distance[:, None]

    def scores(self, scores: Tensor, inputs: HeadInputs | None) -> Tensor:
        distance = self.distance.to(scores.dtype)
        return scores + distance if self._add else scores * distance

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        if self._fused and thresholds(q.device).fused:
            scaled, others = divided(self.heads, q, k, v)
            return with_plain_heads(self.flex(*scaled, key_padding_mask), others, key_padding_mask)
        return dense_factor_attention(q, k, v, self.distance, key_padding_mask, heads=self.heads, add=self._add)

    def flex(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """The scaled heads [B, h_P, T, d] by FlexAttention, which has no backward pass on CPUs and is slower there."""
        parent, position, ignored, padding = self._parent, self._position, self._ignored, key_padding_mask

        def scaled(score: Tensor, b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
            distance = self._factor(parent[b, t], position[b, j])
            if ignored is not None:
                distance = torch.where(ignored[b, t], 0.0 if self._add else 1.0, distance)
            score = score + distance if self._add else score * distance
            return score if padding is None else torch.where(padding[b, j], -math.inf, score)

        return _flex_attention(q.is_cuda)(q, k, v, score_mod=scaled, scale=1.0)  # q includes the factor 1/√d


@lru_cache
def _flex_attention(compiled: bool) -> Callable[..., Tensor]:
    """FlexAttention; only its compiled form avoids the T×T scores."""
    from torch.nn.attention.flex_attention import flex_attention

    # Dynamic shapes, because otherwise each new batch length would be compiled again.
    attend: Any = torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
    return attend


@dataclass
class PascalConfig(SystemConfig):
    """The options of PASCAL."""

    pascal_heads: int | None = option(None, "number of parent-scaled heads, the first ones of a layer", "all", low=1)
    pascal_layers: str = option(
        "0", "encoder layers with parent-scaled heads, from 0, comma-separated; -1 is the top layer"
    )
    pascal_variance: float = option(1.0, "variance of the Gaussian", low=1e-3, high=1e4)
    parent_ignoring: float = option(0.0, "probability of ignoring a token's parent in training", low=0, high=1)
    parent_only: bool = option(False, "use a one-hot factor instead of the Gaussian", "")
    pascal_add: bool = option(False, "add the factor instead of multiplying by it", "")
    pascal_fused: bool = option(False, "use FlexAttention, on a GPU and without attention dropout", "")


@register_encoder_system("pascal")
class Pascal(EncoderSystem):
    """Parent-scaled heads in chosen layers of the encoder.

    Args:
        options: h_P (``pascal_heads``), σ² (``pascal_variance``), q (``parent_ignoring``), variants
        encoder_layers: the number of encoder layers
    """

    config = PascalConfig
    training_needs = inference_needs = frozenset({"tree"})

    def __init__(self, options: PascalConfig, encoder_layers: int) -> None:
        super().__init__()
        self.options = options
        self._layers = layer_numbers("--pascal-layers", options.pascal_layers, encoder_layers)
        window = partial(gaussian, variance=options.pascal_variance)
        self.factor = one_hot if options.parent_only else window

    @classmethod
    def from_config(cls, config: PascalConfig, args: Namespace, task: SyntaxTask) -> Pascal:
        return cls(config, args.encoder_layers)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        return HeadClaims(scales=frozenset(range(self.options.pascal_heads or num_heads)))

    def term(self, step: Step, layer: int) -> ParentTerm:
        syntax, options = step.parse, self.options
        heads, add, fused = options.pascal_heads, options.pascal_add, options.pascal_fused
        # Both are counted from the sentence's first piece, as one_hot requires.
        position = syntax.offset_in_sentence
        parent = syntax.parent_middle - syntax.start[:, None]
        ignored = None
        if self.training and options.parent_ignoring > 0:
            # One draw per token, shared by the heads. It is made here rather than in the layer, so that activation
            # checkpointing recomputes the layer with the same draw.
            ignored = torch.rand(parent.shape, device=parent.device) < options.parent_ignoring
        return ParentTerm(heads, parent, position, self.factor, ignored, add, fused)


register_presets("pascal_transformer", encoder_syntax="pascal")
