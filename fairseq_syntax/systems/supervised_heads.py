"""Supervised heads: two encoder heads are trained to attend to each word's children and to its parent.

Wang et al. (2019), Source Dependency-Aware Transformer with Supervised Self-Attention, sections 3.1 and 3.2. The
attention itself does not change; training only adds losses on its scores, so at inference the model is a plain
Transformer.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.attachments import link, log_attention, parents
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadLoss, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets

# ------------------------------------------------------------------------------------ 3.1 syntax representation


def child_matrix(syntax: SyntaxBatch) -> Tensor:
    """Equation 4, [B, T, T] float32: row i has 1/#children for each child of i; a leaf has 1 for itself.

    Rows of ``</s>`` and padding are 0.
    """
    links = link(syntax)
    is_child = syntax.real & links.ne(syntax.column)
    edges = (links[:, None, :] == syntax.column[:, :, None]) & is_child[:, None, :]  # [b, i, j]: j is a child of i
    n_children = edges.sum(dim=2)
    leaf = syntax.real & n_children.eq(0)
    return edges / n_children.clamp(min=1)[:, :, None] + torch.diag_embed(leaf.float())


def parent_matrix(syntax: SyntaxBatch) -> Tensor:
    """Equation 5, [B, T, T] float32: row i has 1 for the parent of i, a root for itself; other rows are 0."""
    one = (link(syntax)[:, :, None] == syntax.column[:, None, :]) & syntax.real[:, :, None]
    return one.float()


# ------------------------------------------------------------------------------------ 3.2 the two objectives


def child_nll(scores: Tensor, syntax: SyntaxBatch) -> Tensor:
    """``−Σ A_child ⊙ log Â_child`` over the rows of pieces, a float32 scalar, from the head's scores [B, T, T]."""
    wanted, log_p = child_matrix(syntax), log_attention(scores, syntax.padding[:, None, :])
    # 0 times the −inf of padding would be NaN.
    return -(wanted * log_p.masked_fill(wanted.eq(0), 0.0)).sum()


# ------------------------------------------------------------------------------------ the system


@dataclass
class SupervisedHeadsConfig(SystemConfig):
    child_head: int = option(0, "attention head trained on the child matrix", low=0)
    child_layer: int = option(-1, "its encoder layer, from 0; -1 is the top layer")
    child_weight: float = option(0.5, "weight of its loss; 0 turns it off", low=0, high=1e3)
    parent_head: int = option(1, "attention head trained on the parent matrix", low=0)
    parent_layer: int = option(-1, "its encoder layer, from 0; -1 is the top layer")
    parent_weight: float = option(0.5, "weight of its loss; 0 turns it off", low=0, high=1e3)


@register_encoder_system("supervised_heads")
class SupervisedHeads(EncoderSystem):
    """A child head and a parent head; a head with weight 0 is not supervised."""

    config = SupervisedHeadsConfig
    training_needs = frozenset({"tree"})

    def __init__(self, options: SupervisedHeadsConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        (child,) = layer_numbers("--child-layer", str(options.child_layer), args.encoder_layers)
        (parent,) = layer_numbers("--parent-layer", str(options.parent_layer), args.encoder_layers)
        self.places: dict[str, Place] = {}
        if options.child_weight:
            self.places["child"] = child, options.child_head
        if options.parent_weight:
            self.places["parent"] = parent, options.parent_head
        self._layers = sorted({layer for layer, _ in self.places.values()})
        if not self.places:
            self.training_needs = frozenset()

    def supervises(self) -> Mapping[str, Place]:
        return self.places

    def parent_head(self) -> Place | None:
        return self.places.get("parent")

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss:
        """One of the two regularizers: a sum over pieces, times λ."""
        syntax = step.parse
        if name == "parent":
            return parents(syntax).loss(self.options.parent_weight, scores, self.training)
        return HeadLoss.of(self.options.child_weight, child_nll(scores, syntax), syntax.real.sum())


register_presets("supervised_head_transformer", encoder_syntax="supervised_heads")
