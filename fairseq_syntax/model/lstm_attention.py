"""What the LSTM decoder reads of the source at each step.

The attention is fairseq's (Luong et al. 2015, "general" score): ``a = softmax(s' W_a h)``, ``c = Σ a s`` and
``õ = tanh(W_c [c; h])``. Both products with the source states are made once per batch and not once per step, which is
the same function: ``s' W_a h = (W_a' s)' h`` gives the keys and ``W_c [c; h] = Σ a (W_c s) + W_h h`` the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.lstm import AttentionLayer, Linear
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.heads import HeadLoss
from fairseq_syntax.model.loop_gradients import DeferredLinear, DeferredRows, DeferredStates
from fairseq_syntax.model.options import SystemConfig, option


@dataclass
class GuidedConfig(SystemConfig):
    """The options of a guided start (:class:`GuidedAttention`)."""

    guided_updates: int = option(
        0,
        "for the first N updates read the whole sentence, in falling share, and teach the predictor the mean position "
        "of that global attention; with --criterion supervised_head",
        "0, as in the paper",
        low=0,
    )
    guide_weight: float = option(1.0, "weight of the predictor's loss in these", low=1e-6, high=1e3)


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

    @property
    def parse(self) -> SyntaxBatch:
        """:attr:`syntax` of a batch that has one: the encoder has checked it."""
        assert self.syntax is not None
        return self.syntax

    def select(self, rows: Tensor) -> Encoded:
        """The same sentences for other rows of the decoder; ``rows`` [N'] int64 are its present ones."""
        sentence = rows if self.sentence is None else self.sentence.index_select(0, rows)
        if self.sentence is not None and torch.equal(sentence, self.sentence):
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

    def supervises(self) -> tuple[str, ...]:
        """The names of the losses that it may have in training; a criterion that leaves them out is refused."""
        return ()

    def losses(self, memory: Any, real: Tensor) -> dict[str, HeadLoss]:
        """What this adds to the training loss, by name, once all steps are done; ``real`` [N, T] bool, not padding."""
        return {}


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


@dataclass
class Guide:
    """Whole sentences, for the first updates of a system that predicts a position in them.

    Attributes:
        members: [N, M] int64, the rows of the table that a sentence has
        place: [N, M] float32, where in the sentence each of them is
        bias: [N, M], −inf where there is no member
        share: of global attention in what is read, between 0 and 1
        weights: of each step so far, those of global attention, [N, M] without gradient
        positions: of each step so far, the predicted positions [N], with a gradient for the predictor alone
    """

    members: Tensor
    place: Tensor
    bias: Tensor
    share: float
    weights: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)

    def nll(self, sigma: float) -> Tensor:
        """``Σ_s a_s (s − p)² / 2σ²`` [N, T] of global attention's weights a and the predicted position p.

        Up to a constant, the cross entropy between where global attention looks and a Gaussian of width σ around p: it
        is least where p is the mean of the places that are looked at.
        """
        weights, positions = torch.stack(self.weights, dim=1), torch.stack(self.positions, dim=1)
        away = self.place[:, None] - positions[:, :, None]
        return (weights * away.square()).sum(dim=2) / (2 * sigma**2)


class RowAttention(GeneralAttention):
    """Attention over a few rows of a table that all sentences of the batch share."""

    def table(self, states: Tensor) -> RowMemory:
        """The table of states [R, E]."""
        keys, values, of_hidden = self.project(states)
        return RowMemory(DeferredRows(keys), DeferredRows(values), DeferredLinear(of_hidden))

    def attend(
        self,
        hidden: Tensor,
        table: RowMemory,
        members: Tensor,
        bias: Tensor,
        factor: Tensor | None = None,
        guide: Guide | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read.

        Args:
            hidden: [N, H]
            members: [N, G, K] int64, rows of the table: G groups of at most K, each with a softmax of its own
            bias: [N, G, K], −inf where there is no member
            factor: broadcasts to [N, G, K]; multiplies the weights after the softmax. None: 1
            guide: the whole sentences, of which a share is read (and their weights noted)

        Returns:
            õ [N, H], and the weights [N, G, K]
        """
        flat = members.flatten(1)
        weights = F.softmax(table.keys.dots(hidden, flat).view_as(members) + bias, dim=2, dtype=torch.float32)
        if factor is not None:
            weights = weights * factor
        read = weights.flatten(1)
        if guide is not None:
            whole = F.softmax(table.keys.dots(hidden, guide.members) + guide.bias, dim=1, dtype=torch.float32)
            guide.weights.append(whole.detach())
            read = torch.cat((read * (1 - guide.share), whole * guide.share), dim=1)
            flat = torch.cat((flat, guide.members), dim=1)
        return torch.tanh(table.values.sums(read, flat) + table.hidden_proj(hidden)), weights


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


class GuidedAttention(RowAttention):
    """Attention around a predicted position, with a guided start.

    The translation loss alone trains the predictor slowly: its gradient is the difference of what two neighbouring
    places are worth, and far from the right place neither is worth anything. So for the first updates the decoder reads
    the whole sentence, with the keys and values that it has in any case, and the predictor learns the mean position of
    that global attention (:meth:`Guide.nll`). This loss trains the predictor alone: if it trained the decoder's states
    too, attention would settle on one place, which is easy to predict. In the second half of these updates the share
    of global attention in what is read falls to 0. Afterwards, and in validation and search from the start, the model
    is the paper's.

    Args:
        hidden_size, source_size: of the decoder, and of the encoder's states
        guided_updates: how many they are; 0: no guided start, as in the paper
        guide_weight: of the predictor's loss beside the translation loss
    """

    def __init__(self, hidden_size: int, source_size: int, guided_updates: int = 0, guide_weight: float = 1.0) -> None:
        super().__init__(hidden_size, source_size)
        GuidedConfig.check(guided_updates=guided_updates, guide_weight=guide_weight)
        self.guided_updates, self.guide_weight, self.num_updates = guided_updates, guide_weight, 0

    def supervises(self) -> tuple[str, ...]:
        return ("position",) if self.guided_updates else ()

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each training step."""
        self.num_updates = num_updates

    def guided_share(self) -> float:
        """Of global attention in what is read now: 1 in the first half of the guided updates, then falling to 0."""
        if not self.training or self.num_updates >= self.guided_updates:
            return 0.0
        return min(1.0, 2 - 2 * self.num_updates / self.guided_updates)

    @property
    def guide_sigma(self) -> float:
        """σ of the Gaussian around the position, in places."""
        raise NotImplementedError

    def losses(self, memory: Any, real: Tensor) -> dict[str, HeadLoss]:
        """``position``, while there is a guide."""
        guide: Guide | None = memory.guide
        if guide is None:
            return {}
        nll = torch.where(real, guide.nll(self.guide_sigma), 0.0).sum()
        return {"position": HeadLoss.of(self.guide_weight, nll, real.sum())}
