"""Language tokens of multilingual models: symbols beside the sentence, which are not words of it.

Data stay ``x </s>``, with or without a parse. The encoder or decoder itself adds the token, so no parse, alignment,
loss or output ever sees it:

- The encoder has one more column, directly after ``</s>``. If the model expects the token before the sentence, that
  column has the first position and all others have the next one; attention has no other order, so the states are the
  same. Columns of pieces do not move, and to the systems the new column is a second ``</s>``, which is in no word.
- The decoder reads the token after the start, and what it would predict in its place is dropped: the token costs
  nothing, and no loss trains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from fairseq_syntax.model.attention import IncrementalState


def inserted(tokens: Tensor, column: Tensor, token: int) -> Tensor:
    """Tokens [B, T + 1] from tokens [B, T], with one more before the given column [B, 1] of each row."""
    at = torch.arange(tokens.size(1) + 1, device=tokens.device).expand(len(tokens), -1)
    # The place T is taken only where the new token is the last.
    taken = (at - at.gt(column).long()).clamp(max=tokens.size(1) - 1)
    return tokens.gather(1, taken).masked_fill(at.eq(column), token)


def first_column(tokens: Tensor, pad: int) -> Tensor:
    """The first column [B, 1] that is not padding."""
    return tokens.ne(pad).int().argmax(dim=1, keepdim=True)


class SourceLanguage:
    """The source's language token.

    Args:
        token: its id
        last: whether its position follows ``</s>``; otherwise it precedes the sentence
        pad, end: the ids of padding and ``</s>``
    """

    def __init__(self, token: int, last: bool, pad: int, end: int) -> None:
        self.token, self._last, self._pad, self._end = token, last, pad, end

    def column(self, tokens: Tensor) -> Tensor:
        """The column [B, 1] of the token, in tokens [B, T] without it."""
        return first_column(tokens, self._pad) + tokens.ne(self._pad).sum(dim=1, keepdim=True)

    def add(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, T + 1] with the token, and with ``</s>`` in its place, from [B, T] padded on either side."""
        column = self.column(tokens)
        return inserted(tokens, column, self.token), inserted(tokens, column, self._end)

    def positions(self, positions: Tensor, tokens: Tensor) -> Tensor:
        """The position embeddings [B, T + 1, C] of the columns, from those of the order in which they stand.

        Args:
            tokens: [B, T + 1], with the token
        """
        if self._last:
            return positions
        real = tokens.ne(self._pad)
        start = first_column(tokens, self._pad)
        language = start + real.sum(dim=1, keepdim=True) - 1
        at = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        place = torch.where((at >= start) & (at < language), at + 1, torch.where(at.eq(language), start, at))
        return positions.gather(1, place[:, :, None].expand_as(positions))


class LanguageDecoder(TransformerDecoderBase):
    """fairseq's decoder that reads a language token after the start of each translation.

    Attributes:
        target_language: the token's id
    """

    target_language: int

    def max_positions(self) -> int:
        """The maximum length of a target, without the token."""
        return int(super().max_positions()) - 1

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Mapping[str, Any] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's features [B, T, C] and extras of tokens [B, T], without those of the start."""
        options = full_context_alignment, alignment_layer, alignment_heads
        start = first_column(prev_output_tokens, self.padding_idx)
        tokens = inserted(prev_output_tokens, start + 1, self.target_language)
        if incremental_state is not None:
            if prev_output_tokens.size(1) == 1:  # of a new search: the start first, which must not see what follows
                super().extract_features(prev_output_tokens, encoder_out, incremental_state, *options)
            features: tuple[Tensor, dict[str, Any]]
            features = super().extract_features(tokens, encoder_out, incremental_state, *options)
            return features
        x, extra = super().extract_features(tokens, encoder_out, None, *options)
        attention = [None if one is None else one[:, 1:] for one in extra["attn"]]
        return x[:, 1:], {**extra, "attn": attention, "inner_states": [state[1:] for state in extra["inner_states"]]}
