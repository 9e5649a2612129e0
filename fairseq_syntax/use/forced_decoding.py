"""How probable are given translations? Forced decoding, as ``fairseq-generate --score-reference`` does it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from fairseq import utils

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.parsing.base import Parser
from fairseq_syntax.data.batch import PackedSyntax
from fairseq_syntax.data.dataset import SideSyntax, SyntaxPairDataset
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.use.base import BaseTranslator

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
        parser: parses raw text (default: the translator's)
        max_tokens: of a batch, source or target, padding counted

    Raises:
        SyntaxDataError: the models run in CTranslate2, which does not score
    """

    def __init__(self, translator: BaseTranslator, *, parser: Parser | None = None, max_tokens: int = 4000) -> None:
        self.models, self.task = translator.models, translator.task
        if not self.models:
            raise SyntaxDataError(
                "CTranslate2 does not score given translations",
                hint="score them with the checkpoint, or with its export for fairseq",
            )
        self.max_tokens = max_tokens
        self._input = translator.input(parser)
        self.check_parses = self._input.check_parses
        self._scorer = self.task.build_generator(self.models, Namespace(score_reference=True))
        self._device = next(self.models[0].parameters()).device

    @property
    def needs(self) -> frozenset[str]:
        """What the model needs of the source's syntax: ``tree``, ``arcs``, both or nothing."""
        return self._input.needs

    def parse(self, sentences: Sequence[str]) -> list[ParsedLine]:
        """The parses of raw sentences."""
        return self._input.parse(sentences)

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
        known = [[self._target(text) for text in own] for own in targets]
        self._check_lengths(lengths, known)
        of_row = [number for number, own in enumerate(known) for _ in own]
        flat = [target for own in known for target in own]
        syntax = self._input.dataset(tokens, lengths).source_syntax
        dataset = SyntaxPairDataset(
            [tokens[number] for number in of_row],
            [lengths[number] for number in of_row],
            self.task.source_dictionary,
            flat,
            [target.numel() for target in flat],
            self.task.target_dictionary,
            left_pad_source=self.task.cfg.left_pad_source,
            left_pad_target=False,  # fairseq's scorer counts a target's columns from the left
            source_syntax=None if syntax is None else _OfRows(syntax, of_row),
        )
        first_row = [0]
        for own in known:
            first_row.append(first_row[-1] + len(own))
        for batch in self._batches(lengths, known):
            rows = [row for number in batch for row in range(first_row[number], first_row[number + 1])]
            scores = self._score(dataset, rows)
            for number in batch:
                yield number, [scores[row] for row in range(first_row[number], first_row[number + 1])]

    def _target(self, text: str) -> torch.Tensor:
        segmenter = self.task.target_segmenter
        pieces = segmenter.encode_text(text) if segmenter else text.split()
        return self.task.target_dictionary.encode_line(" ".join(pieces), add_if_not_exist=False).long()

    def _check_lengths(self, lengths: Sequence[int], targets: Sequence[Sequence[torch.Tensor]]) -> None:
        limits = utils.resolve_max_positions(
            self.task.max_positions(), *(cast(Any, m).max_positions() for m in self.models)
        )
        for number, (length, own) in enumerate(zip(lengths, targets)):
            for found, limit, side in zip((length, max(map(len, own), default=0)), limits, ("source", "target")):
                if found > limit:
                    raise SyntaxDataError(
                        f"{side} {number + 1} has {found} pieces, and the model takes {limit}",
                        hint="leave it out, or split it",
                    )

    def _batches(self, lengths: Sequence[int], targets: Sequence[Sequence[torch.Tensor]]) -> Iterator[list[int]]:
        """Numbers of the sources of each batch; all targets of a source are in one."""
        widths = [max([length, *map(len, own)]) for length, own in zip(lengths, targets)]
        batch: list[int] = []
        rows = 0
        for number in sorted((i for i, own in enumerate(targets) if own), key=lambda i: (widths[i], i)):
            more = len(targets[number])
            if batch and (rows + more) * widths[number] > self.max_tokens:
                yield batch
                batch, rows = [], 0
            batch.append(number)
            rows += more
        if batch:
            yield batch

    def _score(self, dataset: SyntaxPairDataset, rows: Sequence[int]) -> dict[int, TargetScore]:
        sample: dict[str, Any] = dataset.collater([dataset[row] for row in rows])
        if self._device.type == "cuda":
            sample = utils.move_to_cuda(sample, self._device)
        found = self.task.inference_step(self._scorer, self.models, sample)
        scores = {}
        for row, (hypothesis, *_) in zip(sample["id"].tolist(), found):
            each = hypothesis["positional_scores"]
            scores[row] = TargetScore(float(each.double().sum()), each.numel())
        return scores


class _OfRows(SideSyntax):
    """The syntax of rows that share sources."""

    def __init__(self, syntax: SideSyntax, of_row: Sequence[int]) -> None:
        super().__init__(syntax.stores, [1] * len(syntax.stores), arcs=syntax.arcs)
        self._of_row = torch.tensor(of_row, dtype=torch.long)

    def __len__(self) -> int:
        return len(self._of_row)

    def collate(self, ids: torch.Tensor) -> PackedSyntax:
        """The syntax of the sources of the rows ``ids`` [B]."""
        return super().collate(self._of_row[ids])
