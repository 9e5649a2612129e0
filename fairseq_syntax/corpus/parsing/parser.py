"""The parser interface, from sentences of words to trees and arcs, and code shared by all parsers.

A parser is a module with ``load(options) -> Parser`` and, if its models are not only the file or folder
``--model-dir``, ``fingerprint(options) -> str``; if its models say their language,
``languages_of_models(options) -> set[str]``. It may have ``check(options)``, which raises a SyntaxDataError where
``load`` would, but takes no time; recipes call it before any work. A parser is selected by a name in ``PARSERS`` or by
its dotted module name.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq_syntax.corpus.conllu import ParsedLine, Token, owner, text_of
from fairseq_syntax.corpus.header import controls
from fairseq_syntax.corpus.parsing.tokenizers import (
    BasicTokenizer,
    SpacyTokenizer,
    Surface,
    TokenizedLine,
    Tokenizer,
    WhitespaceTokenizer,
    whole_words,
    without_moses,
)
from fairseq_syntax.corpus.words import language_of, single_spaced
from fairseq_syntax.errors import SyntaxDataError, quoted
from fairseq_syntax.runtime.bounds import check_device
from fairseq_syntax.runtime.digests import file_sha256, fingerprint
from fairseq_syntax.runtime.files import files_below

__all__ = ["PARSERS", "Parser", "ParserOptions", "SentenceParse", "load_parser", "options_as_before"]

logger = logging.getLogger(__name__)
LONGEST_WORD = 500  # characters

NO_PARSER = "none"
PARSERS = {
    "stanza": "fairseq_syntax.corpus.parsing.stanza",
    "supar": "fairseq_syntax.corpus.parsing.supar",
    "spacy": "fairseq_syntax.corpus.parsing.spacy",
    "udpipe": "fairseq_syntax.corpus.parsing.udpipe",
}
WITHOUT_MODELS = "fairseq_syntax.corpus.parsing.chain"  # of trials: each word depends on the one before it
_WITH_FILES = frozenset({"stanza", "supar", "udpipe"})  # parsers whose models have no other names
# Parsers that decide on one tree step by step, and have no probabilities of arcs.
TRANSITION_BASED = frozenset({"spacy", "udpipe"})
# Options that change at most the last digit of a probability, or that name a place whose content is in
# fingerprint_of_models. A run repeated with smaller batches, because memory was short, should resume the previous one.
_NOT_OF_THE_RESULT = frozenset({"device", "model_dir", "batch_size"})


@dataclass(frozen=True)
class ParserOptions:
    """The options of a parse: equal options and models give equal parses of a text.

    ``batch_size`` is in words. ``min_prob`` is the minimum p(head, label | word) of stored arcs: on Multi30k, 0.01
    keeps 99.1 % of the mass in 2.07 arcs per word, 0.1 keeps 96.5 % in 1.27, and 0.001 99.8 % in 4.17. ``structured``
    uses arc marginals of the distribution over trees. ``temperature`` divides the scores of heads,
    ``label_temperature`` those of labels.
    """

    parser: str = "stanza"
    lang: str = "en"
    model_dir: str | None = None
    device: str = "cpu"
    tokenizer: str = "auto"
    split_sentences: bool = False
    max_words: int = 250
    long_lines: str = "split"
    batch_size: int = 4000
    distributions: bool = False
    min_prob: float = 0.01
    structured: bool = False
    temperature: float = 1.0
    label_temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.distributions and self.parser in TRANSITION_BASED:
            message = f"the parser {self.parser} decides on one tree step by step, and has no probabilities of arcs"
            hint = "leave it out (LDD's variants LDP and UDP read trees), or name --parser stanza or supar"
            raise SyntaxDataError(message, option="--distributions", hint=hint)

    @property
    def of_the_result(self) -> dict[str, Any]:
        """The options on which the result depends, by name, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_OF_THE_RESULT}


