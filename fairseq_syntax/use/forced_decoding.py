"""Forced decoding: the probabilities of given translations, as ``fairseq-generate --score-reference``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fairseq_syntax.data.dataset import SyntaxPairDataset
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.use.base import BaseTranslator, check_lengths, no_forced_decoding
from fairseq_syntax.use.translator import Translator

__all__ = ["ForcedDecoder", "TargetScore"]


@dataclass(frozen=True)
class TargetScore:
    """The log-probability (base e) of a target, summed over its ``tokens``, ``</s>`` among them."""

    total: float
    tokens: int

    @property
    def mean(self) -> float:
        """The log-probability per token, fairseq's score."""
        return self.total / self.tokens


class ForcedDecoder:
    """Scores translations of a source by one model, or an ensemble.

    All targets of a source are scored in one batch.

    Args:
        translator: the models, their task and data
        max_tokens: of a batch, source or target, padding counted

    Raises:
        SyntaxDataError: the models run in CTranslate2, which does not score
    """

    def __init__(self, translator: BaseTranslator, *, max_tokens: int = 4000) -> None:
        if not isinstance(translator, Translator):
            raise no_forced_decoding()
        self.translator, self.task, self.max_tokens = translator, translator.task, max_tokens
        self._input = translator.input()
        self._scorer = self.task.build_generator(translator.models, Namespace(score_reference=True))

    @property
    def needs(self) -> frozenset[str]:
        """What the model needs of the source's syntax: ``tree``, ``arcs``, both or nothing."""
        return self._input.needs

    @torch.no_grad()
    def scores(
        self, sources: Sequence[Sentence], targets: Sequence[Sequence[str]]
    ) -> Iterator[tuple[int, list[TargetScore]]]:
        """The scores of each source's targets, batch by batch: short sources first, then longer ones.

        Args:
            sources: raw text or parses
            targets: plain text, any number for each source

        Yields:
            the 0-based number of the source, and the scores of its targets in their order

        Raises:
            SyntaxDataError: the model needs a parse and there is no parser, or a sentence is too long for the model
        """
        tokens, lengths = self._input.encode(sources)
        encoded = [[self.translator.encode_target(text)[1] for text in texts] for texts in targets]
        longest = [max(map(len, group), default=0) for group in encoded]
        check_lengths(lengths, longest, self.translator.max_positions(), range(len(encoded)))
        of_row = [number for number, group in enumerate(encoded) for _ in group]
        flat = [target for group in encoded for target in group]
        self._input.keep(of_row)
        repeated = [tokens[number] for number in of_row], [lengths[number] for number in of_row]
        dataset = SyntaxPairDataset(
            *repeated,
            self.task.source_dictionary,
            flat,
            [target.numel() for target in flat],
            self.task.target_dictionary,
            left_pad_source=self.task.cfg.left_pad_source,
            left_pad_target=False,  # fairseq's scorer counts a target's columns from the left
            source_syntax=self._input.dataset(*repeated).source_syntax,
        )
        end = np.cumsum([len(group) for group in encoded]).tolist()  # of each source's rows
        for batch in self._batches(list(map(max, lengths, longest)), list(map(len, encoded))):
            of_source = {number: range(end[number] - len(encoded[number]), end[number]) for number in batch}
            scores = self._score(dataset, [row for rows in of_source.values() for row in rows])
            for number, rows in of_source.items():
                yield number, [scores[row] for row in rows]

    def _batches(self, widths: Sequence[int], counts: Sequence[int]) -> Iterator[list[int]]:
        """Numbers of the sources of each batch; all targets of a source are in one.

        Args:
            widths: pieces of the longest of a source and its targets
            counts: of targets
        """
        batch: list[int] = []
        rows = 0
        for number in sorted((i for i, count in enumerate(counts) if count), key=lambda i: (widths[i], i)):
            if batch and (rows + counts[number]) * widths[number] > self.max_tokens:
                yield batch
                batch, rows = [], 0
            batch.append(number)
            rows += counts[number]
        if batch:
            yield batch

    def _score(self, dataset: SyntaxPairDataset, rows: Sequence[int]) -> dict[int, TargetScore]:
        (sample,) = self.translator.batched(dataset, [rows])
        scores = {}
        hypotheses = self.task.inference_step(self._scorer, self.translator.models, sample)
        for row, (hypothesis, *_) in zip(sample["id"].tolist(), hypotheses):
            of_pieces = hypothesis["positional_scores"]
            scores[row] = TargetScore(float(of_pieces.double().sum()), of_pieces.numel())
        return scores
