"""Forced decoding: the probabilities of given translations, as with ``fairseq-generate --score-reference``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fairseq_syntax.data.dataset import SyntaxPairDataset
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.use.base_translator import BaseTranslator, check_lengths, ctranslate2_cannot
from fairseq_syntax.use.translator import Translator

__all__ = ["ForcedDecoder", "TargetScore"]


@dataclass(frozen=True)
class TargetScore:
    """The log-probability (base e) of a target, summed over its ``tokens``, including ``</s>``."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        """The log-probability per token, fairseq's score."""
        return self.total / self.tokens


class ForcedDecoder:
    """Scores given translations with a model or an ensemble.

    Args:
        translator: the models, their task and data
        max_tokens: the maximum size of a batch in source or target tokens, with padding; a longer pair forms a batch by
            itself

    Raises:
        SyntaxDataError: the model runs in CTranslate2, which does not support this
    """

    def __init__(self, translator: BaseTranslator, *, max_tokens: int = 4000) -> None:
        if not isinstance(translator, Translator):
            raise ctranslate2_cannot()
        self.translator, self.task, self.max_tokens = translator, translator.task, max_tokens
        self._input = translator.input()
        self._scorer = self.task.build_generator(translator.models, Namespace(score_reference=True))

    @torch.no_grad()
    def scores(self, sources: Sequence[Sentence], rows: Sequence[tuple[int, str]]) -> Iterator[tuple[int, TargetScore]]:
        """Score translations, batch by batch, from short to long pairs.

        Args:
            sources: raw text or parses
            rows: pairs of a source's 0-based index and its translation as plain text

        Yields:
            the 0-based index of a row, and its score

        Raises:
            SyntaxDataError: the model needs a parse but there is no parser, or a sentence is too long
        """
        encoded = self._input.encode(sources)
        pairs: dict[tuple[int, ...], list[int]] = {}  # rows with equal pieces are scored once, so that they tie
        for row, (source, text) in enumerate(rows):
            target = self.translator.encode_target(text)[1]
            pairs.setdefault((source, *target.tolist()), []).append(row)
        of_pair = [source for source, *_ in pairs]
        targets = [torch.tensor(target) for _, *target in pairs]
        # The source with its parse is repeated for each of its translations, in the order of the pairs.
        repeated = [encoded[source] for source in of_pair]
        tokens = [torch.from_numpy(line.tokens) for line in repeated]
        lengths = list(map(len, tokens))
        check_lengths(lengths, map(len, targets), self.translator.max_positions(), of_pair)
        dataset = SyntaxPairDataset(
            tokens,
            lengths,
            self.task.source_dictionary,
            targets,
            list(map(len, targets)),
            self.task.target_dictionary,
            left_pad_source=self.task.cfg.left_pad_source,
            left_pad_target=False,  # fairseq's scorer indexes target columns from the left
            shuffle=False,
            source_syntax=self._input.dataset(repeated).source_syntax,
        )
        # fairseq rejects pairs that are longer than a batch.
        most = max([self.max_tokens, *lengths, *map(len, targets)])
        batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=most)
        rows_of = list(pairs.values())
        for batch in self.translator.batched(dataset, batches):
            hypotheses = self.task.inference_step(self._scorer, self.translator.models, batch)
            for pair, (hypothesis, *_) in zip(batch["id"].tolist(), hypotheses):
                of_pieces = hypothesis["positional_scores"]
                score = TargetScore(float(of_pieces.double().sum()), of_pieces.numel())
                for row in rows_of[pair]:
                    yield row, score
