"""The syntactic GCN: graph convolutions over the dependency tree, on the states of any encoder.

Bastings, Titov, Aziz, Marcheggiani and Sima'an (2017), Graph Convolutional Encoders for Syntax-aware Neural Machine
Translation, EMNLP, sections 3 and 4. A word's state is updated from its own, its dependents' and its head's:

    h'_v = ReLU( Σ_{u ∈ N(v)} g_uv (W_dir(u,v) h_u + b_lab(u,v)) ),   g_uv = σ( ŵ_dir(u,v) · h_u + b̂_lab(u,v) )

N(v) contains the dependents of v, its head and v itself. Each layer has a residual connection.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system, remember_labels
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.lstm import SyntaxLSTMEncoder, SyntaxLSTMModel, register_lstm
from fairseq_syntax.model.lstm_attention import Encoded
from fairseq_syntax.model.neighbourhoods import word_means
from fairseq_syntax.model.options import SystemConfig, layer_numbers, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets

WORD_STATES = ("mean", "first")


class GraphConvolution(nn.Module):
    """One layer over states of C (``size``) numbers, without the residual connection.

    Messages are sent along an edge in both directions, with a matrix for each direction and a bias for each direction
    and label. The edge of a word to itself (the loop) has a matrix and a bias too. In training, edges are dropped with
    probability ``edge_dropout``, independently in each direction, and the others are scaled up; loops are not dropped.
    """

    def __init__(self, size: int, num_labels: int, gates: bool = True, edge_dropout: float = 0.0) -> None:
        super().__init__()
        self.edge_dropout = edge_dropout
        # Biases depend on the label; loops have no label.
        self.upward, self.downward, self.loop = (nn.Linear(size, size, bias=i == 2) for i in range(3))
        self.label_bias = nn.Embedding(num_labels, 2 * size)
        self.gate = nn.Linear(size, 3) if gates else None
        self.label_gate = nn.Embedding(num_labels, 2) if gates else None
        for linear in (self.upward, self.downward, self.loop):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.loop.bias)
        nn.init.zeros_(self.label_bias.weight)
        if self.label_gate is not None:
            nn.init.zeros_(self.label_gate.weight)

    def forward(self, h: Tensor, parent: Tensor, label: Tensor) -> Tensor:
        """h' of all words, [W, C].

        Args:
            h: [W, C], the states of the words
            parent: [W] int64, the index of each word's head; for a root, its own index
            label: [W] int64, the label of the edge to the head
        """
        bias_up, bias_down = self.label_bias(label).chunk(2, dim=1)
        up = self.upward(h) + bias_up  # messages from each word to its head
        down = self.downward(h)[parent] + bias_down  # messages to each word from its head
        loop = self.loop(h)
        # [W, 2], up and down; 0 for roots, which have no edge. Dropout is independent for each element.
        edges = (parent != torch.arange(parent.numel(), device=parent.device))[:, None].to(up.dtype).expand(-1, 2)
        weight_up, weight_down = F.dropout(edges, self.edge_dropout, self.training).split(1, dim=1)
        if self.gate is not None and self.label_gate is not None:
            gate_up, gate_down, gate_loop = self.gate(h).split(1, dim=1)
            label_up, label_down = self.label_gate(label).split(1, dim=1)
            weight_up = weight_up * torch.sigmoid(gate_up + label_up)
            weight_down = weight_down * torch.sigmoid(gate_down[parent] + label_down)
            loop = loop * torch.sigmoid(gate_loop)
        total = loop + weight_down * down
        return F.relu(total.index_add(0, parent, weight_up * up))


@dataclass
class GCNConfig(SystemConfig):
    """The options that a Transformer and an LSTM share."""

    gcn_layers: int = option(1, "number of stacked graph convolutions", low=1, high=10)
    gcn_no_gates: bool = option(False, "no gates: all messages have the same weight", "")
    gcn_edge_dropout: float = option(0.0, "probability of dropping an edge in training", low=0, high=1)
    gcn_words: str = option(
        "mean", "how the pieces of a word form its state: their mean, or the first piece", choices=WORD_STATES
    )


class SyntacticGCN(nn.Module):
    """Graph convolutions over the pieces of a batch.

    The state of a word is that of its first piece or the mean over its pieces; the output of the layers is added to all
    its pieces. The states of ``</s>`` and padding do not change.
    """

    def __init__(self, options: GCNConfig, size: int, num_labels: int) -> None:
        super().__init__()
        self.word_state = options.gcn_words
        self.layers = nn.ModuleList(
            GraphConvolution(size, num_labels, not options.gcn_no_gates, options.gcn_edge_dropout)
            for _ in range(options.gcn_layers)
        )

    def forward(self, x: Tensor, syntax: SyntaxBatch) -> Tensor:
        """Map [S, B, C] to [S, B, C]; ``syntax`` has the columns of ``x``."""
        if self.word_state == "mean":
            h = word_means(x, syntax)[:-1]  # without the row for "no word"
        else:
            h = x[syntax.word_start, syntax.batch_of_word]
        added = torch.zeros_like(h)
        for layer in self.layers:
            added = added + layer(h + added, syntax.parent, syntax.word_deprel)
        return x + F.pad(added, (0, 0, 0, 1))[syntax.word_of_piece.t()]  # −1, "no word", is the last row


@dataclass
class GCNBlockConfig(GCNConfig):
    gcn_after: str = option(
        "-1",
        "place of the convolutions: after an encoder layer, from 0, -1 is the top layer; or on the embeddings",
    )


@register_encoder_system("gcn")
class GCNBlock(EncoderSystem):
    """Graph convolutions after a layer of a Transformer encoder, or on its embeddings (with positions)."""

    config = GCNBlockConfig
    training_needs = inference_needs = frozenset({"tree"})

    def __init__(self, options: GCNBlockConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        place = options.gcn_after
        self.after: int | None = None  # the embeddings
        if place != "embeddings":
            if not place.removeprefix("-").isdecimal():
                message = f"must be the number of an encoder layer or embeddings, not {place}"
                raise SyntaxDataError(message, option="--gcn-after")
            (self.after,) = layer_numbers("--gcn-after", place, args.encoder_layers)
        labels = remember_labels(args, task, "deprel")
        self.gcn = SyntacticGCN(options, args.encoder_embed_dim, len(labels))

    def blocks(self) -> Sequence[int | None]:
        return (self.after,)

    def block(self, x: Tensor, step: Step, layer: int | None) -> Tensor:
        return self.gcn(x, step.parse)


register_presets("gcn_transformer", encoder_syntax="gcn")


@dataclass
class GCNEncoderConfig(GCNConfig):
    gcn_after: str = option(
        "encoder",
        "place of the convolutions: on the encoder states or on the embeddings",
        choices=("encoder", "embeddings"),
    )


class GCNEncoder(SyntaxLSTMEncoder):
    """The LSTM encoder with graph convolutions on its states, or on its embeddings."""

    def __init__(self, options: GCNEncoderConfig, args: Namespace, dictionary: Any, **sizes: Any) -> None:
        after = options.gcn_after
        units = sizes["hidden_size"] * (1 + bool(sizes["bidirectional"]))
        size = {"encoder": units, "embeddings": sizes["embed_dim"]}[after]
        gcn = SyntacticGCN(options, size, len(args.source_deprel_labels))
        super().__init__(options, args, dictionary, **sizes)
        self.gcn, self.after = gcn, after

    def embed(self, x: Tensor, syntax: SyntaxBatch | None) -> Tensor:
        if self.after != "embeddings":
            return x
        assert syntax is not None  # checked by the encoder
        return self.gcn(x, syntax)

    def enrich(self, encoded: Encoded, x: Tensor) -> Encoded:
        if self.after != "encoder":
            return encoded
        return replace(encoded, states=self.gcn(encoded.states, encoded.parse))


@register_lstm("gcn_lstm")
class GCNModel(SyntaxLSTMModel):
    """fairseq's LSTM with attention, with graph convolutions in its encoder."""

    config, encoder_class = GCNEncoderConfig, GCNEncoder
    training_needs = inference_needs = frozenset({"tree"})

    @classmethod
    def remember(cls, args: Namespace, task: SyntaxTask) -> None:
        remember_labels(args, task, "deprel")
