"""LISA for translation: an attention head whose scores are those of a biaffine parser.

Strubell et al. (2018), Linguistically-Informed Self-Attention for Semantic Role Labeling, section 3.1, as brought to
subwords and translation by Bugliarello and Okazaki (2020), appendix A.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_syntax.model.attention import HeadInputs, ScoreTerm
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, HeadLoss, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.systems.supervised_heads import attachment, attachment_nll


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
        q, k = self.query(x.transpose(0, 1)), self.key(memory.transpose(0, 1))
        if not self.linear:
            q, k = F.relu(q), F.relu(k)
        # [q; 1] U, without concatenating q and 1
        return (q @ self.weight[:-1] + self.weight[-1]) @ k.transpose(1, 2)  # [B, T, S]


class BiaffineTerm(ScoreTerm):
    """Replaces the head's dot products by biaffine scores."""

    needs_memory = True  # in search, a decoder computes the keys from the inputs of all previous steps

    def __init__(self, head: int, biaffine: Biaffine) -> None:
        self.heads = slice(head, head + 1)
        self._biaffine = biaffine

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        return self._biaffine(inputs.x, inputs.memory)[:, None]


class GoldTerm(BiaffineTerm):
    """Makes pieces attend only to their gold parents; ``</s>`` keeps its biaffine scores.

    Args:
        parent: [B, T] int64, the column of each token's parent
        real: [B, T] bool, True on pieces
    """

    def __init__(self, head: int, biaffine: Biaffine, parent: Tensor, real: Tensor) -> None:
        super().__init__(head, biaffine)
        self._parent, self._real = parent, real

    def scores(self, scores: Tensor, inputs: HeadInputs) -> Tensor:
        predicted = super().scores(scores, inputs)
        # Finite also in float16 and bfloat16, where its exp is 0.
        gold = torch.full_like(predicted[:, 0], -1e4).scatter_(2, self._parent[:, :, None], 0.0)
        return torch.where(self._real[:, None, :, None], gold[:, None], predicted)


@dataclass
class LisaConfig(SystemConfig):
    """The options of LISA."""

    lisa_layer: int = option(-1, "encoder layer, from 0; -1 is the top layer")
    lisa_head: int = option(0, "attention head, from 0", low=0)
    lisa_dim: int | None = option(
        None, "size of the head's queries and keys", "that of the other heads", low=1, high=8192
    )
    lisa_weight: float = option(1.0, "weight of the parent loss", low=1e-6, high=1e3)
    lisa_gold: bool = option(
        False,
        "at inference, attend to the parents of the input parse; also set by --model-overrides {'lisa_gold':True}",
        "",
    )


@register_encoder_system("lisa")
class Lisa(EncoderSystem):
    """One biaffine head.

    With weight 1, training maximizes the joint probability of translation and parents. Gold parents at inference give
    an upper bound.

    Args:
        options: the options of LISA
        embed_dim: C
        layer: 0-based
        dim: d, the size of queries and keys
    """

    config = LisaConfig
    criterion = "lisa"
    training_needs = frozenset({"tree"})

    def __init__(self, options: LisaConfig, embed_dim: int, layer: int, dim: int) -> None:
        super().__init__()
        self._layers, self.place = (layer,), (layer, options.lisa_head)
        self.weight, self.gold = options.lisa_weight, options.lisa_gold
        self.biaffine = Biaffine(embed_dim, dim)
        if self.gold:
            self.inference_needs = frozenset({"tree"})

    @classmethod
    def from_config(cls, config: LisaConfig, args: Namespace, task: SyntaxTask) -> Lisa:
        (layer,) = layer_numbers("--lisa-layer", str(config.lisa_layer), args.encoder_layers)
        dim = args.encoder_embed_dim // args.encoder_attention_heads if config.lisa_dim is None else config.lisa_dim
        return cls(config, args.encoder_embed_dim, layer, dim)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        head = frozenset({self.place[1]})
        return HeadClaims(replaces=head, gives=head if self.gold else frozenset())

    def supervises(self) -> Mapping[str, Place]:
        return {"lisa": self.place}

    def parent_head(self) -> Place:
        return self.place

    def term(self, step: Step, layer: int) -> ScoreTerm:
        if self.gold and not self.training and step.syntax is not None:
            syntax = step.syntax
            return GoldTerm(self.place[1], self.biaffine, syntax.parent_first, syntax.real)
        return BiaffineTerm(self.place[1], self.biaffine)

    def term_without_parse(self, step: Step, layer: int) -> ScoreTerm:
        """The term for a sentence without gold parents: that of predicted parents."""
        return BiaffineTerm(self.place[1], self.biaffine)

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss | None:
        """The cross entropy of each piece's row towards the first piece of its word's parent, summed over pieces.

        None if gold parents replace the scores.
        """
        if self.gold and not self.training:
            return None
        syntax = step.parse
        nll = attachment_nll(scores, syntax.parent_first, syntax.real, step.padding[:, None, :])
        counts = None if self.training else attachment(scores, syntax)
        return HeadLoss.of(self.weight, nll, syntax.real.sum(), counts)


register_presets("lisa_transformer", encoder_syntax="lisa")
