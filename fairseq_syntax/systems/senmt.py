"""SE-NMT: three encoders, over the sentence and over two traversals of its dependency tree.

Wu, Zhou and Zhang (2017), Improved Neural Machine Translation with Source Syntax, IJCAI, as in the comparison of Wang
et al. (2019). Besides the sequential encoder, a second one reads the words in post-order, so that a word's state covers
its subtree (child-enriched), and a third one in pre-order, so that it covers the words above it (head-enriched). The
decoder attends to the concatenated three states.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.lstm import LSTM
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.lstm import SyntaxLSTMEncoder, SyntaxLSTMModel, register_lstm, run_sorted
from fairseq_syntax.model.lstm_attention import Encoded
from fairseq_syntax.model.neighbourhoods import word_counts, word_means
from fairseq_syntax.model.options import SystemConfig, option
from fairseq_syntax.model.trees import Forest


@dataclass
class SENMTConfig(SystemConfig):
    senmt_hidden_size: int | None = option(
        None, "state size of each of the two word encoders", "--encoder-hidden-size", low=1, high=8192
    )


class ThreeEncoders(SyntaxLSTMEncoder):
    """The sequential encoder over pieces, and the child-enriched and the head-enriched one over words."""

    def __init__(self, options: SENMTConfig, args: Namespace, dictionary: Any, embed_dim: int, **sizes: Any) -> None:
        super().__init__(options, args, dictionary, embed_dim=embed_dim, **sizes)
        word_size = options.senmt_hidden_size or self.hidden_size
        self.child_enriched, self.head_enriched = (
            LSTM(embed_dim, word_size, num_layers=self.num_layers, dropout=self.lstm.dropout) for _ in range(2)
        )
        self.attended_units += 2 * word_size

    def enrich(self, encoded: Encoded, x: Tensor) -> Encoded:
        """The annotation of a piece, ``[h_seq : h_child : h_head]``; the last two are its word's, or 0 for ``</s>``."""
        syntax = encoded.parse
        words = word_means(x, syntax)
        forest = Forest(syntax)
        # Packed sequences need the longest lines first; this is the column of each word's line.
        column = syntax.n_words.argsort(descending=True, stable=True).argsort()[syntax.batch_of_word]
        child = self.traverse(self.child_enriched, words, forest.postorder, column, syntax)
        head = self.traverse(self.head_enriched, words, forest.preorder, column, syntax)
        of_words = F.pad(torch.cat((child, head), dim=1), (0, 0, 0, 1))  # and zeros for "no word"
        # −1, "no word", becomes the last row, since embeddings do not accept negative indices.
        of_pieces = F.embedding(syntax.word_of_piece.t() % len(of_words), of_words)
        return replace(encoded, states=torch.cat((encoded.states, of_pieces), dim=2))

    def traverse(self, lstm: nn.LSTM, words: Tensor, place: Tensor, column: Tensor, syntax: SyntaxBatch) -> Tensor:
        """Run an encoder over the words in a given order: the state [W, D] of each word.

        Args:
            words: [W + 1, C], one row per word, and a zero row for "no word"
            place: [W] int64, the place of each word in the order of its line
            column: [W] int64, the column of each word's line, the longest line first
        """
        counts = word_counts(syntax).sort(descending=True).values
        steps, total = int(counts[0]), place.numel()
        at = place * len(counts) + column  # [W], into a flat [steps, B]
        # The word at each place, or the zero row after the end of a line.
        order = at.new_full((steps * len(counts),), total).index_copy(0, at, torch.arange(total, device=at.device))
        states, _, _ = run_sorted(lstm, F.embedding(order.view(steps, -1), words), counts)
        return F.embedding(at, self.dropout_out_module(states).flatten(0, 1))


@register_lstm("senmt_lstm")
class SENMTModel(SyntaxLSTMModel):
    """fairseq's LSTM decoder with attention over the annotations of three encoders."""

    config, encoder_class = SENMTConfig, ThreeEncoders
    training_needs = inference_needs = frozenset({"tree"})
