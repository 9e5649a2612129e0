"""Tree2Seq: an encoder over the dependency tree, bottom-up and top-down.

After Eriguchi, Hashimoto and Tsuruoka (2016), Tree-to-Sequence Attentional Neural Machine Translation, ACL, who encode
phrase structure bottom-up, and Chen, Huang, Chiang and Chen (2017), Improved Neural Machine Translation with a
Syntax-Aware Encoder and Decoder, ACL, who add the top-down direction. Here the nodes are the words of the dependency
tree, and the bottom-up encoder is the child-sum Tree-LSTM of Tai, Socher and Manning (2015), section 3.1.

Each level of the tree is one step for all sentences of the batch.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.lstm import Linear
from torch import Tensor, nn

from fairseq_syntax.model.loop_gradients import DeferredLinear
from fairseq_syntax.model.lstm import SyntaxLSTMEncoder, SyntaxLSTMModel, register_lstm
from fairseq_syntax.model.lstm_attention import Encoded, GlobalAttention, words_to_pieces
from fairseq_syntax.model.neighbourhoods import word_grid, word_means
from fairseq_syntax.model.options import SystemConfig, option
from fairseq_syntax.model.trees import Forest


@dataclass
class Tree2SeqConfig(SystemConfig):
    tree2seq_bottom_up: bool = option(False, "bottom-up states only", "")


class ChildSumTreeLSTM(nn.Module):
    """The bottom-up encoder: the child-sum Tree-LSTM (Tai et al. 2015, Equations 2 to 8)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.input = Linear(size, 4 * size)  # W and b of f, i, u, o
        self.forget = Linear(size, size, bias=False)  # U of f, applied to each child
        self.others = Linear(size, 3 * size, bias=False)  # U of i, u, o, applied to the sum over the children

    def forward(self, x: Tensor, forest: Forest) -> tuple[Tensor, Tensor]:
        """The states h and c of all nodes from their inputs ``x``; all [W, E], in the order of ``forest.by_level``."""
        forget, others = DeferredLinear(self.forget.weight), DeferredLinear(self.others.weight)
        levels = self.input(x).split(forest.level_sizes)
        # For each level, the parents in it of the next level's nodes. The deepest level is followed by an empty one.
        parents = [*forest.parent_in_level[1:], forest.parent[:0]]
        hiddens, cells = [levels[0][:0, : self.size]], [levels[0][:0, : self.size]]
        for level, parent in zip(reversed(levels), reversed(parents)):
            of_forget, gates = level.split((self.size, 3 * self.size), dim=1)
            below = torch.zeros_like(of_forget).index_add(0, parent, hiddens[-1])  # Equation 2
            gates = others(below, plus=gates)
            kept = torch.sigmoid(of_forget[parent] + forget(hiddens[-1])) * cells[-1]  # Equation 4: the f of each child
            input_gate, cell_gate, output_gate = gates.chunk(3, dim=1)
            cell = torch.sigmoid(input_gate) * torch.tanh(cell_gate)
            cells.append(cell.index_add(0, parent, kept))  # Equation 7
            hiddens.append(torch.sigmoid(output_gate) * torch.tanh(cells[-1]))
        return torch.cat(hiddens[::-1]), torch.cat(cells[::-1])


