"""The interface of all translators, and the checks that they share."""

from __future__ import annotations

import copy
import html
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.words import Span
from fairseq_syntax.errors import SyntaxDataError, meant, naming_parameters
from fairseq_syntax.inference.alignment import Gold, WordAlignment
from fairseq_syntax.inference.sentences import Sentence, check_unicode, is_empty
from fairseq_syntax.inference.spelling import decoder
from fairseq_syntax.inference.text_input import EncodedLine, TextInput, Tokens, token_ids
from fairseq_syntax.use import BEAM

if TYPE_CHECKING:
    from fairseq_syntax.corpus.parsing.parser import Parser
    from fairseq_syntax.inference.search_control import OnStep
    from fairseq_syntax.use.alignment_choice import Ranked

__all__ = ["BaseTranslator", "Translation"]

logger = logging.getLogger(__name__)
Translating = TypeVar("Translating", bound="BaseTranslator")
TOO_LONG = "the {} has {} pieces, and the model takes {}: split it"  # without </s>


@dataclass(repr=False)
class Translation:
    """One translation.

    Attributes:
        text, pieces: the model's output as text and as subword pieces
        score: the log-probability (base e, at the search's ``temperature``) over the number of pieces with ``</s>`` to
            the power of ``lenpen``: with the defaults, the mean; with ``unnormalized``, the sum
        alignment: the word alignment with the source, if requested
        error: the reason if the sentence could not be translated; the text is empty then
        cut: whether the length limit was reached (``max_len_a``, ``max_len_b``), so that the end may be missing
        parse: the parse of the source, if the model reads one or the sentence came with one
        unknown: the words of the source with pieces that the model does not know, by their characters ``[start, end)``
        words: the number of words of the source, where some are unknown
    """

    text: str
    pieces: list[str]
    score: float
    alignment: WordAlignment | None = None
    error: str | None = None
    cut: bool = False
    parse: ParsedLine | None = None
    unknown: list[Span] = field(default_factory=list)
    words: int = 0

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """One line, without the pieces and the parse."""
        about = f"error={self.error!r}" if self.error is not None else f"score={self.score:.3f}"
        unknown = f", unknown words: {len(self.unknown)} of {self.words}" if self.unknown else ""
        links = f", alignment {self.alignment.pharaoh()!r}" if self.alignment is not None else ""
        return f"<Translation {self.text!r}, {about}{', cut' if self.cut else ''}{unknown}{links}>"

    def _repr_html_(self) -> str:
        """The text with its score and pieces, for notebooks."""
        pieces = " ".join(f"<code>{html.escape(piece)}</code>" for piece in self.pieces)
        return f"<p><b>{html.escape(self.text)}</b><br><small>{self.score:.3f} · {pieces}</small></p>"


@dataclass(frozen=True)
class LoadOptions:
    """The arguments of :meth:`.translator.Translator.load` that are not the translator's own; it describes them."""

    data: str | os.PathLike[str] | None = None
    parser: Parser | None = None
    parser_name: str = ""
    parser_lang: str = ""
    parser_dir: str | os.PathLike[str] | None = None
    missing_parse: str = "error"
    device: str | None = None
    user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ()
    search_rules: str = "fairseq"
    source_name: str = ""
    target_name: str = ""

    @property
    def of_task(self) -> dict[str, Any]:
        """The options of the task that say how its text is parsed.

        Raises:
            SyntaxDataError: no such ``missing_parse``
        """
        if self.missing_parse not in MISSING_PARSE:
            hint = meant(self.missing_parse, MISSING_PARSE)
            raise SyntaxDataError(f"no such value: {self.missing_parse!r}", option="--missing-parse", hint=hint)
        return {
            "syntax_parser": self.parser_name,
            "syntax_parser_lang": self.parser_lang,
            "syntax_parser_dir": os.fspath(self.parser_dir) if self.parser_dir else "",
        }


