"""What the LSTM decoder reads of the source at each step.

The attention is fairseq's (Luong et al. 2015, "general" score): ``a = softmax(s' W_a h)``, ``c = Σ a s`` and
``õ = tanh(W_c [c; h])``. Both products with the source states are made once per batch and not once per step, which is
the same function: ``s' W_a h = (W_a' s)' h`` gives the keys and ``W_c [c; h] = Σ a (W_c s) + W_h h`` the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.lstm import AttentionLayer, Linear
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.loop_gradients import DeferredLinear, DeferredRows, DeferredStates


@dataclass
class Encoded:
    """What the encoder hands to the decoder: the sentences, and which sentence each row of the decoder is about.

    Beam search asks for the rows to be reordered at every step, but hypotheses of one sentence share their source:
    only ``sentence`` changes, and nothing is copied unless a sentence is finished.

    Attributes:
        states: [S, B, E], the states of the top layer, time first, padded on the right; a system may have more to
            attend to after them
        hiddens, cells: [L, B, E], the last states of each layer
        padding: [S, B] bool, True on padding
        sentence: [N] int64, the sentence of each row of the decoder; None: as they are
        syntax: the batch's syntax, in right-padded columns
        second: the states, hiddens and cells of a second encoder
        memory: what the decoder's attention made of the sentences, one entry per row of the decoder
        loop: what the decoder made of its weights for its loop
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
        """The same sentences for other rows of the decoder; ``rows`` [N'] int64 are its present ones."""
        if self.sentence is None:
            return replace(self, sentence=rows, memory=None if self.memory is None else self.memory.select(rows))
        sentence = self.sentence.index_select(0, rows)
        if torch.equal(sentence, self.sentence):
            return self
        return replace(self, sentence=sentence, memory=None if self.memory is None else self.memory.select(rows))

    def per_row(self, states: Tensor) -> Tensor:
        """[L, B, E] to [L, N, E]."""
        return states if self.sentence is None else states.index_select(1, self.sentence)


class SourceAttention(nn.Module):
    """One way to read the source."""

    def remember(self, encoded: Encoded) -> Any:
        """The memory of a batch, one entry per sentence; it has ``select(rows)``."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, memory: Any, step: int) -> tuple[Tensor, Any]:
        """Read the source.

        Args:
            hidden: [N, H], the decoder's state
            memory: of :meth:`remember`, for N rows
            step: target position, 0-based

        Returns:
            [N, H], the attentional state õ, and what :meth:`over_source` needs to know of the weights
        """
        raise NotImplementedError

    def over_source(self, reads: list[Any], memory: Any) -> Tensor:
        """The weights of several steps as [N, steps, S], over right-padded columns of the source."""
        raise NotImplementedError


class GeneralAttention(SourceAttention):
    """Luong's "general" attention, over whatever part of the source a subclass chooses.

    Args:
        hidden_size: of the decoder
        source_size: of the encoder's states
    """

    def __init__(self, hidden_size: int, source_size: int) -> None:
        super().__init__()
        plain = AttentionLayer(hidden_size, source_size, hidden_size)
        self.input_proj, self.output_proj = plain.input_proj, plain.output_proj

    def project(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [..., H] of states [..., E], and W_h [H, H], the part of W_c that meets the state h."""
        keys = F.linear(states, self.input_proj.weight.t())
        of_states, of_hidden = self.output_proj.weight.split((states.size(-1), keys.size(-1)), dim=1)
        return keys, F.linear(states, of_states), of_hidden


@dataclass
class PaddedMemory:
    """Keys and values of all source tokens.

    Attributes:
        keys, values: of [N, S, H]
        hidden_proj: of [H, H]
        bias: [N, S], −inf on padding
    """

    keys: DeferredStates
    values: DeferredStates
    hidden_proj: DeferredLinear
    bias: Tensor

    def select(self, rows: Tensor) -> PaddedMemory:
        """The memory of other rows."""
        keys, values = (DeferredStates(t.shared.index_select(0, rows)) for t in (self.keys, self.values))
        return PaddedMemory(keys, values, self.hidden_proj, self.bias.index_select(0, rows))


