"""Tree planting: one encoder head is trained to attend to words by their distance in the dependency tree.

Yoshida, Someya and Oseki (2024), Tree-Planted Transformers: Unidirectional Transformer Language Models with Implicit
Syntactic Supervision, Findings of ACL, section 3; there in a language model, here in the encoder, where a word also
attends to those after it. As with supervised heads, training only adds a loss on the head's scores, so at inference the
model is a plain Transformer.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.attachments import log_attention
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadLoss, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.model.trees import piece_distance


def target_keys(syntax: SyntaxBatch) -> Tensor:
    """The keys over which a row is compared with its target, [B, T, T] bool.

    They are the first pieces of all words of the row's sentence, without the row's own column. Rows of ``</s>``, of
    padding and of the first piece of a sentence's only word have none.
    """

    def make() -> Tensor:
        connected = piece_distance(syntax) >= 0
        itself = torch.eye(syntax.size[1], dtype=torch.bool, device=syntax.device)
        return connected & syntax.begins_word[:, None, :] & syntax.real[:, :, None] & ~itself

    return syntax.once(target_keys, make)


def supervision(syntax: SyntaxBatch) -> Tensor:
    """The target ``S_ij = exp(−D_ij) / Σ_{k≠i} exp(−D_ik)`` of each row, [B, T, T] float32.

    D is the number of edges between two words of a sentence, and i and j are their first pieces. A word's later pieces
    have 1 at its first piece. Rows without :func:`target_keys` are 0.
    """
    keys = target_keys(syntax)
    first = syntax.first_piece[:, :, None] == syntax.column[:, None, :]
    keys = torch.where(syntax.begins_word[:, :, None], keys, keys & first)
    weights = (-piece_distance(syntax).float()).masked_fill(~keys, -math.inf).softmax(dim=2)
    return torch.where(keys, weights, 0.0)  # a row without keys is NaN


def divergence(scores: Tensor, syntax: SyntaxBatch, elsewhere: bool = False) -> tuple[Tensor, Tensor]:
    """``Σ_i KL(S_i ‖ Â_i)`` from the head's scores [B, T, T], a float32 scalar, and the number of rows i, int64.

    Args:
        elsewhere: Â is the attention to all keys of the line, so that weight on keys without a target is
            penalized; otherwise it is renormalized over :func:`target_keys`
    """
    target = supervision(syntax)
    hidden = syntax.padding[:, None, :] if elsewhere else ~target_keys(syntax)
    # where S is 0, the log may be −inf or NaN
    log_attended = log_attention(scores, hidden).masked_fill(target.eq(0), 0.0)
    return (torch.xlogy(target, target) - target * log_attended).sum(), target.any(dim=2).sum()


@dataclass
class TreePlantingConfig(SystemConfig):
    planted_head: int = option(0, "attention head trained on distances in the tree", low=0)
    planted_layer: int = option(-1, "its encoder layer, from 0; -1 is the top layer")
    planted_weight: float = option(0.5, "weight of its loss; 0 turns it off", low=0, high=1e3)
    planted_elsewhere: bool = option(
        False, "also penalize attention to keys without a target: the word itself, later pieces, </s>, other sentences"
    )


@register_encoder_system("tree_planting")
class TreePlanting(EncoderSystem):
    """One head whose attention is trained towards distances in the tree; none with weight 0."""

    config = TreePlantingConfig
    training_needs = frozenset({"tree"})

    def __init__(self, options: TreePlantingConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        (layer,) = layer_numbers("--planted-layer", str(options.planted_layer), args.encoder_layers)
        self.places: dict[str, Place] = {"planted": (layer, options.planted_head)} if options.planted_weight else {}
        self._layers = tuple({layer for layer, _ in self.places.values()})
        if not self.places:
            self.training_needs = frozenset()

    def supervises(self) -> Mapping[str, Place]:
        return self.places

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss:
        """The weighted divergence of all supervised rows."""
        return HeadLoss.of(self.options.planted_weight, *divergence(scores, step.parse, self.options.planted_elsewhere))


register_presets("tree_planting_transformer", encoder_syntax="tree_planting")
