"""SE-NMT: three encoders, over the sentence and over two traversals of its dependency tree.

Wu, Zhou and Zhang (2017), Improved Neural Machine Translation with Source Syntax, IJCAI, as Wang et al. (2019) compare
with it. Beside the sequence, an encoder reads the words in post-order, so that a word's state knows its subtree
(child-enriched), and another in pre-order, so that it knows the words above it (head-enriched). The decoder attends to
all three states of a word at once.
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
from fairseq_syntax.model.lstm_attention import Encoded, GlobalAttention
from fairseq_syntax.model.neighbourhoods import word_counts, word_means
from fairseq_syntax.model.options import SystemConfig, option, read_options
from fairseq_syntax.model.trees import Forest


class ThreeEncoders(SyntaxLSTMEncoder):
    """The sequential encoder over pieces, and the child-enriched and the head-enriched one over words.

    Args:
        dictionary, options: as in fairseq
        embed_dim: of the pieces, and so of the words
        word_size: states of each of the two encoders over words
    """

    def __init__(self, dictionary: Any, word_size: int, embed_dim: int, **options: Any) -> None:
        super().__init__(dictionary, embed_dim=embed_dim, **options)
        self.child_enriched, self.head_enriched = (
            LSTM(embed_dim, word_size, num_layers=self.num_layers, dropout=self.lstm.dropout) for _ in range(2)
        )

    def enrich(self, encoded: Encoded, x: Tensor) -> Encoded:
        """The annotation of a piece: ``[h_seq : h_child : h_head]``, the last two of its word; zeros for ``</s>``."""
        syntax = encoded.parse
        words = word_means(x, syntax)
        forest = Forest(syntax)
        # The longest lines first, as a packed sequence wants them: the column of each word's line.
        column = syntax.n_words.argsort(descending=True, stable=True).argsort()[syntax.batch_of_word]
        child = self.traverse(self.child_enriched, words, forest.postorder, column, syntax)
        head = self.traverse(self.head_enriched, words, forest.preorder, column, syntax)
        of_words = F.pad(torch.cat((child, head), dim=1), (0, 0, 0, 1))  # and zeros for what is no word
        # −1, no word, becomes the last row: an embedding takes no negative index.
        of_pieces = F.embedding(syntax.word_of_piece.t() % len(of_words), of_words)
        return replace(encoded, states=torch.cat((encoded.states, of_pieces), dim=2))

    def traverse(self, lstm: nn.LSTM, words: Tensor, place: Tensor, column: Tensor, syntax: SyntaxBatch) -> Tensor:
        """Run an encoder over the words in an order of its own.

        Args:
            lstm: the encoder
            words: [W + 1, C], flat, and zeros for places that are no word
            place: [W] int64, the place of each word in its line's order
            column: [W] int64, that of each word's line, the longest first
            syntax: the batch's syntax

        Returns:
            [W, D], the state of each word
        """
        counts = word_counts(syntax).sort(descending=True).values
        steps, total = int(counts[0]), place.numel()
        at = place * len(counts) + column  # [W], into a flat [steps, B]
        # The word at each place; the row of zeros where a line has ended.
        order = at.new_full((steps * len(counts),), total).index_copy(0, at, torch.arange(total, device=at.device))
        states, _, _ = run_sorted(lstm, F.embedding(order.view(steps, -1), words), counts)
        return F.embedding(at, self.dropout_out_module(states).flatten(0, 1))


@dataclass
class SENMTConfig(SystemConfig):
    """The option of SE-NMT."""

    senmt_hidden_size: int | None = option(
        None, "state size of each of the two word encoders", "--encoder-hidden-size", low=1, high=8192
    )


@register_lstm("senmt_lstm")
class SENMTModel(SyntaxLSTMModel):
    """fairseq's LSTM decoder with attention, over the annotations of three encoders."""

    config = SENMTConfig
    training_needs = inference_needs = frozenset({"tree"})

    @classmethod
    def build_encoder(cls, args: Namespace, dictionary: Any, **options: Any) -> SyntaxLSTMEncoder:
        return ThreeEncoders(dictionary, cls.states(args), **options)

    @classmethod
    def build_attention(cls, args: Namespace, hidden_size: int, source_size: int) -> GlobalAttention:
        return GlobalAttention(hidden_size, source_size + 2 * cls.states(args))

    @classmethod
    def states(cls, args: Namespace) -> int:
        """The number of states of an encoder over words."""
        size = read_options(SENMTConfig, args).senmt_hidden_size
        return args.encoder_hidden_size if size is None else size
