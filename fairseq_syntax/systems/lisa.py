"""LISA for translation: an attention head whose scores are those of a biaffine parser.

Strubell et al. (2018), Linguistically-Informed Self-Attention for Semantic Role Labeling, section 2.2, as brought to
subwords and translation by Bugliarello and Okazaki (2020), appendix A.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.attachments import Attachments, parents
from fairseq_syntax.model.attention import HeadInputs, ScoreTerm
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, HeadLoss, HeadSystem, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option, option_name
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets


class Biaffine(nn.Module):
    """``S = [Q; 1] U Kᵀ`` with ``Q = f(W_q x + b_q)``, ``K = f(W_k x + b_k)``.

    Because of the 1, U's last row scores heads independently of the dependent, as in Dozat and Manning (2017).

    Args:
        embed_dim: C
        dim: d, the size of Q and K
        linear: whether f is the identity rather than ReLU
    """

    def __init__(self, embed_dim: int, dim: int, linear: bool = False) -> None:
        super().__init__()
        self.linear = linear
        self.query, self.key = nn.Linear(embed_dim, dim), nn.Linear(embed_dim, dim)
        self.weight = nn.Parameter(torch.empty(dim + 1, dim))
        for layer in (self.query, self.key):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Scores [B, T, S] of dependents [T, B, C] and heads [S, B, C] (default: the same)."""
        memory = x if memory is None else memory
        q, k = self.query(x), self.key(memory)  # [T, B, d] and [S, B, d]
        if not self.linear:
            q, k = F.relu(q), F.relu(k)
        # [q; 1] U, without concatenating q and 1
        matrix, bias = self.weight.split((len(self.weight) - 1, 1))
        mapped = F.linear(q, matrix.t(), bias[0])
        return mapped.transpose(0, 1) @ k.permute(1, 2, 0)  # [B, T, S]


class BiaffineTerm(ScoreTerm):
    """Replaces the head's dot products by biaffine scores.

    Args:
        gold: makes pieces attend only to their parents in this parse; ``</s>`` keeps its biaffine scores
    """

    def __init__(self, head: int, biaffine: Biaffine, gold: SyntaxBatch | None = None) -> None:
        self.heads = slice(head, head + 1)
        self._biaffine, self._gold = biaffine, gold

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        predicted = self._biaffine(inputs.x, inputs.memory)  # [B, T, S]
        if self._gold is not None:
            # Finite also in float16 and bfloat16, where its exp is 0.
            gold = torch.full_like(predicted, -1e4).scatter_(2, self._gold.parent_first[:, :, None], 0.0)
            predicted = torch.where(self._gold.real[:, :, None], gold, predicted)
        return predicted[:, None]


@dataclass
class LisaConfig(SystemConfig):
    lisa_layer: int = option(-1, "encoder layer, from 0; -1 is the top layer")
    lisa_head: int = option(0, "attention head, from 0", low=0)
    lisa_dim: int | None = option(
        None, "size of the head's queries and keys", "that of fairseq's heads", low=1, high=8192
    )
    lisa_weight: float = option(1.0, "weight of the parent loss", low=1e-6, high=1e3)
    lisa_gold: bool = option(
        False,
        "at inference, attend to the parents of the input parse; also set by --model-overrides {'lisa_gold':True}",
        "",
    )


class BiaffineHead(HeadSystem):
    """One biaffine attention head, trained towards the parents; a base class for either side.

    Attributes:
        side: ``encoder`` or ``decoder``
        loss_name: the name of the loss, and the prefix of the options ``_layer``, ``_head`` and ``_weight``
        linear: whether queries and keys are linear maps
    """

    training_needs = frozenset({"tree"})
    side: ClassVar[str] = "encoder"
    loss_name: ClassVar[str]
    linear: ClassVar[bool] = False

    def __init__(self, options: Any, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        prefix, side = self.loss_name, self.side
        layer, layers = getattr(options, f"{prefix}_layer"), getattr(args, f"{side}_layers")
        (layer,) = layer_numbers(option_name(f"{prefix}_layer"), str(layer), layers)
        self._layers, self.place = (layer,), (layer, getattr(options, f"{prefix}_head"))
        self.weight = getattr(options, f"{prefix}_weight")
        embed_dim = getattr(args, f"{side}_embed_dim")
        dim = getattr(options, f"{self.name}_dim") or embed_dim // getattr(args, f"{side}_attention_heads")
        self.biaffine = Biaffine(embed_dim, dim, self.linear)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        return HeadClaims(replaces=frozenset({self.place[1]}))

    def supervises(self) -> Mapping[str, Place]:
        return {self.loss_name: self.place}

    def term(self, step: Step, layer: int) -> ScoreTerm:
        return BiaffineTerm(self.place[1], self.biaffine)

    def attachments(self, syntax: SyntaxBatch) -> Attachments:
        """What the head is trained towards."""
        raise NotImplementedError

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss | None:
        return self.attachments(step.parse).loss(self.weight, scores, self.training)


@register_encoder_system("lisa")
class Lisa(BiaffineHead, EncoderSystem):
    """One biaffine head of the encoder.

    With weight 1, training maximizes the joint probability of translation and parents. Gold parents at inference give
    an upper bound.
    """

    config, loss_name = LisaConfig, "lisa"

    def __init__(self, options: LisaConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self.gold = options.lisa_gold
        if self.gold:
            self.inference_needs = frozenset({"tree"})

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        head = frozenset({self.place[1]})
        return HeadClaims(replaces=head, gives=head if self.gold else frozenset())

    def parent_head(self) -> Place:
        return self.place

    def term(self, step: Step, layer: int) -> ScoreTerm:
        if self.gold and not self.training and step.syntax is not None:
            return BiaffineTerm(self.place[1], self.biaffine, gold=step.syntax)
        return super().term(step, layer)

    def term_without_parse(self, step: Step, layer: int) -> ScoreTerm:
        """The term for a sentence without gold parents: that of predicted parents."""
        return super().term(step, layer)

    def attachments(self, syntax: SyntaxBatch) -> Attachments:
        """Every piece attaches to the first piece of its word's parent."""
        return parents(syntax)._replace(parent=syntax.parent_first)

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss | None:
        """None if gold parents replace the scores."""
        return None if self.gold and not self.training else super().loss(name, scores, step)


register_presets("lisa_transformer", encoder_syntax="lisa")
