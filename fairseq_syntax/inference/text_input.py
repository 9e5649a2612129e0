"""The input of a translation: lines of text or CoNLL-U become encoded lines, which carry their tokens and syntax.

Nothing here needs PyTorch or fairseq, so that exported models can be used without them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairseq_syntax.corpus.conllu import ParsedLine, is_conllu, parse_conllu_block, text_of
from fairseq_syntax.corpus.header import parsed_with
from fairseq_syntax.corpus.parsed_line import check_parse, token_spans
from fairseq_syntax.corpus.parsing.parser import NO_PARSER, Parser, load_parser, options_as_before
from fairseq_syntax.corpus.segmentation import TEXT, spaces_before
from fairseq_syntax.corpus.words import Span, words_of
from fairseq_syntax.errors import SyntaxDataError, quoted
from fairseq_syntax.inference.alignment import PieceText, locate, spell
from fairseq_syntax.inference.sentences import Sentence, check_unicode, is_empty, is_parsed, unparsed
from fairseq_syntax.inference.spelling import decoder
from fairseq_syntax.runtime.files import check_rereadable

if TYPE_CHECKING:
    from fairseq_syntax.model.task import SyntaxTask

logger = logging.getLogger(__name__)
Tokens = NDArray[np.int64]


def token_ids(pieces: Sequence[str], dictionary: Any) -> Tokens:
    """The tokens [T] of a user's pieces, int64, with ``</s>``; a piece that looks like a special symbol is unknown."""
    # White space inside a piece separates, as in fairseq's ``Dictionary.encode_line``.
    ids = [dictionary.index(piece) for piece in " ".join(pieces).split()]
    unknown = dictionary.unk()
    ids = [unknown if number < dictionary.nspecial else number for number in ids]
    return np.array([*ids, dictionary.eos()], np.int64)


@dataclass
class EncodedLine:
    """A line of input as a model reads it.

    Attributes:
        line: the text, or the parse, that was given
        parse: its parse, whose tokens have their number of pieces; None without one
        tokens: [T] int64, with ``</s>``
    """

    line: Sentence
    parse: ParsedLine | None
    tokens: Tokens

    @property
    def real_parse(self) -> ParsedLine | None:
        """The parse; None if only its tokens are meaningful."""
        return self.parse if self.parse is None or self.parse.parsed else None


