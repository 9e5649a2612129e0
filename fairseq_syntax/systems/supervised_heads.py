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

    Rows of ``</s>`` and padding are 0. The losses do not need this matrix; it serves for inspection and tests.
    """
    links = link(syntax)
    is_child, n_children = _children(links, syntax)
    edges = (links[:, None, :] == syntax.column[:, :, None]) & is_child[:, None, :]  # [b, i, j]: j is a child of i
    leaf = syntax.real & n_children.eq(0)
    return edges / n_children.clamp(min=1)[:, :, None] + torch.diag_embed(leaf.float())


def parent_matrix(syntax: SyntaxBatch) -> Tensor:
    """Equation 5, [B, T, T] float32: row i has 1 for the parent of i, a root for itself; other rows are 0."""
    one = (link(syntax)[:, :, None] == syntax.column[:, None, :]) & syntax.real[:, :, None]
    return one.float()


def _children(links: Tensor, syntax: SyntaxBatch) -> tuple[Tensor, Tensor]:
    """Whether each piece is a child of another, [B, T] bool, and its number of children, [B, T] float32."""
    is_child = syntax.real & links.ne(syntax.column)
    n_children = torch.zeros(links.shape, device=links.device).scatter_add_(1, links, is_child.float())
    return is_child, n_children


# ------------------------------------------------------------------------------------ 3.2 the two objectives


def log_attention(scores: Tensor, hidden: Tensor) -> Tensor:
    """Log of the weights of each row, ``log softmax(scores)``, −inf on hidden keys.

    Args:
        scores: [B, T, T]
        hidden: broadcasts to [B, T, T], True on keys that a row does not see; a row that sees no key is NaN and has no
            gradient

    Returns:
        [B, T, T] float32
    """
    return F.log_softmax(scores.masked_fill(hidden, -math.inf), dim=-1, dtype=torch.float32)


def child_nll(scores: Tensor, syntax: SyntaxBatch, padding: Tensor) -> Tensor:
    """``−Σ A_child ⊙ log Â_child`` over the rows of pieces.

    Only the non-zero entries of A_child are computed: one per piece except roots, in the row of the piece that it
    attaches to.

    Args:
        scores: [B, T, T], the child head's scores before the padding mask and the softmax
        padding: [B, T] bool, True on padding

    Returns:
        scalar, float32
    """
    log_p = log_attention(scores, padding[:, None, :])
    links = link(syntax)
    is_child, n_children = _children(links, syntax)
    edge = log_p.gather(1, links[:, None, :]).squeeze(1)  # [B, T], for each child, in the row of its head
    leaf = log_p.diagonal(dim1=1, dim2=2)
    # where, not a product: the entries of padding may be NaN
    edge = torch.where(is_child, edge / n_children.gather(1, links).clamp(min=1), 0.0)
    leaf = torch.where(syntax.real & n_children.eq(0), leaf, 0.0)
    return -(edge.sum() + leaf.sum())


def parent_nll(scores: Tensor, syntax: SyntaxBatch, padding: Tensor) -> Tensor:
    """``−Σ A_parent ⊙ log Â_parent`` over the rows of pieces; arguments as in :func:`child_nll`."""
    return attachment_nll(scores, link(syntax), syntax.real, padding[:, None, :])


def attachment_nll(scores: Tensor, parent: Tensor, real: Tensor, hidden: Tensor) -> Tensor:
    """``−Σ log softmax(scores)[i, parent(i)]`` over supervised rows, a float32 scalar.

    Args:
        scores: [B, T, T] before masking; row: dependent, column: head
        parent: [B, T] int64, the target column of each row
        real: [B, T] bool, True on supervised rows
        hidden: broadcasts to [B, T, T], True on keys that a row does not see
    """
    chosen = log_attention(scores, hidden).gather(2, parent[:, :, None]).squeeze(2)  # [B, T]
    # where, not a product: rows that are not supervised may be −inf or NaN
    return -torch.where(real, chosen, 0.0).sum()


def attachment_accuracy(
    scores: Tensor, parent: Tensor, word: Tensor, asked: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Unlabelled attachment: the number of words whose parent has the highest score, and the number of words.

    The predictions need not form a tree.

    Args:
        scores, parent, hidden: as in :func:`attachment_nll`
        word: [B, T] bool, True on the piece that represents each word
        asked: [B, T] bool, True on those of them that are evaluated
    """
    # Heads are words, so only pieces that represent words are candidates.
    best = scores.masked_fill(hidden | ~word[:, None, :], -math.inf).argmax(dim=2)  # [B, T]
    return (best.eq(parent) & asked).sum(), asked.sum()


def attachment(scores: Tensor, syntax: SyntaxBatch) -> tuple[Tensor, Tensor]:
    """:func:`attachment_accuracy` of all words, each by its first piece; ``</s>`` is no word."""
    word = syntax.begins_word
    return attachment_accuracy(scores, syntax.parent_first, word, word, syntax.padding[:, None, :])


# ------------------------------------------------------------------------------------ the system


@dataclass
class SupervisedHeadsConfig(SystemConfig):
    """The options of supervised heads."""

    child_head: int = option(0, "attention head trained on the child matrix", low=0)
    child_layer: int = option(-1, "its encoder layer, from 0; -1 is the top layer")
    child_weight: float = option(0.5, "weight of its loss; 0 turns it off", low=0, high=1e3)
    parent_head: int = option(1, "attention head trained on the parent matrix", low=0)
    parent_layer: int = option(-1, "its encoder layer, from 0; -1 is the top layer")
    parent_weight: float = option(0.5, "weight of its loss; 0 turns it off", low=0, high=1e3)


@register_encoder_system("supervised_heads")
class SupervisedHeads(EncoderSystem):
    """A child head and a parent head; a head with weight 0 is not supervised.

    Args:
        options: the layer, head and weight λ of each
        encoder_layers: the number of encoder layers
    """

    config = SupervisedHeadsConfig
    criterion = "supervised_head"

    def __init__(self, options: SupervisedHeadsConfig, encoder_layers: int) -> None:
        super().__init__()
        self.options = options
        (child,) = layer_numbers("--child-layer", str(options.child_layer), encoder_layers)
        (parent,) = layer_numbers("--parent-layer", str(options.parent_layer), encoder_layers)
        self.places: dict[str, Place] = {}
        if options.child_weight:
            self.places["child"] = child, options.child_head
        if options.parent_weight:
            self.places["parent"] = parent, options.parent_head
        self._layers = sorted({layer for layer, _ in self.places.values()})
        if self.places:
            self.training_needs = frozenset({"tree"})

    @classmethod
    def from_config(cls, config: SupervisedHeadsConfig, args: Namespace, task: SyntaxTask) -> SupervisedHeads:
        return cls(config, args.encoder_layers)

    def supervises(self) -> Mapping[str, Place]:
        return self.places

    def parent_head(self) -> Place | None:
        return self.places.get("parent")

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss:
        """One of the two regularizers: a sum over pieces, times λ."""
        syntax, counts = step.parse, None
        if name == "child":
            weight, nll = self.options.child_weight, child_nll(scores, syntax, step.padding)
        else:
            weight, nll = self.options.parent_weight, parent_nll(scores, syntax, step.padding)
            counts = None if self.training else attachment(scores, syntax)
        return HeadLoss.of(weight, nll, syntax.real.sum(), counts)


register_presets("supervised_head_transformer", encoder_syntax="supervised_heads")