class TopDownGRU(nn.Module):
    """The top-down encoder (Chen et al. 2017): a GRU whose input is the node's bottom-up state.

    Its previous state is the top-down state of the parent, or zeros for a root.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(size, size)
        for p in self.cell.parameters():
            nn.init.uniform_(p, -0.1, 0.1)

    def forward(self, x: Tensor, forest: Forest) -> Tensor:
        """The top-down states of all nodes from their bottom-up states ``x``; both [W, E], in the order of levels."""
        # The cell is written out, since its products with the inputs are one product for all levels.
        size = self.cell.hidden_size
        of_hidden = DeferredLinear(self.cell.weight_hh)
        levels = F.linear(x, self.cell.weight_ih, self.cell.bias_ih).split(forest.level_sizes)
        states = [levels[0].new_zeros(1, size)]  # the parent of roots is index 0 of a level above them
        for level, parent in zip(levels, forest.parent_in_level):
            above = states[-1][parent]
            # Computed once for each parent, then selected for its children.
            of_above = (of_hidden(states[-1]) + self.cell.bias_hh.to(x.dtype))[parent]
            gates = torch.sigmoid(level[:, : 2 * size] + of_above[:, : 2 * size])
            reset, update = gates.chunk(2, dim=1)
            new = torch.tanh(level[:, 2 * size :] + reset * of_above[:, 2 * size :])
            states.append(new + update * (above - new))  # (1 − z) n + z h
        return torch.cat(states[1:])


class BinaryTreeLSTM(nn.Module):
    """A node over two children (Tai et al. 2015, Equations 9 to 14 with N = 2, no input) that starts the decoder."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates = Linear(2 * size, 5 * size)

    def forward(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The node's h and c, [B, E] each, from those of its children."""
        gates = self.gates(torch.cat((left[0], right[0]), dim=1))
        input_gate, forget_left, forget_right, cell_gate, output_gate = gates.chunk(5, dim=1)
        cell = torch.sigmoid(input_gate) * torch.tanh(cell_gate)
        cell = cell + torch.sigmoid(forget_left) * left[1] + torch.sigmoid(forget_right) * right[1]
        return torch.sigmoid(output_gate) * torch.tanh(cell), cell


class TreeEncoder(SyntaxLSTMEncoder):
    """The sequential encoder over pieces, followed by the encoder over the tree, whose nodes are words.

    The input of a node is the mean of its word's sequential states. Nodes follow the tokens in the encoded states.
    """

    def __init__(self, options: Tree2SeqConfig, args: Namespace, dictionary: Any, **sizes: Any) -> None:
        super().__init__(options, args, dictionary, **sizes)
        self.up = ChildSumTreeLSTM(self.output_units)
        self.down = None if options.tree2seq_bottom_up else TopDownGRU(self.output_units)
        self.start = nn.ModuleList(BinaryTreeLSTM(self.output_units) for _ in range(self.num_layers))

    def enrich(self, encoded: Encoded, x: Tensor) -> Encoded:
        syntax = encoded.parse
        forest = Forest(syntax)
        up, cells = self.up(word_means(encoded.states, syntax)[forest.by_level], forest)
        nodes = self.dropout_out_module(up if self.down is None else self.down(up, forest))
        # From levels back to lines: each word's index in the order of levels, and one past the end for "no word".
        total, place = forest.by_level.numel(), torch.empty_like(forest.by_level)
        place[forest.by_level] = torch.arange(total, device=place.device)
        place = F.pad(place, (0, 1), value=total)[word_grid(syntax).t()]  # [W', B], indices in the order of levels
        states = torch.cat((encoded.states, F.pad(nodes, (0, 0, 0, 1))[place]))  # [S + W', B, E]
        padding = torch.cat((encoded.padding, place == total))

        roots = slice(forest.level_sizes[0])  # the first level, with one root per sentence of a line
        line = syntax.batch_of_word[forest.by_level[roots]]
        root = _means(up[roots], line, syntax.size[0]), _means(cells[roots], line, syntax.size[0])
        starts = [start(last, root) for start, last in zip(self.start, zip(encoded.hiddens, encoded.cells))]
        hiddens, cells = (torch.stack(part) for part in zip(*starts))
        return replace(encoded, states=states, padding=padding, hiddens=hiddens, cells=cells)


def _means(states: Tensor, line: Tensor, lines: int) -> Tensor:
    """The mean [B, E] of the states [N, E] that belong to each line (``line`` [N]); zeros if there are none."""
    # bincount would synchronize with a GPU
    count = line.new_zeros(lines).index_add(0, line, torch.ones_like(line)).clamp(min=1)
    return states.new_zeros(lines, states.size(1)).index_add(0, line, states) / count[:, None].to(states.dtype)


class TreeAttention(GlobalAttention):
    """Attention over tokens and nodes, with a single softmax and the same parameters for both."""

    def over_source(self, weights: Tensor, encoded: Encoded) -> Tensor:
        """Attention over pieces; a node's weight is divided equally among the pieces of its word."""
        tokens = encoded.parse.size[1]
        return weights[:, :, :tokens] + words_to_pieces(weights[:, :, tokens:], encoded)


@register_lstm("tree2seq_lstm")
class Tree2SeqModel(SyntaxLSTMModel):
    """A tree encoder on top of a sequential one; the decoder attends to both and starts from both."""

    config, encoder_class = Tree2SeqConfig, TreeEncoder
    training_needs = inference_needs = frozenset({"tree"})

    @classmethod
    def build_attention(cls, options: Tree2SeqConfig, hidden_size: int, source_size: int) -> TreeAttention:
        return TreeAttention(hidden_size, source_size)
