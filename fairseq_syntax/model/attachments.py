"""Attachments: what an attention head that is trained on the parse attends to, its loss and its accuracy.

Supervised heads (Wang et al. 2019), LISA and DBSA train a head towards one column per row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.heads import HeadLoss

UNSUPERVISED = -1  # where a row's target would be


def link(syntax: SyntaxBatch) -> Tensor:
    """The column that each piece attaches to, [B, T] int64.

    A word's first piece attaches to the first piece of the word's parent (or, for a root, to itself); its later pieces
    attach to its first piece. ``</s>`` and padding attach to themselves.
    """
    return syntax.once(link, lambda: torch.where(syntax.begins_word, syntax.parent_first, syntax.first_piece))


def log_attention(scores: Tensor, hidden: Tensor) -> Tensor:
    """Log of the weights of each row, ``log softmax(scores)``: [B, T, T] float32, −inf on hidden keys.

    Args:
        scores: [B, T, T], before the padding mask and the softmax; row: query, column: key
        hidden: broadcasts to [B, T, T], True on keys that a row does not see; a row that sees no key is NaN and has no
            gradient
    """
    return F.log_softmax(scores.masked_fill(hidden, -math.inf), dim=-1, dtype=torch.float32)


class Attachments(NamedTuple):
    """What the rows of an attention head are trained towards, where each row has one target."""

    parent: Tensor  # [B, T] int64, the column that each piece attaches to
    real: Tensor  # [B, T] bool, True on supervised rows
    word: Tensor  # [B, T] bool, True on one piece per word, which represents the word
    seen: Tensor  # [B, T] bool, True on those of `word` whose head is among the keys
    hidden: Tensor  # broadcasts to [B, T, T], True on keys that a row does not see

    def nll(self, scores: Tensor) -> Tensor:
        """``−Σ log softmax(scores)[i, parent(i)]`` over supervised rows i."""
        # Rows that are not supervised are left out, since they may be −inf or NaN.
        parent = self.parent.masked_fill(~self.real, UNSUPERVISED)
        rows = log_attention(scores, self.hidden).flatten(0, 1)
        return F.nll_loss(rows, parent.flatten(), ignore_index=UNSUPERVISED, reduction="sum")

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
    """The attachments of :func:`link`, for the rows of pieces.

    Their ``nll`` is −Σ A_parent ⊙ log Â_parent of Wang et al. (2019), section 3.2, with the matrix of equation 5.
    """
    word = syntax.begins_word
    return Attachments(link(syntax), syntax.real, word, word, syntax.padding[:, None, :])
