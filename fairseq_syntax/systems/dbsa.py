"""DBSA: a biaffine attention head in the encoder and one in the decoder, each trained towards the tree of its side.

Deguchi, Tamura and Ninomiya (2019), Dependency-Based Self-Attention for Transformer NMT, RANLP. Either side can be used
alone. No parse is needed at inference.

- *Encoder* (section 3.1): the scores of one attention head are biaffine, ``S = [Q; 1] U Kᵀ``, where Q and K are linear
  maps of the layer's input. Its distribution over keys is trained towards the syntactic head of each token. The root
  and ``</s>`` are their own heads.
- *Decoder* (section 3.2): the same, with the future masked. A token whose head has not been generated yet is trained
  towards itself. (The initial ``</s>`` sees no other key, so it is not trained.)
- *Subwords* (section 3.3): as in supervised heads, a word's later pieces attach to its first piece, and this to the
  first piece of the head. The paper's rule is an option: each piece attaches to the next one, and the last piece of a
  word to the last piece of the head.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.decoder import DecoderSystem, register_decoder_system
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import HeadClaims, HeadLoss, HeadSystem, Place, Step
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option, option_name
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.systems.lisa import Biaffine, BiaffineTerm
from fairseq_syntax.systems.supervised_heads import attachment_accuracy, attachment_nll, link


class Targets(NamedTuple):
    """Training targets for the rows of an attention head. All are [B, T].

    Attributes:
        parent: int64, the column that each piece attaches to
        real: bool, True on supervised rows
        word: bool, True on one piece per word, which represents the word
        seen: bool, True on those of ``word`` whose head is among the keys
    """

    parent: Tensor
    real: Tensor
    word: Tensor
    seen: Tensor


def source_targets(syntax: SyntaxBatch, chain: bool) -> Targets:
    """The targets in the encoder, for pieces and for ``</s>``, which attaches to itself.

    Args:
        chain: use the paper's rule for subwords
    """
    if not chain:
        return Targets(link(syntax), ~syntax.padding, syntax.begins_word, syntax.begins_word)
    last = syntax.word_start + syntax.pieces - 1  # [W], column of each word's last piece
    # `</s>` and padding belong to no word; as their own last pieces, they attach to themselves.
    last_of_word, last_of_parent = (syntax.of_word(x, syntax.column) for x in (last, last[syntax.parent]))
    is_last = last_of_word == syntax.column
    word = syntax.real & is_last
    return Targets(torch.where(is_last, last_of_parent, syntax.column + 1), ~syntax.padding, word, word)


def target_targets(syntax: SyntaxBatch, chain: bool) -> Targets:
    """The targets in the decoder, whose input is ``</s>`` and the target; no piece attaches to a later one.

    Args:
        syntax: the target's syntax, in the columns of the target
        chain: use the paper's rule for subwords
    """
    parent, _, word, _ = source_targets(syntax, chain)
    # Shift right by one column. The column that is dropped is `</s>` or padding, never a piece.
    parent, real, word = (F.pad(x[:, :-1], (1, 0)) for x in (parent + 1, syntax.real, word))
    later = parent > syntax.column
    return Targets(torch.where(later, syntax.column, parent), real, word, word & ~later)


@dataclass
class DbsaConfig(SystemConfig):
    """The options of both sides."""

    dbsa_layer: int = option(-1, "encoder layer of the biaffine head, from 0; -1 is the top layer")
    dbsa_head: int = option(0, "attention head, from 0", low=0)
    dbsa_weight: float = option(0.5, "weight of the encoder head's loss", low=1e-6, high=1e3)
    dbsa_decoder_layer: int = option(-1, "decoder layer of the biaffine head, from 0; -1 is the top layer")
    dbsa_decoder_head: int = option(0, "attention head, from 0", low=0)
    dbsa_decoder_weight: float = option(0.5, "weight of the decoder head's loss", low=1e-6, high=1e3)
    dbsa_dim: int | None = option(
        None, "size of the queries and keys of both heads", "that of the other heads", low=1, high=8192
    )
    dbsa_chain: bool = option(
        False,
        "the paper's treatment of subwords: each piece attaches to the next, the last one to the last "
        "piece of the head",
        "",
    )


class BiaffineHead(HeadSystem):
    """Code shared by both sides: one biaffine attention head and its loss.

    Args:
        options: the options of both sides
        args: the model's options, with the sizes of this side

    Attributes:
        side: ``encoder`` or ``decoder``
        loss_name: the name of the loss, and the prefix of the options ``_layer``, ``_head`` and ``_weight``
    """

    config = DbsaConfig
    criterion = "supervised_head"
    training_needs = frozenset({"tree"})
    side: str
    loss_name: str

    def __init__(self, options: DbsaConfig, args: Namespace) -> None:
        super().__init__()
        prefix, side = self.loss_name, self.side
        layer, layers = getattr(options, f"{prefix}_layer"), getattr(args, f"{side}_layers")
        (layer,) = layer_numbers(option_name(f"{prefix}_layer"), str(layer), layers)
        self._layers, self.place = (layer,), (layer, getattr(options, f"{prefix}_head"))
        self.weight, self.chain = getattr(options, f"{prefix}_weight"), options.dbsa_chain
        embed_dim = getattr(args, f"{side}_embed_dim")
        dim = options.dbsa_dim or embed_dim // getattr(args, f"{side}_attention_heads")
        self.biaffine = Biaffine(embed_dim, dim, linear=True)

    @classmethod
    def from_config(cls, config: DbsaConfig, args: Namespace, task: SyntaxTask) -> BiaffineHead:
        return cls(config, args)

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        return HeadClaims(replaces=frozenset({self.place[1]}))

    def supervises(self) -> Mapping[str, Place]:
        return {self.loss_name: self.place}

    def term(self, step: Step, layer: int) -> BiaffineTerm:
        return BiaffineTerm(self.place[1], self.biaffine)

    def targets(self, syntax: SyntaxBatch) -> tuple[Targets, Tensor]:
        """The targets, and the mask [1 or B, 1 or T, T] of keys that the rows do not see."""
        raise NotImplementedError

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss:
        """The cross entropy of the supervised rows towards their targets, summed over rows."""
        targets, hidden = self.targets(step.parse)
        hidden = hidden | step.padding[:, None, :]  # [B, T, T]
        nll = attachment_nll(scores, targets.parent, targets.real, hidden)
        counts = None
        if not self.training:
            counts = attachment_accuracy(scores, targets.parent, targets.word, targets.seen, hidden)
        return HeadLoss.of(self.weight, nll, targets.real.sum(), counts)


@register_encoder_system("dbsa")
class EncoderDbsa(BiaffineHead, EncoderSystem):
    """The biaffine head of the encoder."""

    side, loss_name = "encoder", "dbsa"

    def parent_head(self) -> Place | None:
        """The head, unless the last piece represents a word, since readers of the head expect the first piece."""
        return None if self.chain else self.place

    def targets(self, syntax: SyntaxBatch) -> tuple[Targets, Tensor]:
        return source_targets(syntax, self.chain), syntax.real.new_zeros(1, 1, 1)


@register_decoder_system("dbsa")
class DecoderDbsa(BiaffineHead, DecoderSystem):
    """The biaffine head of the decoder; its options are declared with the encoder's."""

    side, loss_name = "decoder", "dbsa_decoder"

    def targets(self, syntax: SyntaxBatch) -> tuple[Targets, Tensor]:
        length = syntax.size[1]
        future = torch.ones(length, length, dtype=torch.bool, device=syntax.real.device).triu(1)
        return target_targets(syntax, self.chain), future[None]  # [1, T, T], True on later keys


register_presets("dbsa_transformer", encoder_syntax="dbsa", decoder_syntax="dbsa")
