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

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.attachments import Attachments, parents
from fairseq_syntax.model.decoder import DecoderSystem, register_decoder_system
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system
from fairseq_syntax.model.heads import Place
from fairseq_syntax.model.options import SystemConfig, option
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.systems.lisa import BiaffineHead


def source_targets(syntax: SyntaxBatch, chain: bool) -> Attachments:
    """The targets in the encoder, for pieces and for ``</s>``, which attaches to itself.

    Args:
        chain: use the paper's rule for subwords
    """
    if not chain:
        return parents(syntax)._replace(real=syntax.real_or_end)
    last = syntax.word_start + syntax.pieces - 1  # [W], column of each word's last piece
    # `</s>` and padding belong to no word; as their own last pieces, they attach to themselves.
    last_of_word, last_of_parent = (syntax.of_word(x, syntax.column) for x in (last, last[syntax.parent]))
    is_last = last_of_word == syntax.column
    word = syntax.real & is_last
    parent = torch.where(is_last, last_of_parent, syntax.column + 1)
    return Attachments(parent, syntax.real_or_end, word, word, syntax.padding[:, None, :])


def target_targets(syntax: SyntaxBatch, chain: bool) -> Attachments:
    """The targets in the decoder, whose input is ``</s>`` and the target; no piece attaches to a later one.

    Args:
        syntax: the target's syntax, in the columns of the target
        chain: use the paper's rule for subwords
    """
    parent, _, word, _, padding = source_targets(syntax, chain)
    # Shift right by one column. The column that is dropped is `</s>` or padding, never a piece.
    parent, real, word = (F.pad(x[:, :-1], (1, 0)) for x in (parent + 1, syntax.real, word))
    later = parent > syntax.column
    future = torch.ones(2 * [syntax.size[1]], dtype=torch.bool, device=syntax.device).triu(1)
    return Attachments(torch.where(later, syntax.column, parent), real, word, word & ~later, future | padding)


@dataclass
class DbsaConfig(SystemConfig):
    dbsa_layer: int = option(-1, "encoder layer of the biaffine head, from 0; -1 is the top layer")
    dbsa_head: int = option(0, "attention head, from 0", low=0)
    dbsa_weight: float = option(0.5, "weight of the encoder head's loss", low=1e-6, high=1e3)
    dbsa_decoder_layer: int = option(-1, "decoder layer of the biaffine head, from 0; -1 is the top layer")
    dbsa_decoder_head: int = option(0, "attention head, from 0", low=0)
    dbsa_decoder_weight: float = option(0.5, "weight of the decoder head's loss", low=1e-6, high=1e3)
    dbsa_dim: int | None = option(
        None, "size of the queries and keys of both heads", "that of fairseq's heads", low=1, high=8192
    )
    dbsa_chain: bool = option(
        False,
        "the paper's rule for subwords: each piece attaches to the next, the last one to the last piece of the head",
        "",
    )


class DbsaHead(BiaffineHead):
    """Code shared by both sides: linear queries and keys, and one set of options."""

    config, linear = DbsaConfig, True


@register_encoder_system("dbsa")
class EncoderDbsa(DbsaHead, EncoderSystem):
    """The biaffine head of the encoder."""

    loss_name = "dbsa"

    def parent_head(self) -> Place | None:
        """The head, unless the last piece represents a word, since readers of the head expect the first piece."""
        return None if self.options.dbsa_chain else self.place

    def attachments(self, syntax: SyntaxBatch) -> Attachments:
        return source_targets(syntax, self.options.dbsa_chain)


@register_decoder_system("dbsa")
class DecoderDbsa(DbsaHead, DecoderSystem):
    """The biaffine head of the decoder; its options are declared with the encoder's."""

    side, loss_name = "decoder", "dbsa_decoder"

    def attachments(self, syntax: SyntaxBatch) -> Attachments:
        return target_targets(syntax, self.options.dbsa_chain)


register_presets("dbsa_transformer", encoder_syntax="dbsa", decoder_syntax="dbsa")
