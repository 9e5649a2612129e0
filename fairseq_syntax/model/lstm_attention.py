"""Attention of LSTM decoders over the source.

The attention is fairseq's (Luong et al. 2015, "general" score): ``a = softmax(s' W_a h)``, ``c = Σ a s`` and
``õ = tanh(W_c [c; h])``. Both products with the source states are computed once per batch instead of once per step. The
function is the same: ``s' W_a h = (W_a' s)' h`` gives the keys, and ``W_c [c; h] = Σ a (W_c s) + W_h h`` the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from fairseq.models.lstm import AttentionLayer
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.heads import HeadLoss, Parsed
from fairseq_syntax.model.loop_gradients import DeferredLinear, DeferredStates


@dataclass
class Encoded(Parsed):
    """The encoder output, and the sentence of each row of the decoder.

    Beam search reorders rows in every step, but the hypotheses of a sentence share their source. So only ``sentence``
    changes, and nothing is copied unless a sentence is finished.

    Attributes:
        states: [S, B, E], time first, padded on the right; a system may append others to attend to
        hiddens, cells: [L, B, E], the final states of each layer
        padding: [S, B] bool, True on padding
        sentence: [N] int64, the sentence of each row of the decoder; None if row n has sentence n
        syntax: the batch's syntax, in right-padded columns
        second: the states, hiddens and cells of a second encoder
        memory: the memory of the decoder's attention, with one entry per row of the decoder
        loop: the weights of the decoder's loop
    """

    states: Tensor
    hiddens: Tensor
    cells: Tensor
    padding: Tensor
    sentence: Tensor | None = None
    syntax: SyntaxBatch | None = None
    second: tuple[Tensor, Tensor, Tensor] | None = None
    memory: Any = None
    loop: Any = None

    def select(self, rows: Tensor) -> Encoded:
        """The output for the selected rows of the decoder, ``rows`` [N'] int64.

        A search calls this where its rows are of other sentences than before (:class:`.compat.search.EnsembleModel`).
        """
        sentence = rows if self.sentence is None else self.sentence.index_select(0, rows)
        return replace(self, sentence=sentence, memory=None if self.memory is None else self.memory.select(rows))

    def per_row(self, states: Tensor) -> Tensor:
        """Map [L, B, E], by sentence, to [L, N, E], by row of the decoder."""
        return states if self.sentence is None else states.index_select(1, self.sentence)


class SourceAttention(nn.Module):
    """Attention of an LSTM decoder over the source: the base class."""

    def remember(self, encoded: Encoded) -> Any:
        """The memory of a batch, with one entry per sentence and a method ``select(rows)``."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, memory: Any, step: int) -> tuple[Tensor, Tensor]:
        """Read the source.

        Args:
            hidden: [N, H], the decoder's state
            memory: the memory from :meth:`remember`, for N rows
            step: the target position, 0-based

        Returns:
            [N, H], the attentional state õ; and the weights over the places, as :meth:`over_source` expects them
        """
        raise NotImplementedError

    def over_source(self, weights: Tensor, encoded: Encoded) -> Tensor:
        """The weights of several steps [N, steps, places], over right-padded columns of the source: [N, steps, S]."""
        return weights

    def supervises(self) -> tuple[str, ...]:
        """The names of all losses that it can have in training; a criterion that omits them is rejected."""
        return ()

    def losses(self, memory: Any, real: Tensor) -> dict[str, HeadLoss]:
        """The losses by name, after the last step; ``real`` [N, T] bool is True except on padding."""
        return {}


Memory = TypeVar("Memory", bound="PaddedMemory")


@dataclass
class PaddedMemory:
    """The keys and values of the S places (tokens or words) of the source, padded.

    Attributes:
        keys, values: [N, S, H] each
        of_hidden: [O, H], all weights that multiply the decoder's state; the first H rows are W_h
        bias: [N, S], −inf on padding
    """

    keys: DeferredStates
    values: DeferredStates
    of_hidden: DeferredLinear
    bias: Tensor

    def select(self: Memory, rows: Tensor) -> Memory:
        """The memory of the selected rows."""
        keys, values = (DeferredStates(t.shared.index_select(0, rows)) for t in (self.keys, self.values))
        return replace(self, keys=keys, values=values, bias=self.bias.index_select(0, rows))


class GlobalAttention(SourceAttention):
    """Attention over all source tokens, including ``</s>``: fairseq's own."""

    def __init__(self, hidden_size: int, source_size: int) -> None:
        super().__init__()
        plain = AttentionLayer(hidden_size, source_size, hidden_size)
        self.input_proj, self.output_proj = plain.input_proj, plain.output_proj

    def remember(self, encoded: Encoded) -> Any:
        return self.remember_places(encoded.states.transpose(0, 1), encoded.padding.t())

    def remember_places(self, states: Tensor, padding: Tensor, more: Sequence[Tensor] = ()) -> PaddedMemory:
        """The memory of places.

        Args:
            states: [N, S, E]
            padding: [N, S] bool, True on padding
            more: matrices [O, H] that multiply the decoder's state too, in one product with W_h
        """
        keys = F.linear(states, self.input_proj.weight.t())
        of_states, of_hidden = self.output_proj.weight.split((states.size(-1), keys.size(-1)), dim=1)
        values = F.linear(states, of_states)
        linear = DeferredLinear(torch.cat((of_hidden, *more)) if more else of_hidden)
        return PaddedMemory(DeferredStates(keys), DeferredStates(values), linear, negative_infinity_at(padding, keys))

    def everywhere(self, hidden: Tensor, memory: PaddedMemory) -> Tensor:
        """The weights over all places, [N, S] float32."""
        return F.softmax(memory.keys.dots(hidden, plus=memory.bias), dim=1, dtype=torch.float32)

    def forward(self, hidden: Tensor, memory: PaddedMemory, step: int) -> tuple[Tensor, Tensor]:
        weights = self.everywhere(hidden, memory)
        return torch.tanh(memory.of_hidden(hidden, plus=memory.values.sums(weights))), weights


def negative_infinity_at(mask: Tensor, like: Tensor) -> Tensor:
    """−inf where ``mask`` is True and 0 elsewhere, with the dtype of ``like``."""
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))


def words_to_pieces(weights: Tensor, encoded: Encoded) -> Tensor:
    """Spread the weights [N, T, W] of words equally over their pieces: [N, T, S], 0 on ``</s>`` and padding."""
    N, T, W = weights.shape
    syntax = encoded.parse
    word, share = syntax.of_word(syntax.word_in_sentence, W), syntax.of_word(1 / syntax.pieces, 0)
    if encoded.sentence is not None:
        word, share = word[encoded.sentence], share[encoded.sentence]
    return F.pad(weights, (0, 1)).gather(2, word[:, None].expand(N, T, -1)) * share[:, None]
