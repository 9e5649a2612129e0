"""The models and the parser of a server, each loaded once and used by a single thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax.corpus.header import controls
from fairseq_syntax.corpus.parsing.parser import NO_PARSER, Parser, load_parser, options_as_before
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.inference.spelling import text_of_tokens
from fairseq_syntax.use.base_translator import BaseTranslator, Translation, ctranslate2_cannot
from fairseq_syntax.use.exported import data_for
from fairseq_syntax.use.opening import open_translator
from fairseq_syntax.use.pages.page import exhibit_data
from fairseq_syntax.use.serving.messages import PIECES_A, PIECES_B

if TYPE_CHECKING:
    from fairseq_syntax.inference.search_control import OnStep

logger = logging.getLogger(__name__)
_SEARCHES = 200  # searches that are kept ready: one for each beam and pair of languages


class ServedModel:
    """A model with a name for requests and answers, and a cached search for each beam size."""

    def __init__(self, name: str, translator: BaseTranslator) -> None:
        self.name, self.task = name, translator.task
        self._translator, self._models = translator, translator.models
        self._searches: dict[tuple[Any, ...], BaseTranslator] = {}
        self.languages = translator.languages
        self.needs = translator.needs
        self.source_lang, self.target_lang = str(self.task.cfg.source_lang), str(self.task.cfg.target_lang)
        self.systems: list[str] = []
        if self._models:
            # Here and below: modules that import PyTorch and fairseq.
            from fairseq_syntax.use.plain import systems_of_model

            self.systems = systems_of_model(self._models[0])
        self.shows_attention = bool(self._models)  # CTranslate2 has none to show

    def check_languages(self, source_name: str, target_name: str) -> None:
        """Raise SyntaxDataError if the model does not translate between these languages (empty: its own)."""
        if not self.languages:
            raise SyntaxDataError(f"{self.name} is not multilingual, and translates into {self.target_lang}")
        for name in filter(None, (source_name, target_name)):
            if not any(code == name or code.startswith(f"{name}_") for code in self.languages):
                raise SyntaxDataError(f"{self.name} does not know the language {name}")

    @property
    def parsed_with(self) -> Mapping[str, Any] | None:
        """The options with which the training text was parsed, if known."""
        return self.task.parse_origins.for_raw_text(read=bool(self.task.needs("source")))

    def parameters(self) -> int | None:
        """The number of parameters, summed over the models of an ensemble; None with CTranslate2, which has none."""
        return sum(p.numel() for model in self._models for p in model.parameters()) if self._models else None

    def relations(self) -> list[str]:
        """The model's dependency labels; empty if its data contain no syntax."""
        try:
            return sorted(self.task.labels("source")["deprel"][1:])  # without <unk>
        except (SyntaxDataError, AttributeError, OSError):
            return []

    def translations(
        self,
        sentences: Sequence[Sentence],
        beam: int,
        alignments: bool = False,
        on_step: OnStep | None = None,
        nested: bool = False,
        languages: tuple[str, str] = ("", ""),
    ) -> list[list[Translation] | SyntaxDataError]:
        """Translate sentences: for each, a list of as many translations as the beam is wide, best first, or an error.

        Args:
            on_step: as in :meth:`.translator.Translator.translations`
            nested: whether the call comes from the ``on_step`` of another search, which continues afterwards
            languages: as :meth:`.base_translator.BaseTranslator.with_languages` takes them

        Raises:
            SyntaxDataError: a sentence lacks a part of the parse that the model needs; or the model does not know a
                language
        """
        search = self._search(beam, nested, languages)
        best_first = search.translations(sentences, alignments=alignments, on_step=on_step)
        return [best if best[0].error is None else SyntaxDataError(best[0].error) for best in best_first]

    def _search(self, beam: int, nested: bool, languages: tuple[str, str] = ("", "")) -> BaseTranslator:
        # A translator holds the limits and the callback of its search, so a nested search needs its own.
        key = beam, nested, *languages
        if key not in self._searches:
            lengths = {"max_len_a": PIECES_A, "max_len_b": PIECES_B}
            of_pair = self._translator.with_languages(*languages) if any(languages) else self._translator
            if len(self._searches) > _SEARCHES:
                self._searches.clear()
            self._searches[key] = of_pair.with_search(beam=beam, nbest=beam, **lengths)
        return self._searches[key]

    def attention(
        self,
        sentence: Sentence,
        beam: int,
        on_step: OnStep | None = None,
        nested: bool = False,
        languages: tuple[str, str] = ("", ""),
    ) -> dict[str, Any]:
        """The attention for the best translation of a sentence, and its parse, as in :func:`.page.exhibit_data`.

        The arguments and errors are those of :meth:`translations`; too long a sentence is an error too.
        """
        from fairseq_syntax.use.pages.exhibit import exhibit_of_parse, show_model

        if not self.shows_attention:
            raise ctranslate2_cannot()
        translator = self._search(beam, nested, languages)
        source = self._translator.input()
        encoded = source.encode([sentence])
        # Tags belong to no word, and pieces of text may cross words: then all pieces are shown separately.
        parse = None if source.source_tag or source.cuts_text else encoded[0].parse
        exhibit = exhibit_of_parse(parse, [self.task.source_dictionary[i] for i in encoded[0].tokens.tolist()])
        show_model(exhibit, self.name, translator, source.dataset(encoded), 0, on_step)
        return exhibit_data(exhibit)


