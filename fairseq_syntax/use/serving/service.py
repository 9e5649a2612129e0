"""Parsing and translation of requests, with one thread for the parser and one per model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from fairseq_syntax.corpus.conllu import ParsedLine, text_of
from fairseq_syntax.corpus.words import has_no_spaces
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.sentences import Sentence, unparsed
from fairseq_syntax.use.base_translator import Translation
from fairseq_syntax.use.serving.batching import BatchWorker
from fairseq_syntax.use.serving.messages import Alignment, Hypothesis, Parse, TranslateAnswer, TranslateRequest
from fairseq_syntax.use.serving.prometheus import Metrics
from fairseq_syntax.use.serving.served_models import ServedModel, Source

if TYPE_CHECKING:
    from fairseq_syntax.inference.search_control import OnStep

logger = logging.getLogger(__name__)
# The most in a batch, padding included: words for the parser, and words times beam size for a model.
PARSE_WORDS, SEARCH_WORDS = 1024, 8192


class Service:
    """Parses and translates the sentences of concurrent requests.

    Args:
        models: at least one; the first is the default of requests
        source: the parser for sentences that come without a parse
        capacity: the maximum number of pending translations (sentences times models)
        batch_size: the maximum number of sentences in a batch
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        source: Source,
        *,
        capacity: int = 1024,
        batch_size: int = 32,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.default = models[0].name
        self.source, self.capacity = source, capacity
        self.accepted = 0
        self.metrics = Metrics(lambda: self.accepted, capacity)
        common: dict[str, Any] = {"size": batch_size, "running": []}
        self._parsing = BatchWorker("parse", self._parse_batch, weight=PARSE_WORDS, **common)
        self._translating = {
            name: BatchWorker(f"translate {name}", self._translate_batch, weight=SEARCH_WORDS, **common)
            for name in self.models
        }

    def close(self, seconds: float | None = None) -> None:
        """Finish the accepted work, as far as some seconds allow, and end the threads."""
        for stage in (self._parsing, *self._translating.values()):
            stage.close(seconds)

    async def translate(self, request: TranslateRequest, deadline: float = float("inf")) -> TranslateAnswer:
        """Answer a request. Cancelling it removes its work from the queues and ends its searches.

        Args:
            deadline: on the clock of ``time.monotonic``; the request is cancelled afterwards

        Raises:
            SyntaxDataError: a sentence cannot be parsed or translated, or a model is unknown
            HTTPException: 503 if the capacity is exhausted
        """
        models = list(dict.fromkeys(request.model or [self.default]))
        for name in models:
            if name not in self.models:
                raise SyntaxDataError(f"no model {name!r}; there are: {', '.join(self.models)}")
        amount = len(request.sentences) * len(models)
        if amount > self.capacity:
            message = f"{amount} translations at once, more than the {self.capacity} that may wait"
            raise SyntaxDataError(message, hint="send fewer sentences")
        if self.accepted + amount > self.capacity:
            reason = f"{self.accepted} translations are waiting; try again later"
            raise HTTPException(503, reason, {"retry-after": "1"})
        # No lock is needed, since the event loop handles all requests in one thread.
        self.accepted += amount
        try:
            return await self._answer(request, models, {"request": object(), "deadline": deadline})
        finally:
            self.accepted -= amount

    async def _answer(self, request: TranslateRequest, models: list[str], turn: dict[str, Any]) -> TranslateAnswer:
        """Parse and translate an accepted request; ``turn``: its arguments of :meth:`.batching.Stage.submit`."""
        parsed = await _all(self._parse(sentence, models, turn) for sentence in request.sentences)
        beam = max(request.beam, request.nbest)
        languages = request.source_name, request.target_name
        for name in models if any(languages) else ():
            self.models[name].check_languages(*languages)
        keys = [("search", model, beam, request.alignments, languages) for model in models]
        if request.attention:  # validation ensures one sentence and one model
            keys.append(("attention", models[0], beam, False, languages))
        results = await _all(
            asyncio.wrap_future(self._translating[key[1]].submit(s, key=key, weight=beam * _length(s), **turn))
            for key in keys
            for s in parsed
        )
        rows = [results[start : start + len(parsed)] for start in range(0, len(results), len(parsed))]
        without_parse: list[int] = []
        if any(self.models[name].needs for name in models):
            without_parse = [i for i, line in enumerate(parsed) if isinstance(line, str) or not line.parsed]
            self.metrics.unparsed.inc(len(without_parse))
        return TranslateAnswer(
            translations=[
                hypothesis
                for number in range(len(parsed))
                for model, row in zip(models, rows)
                for hypothesis in _hypotheses(row[number][: request.nbest], number, model)
            ],
            sources=[sentence if isinstance(sentence, str) else text_of(sentence) for sentence in parsed],
            parses=_parses(parsed) if request.tree else None,
            attention=rows[-1][0] if request.attention else None,
            without_parse=without_parse,
        )

    async def _parse(
        self, sentence: str | list[str] | ParsedLine, models: list[str], turn: dict[str, Any]
    ) -> str | ParsedLine:
        """Parse a sentence; without a parser, only convert it to a form that the models accept."""
        if isinstance(sentence, ParsedLine):
            return sentence
        without = sentence if isinstance(sentence, str) else unparsed(sentence)
        if self.source.parser is not None:
            parsing = asyncio.wrap_future(self._parsing.submit(sentence, weight=_length(sentence), **turn))
            try:
                return await asyncio.wait_for(parsing, self.source.timeout if self.source.neutral else None)
            except Exception as error:  # a parser can raise anything; includes TimeoutError
                if not self.source.neutral:
                    raise
                reason = str(error) or type(error).__name__
                logger.warning("%.60r is translated without a parse: %s", sentence, reason)
                return without
        needing = [name for name in models if self.models[name].needs]
        if needing and not self.source.neutral:
            message = f"this server has no parser, and {', '.join(needing)} cannot translate without a parse"
            raise SyntaxDataError(message, hint="send CoNLL-U")
        return without

    # -- in the threads of the stages ------------------------------------------------------------------------------

    def _parse_batch(self, key: Any, sentences: list[Any], on_step: OnStep, nested: bool) -> Sequence[ParsedLine]:
        assert self.source.parser is not None
        self.metrics.parsed.observe(len(sentences))
        return self.source.parser.parse(sentences)

    def _translate_batch(
        self, key: tuple[str, str, int, bool, tuple[str, str]], sentences: list[Sentence], on_step: OnStep, nested: bool
    ) -> Sequence[Any]:
        kind, name, beam, alignments, languages = key
        model = self.models[name]
        if kind == "attention":
            return [model.attention(sentence, beam, on_step, nested, languages) for sentence in sentences]
        self.metrics.translated.labels(name).observe(len(sentences))
        return model.translations(sentences, beam, alignments, on_step, nested, languages)


async def _all(coroutines: Iterable[Any]) -> list[Any]:
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


def _parses(parsed: Sequence[Sentence]) -> list[Parse | None]:
    """The parses as in the response; None for a sentence without one."""
    lines = [line if isinstance(line, ParsedLine) and line.parsed else None for line in parsed]
    numbered = any(line is not None and len(line.sentences) > 1 for line in lines)
    return [None if line is None else Parse.of(line, i, numbered=numbered) for i, line in enumerate(lines)]


def _hypotheses(translations: Sequence[Translation], number: int, model: str) -> Iterator[Hypothesis]:
    for rank, translation in enumerate(translations):
        words, fields = translation.alignment, vars(translation)
        if words is not None:
            fields = {**fields, "alignment": Alignment(**words.as_json(), pharaoh=words.pharaoh())}
        yield Hypothesis(**fields, sentence=number, model=model, rank=rank)