class BaseTranslator(ABC):
    """Translates sentences with a trained model; :meth:`.translator.Translator.load` makes one.

    Several threads may translate with one model, and take turns in its steps. Forced decoding with it meanwhile is not
    safe.

    Attributes:
        models: the PyTorch modules; empty for CTranslate2
        task: the task of the models, with dictionaries and segmentation
        nbest: the number of translations per sentence
        batch_size: the maximum number of sentences in a batch
        languages: of an imported multilingual model, the language token of each language; empty for others
    """

    languages: Mapping[str, str] = MappingProxyType({})
    models: tuple[Any, ...]
    task: Any
    beam: int
    nbest: int
    batch_size: int
    _generation: dict[str, Any]  # the search options
    _input: TextInput

    @abstractmethod
    def _search(
        self, encoded: list[EncodedLine], alignments: bool, on_step: OnStep | None
    ) -> Iterator[tuple[int, list[Translation]]]:
        """Translate encoded lines; yields their 0-based indices with translations, best first."""

    @abstractmethod
    def _set_search(self, generation: dict[str, Any]) -> None:
        """Set the search options (all that are not the default), ``beam`` and ``nbest``."""

    def with_search(self: Translating, **generation: Any) -> Translating:
        """A translator with the same models, and with other values of search options or of ``batch_size``.

        Options are named as in fairseq-generate.

        .. code-block:: python

            wide = translator.with_search(beam=10, nbest=5, lenpen=0.8)
        """
        other = copy.copy(self)
        other.batch_size = generation.pop("batch_size", self.batch_size)
        other._set_search({**self._generation, **generation})
        return other

    def with_languages(self: Translating, source_name: str = "", target_name: str = "") -> Translating:
        """A translator with the same parameters that translates between other languages of a multilingual model.

        .. code-block:: python

            french = translator.with_languages(target_name="fra_Latn")

        Args:
            source_name, target_name: the languages, as the model names them; empty for those of the import

        Raises:
            SyntaxDataError: the model is not multilingual, or does not know a language
        """
        message = "the model is not multilingual"
        raise SyntaxDataError(message, option="--source-name, --target-name", hint="drop it")

    @abstractmethod
    def _about(self) -> list[str]:
        """Model and size for :meth:`__repr__`."""

    @overload
    def translate(self, sentences: Sentence, *, alignments: bool = False) -> Translation: ...  # type: ignore[overload-overlap]

    @overload
    def translate(self, sentences: Sequence[Sentence], *, alignments: bool = False) -> list[Translation]: ...

    def translate(
        self, sentences: Sentence | Sequence[Sentence], *, alignments: bool = False
    ) -> Translation | list[Translation]:
        """Translate a sentence, or each sentence of a list, and return the best translation of each.

        A sentence that cannot be translated, because it is too long or its parse is invalid, yields an empty
        translation with the reason in ``error``, and a warning.

        Args:
            sentences: raw text; a parse, such as one from :meth:`.parsed_line.ParsedLine.of_words`; or CoNLL-U
                flattened by ``fairseq_syntax.corpus.conllu.flatten``
            alignments: whether to compute word alignments

        .. code-block:: python

            translator.translate("A man in an orange hat.").text
            [translation.score for translation in translator.translate(["A dog.", "A cat."])]

        Raises:
            SyntaxDataError: the model needs a parse, and there is no parser
        """
        one = isinstance(sentences, (str, ParsedLine))
        best = [b[0] for b in self.translations([sentences] if one else sentences, alignments=alignments)]  # type: ignore[list-item, arg-type]
        for number, translation in enumerate(best, 1):
            if translation.error is not None:
                logger.warning("sentence %d is not translated: %s", number, translation.error)
            if translation.cut:
                logger.warning("the translation of sentence %d may be cut: %s", number, cut_short(translation))
        return best[0] if one else best

    @naming_parameters()
    def translations(
        self,
        sentences: Sequence[Sentence],
        *,
        alignments: bool = False,
        first_line: int = 0,
        on_step: OnStep | None = None,
    ) -> list[list[Translation]]:
        """Translate sentences, and return the ``nbest`` translations of each, best first.

        A sentence that cannot be translated yields a single empty translation with the reason in ``error``.

        Args:
            alignments: whether to compute word alignments
            first_line: the 0-based line number of the first sentence, for messages
            on_step: called before each step of a search (with CTranslate2, before each batch). It returns the 0-based
                indices of sentences whose search should end with the translation so far. Exceptions that it raises
                end the call.

        Raises:
            SyntaxDataError: as in :meth:`translate`
        """
        # A string is a sequence too; each of its characters would be translated as a sentence.
        wanted = isinstance(sentences, Sequence) and not isinstance(sentences, str)
        if not wanted or not all(isinstance(s, (str, ParsedLine)) for s in sentences):
            raise SyntaxDataError("a list of sentences is expected", hint="each is a text, or a ParsedLine")
        nothing = WordAlignment("", "", [], [], []) if alignments else None
        translations = [[Translation("", [], 0.0, nothing)] for _ in sentences]
        # There are three indices: i among the caller's sentences, k among the encoded ones (i = filled[k]), and a place
        # among the searched ones, which the search reports.
        lines, filled = [], []
        for i, sentence in enumerate(sentences):
            try:
                if not is_empty(sentence):
                    lines.append(self._input.checked_parse(sentence))
                    filled.append(i)
            except SyntaxDataError as error:
                translations[i][0].error = error.message
        if not filled:
            return translations
        encoded = self._input.encode(lines, [first_line + i for i in filled])
        most = self.max_positions()[0] - 1  # without </s>
        fitting = []
        for k, line in enumerate(encoded):
            if (length := len(line.tokens) - 1) <= most:
                fitting.append(k)
            else:
                translations[filled[k]][0].error = TOO_LONG.format("sentence", length, most)
        places = {filled[k]: place for place, k in enumerate(fitting)}
        ended = on_step and (lambda: [places[i] for i in on_step() if i in places])
        for place, best in self._search([encoded[k] for k in fitting], alignments, ended):
            unknown, words = self._input.unknown_words(encoded[fitting[place]])
            for translation in best if unknown else ():
                translation.unknown, translation.words = unknown, words
            translations[filled[fitting[place]]] = best
        return translations

    def align(self, sentences: Sequence[Sentence], translations: Sequence[str]) -> list[WordAlignment]:
        """Align sentences with given translations (text, or pieces if the data have no segmentation).

        .. code-block:: python

            (alignment,) = translator.align(["A dog."], ["Ein Hund."])
            alignment.pharaoh()  # 0-0 1-1 2-2

        Raises:
            SyntaxDataError: as in :meth:`translate`; a side is too long for the model; or CTranslate2 runs the model
        """
        raise ctranslate2_cannot()

    def rank_heads(
        self, sentences: Sequence[Sentence], translations: Sequence[str], gold: Sequence[Gold] | None = None
    ) -> list[Ranked]:
        """Rank the attention heads of the first model by how well they align given translations, best first.

        Args:
            gold: gold links (:func:`~fairseq_syntax.inference.alignment.read_gold`), used as in
                :func:`~fairseq_syntax.use.alignment_choice.choose`

        Raises:
            SyntaxDataError: as in :meth:`align`
        """
        raise ctranslate2_cannot()

    def read(
        self, dataset: Any, sentence: int, on_step: OnStep | None = None
    ) -> tuple[Translation, dict[str, list[np.ndarray]]]:
        """Translate a sentence (0-based) of a fairseq dataset, and return the attention weights too.

        Returns:
            the best translation, whose pieces end with ``</s>``; and for each kind (``encoder``, ``cross``,
            ``decoder``) the first model's weights, a float32 array [H, rows, columns] per layer; source columns include
            ``</s>``

        Raises:
            SyntaxDataError: CTranslate2 runs the model
        """
        raise ctranslate2_cannot()

    def __repr__(self) -> str:
        languages = f"{self.task.cfg.source_lang} → {self.task.cfg.target_lang}"
        return f"<Translator {', '.join([languages, *self._about(), f'beam {self.beam}'])}>"

    def check_parses(self, path: str | os.PathLike[str]) -> None:
        """See :meth:`.text_input.TextInput.check_parses`."""
        self._input.check_parses(path)

    def input(self) -> Any:
        """A new input pipeline (:class:`.text_input.TextInput`) with this translator's task, parser and source tag."""
        return type(self._input)(self.task, self._input.chosen_parser, self._input.source_tag)

    @property
    def needs(self) -> frozenset[str]:
        """The parts of a parse that the model reads, a subset of ``"tree"`` and ``"arcs"``."""
        return self._input.needs

    @naming_parameters()
    def parse(self, sentences: Sequence[Sentence]) -> list[ParsedLine]:
        """Parse raw sentences with this translator's parser; parses are passed through.

        .. code-block:: python

            (parse,) = translator.parse(["A man in an orange hat."])
            parse.heads[2] = 1
            translator.translate(parse)
        """
        return self._input.parse(sentences)

    @abstractmethod
    def max_positions(self) -> tuple[int, int]:
        """The maximum lengths of source and target in pieces, with ``</s>``."""

    def encode_target(self, text: str) -> tuple[list[str], Tokens]:
        """Pieces and tokens ([T], int64, with ``</s>``) of a given translation.

        Raises:
            SyntaxDataError: it is no Unicode text
        """
        check_unicode(text)
        segmenter = self.task.segmenter("target")
        pieces = segmenter.encode_text(text) if segmenter else text.split()
        return pieces, token_ids(pieces, self.task.target_dictionary)

    @property
    def _decode(self) -> Callable[[Iterable[str]], str]:
        return decoder(self.task.segmenter("target"), self.task.cfg.target_lang or "")


