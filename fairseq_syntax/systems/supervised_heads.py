"""Supervised heads: two encoder heads are trained to attend to each word's children and to its parent.

Wang et al. (2019), Source Dependency-Aware Transformer with Supervised Self-Attention, sections 3.1 and 3.2. The
attention itself does not change; training only adds losses on its scores, so at inference the model is a plain
Transformer.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadLoss, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets

# ------------------------------------------------------------------------------------ 3.1 syntax representation


def link(syntax: SyntaxBatch) -> Tensor:
    """The column that each piece attaches to, [B, T] int64.

    A word's first piece attaches to the first piece of the word's parent (or, for a root, to itself); its later pieces
    attach to its first piece. ``</s>`` and padding attach to themselves.
    """
    return torch.where(syntax.begins_word, syntax.parent_first, syntax.first_piece)


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


def log_attention(scores: Tensor, hidden: Tensor) -> Tensor:
    """Log of the weights of each row, ``log softmax(scores)``: [B, T, T] float32, −inf on hidden keys.

    Args:
        scores: [B, T, T], before the padding mask and the softmax; row: query, column: key
        hidden: broadcasts to [B, T, T], True on keys that a row does not see; a row that sees no key is NaN and has no
            gradient
    """
    return F.log_softmax(scores.masked_fill(hidden, -math.inf), dim=-1, dtype=torch.float32)


def child_nll(scores: Tensor, syntax: SyntaxBatch) -> Tensor:
    """``−Σ A_child ⊙ log Â_child`` over the rows of pieces, a float32 scalar, from the head's scores [B, T, T]."""
    wanted, log_p = child_matrix(syntax), log_attention(scores, syntax.padding[:, None, :])
    # 0 times the −inf of padding would be NaN.
    return -(wanted * log_p.masked_fill(wanted.eq(0), 0.0)).sum()


class Attachments(NamedTuple):
    """What the rows of an attention head are trained towards, where each row has one target."""

    parent: Tensor  # [B, T] int64, the column that each piece attaches to
    real: Tensor  # [B, T] bool, True on supervised rows
    word: Tensor  # [B, T] bool, True on one piece per word, which represents the word
    seen: Tensor  # [B, T] bool, True on those of `word` whose head is among the keys
    hidden: Tensor  # broadcasts to [B, T, T], True on keys that a row does not see

    def nll(self, scores: Tensor) -> Tensor:
        """``−Σ log softmax(scores)[i, parent(i)]`` over supervised rows i."""
        chosen = log_attention(scores, self.hidden).gather(2, self.parent[:, :, None]).squeeze(2)  # [B, T]
        # where, not a product: rows that are not supervised may be −inf or NaN
        return -torch.where(self.real, chosen, 0.0).sum()

    def counts(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The number of words whose parent has the highest score, and the number of words; trees are not enforced."""
        # Heads are words, so only pieces that represent words are candidates.
        best = scores.masked_fill(self.hidden | ~self.word[:, None, :], -math.inf).argmax(dim=2)  # [B, T]
        return (best.eq(self.parent) & self.seen).sum(), self.seen.sum()

    def loss(self, weight: float, scores: Tensor, training: bool) -> HeadLoss:
        """The weighted :meth:`nll`; outside training with the :meth:`counts`."""
        counts = None if training else self.counts(scores)
        return HeadLoss.of(weight, self.nll(scores), self.real.sum(), counts)


def parents(syntax: SyntaxBatch) -> Attachments:
    """The parent head's task: −Σ A_parent ⊙ log Â_parent is the ``nll`` of these."""
    word = syntax.begins_word
    return Attachments(link(syntax), syntax.real, word, word, syntax.padding[:, None, :])


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