class TextInput:
    """Parses, segments and indexes lines for a task.

    Args:
        parser: the parser of raw text; if None, it is built from the task's options when needed
        source_tag: a piece before and after each sentence, for models that need no parse; none if empty

    Raises:
        SyntaxDataError: the dictionary does not have the tag, or the model needs a parse, in which tags are no words
    """

    def __init__(self, task: SyntaxTask, parser: Parser | None = None, source_tag: str = "") -> None:
        if source_tag and source_tag not in task.source_dictionary.indices:
            message, hint = f"the source dictionary has no {source_tag}", "as in fairseq-syntax multitask --tags"
            raise SyntaxDataError(message, option="--source-tag", hint=hint)
        if source_tag and task.needs("source"):
            raise SyntaxDataError("does not apply to models that read a parse", option="--source-tag")
        self.task, self.chosen_parser, self.source_tag = task, parser, source_tag

    @cached_property
    def parser(self) -> Parser:
        """The parser of raw text."""
        if self.chosen_parser is not None:
            return self.chosen_parser
        cfg = self.task.cfg
        before = self.task.parse_origins.for_raw_text(read=bool(self.needs))
        options = options_as_before(
            before,
            parser=cfg.syntax_parser,
            lang=cfg.syntax_parser_lang,
            model_dir=cfg.syntax_parser_dir or None,
            distributions="arcs" in self.needs,
            source_lang=cfg.source_lang,
        )
        return load_parser(options, before)

    @cached_property
    def _parser_if_any(self) -> Parser | None:
        """The parser of raw text; None, with a warning, if it is not available."""
        try:
            return self.parser
        except SyntaxDataError as error:
            # The hint for --parser none is the option that is given here.
            reason = error.message if self.task.cfg.syntax_parser == NO_PARSER else error
            logger.warning("raw text is translated without a parse: %s", reason)
            return None

    @property
    def needs(self) -> frozenset[str]:
        """The source syntax that the model needs."""
        return self.task.needs("source") or frozenset()

    def check_parses(self, path: str | os.PathLike[str]) -> None:
        """Check that a file has the kind of parses that the model was trained on (real, or which controls), if any."""
        if not self.needs or not is_conllu(path):
            return
        if self.task.parse_origins.any_control:
            check_rereadable("what its parses were made by is looked at first", path)
        self.task.parse_origins.check(parsed_with(path), path)

    # -- parses ----------------------------------------------------------------------------------------------------

    def checked_parse(self, line: Sentence) -> Sentence:
        """The parse of a line that contains one, checked; other lines are returned unchanged.

        Raises:
            SyntaxDataError: the text is no Unicode, or the parse is invalid or has not the distributions that the model
                reads; with ``--missing-parse neutral`` these count as missing
        """
        check_unicode(" ".join(line.words) if isinstance(line, ParsedLine) else line)
        if not isinstance(line, ParsedLine) and not self._brings_parse(line):
            return line
        parse = check_parse(line) if isinstance(line, ParsedLine) else parse_conllu_block(line)
        if "arcs" not in self.needs or parse.arcs is not None or not parse.words or not parse.parsed:
            return parse
        if str(self.task.cfg.missing_parse) != "neutral":
            hint = "parse with --distributions, or translate without it: --missing-parse neutral"
            raise SyntaxDataError("the parse has no distributions (Arcs=)", hint=hint)
        logger.warning("%r is translated without a parse: it has no distributions (Arcs=)", " ".join(parse.words)[:60])
        return replace(parse, parsed=False)

    def parse(self, lines: Sequence[Sentence], numbers: Sequence[int] | None = None) -> list[ParsedLine]:
        """The parse of each line: the one it contains, otherwise the parser's.

        Args:
            numbers: the numbers of the lines for messages, 0-based and ascending (default: consecutive from 0)

        Raises:
            SyntaxDataError: the parse of a line is invalid, or the parser is not available
        """
        numbers = range(len(lines)) if numbers is None else numbers
        brought = dict(zip(numbers, self._brought_parses(lines, numbers)))
        raw = {n: str(line) for n, line in zip(numbers, lines) if brought[n] is None and not is_empty(line)}
        if raw and self.task.cfg.syntax_input == "conllu":
            number, line = next(iter(raw.items()))
            raise SyntaxDataError(f"not CoNLL-U: {quoted(line)}", line=number + 1)
        parsed = {**brought, **self._parse_raw(raw)}
        return [parsed[number] or ParsedLine() for number in numbers]

    def _brings_parse(self, line: Sentence) -> bool:
        """Whether a line is a parse; text never is with ``--syntax-input text``."""
        return is_parsed(line) and (isinstance(line, ParsedLine) or str(self.task.cfg.syntax_input) != "text")

    def _brought_parses(self, lines: Sequence[Sentence], numbers: Sequence[int]) -> list[ParsedLine | None]:
        """The parse that each line contains, or None for text; errors name the line."""
        parses: list[ParsedLine | None] = []
        for line, number in zip(lines, numbers):
            try:
                parse = self.checked_parse(line)
            except SyntaxDataError as error:
                raise SyntaxDataError(error.message, line=number + 1, hint=error.hint) from error
            parses.append(parse if isinstance(parse, ParsedLine) else None)
        return parses

    def _parse_raw(self, lines: Mapping[int, str]) -> dict[int, ParsedLine]:
        """The parser's parses of texts, by the numbers of their lines."""
        if not lines:
            return {}
        if str(self.task.cfg.missing_parse) != "neutral":
            # Empty lines replace those that are not parsed, so that the parser's messages have the right line numbers.
            first, last = min(lines), max(lines)
            parsed = self.parser.parse([lines.get(n, "") for n in range(first, last + 1)], first_line=first)
            return {number: parsed[number - first] for number in lines}
        if self._parser_if_any is None:
            return {number: unparsed(line) for number, line in lines.items()}
        try:
            return dict(zip(lines, self._parser_if_any.parse(list(lines.values())), strict=True))
        except Exception as error:  # whatever the reason, the other lines must be translated
            if len(lines) == 1:
                ((number, line),) = lines.items()
                logger.warning("%r is translated without a parse: %s", line[:60], error)
                return {number: unparsed(line)}
        return {number: self._parse_raw({number: line})[number] for number, line in lines.items()}

    # -- pieces ----------------------------------------------------------------------------------------------------

    @property
    def cuts_text(self) -> bool:
        """Whether a line with a parse is segmented as its text, since the model needs no parse and learned from text.

        Words of a parse without a space between them have pieces that such a model may not know.
        """
        segmenter = self.task.segmenter("source")
        return not self.needs and segmenter is not None and segmenter.cut_from == TEXT

    def segment(self, line: ParsedLine) -> tuple[ParsedLine, list[str]]:
        """A copy of the line whose tokens have their number of pieces, and the pieces."""
        segmenter, forms = self.task.segmenter("source"), [token.form for token in line.tokens]
        words = segmenter.encode_words(forms, spaces_before(line.tokens)) if segmenter else [f.split() for f in forms]
        if not all(words):
            raise SyntaxDataError("a word is empty or white space only", line=line.line_number + 1)
        tokens = [replace(token, pieces=len(pieces)) for token, pieces in zip(line.tokens, words)]
        return replace(line, tokens=tokens), [piece for pieces in words for piece in pieces]

    def encode(self, lines: Sequence[Sentence], numbers: Sequence[int] | None = None) -> list[EncodedLine]:
        """Encode raw or parsed lines.

        For a model that needs no parse, raw text is not parsed, unless a parser was requested, whose tokens are used;
        lines may still contain a parse. If the data directory has no segmentation, raw text consists of pieces
        separated by spaces.

        Args:
            numbers: see :meth:`parse`
        """
        cfg, segmenter = self.task.cfg, self.task.segmenter("source")
        numbers = range(len(lines)) if numbers is None else numbers
        if self.needs or self.chosen_parser or cfg.syntax_parser not in ("", NO_PARSER) or cfg.syntax_parser_dir:
            parses: Sequence[ParsedLine | None] = self.parse(lines, numbers)
        else:
            parses = self._brought_parses(lines, numbers)
        encoded = []
        for line, parse in zip(lines, parses):
            if parse is not None and not self.cuts_text:
                parse, pieces = self.segment(parse)
            else:
                text = str(line) if parse is None else self._words_in_text(line, parse)[0]
                pieces = segmenter.encode_text(text) if segmenter else text.split()
            if self.source_tag:
                pieces = [self.source_tag, *pieces, self.source_tag]
            encoded.append(EncodedLine(line, parse, token_ids(pieces, self.task.source_dictionary)))
        return encoded

    # -- words -----------------------------------------------------------------------------------------------------

    def text(self, encoded: EncodedLine) -> PieceText:
        """The words and pieces of a line; words are the tokens of the parse, otherwise of the text."""
        line, parse = encoded.line, encoded.parse
        side = self._raw_text(str(line)) if parse is None else self._parsed_text(line, parse)
        if self.source_tag:
            side = PieceText(side.text, side.words, [(0, 0), *side.pieces, (0, 0)])
        return side

    def unknown_words(self, encoded: EncodedLine) -> tuple[list[Span], int]:
        """The characters in the text of each word with unknown pieces, and, if there are any, the number of words."""
        unknown = encoded.tokens[:-1] == self.task.source_dictionary.unk()
        if not unknown.any():
            return [], 0
        side = self.text(encoded)
        of_words = unknown.astype("float32") @ side.membership() > 0
        return [span for span, is_unknown in zip(side.words, of_words) if is_unknown], len(side.words)

    def _parsed_text(self, line: Sentence, parsed: ParsedLine) -> PieceText:
        """The text of a parse: each token is a word, and each of its pieces has the span of the word."""
        text, words = self._words_in_text(line, parsed)
        of_tokens = [word for word, token in zip(words, parsed.tokens) for _ in range(token.pieces or 0)]
        return PieceText(text, words, self._raw_text(text).pieces if self.cuts_text else of_tokens)

    def _words_in_text(self, line: Sentence, parsed: ParsedLine) -> tuple[str, list[Span]]:
        """The line if it is a text with the tokens of its parse, otherwise the text of the parse; and the tokens."""
        words = None if self._brings_parse(line) else locate(str(line), [token.form for token in parsed.tokens])
        return (text_of(parsed), token_spans(parsed)) if words is None else (str(line), words)

    def _raw_text(self, line: str) -> PieceText:
        segmenter = self.task.segmenter("source")
        spans: list[Span] = []
        at = 0
        for word in line.split():
            start = line.index(word, at)
            at = start + len(word)
            spelled = spell(segmenter.encode_text(word), decoder(segmenter)) if segmenter else None
            if spelled is not None and spelled.text == word:
                spans += [(start + first, start + last) for first, last in spelled.pieces]
            else:  # pieces without spans of their own: the word itself, or text changed by a normaliser
                spans += [(start, at)] * (len(spelled.pieces) if spelled else 1)
        return PieceText(line, words_of(line), spans)
