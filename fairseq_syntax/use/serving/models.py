"""The models and the parser of a server: loaded once, each used by one thread only."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine, Token, text_of
from fairseq_syntax.corpus.parsing.base import NO_PARSER, Parser, load_parser, options_as_before
from fairseq_syntax.corpus.title import controls
from fairseq_syntax.data.tokens import load_tokens
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.search_control import OnStep
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.inference.spelling import text_of_tokens
from fairseq_syntax.use.attention import Reader
from fairseq_syntax.use.base import BaseTranslator, Translation
from fairseq_syntax.use.pages.exhibit import exhibit_of_parse, show_model
from fairseq_syntax.use.pages.page import exhibit_data
from fairseq_syntax.use.serving.messages import PIECES_A, PIECES_B
from fairseq_syntax.use.translator import Translator

logger = logging.getLogger(__name__)


class ServedModel:
    """A model under its name, with a search for each beam that was asked for.

    Args:
        name: of the model in requests and answers
        translator: the model

    Attributes:
        needs: what it reads of the parse, of ``"tree"`` and ``"arcs"``
        systems: the names of its encoder's and decoder's syntax systems
    """

    def __init__(self, name: str, translator: BaseTranslator) -> None:
        self.name, self.task = name, translator.task
        self._translator, self._models = translator, translator.models
        self._searches: dict[tuple[int, bool], BaseTranslator] = {}
        self.needs = translator.needs
        sides = [getattr(model, side, None) for model in self._models[:1] for side in ("encoder", "decoder")]
        self.systems = [name for side in sides for name in getattr(side, "systems", {})]

    @property
    def source_lang(self) -> str:
        return str(self.task.cfg.source_lang)

    @property
    def target_lang(self) -> str:
        return str(self.task.cfg.target_lang)

    @property
    def parsed_with(self) -> Mapping[str, Any] | None:
        """The options of the parser of its training text, where they are known."""
        return self.task.parse_origins.for_raw_text(read=bool(self.task.needs("source")))

    def parameters(self) -> int:
        """Parameters, of all models of an ensemble."""
        return sum(p.numel() for model in self._models for p in model.parameters())

    def relations(self) -> list[str]:
        """The dependency labels that it knows; none where its data have no syntax."""
        try:
            return sorted(self.task.source_labels["deprel"][1:])
        except (SyntaxDataError, AttributeError, OSError):
            return []

    def translations(
        self,
        sentences: Sequence[Sentence],
        beam: int,
        alignments: bool = False,
        on_step: OnStep | None = None,
        nested: bool = False,
    ) -> list[list[Translation] | SyntaxDataError]:
        """The translations of each sentence, best first, as many as the beam is wide; or why there is none.

        Args:
            on_step: as in :meth:`.translator.Translator.translations`
            nested: whether this is called from the ``on_step`` of another search, which goes on afterwards

        Raises:
            SyntaxDataError: a sentence lacks what the model needs of a parse
        """
        search = self._searches.get((beam, nested))
        if search is None:
            lengths = {"max_len_a": PIECES_A, "max_len_b": PIECES_B}
            search = self._translator.with_search(beam=beam, nbest=beam, **lengths)
            self._searches[beam, nested] = search
        found = search.translations(sentences, alignments=alignments, on_step=on_step)
        return [best if best[0].error is None else SyntaxDataError(best[0].error) for best in found]

    def attention(self, sentence: Sentence, beam: int, on_step: OnStep | None = None) -> dict[str, Any]:
        """What :func:`.page.exhibit_data` gives for the best translation of a sentence: attention with the parse.

        Raises:
            SyntaxDataError: the sentence is too long for the model, or lacks what it needs of a parse
        """
        if not self._models:
            raise SyntaxDataError(f"{self.name} is a CTranslate2 model, which does not show its attention")
        source = self._translator.input()
        tokens = source.encode([sentence])
        dataset = source.dataset(*tokens)
        # a tag is a piece of no word: then every piece is shown by itself
        parse = None if source.source_tag else source.parses()[0]
        exhibit = exhibit_of_parse(parse, [self.task.source_dictionary[i] for i in tokens[0][0].tolist()])
        reader = Reader(self._models[0], self.task, beam, PIECES_B, PIECES_A)
        show_model(exhibit, self.name, reader, dataset, 0, on_step)
        return exhibit_data(exhibit)


class Source:
    """Turns what was sent into what the models read.

    Args:
        parser: of raw text and tokens; None: there is none
        neutral: whether a sentence that the parser cannot take is translated without a parse
        timeout: seconds after which that is so of a sentence that is not parsed yet; None: never
    """

    def __init__(self, parser: Parser | None, *, neutral: bool = False, timeout: float | None = None) -> None:
        self.parser, self.neutral, self.timeout = parser, neutral, timeout

    def parse(self, sentences: Sequence[str | list[str]]) -> list[ParsedLine]:
        """The parses of texts and of lists of tokens.

        Raises:
            SyntaxDataError: a text that the parser cannot take
        """
        assert self.parser is not None
        return self.parser.parse(list(sentences))  # type: ignore[arg-type]


def without_parse(tokens: Sequence[str]) -> ParsedLine:
    """Tokens that no model needs a parse of: they all hang on the first."""
    n = len(tokens)
    line = ParsedLine(words=list(tokens), heads=[0] * n, deprels=["_"] * n, parsed=False)
    line.upos, line.xpos, line.sentences = ["_"] * n, ["_"] * n, [(0, n)]
    line.tokens = [Token(form, True, i, i, i) for i, form in enumerate(tokens)]
    return line


def source_text(sentence: Sentence) -> str:
    """The text of a sentence."""
    return sentence if isinstance(sentence, str) else text_of(sentence)


def load_models(
    paths: Mapping[str, str | os.PathLike[str] | Sequence[str]],
    *,
    data: str | None = None,
    device: str | None = None,
    batch_size: int = 32,
    missing_parse: str = "error",
) -> list[ServedModel]:
    """The models of these checkpoints and exported folders, by name.

    Args:
        missing_parse: ``error``, or ``neutral``: text that comes to a model without a parse is translated without one

    Raises:
        SyntaxDataError: a checkpoint is missing or cannot be used, or the models' source languages differ
    """
    # No parser of their own: what a model gets has been parsed, or is not to be.
    options: dict[str, Any] = {
        "device": device,
        "batch_size": batch_size,
        "missing_parse": missing_parse,
        "parser_name": NO_PARSER,
    }
    models = [ServedModel(name, Translator.load(path, data, **options)) for name, path in paths.items()]
    languages = {model.source_lang for model in models}
    if len(languages) > 1:
        raise SyntaxDataError(
            f"the models' source languages differ: {', '.join(sorted(languages))}", hint="start a server for each"
        )
    return models


def examples_of(model: ServedModel, count: int = 3) -> list[str]:
    """Sentences to try a model on: short ones of its test or validation data, where these are there."""
    task, langs = model.task, (model.source_lang, model.target_lang)
    for split in ("test", "valid"):
        prefix = os.path.join(task.data_dir, f"{split}.{'-'.join(langs)}.{langs[0]}")
        if not os.path.exists(f"{prefix}.idx"):
            continue
        dataset, unknown = load_tokens(prefix), task.source_dictionary.unk()
        short = (dataset[int(i)] for i in np.flatnonzero((dataset.sizes > 6) & (dataset.sizes <= 20)))
        chosen = islice((tokens for tokens in short if unknown not in tokens), count)
        spell = partial(text_of_tokens, dictionary=task.source_dictionary, segmenter=task.source_segmenter)
        return list(dict.fromkeys(spell(tokens, lang=langs[0]) for tokens in chosen))
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
    """What parses for these models.

    The parser gives its probabilities where it has any: LDD needs them, and the page shows them.

    Args:
        models: at least one
        parser: ``none``, or as ``--parser`` of ``fairseq-syntax parse``; "" is that of the training text
        lang: of the parser's models; "" is that of the training text
        model_dir: of the parser's models. With neither it nor ``parser``, and with models that need no parse, there is
            no parser.
        missing_parse, parse_timeout: of the source

    Raises:
        SyntaxDataError: the parser cannot be had, and ``missing_parse`` is ``error``
    """
    readers = [model for model in models if model.needs]
    neutral = missing_parse == "neutral"
    loaded: Parser | None = None
    if parser != NO_PARSER and (readers or parser or model_dir is not None):
        before = [own for model in readers or models if (own := model.parsed_with) is not None]
        before.sort(key=controls, reverse=True)  # a model that knows control parses alone must not get others unseen
        if any(other != before[0] for other in before):
            logger.warning("the training texts of these models were parsed with different options; the first are used")
        # a parser may have no probabilities, which is no matter where no model reads them
        tried = (True,) if any("arcs" in model.needs for model in models) else (True, False)
        for distributions in tried:
            try:
                options = options_as_before(
                    before[0] if before else None,
                    parser=parser,
                    lang=lang,
                    model_dir=model_dir,
                    distributions=distributions,
                    source_lang=models[0].source_lang,
                )
                loaded = load_parser(options)
                break
            except SyntaxDataError as error:
                if distributions != tried[-1]:
                    logger.warning("the parser is asked for no probabilities, which no model reads: %s", error)
                elif neutral:
                    logger.warning("there is no parser: %s", error)
                else:
                    raise
    return Source(loaded, neutral=neutral, timeout=parse_timeout)
