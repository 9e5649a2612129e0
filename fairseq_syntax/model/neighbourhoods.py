"""Index tensors of the words of a batch and of their neighbours in the dependency tree, computed on the device.

Two systems read the neighbours: attention over dependency blocks (:mod:`fairseq_syntax.systems.dlaa`) and the
convolution over dependency units (:mod:`fairseq_syntax.systems.sdrnmt`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch

RELATIONS = ("self", "parent", "children", "siblings", "neighbours")


def relatives(head: Tensor, length: Tensor, size: int, order: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The first ``size`` words with the given relations to each word.

    A word is listed once, under the first relation that holds. Children and siblings are in the order of the sentence,
    neighbours in the order of their distance, the left one first. A root is its own parent and has no siblings.
    ``neighbours`` are all other words of the line, also those of its other sentences.

    Args:
        head: [B, W] int64, the head of each word within its line, 0-based; a root is its own head; padding is ignored
        length: [B] int64, the number of words of each line
        size: the maximum number of words to list
        order: a selection of :data:`RELATIONS`

    Returns:
        ``members`` [B, W, K] int64, 0-based words of the line, 0 in empty places, and ``present`` [B, W, K] bool, True
        where there is a member, with K = min(``size``, W). Empty places come last.
    """
    n = head.size(1)
    word = torch.arange(n, device=head.device)
    real = word < length[:, None]
    root = head == word
    other = word[:, None] != word
    distance = word - word[:, None]
    between = {  # [B or 1, W, W], row j, column k: whether k has this relation to j
        "self": ~other[None],
        "parent": head[:, :, None] == word,
        "children": (head[:, None, :] == word[:, None]) & other,
        "siblings": (head[:, :, None] == head[:, None, :]) & other & ~root[:, :, None] & ~root[:, None, :],
        "neighbours": other[None],
    }
    # One sort key per pair: the relation, then the place within it. Relations are written from the last to the first,
    # so that the first one that holds remains.
    stride = 2 * n + 1
    nowhere = len(order) * stride
    key = torch.full((1, 1, 1), nowhere, device=head.device)
    for rank, relation in reversed(list(enumerate(order))):
        place = 2 * distance.abs() - (distance < 0).long() if relation == "neighbours" else word
        key = torch.where(between[relation], rank * stride + place, key)
    key = key.masked_fill(~(real[:, :, None] & real[:, None, :]), nowhere)
    key, members = key.topk(min(size, n), dim=2, largest=False, sorted=True)
    present = key < nowhere
    return members.masked_fill(~present, 0), present


def line_relatives(syntax: SyntaxBatch, size: int, order: Sequence[str]) -> tuple[Tensor, Tensor]:
    """:func:`relatives` of the words of a batch, numbered by line: [B, W', K] each; W' is at least 1."""
    head = F.pad(syntax.parent - syntax.first_word[syntax.batch_of_word], (0, 1))[word_grid(syntax)]
    return relatives(head, syntax.n_words, size, order)


def flat_relatives(syntax: SyntaxBatch, size: int, order: Sequence[str]) -> tuple[Tensor, Tensor]:
    """:func:`relatives` of the words of a batch, [W, K] each, numbered over the batch; W in empty places."""
    members, present = line_relatives(syntax, size, order)
    row, word = syntax.batch_of_word, syntax.word_in_sentence
    members, present = members[row, word], present[row, word]
    return torch.where(present, members + syntax.first_word[row, None], syntax.pieces.numel()), present


def word_grid(syntax: SyntaxBatch) -> Tensor:
    """[B, W'] int64: the flat word indices of each line, padded on the right with W; W' is at least 1."""

    def make() -> Tensor:
        word = torch.arange(max(1, int(syntax.lengths.words.max())), device=syntax.device)
        return torch.where(word < syntax.n_words[:, None], syntax.first_word[:, None] + word, syntax.pieces.numel())

    return syntax.once(word_grid, make)


def word_counts(syntax: SyntaxBatch) -> Tensor:
    """[B] int64 on the host, as a packed sequence expects it: the number of words of each line, at least 1."""
    return torch.from_numpy(syntax.lengths.words.astype(np.int64)).clamp_(min=1)


def word_means(states: Tensor, syntax: SyntaxBatch) -> Tensor:
    """The mean over the pieces of each word of the batch, [W + 1, C], with a row of zeros for empty places.

    Args:
        states: [T, B, C], time first, with the columns of ``syntax``
    """
    T, B, C = states.shape
    # The row of each piece in ``states``, sentence by sentence like the words.
    pieces, total = syntax.n_pieces, int(syntax.lengths.pieces.sum())
    sentence = torch.arange(B, device=states.device).repeat_interleave(pieces, output_size=total)
    place = torch.arange(total, device=states.device) + (syntax.start - syntax.pieces_before)[sentence]
    row = place * B + sentence
    ends = syntax.pieces.cumsum(0)
    return F.embedding_bag(row, states.reshape(T * B, C), torch.cat((ends.new_zeros(1), ends)), mode="mean")