MISSING_PARSE = ("error", "neutral")
# The options of fairseq's search, by name, with their types in its ``GenerationConfig``. Others belong to its programs,
# such as language models or forced decoding.
SEARCH_OPTIONS: dict[str, type] = {
    **dict.fromkeys(("beam", "nbest", "max_len_b", "min_len", "no_repeat_ngram_size", "sampling_topk"), int),
    **dict.fromkeys(("lenpen", "unkpen", "temperature", "max_len_a", "sampling_topp"), float),
    **dict.fromkeys(("diverse_beam_strength", "diversity_rate"), float),
    **dict.fromkeys(("unnormalized", "match_source_len", "sampling"), bool),
    "diverse_beam_groups": int,
}


def search_options(generation: Mapping[str, Any], options: Collection[str], of: str, batch_size: int) -> dict[str, Any]:
    """Check search options, named as in :data:`SEARCH_OPTIONS`, and fill in ``beam`` and ``nbest``.

    Raises:
        SyntaxDataError: not one of the ``options`` of a search, ``of`` this name, or a size below 1
    """
    for name, value in {**generation, "batch_size": batch_size}.items():
        if name not in {*options, "batch_size"}:
            raise SyntaxDataError(f"{of}'s search has no such option", option=name, hint=meant(name, sorted(options)))
        check_type(name, value)
        if name in ("beam", "nbest", "batch_size") and value < 1:
            raise SyntaxDataError("must be at least 1", option=name)
    nbest = generation.get("nbest", 1)
    # A search cannot return more translations than its beam holds hypotheses.
    return {**generation, "nbest": nbest, "beam": max(generation.get("beam", BEAM), nbest)}