class GlobalAttention(GeneralAttention):
    """Attention over all source tokens, ``</s>`` included: fairseq's own."""

    def remember(self, encoded: Encoded) -> PaddedMemory:
        keys, values, of_hidden = self.project(encoded.states.transpose(0, 1))
        bias = negative_infinity_at(encoded.padding.t(), keys)
        return PaddedMemory(DeferredStates(keys), DeferredStates(values), DeferredLinear(of_hidden), bias)

    def weights(self, hidden: Tensor, memory: PaddedMemory) -> Tensor:
        """[N, H] to [N, S]."""
        return F.softmax(memory.keys.dots(hidden) + memory.bias, dim=1, dtype=torch.float32)

    def forward(self, hidden: Tensor, memory: PaddedMemory, step: int) -> tuple[Tensor, Tensor]:
        weights = self.weights(hidden, memory)
        return self.read(weights, hidden, memory), weights

    def read(self, weights: Tensor, hidden: Tensor, memory: PaddedMemory) -> Tensor:
        """õ [N, H] of weights [N, S]."""
        return torch.tanh(memory.values.sums(weights) + memory.hidden_proj(hidden))

    def over_source(self, reads: list[Tensor], memory: PaddedMemory) -> Tensor:
        return torch.stack(reads, dim=1)


def negative_infinity_at(mask: Tensor, like: Tensor) -> Tensor:
    """−inf where ``mask`` is True, 0 elsewhere, of ``like``'s dtype."""
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))


@dataclass
class RowMemory:
    """Keys and values of which each row of the decoder reads only a few.

    Attributes:
        keys, values: of [R, H]
        hidden_proj: of [H, H]
    """

    keys: DeferredRows
    values: DeferredRows
    hidden_proj: DeferredLinear


class RowAttention(GeneralAttention):
    """Attention over a few rows of a table that all sentences of the batch share."""

    def table(self, states: Tensor) -> RowMemory:
        """The table of states [R, E]."""
        keys, values, of_hidden = self.project(states)
        return RowMemory(DeferredRows(keys), DeferredRows(values), DeferredLinear(of_hidden))

    def attend(
        self, hidden: Tensor, table: RowMemory, members: Tensor, bias: Tensor, factor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read.

        Args:
            hidden: [N, H]
            members: [N, G, K] int64, rows of the table: G groups of at most K, each with a softmax of its own
            bias: [N, G, K], −inf where there is no member
            factor: broadcasts to [N, G, K]; multiplies the weights after the softmax. None: 1

        Returns:
            õ [N, H], and the weights [N, G, K]
        """
        flat = members.flatten(1)
        weights = F.softmax(table.keys.dots(hidden, flat).view_as(members) + bias, dim=2, dtype=torch.float32)
        if factor is not None:
            weights = weights * factor
        return torch.tanh(table.values.sums(weights.flatten(1), flat) + table.hidden_proj(hidden)), weights


class PositionPredictor(nn.Module):
    """``sigmoid(v' tanh(W_p h))``: where in the source the decoder stands, between 0 and 1 (Equation 8).

    Args:
        hidden_size: of the decoder
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_proj = Linear(hidden_size, hidden_size, bias=False)
        self.score = Linear(hidden_size, 1, bias=False)

    def for_loop(self) -> Callable[[Tensor], Tensor]:
        """The function, [N, H] to [N] float32, for the steps of one pass over a loop."""
        hidden_proj, score = DeferredLinear(self.hidden_proj.weight), DeferredLinear(self.score.weight)
        return lambda hidden: torch.sigmoid(score(torch.tanh(hidden_proj(hidden))).squeeze(1).float())