@dataclass
class Source:
    """The parser for raw text and tokens, and the behaviour if it fails.

    Attributes:
        neutral: whether a sentence that cannot be parsed is translated without a parse
        timeout: seconds after which an unparsed sentence counts as one that cannot be parsed; None for no limit
    """

    parser: Parser | None
    neutral: bool = False
    timeout: float | None = None


def load_served(
    paths: Mapping[str, str | os.PathLike[str] | Sequence[str]],
    *,
    data: str | None = None,
    device: str | None = None,
    batch_size: int = 32,
    missing_parse: str = "error",
) -> list[ServedModel]:
    """Load models from checkpoints and exported folders.

    Raises:
        SyntaxDataError: a checkpoint is missing or unusable, or the models' source languages differ
    """
    options: dict[str, Any] = {"device": device, "batch_size": batch_size, "missing_parse": missing_parse}
    if data is not None and not any(data_for(path, data) for path in paths.values()):
        raise SyntaxDataError("exported models have their own data", option="--data", hint="leave it out")
    # The models need no parsers of their own, since the service parses.
    models = [
        ServedModel(name, open_translator(path, data_for(path, data), parser_name=NO_PARSER, **options))
        for name, path in paths.items()
    ]
    languages = {model.source_lang for model in models}
    if len(languages) > 1:
        raise SyntaxDataError(
            f"the models' source languages differ: {', '.join(sorted(languages))}", hint="start a server for each"
        )
    return models


def examples_of(model: ServedModel) -> list[str]:
    """Three short example sentences from the model's test or validation data, if available."""
    task = model.task
    for split in ("test", "valid"):
        prefix = task.directory.prefix(split, "source")
        if not os.path.exists(f"{prefix}.idx"):
            continue
        from fairseq_syntax.data.tokens import load_tokens

        dataset, unknown = load_tokens(prefix), task.source_dictionary.unk()
        short = (dataset[int(i)] for i in np.flatnonzero((dataset.sizes > 6) & (dataset.sizes <= 20)))
        chosen = islice((tokens for tokens in short if unknown not in tokens), 3)
        decode = task.segmenter("source"), model.source_lang
        texts = (text_of_tokens(tokens, task.source_dictionary, *decode) for tokens in chosen)
        return list(dict.fromkeys(texts))
    return []


def load_source(
    models: Sequence[ServedModel],
    parser: str,
    lang: str,
    model_dir: str | None,
    *,
    missing_parse: str = "error",
    parse_timeout: float | None = None,
) -> Source:
    """Load the parser for these models.

    The parser returns probabilities if it has them: LDD needs them, and the page shows them.

    Args:
        parser: ``none``, or a value of ``fairseq-syntax parse --parser``; "" for the parser of the training text
        lang: the language of the parser's models; "" for that of the training text
        model_dir: the folder of the parser's models. Without this and ``parser``, no parser is loaded for models that
            need no parse.

    Raises:
        SyntaxDataError: the parser cannot be loaded, and ``missing_parse`` is ``error``
    """
    source = Source(None, missing_parse == "neutral", parse_timeout)
    readers = [model for model in models if model.needs]
    if parser == NO_PARSER or not (readers or parser or model_dir is not None):
        return source
    before = [options for model in readers or models if (options := model.parsed_with) is not None]
    # Control parses first: otherwise their models would get real parses unnoticed.
    before.sort(key=controls, reverse=True)
    first = before[0] if before else None
    if any(other != first for other in before):
        logger.warning("the training texts of these models were parsed with different options; the first are used")
    common: dict[str, Any] = {
        "parser": parser,
        "lang": lang,
        "model_dir": model_dir,
        "source_lang": models[0].source_lang,
    }
    try:
        try:
            source.parser = _tried(load_parser(options_as_before(first, distributions=True, **common), first))
        except SyntaxDataError as error:  # not every parser has probabilities, and maybe no model needs them
            if any("arcs" in model.needs for model in models):
                raise
            source.parser = load_parser(options_as_before(first, distributions=False, **common), first)
            # without the hint, which is how one parses with probabilities
            logger.warning("arcs are served without probabilities, which no model reads: %s", error.message)
    except SyntaxDataError as error:
        if not source.neutral:
            raise
        logger.warning("there is no parser: %s", error)
    return source


def _tried(parser: Parser) -> Parser:
    """The parser, after it has parsed a word: a parser of one's own may show only then that it has no distributions."""
    try:
        parser.parse([["a"]])
    except SyntaxDataError:
        raise
    except Exception as error:  # such as a service that is down now; sentences say so themselves
        logger.warning("the parser %s fails: %s", parser.options.parser, error)
    return parser
