"""SDRNMT-1 and SDRNMT-2: source dependency representations computed by a convolution.

Chen et al. (2017), Neural Machine Translation with Source Dependency Representation, EMNLP, as baselines in the DLAA
paper (section 3.4, whose equation numbers are used here). A convolution maps the dependency unit of each source word
(its parent, siblings and children) to a vector.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.lstm import LSTM, Linear
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.loop_gradients import DeferredLinear, DeferredStates
from fairseq_syntax.model.lstm import SyntaxLSTMDecoder, SyntaxLSTMEncoder, SyntaxLSTMModel, register_lstm
from fairseq_syntax.model.lstm_attention import Encoded, GlobalAttention, PaddedMemory, SourceAttention
from fairseq_syntax.model.neighbourhoods import flat_relatives, word_counts, word_grid, word_means
from fairseq_syntax.model.options import SystemConfig, option

UNIT = ("parent", "siblings", "children")  # Equation 9


@dataclass
class SDRNMTConfig(SystemConfig):
    sdrnmt_channels: int = option(256, "size of a unit's vector", low=1, high=8192)
    sdrnmt_kernel: int = option(3, "kernel width in words", low=1, high=1000)
    sdrnmt_unit_size: int = option(10, "maximum number of words in a unit", low=1, high=1000)
    sdrnmt_weight: float = option(
        0.5, "sdrnmt2_lstm: weight of the source states in the mixed attention; the units have the rest", low=0, high=1
    )


class UnitConvolution(nn.Module):
    """The vector V_U of each word: a convolution over the embeddings of its dependency unit, max-pooling and tanh.

    A unit has a fixed number of places; a learned vector fills unused ones.

    Args:
        embed_dim: the size of word embeddings
        channels: the size of V_U
        kernel: the width of the convolution in words
        unit_size: the number of places in a unit
    """

    def __init__(self, embed_dim: int, channels: int, kernel: int = 3, unit_size: int = 10) -> None:
        super().__init__()
        self.kernel, self.unit_size = kernel, unit_size
        self.conv = nn.Conv1d(embed_dim, channels, kernel)
        self.spare = nn.Parameter(torch.empty(embed_dim))
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)

    def forward(self, words: Tensor, members: Tensor) -> Tensor:
        """V_U [W', channels] of units.

        Args:
            words: [W, C], the embeddings of all words
            members: [W', P] int64, the words in each unit, W in unused places; P is at most ``unit_size``
        """
        members = F.pad(members, (0, self.unit_size - members.size(1)), value=words.size(0))
        words = torch.cat((words, self.spare[None].to(words.dtype)))  # [W + 1, C]
        # A word occurs in several units. Its products with the slices of the kernel are computed once; the convolution
        # adds up rows. Only the places of the maxima are evaluated again, with a gradient.
        slices = [F.linear(words, self.conv.weight[:, :, k]) for k in range(self.kernel)]
        with torch.no_grad():
            # [W', places, kernel]: for the k-th weight, rows of the k-th slice
            rows = members.unfold(1, self.kernel, 1) + torch.arange(self.kernel, device=members.device) * len(words)
            values = F.embedding_bag(rows.flatten(0, 1), torch.cat(slices), mode="sum")  # of each place in each unit
            best = values.view(*rows.shape[:2], values.size(1)).argmax(dim=1)  # [W', channels]
        value = torch.stack([s.gather(0, members.gather(1, best + k)) for k, s in enumerate(slices)]).sum(dim=0)
        # Applied after the maximum, since a constant and a monotonic function do not change its place.
        return torch.tanh(value + self.conv.bias)  # type: ignore[operator]  # it has a bias


def unit_convolution(options: SDRNMTConfig, embed_dim: int) -> UnitConvolution:
    """The convolution of both models, whose kernel must not be larger than a unit."""
    kernel, places = options.sdrnmt_kernel, options.sdrnmt_unit_size
    if kernel > places:
        message = f"a kernel of {kernel} words sees more than the {places} places of a unit"
        raise SyntaxDataError(message, option="--sdrnmt-kernel", hint="--sdrnmt-unit-size")
    return UnitConvolution(embed_dim, options.sdrnmt_channels, kernel, places)


def unit_vectors(convolution: UnitConvolution, x: Tensor, syntax: SyntaxBatch) -> Tensor:
    """V_U of each word of the batch, and a zero row for "no word": [W + 1, channels].

    Args:
        x: [S, B, C], the embeddings of the tokens; a word's embedding is the mean over its pieces
        syntax: in the columns of ``x``
    """
    members, _ = flat_relatives(syntax, convolution.unit_size, UNIT)
    # Without the row for "no word", which the convolution replaces by its learned vector.
    vectors = convolution(word_means(x, syntax)[:-1], members)
    return F.pad(vectors, (0, 0, 0, 1))


class ConcatenatingEncoder(SyntaxLSTMEncoder):
    """SDRNMT-1: the encoder reads ``[V_x : V_U]`` (Equation 10), where V_U is the word's, and zeros for ``</s>``."""

    def __init__(self, options: SDRNMTConfig, args: Namespace, dictionary: Any, embed_dim: int, **sizes: Any) -> None:
        convolution = unit_convolution(options, embed_dim)
        super().__init__(options, args, dictionary, embed_dim=embed_dim + options.sdrnmt_channels, **sizes)
        self.convolution = convolution

    def embed(self, x: Tensor, syntax: SyntaxBatch | None) -> Tensor:
        assert syntax is not None  # checked by the encoder
        vectors = unit_vectors(self.convolution, x, syntax)
        return torch.cat((x, vectors[syntax.word_of_piece.t()]), dim=2)  # −1, "no word", is the last row


class TwoEncoders(SyntaxLSTMEncoder):
    """SDRNMT-2: a second encoder of the same size reads the words' V_U (Equation 11)."""

    def __init__(self, options: SDRNMTConfig, args: Namespace, dictionary: Any, embed_dim: int, **sizes: Any) -> None:
        convolution = unit_convolution(options, embed_dim)
        super().__init__(options, args, dictionary, embed_dim=embed_dim, **sizes)
        self.convolution = convolution
        self.unit_lstm = LSTM(
            input_size=options.sdrnmt_channels,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            dropout=self.lstm.dropout,
            bidirectional=self.bidirectional,
        )

    def enrich(self, encoded: Encoded, x: Tensor) -> Encoded:
        syntax = encoded.parse
        # [W', B, channels]
        units = unit_vectors(self.convolution, x, syntax)[word_grid(syntax).t()]
        return replace(encoded, second=self.run(self.unit_lstm, units, word_counts(syntax), syntax.n_words))


@dataclass
class PairedMemory(PaddedMemory):
    """The memory of the source states h^e (the first N of 2N rows) and of the unit states d^e (the others).

    ``of_hidden`` is [2, H, H], the W_h of each.
    """

    mixture: Tensor  # [2, 2], (λ, 1 − λ) twice

    def select(self, rows: Tensor) -> PairedMemory:
        return super().select(torch.cat((rows, rows + len(self.bias) // 2)))


class PairedAttention(SourceAttention):
    """One set of weights for both contexts (Equations 12 and 13): ``α̃ = λ α + (1 − λ) α^d``, with the weight λ.

    Both are distributions over source tokens: every piece has the unit state of its word, and ``</s>`` has zeros. Both
    streams of the decoder are computed together: the first N rows of the decoder's state are h, the others h^dep.
    """

    def __init__(self, hidden_size: int, source_size: int, weight: float) -> None:
        super().__init__()
        self.words, self.units = (GlobalAttention(hidden_size, source_size) for _ in range(2))
        self.weight = weight

    def remember(self, encoded: Encoded) -> PairedMemory:
        assert encoded.second is not None  # made by the encoder
        # [W' + 1, B, E]: the last place is zero, for tokens that are not pieces
        units, syntax = F.pad(encoded.second[0], (0, 0, 0, 0, 0, 1)), encoded.parse
        word = syntax.of_word(syntax.word_in_sentence, len(units) - 1)
        padding = encoded.padding.t()
        pair = (
            self.words.remember_places(encoded.states.transpose(0, 1), padding),
            self.units.remember_places(units[word, syntax.rows[:, None]], padding),  # of [B, S, E]
        )
        keys, values, bias = (
            torch.cat(part) for part in zip(*((m.keys.shared, m.values.shared, m.bias) for m in pair))
        )
        of_hidden = DeferredLinear(torch.stack([m.of_hidden.shared for m in pair]))
        shares = [torch.full((2, 1), share, device=bias.device) for share in (self.weight, 1 - self.weight)]
        return PairedMemory(DeferredStates(keys), DeferredStates(values), of_hidden, bias, torch.cat(shares, dim=1))

    def forward(self, hidden: Tensor, memory: PairedMemory, step: int) -> tuple[Tensor, Tensor]:
        separate = F.softmax(memory.keys.dots(hidden, plus=memory.bias), dim=1, dtype=torch.float32)  # [2N, S]
        weights = (memory.mixture @ separate.view(2, -1)).view_as(separate)  # the same in both halves
        # Each half has its own W_h, so there are two products of [N, H] and [H, H].
        of_hidden = memory.of_hidden(hidden.view(2, -1, hidden.size(1))).view_as(hidden)
        return torch.tanh(memory.values.sums(weights, plus=of_hidden)), weights[: len(separate) // 2]


class TwoStreamDecoder(SyntaxLSTMDecoder):
    """SDRNMT-2: the LSTM g runs over the source contexts and, with the same weights, over the unit contexts.

    These are Equations 14 and 15. The prediction uses the sum of both attentional states (Equation 16).
    """

    streams = 2

    def __init__(self, dictionary: Any, attention: SourceAttention, **sizes: Any) -> None:
        super().__init__(dictionary, attention, **sizes)
        size, source = self.hidden_size, self.encoder_output_units
        self.unit_hidden_proj, self.unit_cell_proj = Linear(source, size), Linear(source, size)

    def initial_state(self, encoder_out: Encoded) -> tuple[list[Tensor], list[Tensor]]:
        assert encoder_out.second is not None  # made by the encoder
        hiddens, cells = super().initial_state(encoder_out)
        unit_hiddens, unit_cells = (encoder_out.per_row(s) for s in encoder_out.second[1:])
        unit_hiddens, unit_cells = self.unit_hidden_proj(unit_hiddens), self.unit_cell_proj(unit_cells)
        return (
            [torch.cat(pair) for pair in zip(hiddens, unit_hiddens)],
            [torch.cat(pair) for pair in zip(cells, unit_cells)],
        )

    def merge(self, outs: Tensor) -> Tensor:
        first, second = outs.chunk(2, dim=1)
        return first + second


class SDRNMTModel(SyntaxLSTMModel):
    """Code shared by the two models."""

    config = SDRNMTConfig
    training_needs = inference_needs = frozenset({"tree"})


@register_lstm("sdrnmt1_lstm")
class SDRNMT1(SDRNMTModel):
    """Concatenates the unit vectors with the source embeddings."""

    encoder_class = ConcatenatingEncoder


@register_lstm("sdrnmt2_lstm")
class SDRNMT2(SDRNMTModel):
    """Gives the unit vectors their own encoder, attention and decoder stream."""

    encoder_class, decoder_class = TwoEncoders, TwoStreamDecoder

    @classmethod
    def build_attention(cls, options: SDRNMTConfig, hidden_size: int, source_size: int) -> PairedAttention:
        return PairedAttention(hidden_size, source_size, options.sdrnmt_weight)
