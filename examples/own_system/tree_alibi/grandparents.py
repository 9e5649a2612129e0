"""A head trained to attend to each word's grandparent in the dependency tree.

The loss is the cross entropy of the head's attention: ``−λ Σ_i log Â[i, g(i)]``, where g(i) is the first piece of the
grandparent of token i's word. A root is its own parent, so the grandparent of a root's child is the root. No parse is
needed at inference.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadLoss, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.model.trees import Forest


def grandparent(syntax: SyntaxBatch) -> Tensor:
    """g(i), [B, T] int64: the column of the first piece of each piece's grandparent; for other columns, their own."""
    parent = Forest.of(syntax).parent  # [W], without cycles
    return syntax.of_word(syntax.word_start[parent[parent]], syntax.column)


@dataclass
class GrandparentConfig(SystemConfig):
    grandparent_layer: int = option(-1, "encoder layer of the trained head, from 0; -1 is the top layer")
    grandparent_head: int = option(0, "the trained head", low=0)
    grandparent_weight: float = option(0.5, "weight λ of its loss", low=0, high=1e3)


@register_encoder_system("grandparent_head")
class GrandparentHead(EncoderSystem):
    """One supervised head."""

    config = GrandparentConfig
    training_needs = frozenset({"tree"})

    def __init__(self, options: GrandparentConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self._layers = layer_numbers("--grandparent-layer", str(options.grandparent_layer), args.encoder_layers)

    def supervises(self) -> Mapping[str, Place]:
        return {"grandparent": (self._layers[0], self.options.grandparent_head)}

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss:
        syntax = step.parse
        log_p = scores.masked_fill(syntax.padding[:, None, :], float("-inf")).float().log_softmax(2)  # [B, T, T]
        wanted = log_p.gather(2, grandparent(syntax)[:, :, None]).squeeze(2)  # [B, T]
        nll = -wanted.masked_fill(~syntax.real, 0.0).sum()
        return HeadLoss.of(self.options.grandparent_weight, nll, syntax.real.sum())


register_presets("grandparent_transformer", encoder_syntax="grandparent_head")