def check_type(name: str, value: Any) -> None:
    """Raise SyntaxDataError for a search option whose value has not the type of fairseq's."""
    kind = int if name == "batch_size" else SEARCH_OPTIONS[name]
    wanted = {int: "a whole number", float: "a number", bool: "True or False"}[kind]
    fits = isinstance(value, bool) if kind is bool else isinstance(value, Integral if kind is int else Real)
    if not fits or (kind is not bool and isinstance(value, bool)):
        raise SyntaxDataError(f"must be {wanted}, not {value!r}", option=name)


def cut_short(translation: Translation) -> str:
    """The warning about a translation that reached the length limit."""
    return f"it has {len(translation.pieces)} pieces, the most that max_len_b or the model allows"


def check_lengths(sources: Iterable[int], targets: Iterable[int], most: Sequence[int], lines: Iterable[int]) -> None:
    """Check sentence pairs against the model's length limits, all with ``</s>``; lines are 0-based.

    Raises:
        SyntaxDataError: a sentence or translation is too long
    """
    for line, *lengths in zip(lines, sources, targets):
        for length, limit, side in zip(lengths, most, ("sentence", "translation")):
            if length > limit:
                message = TOO_LONG.format(side, length - 1, limit - 1)
                raise SyntaxDataError(f"line {line + 1}: {message}", line=line + 1)


def ctranslate2_cannot() -> SyntaxDataError:
    """The error for what CTranslate2 does not do: forced decoding, and attention other than for alignments."""
    return SyntaxDataError(
        "CTranslate2 shows neither a model's attention nor the scores of given translations",
        hint="use the checkpoint, or its export for fairseq",
    )