@dataclass(slots=True)
class SentenceParse:
    """The parse of one sentence, with ids as in CoNLL-U: words from 1, and 0 for the artificial root.

    ``arcs`` contains (dependent, head, label, p), sorted by dependent and then by decreasing probability; None without
    distributions.
    """

    heads: list[int]
    deprels: list[str]
    upos: list[str]
    xpos: list[str]
    arcs: list[tuple[int, int, str, float]] | None = None


class Parser(ABC):
    """A dependency parser with a tokenizer."""

    def __init__(self, options: ParserOptions, tokenizer: Tokenizer | None = None) -> None:
        self.options = options
        self.tokenizer = tokenizer if tokenizer is not None else default_tokenizer(options)

    @abstractmethod
    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        """Parse sentences, each of at least one word, in order."""

    def parse_spaced(self, sentences: list[list[str]], spaces: Sequence[Sequence[bool]]) -> list[SentenceParse]:
        """:meth:`parse_sentences`, for parsers that look at spaces: whether one follows each word in the text."""
        return self.parse_sentences(sentences)

    def parse(self, lines: Sequence[str] | Sequence[Sequence[str]], *, first_line: int = 0) -> list[ParsedLine]:
        """Parse lines of text, or lists of tokens that are one sentence each.

        Args:
            lines: one entry per line; an empty entry yields a line without words
            first_line: the 0-based number of the first line
        """
        whole = self._tokenized(lines, first_line)
        tokenized = [self._shorten(sentences, number) for number, sentences in enumerate(whole, first_line)]
        split = [number for number, old in enumerate(whole, first_line) if old is not tokenized[number - first_line]]
        _warn_of(split, f"a sentence of more than {self.options.max_words} tokens is parsed in parts")
        spaces = [[after for token in sentence for after in _spaces(token)] for line in tokenized for sentence in line]
        parses = iter(self._checked_parses(*self._model_input(tokenized, first_line), spaces))
        parsed: list[ParsedLine] = []
        for index, line in enumerate(tokenized):
            parse = _assembled(line, [next(parses) for _ in line], first_line + index)
            text = lines[index]
            expected = single_spaced(text) if isinstance(text, str) else " ".join(text)
            if text_of(parse) != expected:
                message = f"the tokens give {quoted(text_of(parse))}, not the text {quoted(expected)}"
                raise SyntaxDataError(message, line=parse.line_number + 1, hint="use another --tokenizer")
            parsed.append(parse)
        return parsed

    def _model_input(self, tokenized: list[TokenizedLine], first_line: int) -> tuple[list[list[str]], list[int]]:
        """The words of all sentences as input of the model, and the 0-based line of each sentence."""
        numbers = [number for number, line in enumerate(tokenized, first_line) for _ in line]
        words = [[word for token in sentence for word in token.words] for line in tokenized for sentence in line]
        if self.options.tokenizer == "whitespace":
            words = [[without_moses(word) for word in sentence] for sentence in words]
        cut = [number for number, sentence in zip(numbers, words) if max(map(len, sentence)) > LONGEST_WORD]
        _warn_of(cut, f"the parser sees the first {LONGEST_WORD} characters of a longer word")
        # The memory of a batch is proportional to its number of words times the characters of the longest word.
        return [[word[:LONGEST_WORD] for word in sentence] for sentence in words], numbers

    def _checked_parses(
        self, sentences: list[list[str]], numbers: Sequence[int], spaces: Sequence[Sequence[bool]]
    ) -> list[SentenceParse]:
        """:meth:`parse_spaced`, with its result validated; ``numbers`` are the 0-based lines of the sentences."""
        parses = self.parse_spaced(sentences, spaces) if sentences else []
        parser = f"the parser {self.options.parser}"
        if len(parses) != len(sentences):
            lines = f"lines {numbers[0] + 1} to {numbers[-1] + 1}"
            raise SyntaxDataError(f"{lines}: {parser} gave {len(parses)} parses of {len(sentences)} sentences")
        for words, parse, number in zip(sentences, parses, numbers):
            if self.options.distributions and parse.arcs is None:
                hint = "leave out --distributions, or name another --parser"
                raise SyntaxDataError(f"{parser} gives no distributions", hint=hint)
            if wrong := _fault_of(parse, len(words)):
                raise SyntaxDataError(f"{parser} gave {wrong}", line=number + 1)
        return parses

    def _tokenized(self, lines: Sequence[str] | Sequence[Sequence[str]], first_line: int) -> list[TokenizedLine]:
        """The tokens of each line: the given ones for a list, otherwise from the tokenizer."""
        try:
            tokenized = self.tokenizer.tokenize([line if isinstance(line, str) else "" for line in lines])
        except SyntaxDataError as error:
            if error.line is None or error.path is not None:
                raise
            # The tokenizer numbers its input lines from 1.
            raise SyntaxDataError(error.message, line=first_line + error.line, hint=error.hint) from error
        for index, line in enumerate(lines):
            if not isinstance(line, str) and len(line):
                tokenized[index] = [whole_words(line)]
        return tokenized

    def _shorten(self, sentences: TokenizedLine, line_number: int) -> TokenizedLine:
        """Split sentences of more than ``max_words`` words, after punctuation if possible."""
        limit = self.options.max_words
        if all(len(sentence) <= limit for sentence in sentences):
            return sentences
        if self.options.long_lines == "error":
            message = f"a sentence of {max(map(len, sentences))} tokens, more than {limit}"
            hint = "raise it, or split such sentences with --long-lines split"
            raise SyntaxDataError(message, line=line_number + 1, option="--max-words", hint=hint)
        short: TokenizedLine = []
        for sentence in sentences:
            while len(sentence) > limit:
                # The last punctuation mark in the second half, so that only the last part can be short.
                marks = [i for i in range(limit // 2, limit) if not any(map(str.isalnum, sentence[i].form))]
                cut = marks[-1] + 1 if marks else limit
                short.append(sentence[:cut])
                sentence = sentence[cut:]
            short.append(sentence)
        return short


def _spaces(token: Surface) -> list[bool]:
    """For each word of a token, whether a space follows it in the text."""
    return [False] * (len(token.words) - 1) + [token.space_after]


def one_root(heads: Sequence[int], labels: Sequence[str]) -> tuple[list[int], list[str]]:
    """The heads and labels of a sentence with one root: further roots are attached to the first, with the label dep.

    Parsers that decide step by step may leave several. Heads are ids from 1, and 0 for the artificial root.
    """
    roots = [word for word, head in enumerate(heads, 1) if head == 0]
    further = set(roots[1:])
    return (
        [roots[0] if word in further else head for word, head in enumerate(heads, 1)],
        ["dep" if word in further else label for word, label in enumerate(labels, 1)],
    )


def _warn_of(numbers: Sequence[int], what: str) -> None:
    """Log one warning about several 0-based lines."""
    if numbers:
        shown = ", ".join(str(number + 1) for number in numbers[:3])
        more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
        logger.warning("line %s%s: %s", shown, more, what)


def _fault_of(parse: SentenceParse, n: int) -> str:
    """The reason why this is not a parse of an n-word sentence; empty if it is one. The heads need not form a tree."""
    for name in ("heads", "deprels", "upos", "xpos"):
        if (count := len(getattr(parse, name))) != n:
            return f"{count} {name} for {n} words"
    for word, head in enumerate(parse.heads, start=1):
        if not 0 <= head <= n or head == word:
            return f"word {word} of {n} the head {head}: a head is another word's number from 1, or 0 for the root"
    for word, head, _, _ in parse.arcs or ():
        if not (1 <= word <= n and 0 <= head <= n and head != word):
            return f"an arc from word {word} of {n} to the head {head}"
    return ""


def _assembled(sentences: TokenizedLine, parses: list[SentenceParse], line_number: int) -> ParsedLine:
    """Join tokenized sentences and their parses into one line; ids become 0-based indices into its words."""
    line = ParsedLine(line_number=line_number)
    for sentence, parse in zip(sentences, parses, strict=True):
        start = len(line.words)
        line.words.extend(word for token in sentence for word in token.words)
        line.heads.extend(head - 1 + start if head else start + i for i, head in enumerate(parse.heads))
        line.deprels.extend(parse.deprels)
        line.upos.extend(parse.upos)
        line.xpos.extend(parse.xpos)
        first = start
        for token in sentence:
            last = first + len(token.words) - 1
            line.tokens.append(Token(token.form, token.space_after, first, last, owner(first, last, line.heads)))
            first = last + 1
        line.sentences.append((start, first))
        if parse.arcs is not None:
            shifted = [(dep - 1 + start, (head or dep) - 1 + start, label, p) for dep, head, label, p in parse.arcs]
            line.arcs = shifted if line.arcs is None else line.arcs + shifted
    return line


def default_tokenizer(options: ParserOptions) -> Tokenizer:
    """The tokenizer named in ``options``; the basic one for ``auto`` if the parser has no tokenizer of its own."""
    if options.tokenizer == "whitespace":
        return WhitespaceTokenizer()
    if options.tokenizer == "spacy":
        return SpacyTokenizer(options.lang, split_sentences=options.split_sentences)
    if options.tokenizer in ("auto", "basic"):
        return BasicTokenizer(options.lang, split_sentences=options.split_sentences)
    raise SyntaxDataError(f"the parser {options.parser} has no tokenizer {options.tokenizer!r}")


def parser_module(name: str) -> ModuleType:
    """Import the module of a parser, given by a name in PARSERS or a dotted module name."""
    hint = f"one of {', '.join(PARSERS)}, or a module"
    if name == NO_PARSER:
        hint += "; --missing-parse neutral translates without"
        raise SyntaxDataError("--parser none: there is no parser", hint=hint)
    try:
        module = importlib.import_module(PARSERS.get(name, name))
    except ImportError as error:
        hint = f"pip install 'fairseq-syntax[{name}]'" if name in PARSERS else hint
        raise SyntaxDataError(f"the parser {name!r} cannot be used: {error}", hint=hint) from error
    if not hasattr(module, "load"):
        raise SyntaxDataError(f"{name!r} is not a parser: its module has no load(options)")
    return module


def fingerprint_of_models(options: ParserOptions, output: Path | None = None) -> str:
    """The fingerprint of a parser's models: its module's ``fingerprint``, or a digest of the content of ``model_dir``.

    For a folder, all files count, so the output of the parse must not be in it; a value that is not a path is
    represented by its name.
    """
    module = parser_module(options.parser)
    if hasattr(module, "fingerprint"):
        return str(module.fingerprint(options))
    if options.model_dir is None:
        return ""
    place = Path(options.model_dir)
    if place.is_file():
        return file_sha256(place)
    if output is not None and place.is_dir() and output.resolve().is_relative_to(place.resolve()):
        hint = "write elsewhere, or give the parser's module a fingerprint(options)"
        raise SyntaxDataError("lies in --model-dir, whose files all count as the model", path=output, hint=hint)
    files = sorted(files_below(place))
    content = [(path.relative_to(place).as_posix(), file_sha256(path)) for path in files]
    return fingerprint(content or options.model_dir)


# Codes of one language: Norwegian has a code of its own beside those of its two written forms.
_ALIKE = ({"no", "nb", "nn"}, {"iw", "he"}, {"in", "id"}, {"tl", "fil"})
_ANY = frozenset({"", "xx", "mul"})  # models of many languages, or that do not say it


def _check_language(options: ParserOptions, of_models: set[str]) -> None:
    """Check that models, which may say their languages, are for the language ``options.lang``.

    Raises:
        SyntaxDataError: they are for another language, whose parse of this text would be worthless
    """
    wanted = language_of(options.lang)
    alike = next((codes for codes in _ALIKE if wanted in codes), {wanted})
    others = sorted(each for each in of_models if language_of(each) not in alike | _ANY)
    if others:
        message = f"these models of {options.parser} are for {' and '.join(others)}, not for {options.lang}"
        hint = f"name models for {options.lang}, or --lang {others[0]} if that is the language of the text"
        raise SyntaxDataError(message, path=options.model_dir, option="--model-dir", hint=hint)


def model_path(parser: str, models: str, folder: Path) -> Path | None:
    """The file or folder of a parser's models, relative to ``folder``; None for the name of an installed pipeline."""
    place = folder / models
    return None if models.isidentifier() and parser not in _WITH_FILES and not place.exists() else place


def recorded_options(made_by: Mapping[str, Any] | None) -> dict[str, Any]:
    """The :attr:`ParserOptions.of_the_result` in a parse's header, which may say anything; without unknown ones."""
    usual = ParserOptions().of_the_result
    recorded = (made_by or {}).items()
    return {name: value for name, value in recorded if name in usual and type(value) is type(usual[name])}


def options_as_before(
    before: Mapping[str, Any] | None,
    *,
    parser: str = "",
    lang: str = "",
    model_dir: str | None = None,
    distributions: bool = False,
    source_lang: str = "en",
) -> ParserOptions:
    """The parser options for the raw text of a model: those of its training parse.

    Args:
        before: :attr:`ParserOptions.of_the_result` of the training parse, from a file; None if unknown. Options unknown
            to this version are ignored.
        parser, lang: replacements, or "" for the same. Another parser gets default options, since its scores differ.
        model_dir: the folder of the parser's models
        distributions: whether the model reads distributions
        source_lang: the default language of the parser's models

    Raises:
        SyntaxDataError: the training parser is a third party's and is not given, or the training parse is a control
            parse, which no parser produces
    """
    if made_by := controls(before):
        message = f"the model was trained on control parses ({', '.join(made_by)}), and a parser would bring real ones"
        hint = f"parse the text, and give what fairseq-syntax control {' '.join(made_by)} makes of the parse"
        raise SyntaxDataError(message, hint=hint)
    defaults = ParserOptions()
    same = recorded_options(before)
    trained_with = same.pop("parser", defaults.parser)
    # a third-party module is imported only if the user names it
    if not parser and trained_with not in (*PARSERS, WITHOUT_MODELS):
        hint = f"name it: --parser {trained_with}, if it is yours"
        raise SyntaxDataError(f"the training text was parsed by {trained_with}", hint=hint)
    if parser and parser != trained_with:
        if before is not None:
            logger.warning("the training text was parsed by %s, and this is by %s", trained_with, parser)
        same = {}
    kept = [name for name in same if name not in ("lang", "distributions")]
    if changed := {name: same[name] for name in kept if same[name] != getattr(defaults, name)}:
        logger.info("raw text is parsed as the training text was: %s", changed)
    same |= {"parser": parser or trained_with, "lang": lang or same.get("lang") or source_lang}
    return ParserOptions(**same | {"model_dir": model_dir, "distributions": distributions})


def check_parser(options: ParserOptions) -> None:
    """Raise SyntaxDataError for a parser that cannot be loaded, or of another language, without loading its models."""
    if options.parser == "stanza":  # without importing it, which takes seconds
        from fairseq_syntax.corpus.parsing.stanza_models import configured_languages, uses_tokenizer

        if find_spec("stanza") is None:
            raise SyntaxDataError("the parser 'stanza' is not installed", hint="pip install stanza")
        if not uses_tokenizer(options.tokenizer, options.lang, options.model_dir):
            default_tokenizer(options)
        _check_language(options, configured_languages(options.lang, options.model_dir))
        return
    module = parser_module(options.parser)
    if hasattr(module, "check"):
        module.check(options)
    else:
        default_tokenizer(options)
    if hasattr(module, "languages_of_models"):
        _check_language(options, module.languages_of_models(options))


def load_parser(options: ParserOptions, before: Mapping[str, Any] | None = None) -> Parser:
    """Load the parser described by options.

    Args:
        before: the options and models of a training parse; there is a warning if the models differ
    """
    check_device(options.device if options.device != "cpu" else None)  # without PyTorch, whose import takes seconds
    module = parser_module(options.parser)
    if hasattr(module, "languages_of_models"):
        _check_language(options, module.languages_of_models(options))
    parser: Parser = module.load(options)
    models = before.get("models") if before and before.get("parser") == options.parser else None
    if models and models != fingerprint_of_models(options):
        logger.warning("the training text was parsed with other models of %s than these", options.parser)
    return parser
