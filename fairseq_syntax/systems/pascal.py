"""PASCAL: parent-scaled self-attention.

Bugliarello and Okazaki (2020), Enhancing Machine Translation with Dependency-Aware Self-Attention, ACL, section 2.
The scores of some heads of a layer are multiplied by a Gaussian around the middle of each token's parent:
``N = S ⊙ D`` (Equation 2).
"""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.model.dense_factors import FactorTerm
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets

# Smaller factors are set to 0. This changes nothing in float32 or float64: exp() of a score below 1e20 times such a
# factor is 1, and a weight times such a factor vanishes beside any other. It avoids denormal numbers (below 1e-38 in
# float32, 14 standard deviations away), with which a product takes some hundred cycles on many processors.
NEGLIGIBLE = 1e-30
LOG2_E = math.log2(math.e)


def gaussian_window(distance: Tensor, variance: float) -> Tensor:
    """``exp(−d² / 2σ²)``, elementwise, for distances d; exactly 0 if below :data:`NEGLIGIBLE`."""
    # To base 2, whose powers take half the time on a CPU, and in place, since for long sentences a new tensor takes
    # longer than what is computed in it; nothing here needs a gradient.
    exponent = distance.square().mul_(-0.5 * LOG2_E / variance)
    # The clamp prevents denormal numbers in the first place.
    return F.threshold(exponent.clamp_(min=-80 * LOG2_E).exp2_(), NEGLIGIBLE, 0.0, inplace=True)


def gaussian(parent: Tensor, position: Tensor, variance: float) -> Tensor:
    """Equation 3: ``d = exp(−(j − p)² / 2σ²) / √(2πσ²)``, elementwise.

    Args:
        parent: p, the middle position of a token's parent, which may be a half
        position: j, counted from the same origin
        variance: σ²
    """
    return gaussian_window(position - parent, variance).div_(math.sqrt(2 * math.pi * variance))


def one_hot(parent: Tensor, position: Tensor) -> Tensor:
    """The parent-only factor: 1 at ``round(p)`` (halves to even), 0 elsewhere; arguments as in :func:`gaussian`.

    Positions must be counted from the sentence's first piece. From the left edge of a padded batch, rounding would
    depend on the padding.
    """
    return (position == parent.round()).to(parent.dtype)


@dataclass
class PascalConfig(SystemConfig):
    pascal_heads: int | None = option(None, "number of parent-scaled heads, the first ones of a layer", "all", low=1)
    pascal_layers: str = option(
        "0", "encoder layers with parent-scaled heads, from 0, comma-separated; -1 is the top layer"
    )
    pascal_variance: float = option(1.0, "variance of the Gaussian", low=1e-3, high=1e4)
    parent_ignoring: float = option(0.0, "probability of ignoring a token's parent in training", low=0, high=1)
    parent_only: bool = option(False, "use a one-hot factor instead of the Gaussian", "")
    pascal_add: bool = option(False, "add the factor instead of multiplying by it", "")


@register_encoder_system("pascal")
class Pascal(EncoderSystem):
    """Parent-scaled heads in chosen layers of the encoder."""

    config = PascalConfig
    training_needs = inference_needs = frozenset({"tree"})

    def __init__(self, options: PascalConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self._layers = layer_numbers("--pascal-layers", options.pascal_layers, args.encoder_layers)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        return HeadClaims(scales=frozenset(range(self.options.pascal_heads or num_heads)))

    def term(self, step: Step, layer: int) -> FactorTerm:
        """Equation 2 on the first h_P heads; in training, the row of D of an ignored parent leaves the scores alone."""
        syntax, options = step.parse, self.options
        # Both are counted from the sentence's first piece, as one_hot requires.
        position = syntax.offset_in_sentence[:, None, :]
        parent = (syntax.parent_middle - syntax.start[:, None])[:, :, None]
        factor = (
            one_hot(parent, position) if options.parent_only else gaussian(parent, position, options.pascal_variance)
        )
        if self.training and options.parent_ignoring > 0:
            # One draw per token, shared by the heads. It is made here rather than in the layer, so that activation
            # checkpointing recomputes the layer with the same draw.
            ignored = torch.rand(parent.shape, device=parent.device) < options.parent_ignoring
            factor = factor.masked_fill(ignored, 0.0 if options.pascal_add else 1.0)
        return FactorTerm(factor[:, None], options.pascal_heads, options.pascal_add)


register_presets("pascal_transformer", encoder_syntax="pascal")
