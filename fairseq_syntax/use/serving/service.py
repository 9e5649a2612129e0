"""Parsing and translation of requests, with one thread for the parser and one per model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException

from fairseq_syntax.corpus.conllu import ParsedLine, text_of
from fairseq_syntax.corpus.words import has_no_spaces
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.search_control import OnStep
from fairseq_syntax.inference.sentences import unparsed
from fairseq_syntax.use.serving.batching import RunningBatches, Stage
from fairseq_syntax.use.serving.messages import (
    Alignment,
    FromConllu,
    FromText,
    FromTokens,
    Hypothesis,
    Parse,
    TranslateAnswer,
)
from fairseq_syntax.use.serving.metrics import Metrics
from fairseq_syntax.use.serving.models import ServedModel, Source
from fairseq_syntax.use.translator import Translation

logger = logging.getLogger(__name__)


class Service:
    """Parses and translates the sentences of concurrent requests.

    Args:
        models: at least one; the first is the default of requests
        source: the parser for sentences that come without a parse
        capacity: the maximum number of pending translations (sentences times models)
        batch_size: the maximum number of sentences in a batch
        parse_words: the maximum number of words in a batch of the parser, padding included
        search_words: the maximum number of words times beam size in a batch of a model, padding included
        metrics: counts batches
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        source: Source,
        *,
        capacity: int = 1024,
        batch_size: int = 32,
        parse_words: int = 1024,
        search_words: int = 8192,
        metrics: Metrics | None = None,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.default = models[0].name
        self.source, self.capacity = source, capacity
        self.accepted = 0
        self.metrics = metrics or Metrics()
        self.metrics.watch(lambda: self.accepted, capacity)
        running = RunningBatches()
        self._parsing: Stage[str | list[str], ParsedLine] = Stage(
            "parse",
            lambda _, sentences, on_step, nested: source.parse(sentences),
            size=batch_size,
            weight=parse_words,
            batch_done=self.metrics.parsed,
            running=running,
        )
        self._translating: dict[str, Stage[str | ParsedLine, Any]] = {
            name: Stage(
                f"translate {name}",
                self._translate,
                size=batch_size,
                weight=search_words,
                batch_done=self.metrics.translated,
                running=running,
            )
            for name in self.models
        }

    def close(self, seconds: float | None = None) -> None:
        """Finish the accepted work, and end the threads.

        Args:
            seconds: time limit, after which remaining work is cancelled (default: none)
        """
        self._parsing.close(seconds)
        for stage in self._translating.values():
            stage.close(seconds)

    def waiting(self) -> int:
        """The number of accepted items that are still in the queues."""
        return self._parsing.waiting() + sum(stage.waiting() for stage in self._translating.values())

    async def translate(
        self, request: FromText | FromTokens | FromConllu, deadline: float = float("inf")
    ) -> TranslateAnswer:
        """Answer a request. Cancelling it removes its work from the queues and ends its searches.

        Args:
            deadline: on the clock of ``time.monotonic``; the request is cancelled afterwards

        Raises:
            SyntaxDataError: a sentence cannot be parsed or translated, or a model is unknown
            HTTPException: 503 if the capacity is exhausted
        """
        models = self._named(request.model)
        sentences = request.sentences
        with self._accept(len(sentences) * len(models)):
            turn = {"request": object(), "deadline": deadline}  # pydantic's models are not hashable
            parsed = await _all([self._parse(sentence, models, turn) for sentence in sentences])
            beam = max(request.beam, request.nbest)
            work = [("search", model, beam, request.alignments) for model in models]
            # Validation ensures one sentence and one model.
            if request.attention:
                work.append(("attention", models[0], beam, False))
            rows = await _all([self._work(key, beam, parsed, turn) for key in work])
        return TranslateAnswer(
            translations=[
                hypothesis
                for number in range(len(parsed))
                for model, row in zip(models, rows)
                for hypothesis in _hypotheses(row[number][: request.nbest], number, model)
            ],
            sources=[sentence if isinstance(sentence, str) else text_of(sentence) for sentence in parsed],
            parses=self._answered(parsed, sentences) if request.tree else None,
            attention=rows[-1][0] if request.attention else None,
            without_parse=self._without_parse(parsed, models),
        )

    async def _work(
        self, key: tuple[str, str, int, bool], beam: int, sentences: Sequence[str | ParsedLine], turn: dict[str, Any]
    ) -> list[Any]:
        """Submit sentences to a model's thread."""
        submit = self._translating[key[1]].submit
        return await _all(
            [asyncio.wrap_future(submit(s, key=key, weight=beam * _length(s), **turn)) for s in sentences]
        )

    def _without_parse(self, parsed: Sequence[str | ParsedLine], models: list[str]) -> list[int]:
        """The indices of the sentences that a model which reads a parse translated without one."""
        if not any(self.models[name].needs for name in models):
            return []
        numbers = [number for number, sentence in enumerate(parsed) if isinstance(sentence, str)]
        self.metrics.unparsed(len(numbers))
        return numbers

    def _named(self, names: str | list[str] | None) -> list[str]:
        wanted = [self.default] if names is None else [names] if isinstance(names, str) else list(dict.fromkeys(names))
        for name in wanted:
            if name not in self.models:
                raise SyntaxDataError(f"no model {name!r}; there are: {', '.join(self.models)}")
        return wanted

    @contextmanager
    def _accept(self, amount: int) -> Iterator[None]:
        if amount > self.capacity:
            raise SyntaxDataError(
                f"{amount} translations at once, more than the {self.capacity} that may wait; send fewer sentences"
            )
        if self.accepted + amount > self.capacity:
            reason = f"{self.accepted} translations are waiting; try again later"
            raise HTTPException(503, reason, {"retry-after": "1"})
        # No lock is needed, since the event loop handles all requests in one thread.
        self.accepted += amount
        try:
            yield
        finally:
            self.accepted -= amount

    async def _parse(
        self, sentence: str | list[str] | ParsedLine, models: list[str], turn: dict[str, Any]
    ) -> str | ParsedLine:
        """Parse a sentence; without a parser, only convert it to a form that the models accept."""
        if isinstance(sentence, ParsedLine):
            return sentence
        text = sentence if isinstance(sentence, str) else " ".join(sentence)
        if self.source.parser is not None:
            parsing = asyncio.wrap_future(self._parsing.submit(sentence, weight=_length(sentence), **turn))
            try:
                return await asyncio.wait_for(parsing, self.source.timeout if self.source.neutral else None)
            except Exception as error:  # a parser can raise anything; includes TimeoutError
                if not self.source.neutral:
                    raise
                logger.warning("%r is translated without a parse: %s", text[:60], str(error) or type(error).__name__)
                return text
        needing = [name for name in models if self.models[name].needs]
        if needing and self.source.neutral:
            return text
        if needing:
            raise SyntaxDataError(
                f"this server has no parser, and {', '.join(needing)} cannot translate without a parse",
                hint="send CoNLL-U",
            )
        return sentence if isinstance(sentence, str) else unparsed(sentence)

    def _answered(self, parsed: Sequence[str | ParsedLine], sent: Sequence[Any]) -> list[Parse | None]:
        """The parses as in the response; None if there are none."""
        parses = [
            # Unparsed tokens are lines too, but their heads are meaningless.
            None if isinstance(line, str) or (self.source.parser is None and not isinstance(was, ParsedLine)) else line
            for line, was in zip(parsed, sent)
        ]
        numbered = any(line is not None and len(line.sentences) > 1 for line in parses)
        return [None if p is None else Parse.of(p, number, numbered=numbered) for number, p in enumerate(parses)]

    def _translate(
        self, key: tuple[str, str, int, bool], sentences: list[str | ParsedLine], on_step: OnStep, nested: bool
    ) -> Sequence[Any]:
        """Translate, or compute attention; runs in the model's thread."""
        kind, name, beam, alignments = key
        model = self.models[name]
        if kind == "attention":
            return [model.attention(sentence, beam, on_step, nested) for sentence in sentences]
        return model.translations(sentences, beam, alignments, on_step, nested)


async def _all(coroutines: list[Any]) -> list[Any]:
    """Gather results; if one fails or the call is cancelled, cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        # asyncio.gather alone would let the others continue.
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _length(sentence: str | list[str] | ParsedLine) -> int:
    """The number of words, estimated for text without spaces."""
    if isinstance(sentence, ParsedLine):
        return len(sentence.words)
    if isinstance(sentence, str) and has_no_spaces([sentence]):
        return 1 + len(sentence) // 2
    return len(sentence.split()) if isinstance(sentence, str) else len(sentence)


def _hypotheses(translations: Sequence[Translation], number: int, model: str) -> Iterator[Hypothesis]:
    for rank, translation in enumerate(translations):
        words = translation.alignment
        yield Hypothesis(
            sentence=number,
            model=model,
            rank=rank,
            text=translation.text,
            score=translation.score,
            pieces=translation.pieces,
            cut=translation.cut,
            alignment=None if words is None else Alignment(**words.as_json(), pharaoh=words.pharaoh()),
        )
