"""A user's sentences, parsed or raw, on their way into the model.

``fairseq-interactive`` builds its batches from tokens alone, so the syntax of the lines that were encoded last is
kept here and given back to the batch that holds their tokens.
"""

from __future__ import annotations

import fileinput
import logging
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import torch

from fairseq_syntax.data.batch import PackedSyntax
from fairseq_syntax.data.binarize import to_stored
from fairseq_syntax.data.dataset import SideSyntax, SyntaxPairDataset
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import PieceText, Span, locate, spell, words_of
from fairseq_syntax.parsing.base import Parser, ParserOptions, load_parser
from fairseq_syntax.store.memory import MemoryStore
from fairseq_syntax.text.conllu import ParsedLine, Token, flatten, parse_conllu_block, text_of, unflatten
from fairseq_syntax.text.conllu_reader import MOST_EMPTY_LINES
from fairseq_syntax.text.segmentation import spaces_before

logger = logging.getLogger(__name__)


def is_parsed(line: str) -> bool:
    """Whether a line of input is a flattened CoNLL-U parse: its first row has the ten columns."""
    return line.startswith(("1\t", "1\\t", "1-")) and unflatten(line).split("\n", 1)[0].count("\t") == 9


def unparsed(line: str) -> ParsedLine:
    """A line without a parse, in words of its text (:func:`~fairseq_syntax.inference.alignment.words_of`)."""
    spans = words_of(line)
    forms = [line[start:end] for start, end in spans]
    n = len(forms)
    after = [end < len(line) and line[end].isspace() for _, end in spans]
    return ParsedLine(
        words=forms,
        heads=list(range(n)),
        deprels=["_"] * n,
        upos=["_"] * n,
        xpos=["_"] * n,
        tokens=[Token(form, space or i == n - 1, i, i, i) for i, (form, space) in enumerate(zip(forms, after))],
        sentences=[(0, n)] if n else [],
        parsed=False,
    )


class InteractiveInput:
    """Parses, segments and indexes lines for a :class:`SyntaxTranslationTask`.

    Args:
        task: its configuration, dictionaries, labels, segmentation and needs are used
        parser: parses raw text; built from the task's options when first needed, if None
        source_tag: a piece that begins and ends each sentence, for models that need no parse; none if empty
    """

    def __init__(self, task: Any, parser: Parser | None = None, source_tag: str = "") -> None:
        self.task = task
        self.source_tag = source_tag
        self.given_parser = parser
        self._store: MemoryStore | None = None
        self._no_parser = False
        self._encoded: list[tuple[str, ParsedLine | None]] = []
        # What was collated: tokens, the numbers of the sentences among all that were read, syntax (where needed).
        self._batches: list[tuple[torch.Tensor, torch.Tensor, PackedSyntax | None]] = []
        self._read = 0

    @cached_property
    def parser(self) -> Parser:
        """The parser of raw text."""
        if self.given_parser is not None:
            return self.given_parser
        cfg = self.task.cfg
        options = ParserOptions(
            parser=cfg.syntax_parser,
            lang=cfg.syntax_parser_lang or cfg.source_lang,
            model_dir=cfg.syntax_parser_dir or None,
            distributions="arcs" in self.needs,
        )
        return load_parser(options)

    @property
    def needs(self) -> frozenset[str]:
        """What the model needs of the source's syntax."""
        return self.task.needs("source") or frozenset()

    def parse(self, lines: list[str]) -> list[ParsedLine]:
        """The parse of each line: its own, where it is flattened CoNLL-U, else the parser's.

        Raises:
            SyntaxDataError: a line's CoNLL-U is wrong, or the parser cannot be had
        """
        parsed: list[ParsedLine | None] = [None] * len(lines)
        raw = []
        for i, line in enumerate(lines):
            if is_parsed(line):
                try:
                    parsed[i] = parse_conllu_block(line)
                except SyntaxDataError as e:
                    raise SyntaxDataError(f"input line {i + 1}: {e.message}", hint=e.hint) from e
            elif not line.strip():
                parsed[i] = ParsedLine()
            elif self.task.cfg.syntax_input == "conllu":
                raise SyntaxDataError(f"input line {i + 1} is not CoNLL-U: {line[:60]!r}")
            else:
                raw.append(i)
        for i, parse in zip(raw, self._parse_raw([lines[i] for i in raw]) if raw else ()):
            parsed[i] = parse
        return [parse for parse in parsed if parse is not None]

    def _parse_raw(self, lines: list[str]) -> list[ParsedLine]:
        if str(self.task.cfg.missing_parse) != "neutral":
            return self.parser.parse(lines)
        if not self._no_parser:
            try:
                parser = self.parser
            except SyntaxDataError as error:
                logger.warning("raw text is translated without a parse: %s", error)
                self._no_parser = True
        if self._no_parser:
            return [unparsed(line) for line in lines]
        try:
            return parser.parse(lines)
        except Exception as error:  # whatever a parser may fail by, the others are to be translated
            if len(lines) == 1:
                logger.warning("%r is translated without a parse: %s", lines[0][:60], error)
                return [unparsed(lines[0])]
        return [self._parse_raw([line])[0] for line in lines]

    def segment(self, line: ParsedLine) -> list[str]:
        """The pieces of a parsed line, whose tokens learn how many they have."""
        segmenter = self.task.source_segmenter
        if segmenter is None:
            for token in line.tokens:
                token.pieces = 1
            return [token.form for token in line.tokens]
        words = segmenter.encode_words([t.form for t in line.tokens], spaces_before(line.tokens))
        for token, pieces in zip(line.tokens, words):
            token.pieces = len(pieces)
        return [piece for pieces in words for piece in pieces]

    def encode(self, lines: list[str]) -> tuple[list[torch.Tensor], list[int]]:
        """Tokens [T] and lengths of raw or parsed lines; the syntax is kept for :meth:`dataset`.

        A model that needs no parse takes raw text without one; where the data directory has no segmentation, that is
        pieces with spaces between them.
        """
        segmenter = self.task.source_segmenter
        if not self.needs and not any(map(is_parsed, lines)) and not self._has_parser():
            pieces = [segmenter.encode_text(line) if segmenter else line.split() for line in lines]
            self._encoded = [(line, None) for line in lines]
            self._store = None
        else:
            both = self.parsed_pieces(lines)
            pieces = [own for _, own in both]
            self._remember([parsed for parsed, _ in both])
        dictionary = self.task.source_dictionary
        if self.source_tag:
            pieces = [[self.source_tag, *p, self.source_tag] for p in pieces]
        tokens = [dictionary.encode_line(" ".join(p), add_if_not_exist=False).long() for p in pieces]
        return tokens, [t.numel() for t in tokens]

    def parsed_pieces(self, lines: list[str]) -> list[tuple[ParsedLine, list[str]]]:
        """The parse and the pieces of each line."""
        parsed = self.parse(lines)
        self._encoded = list(zip(lines, parsed))
        return [(line, self.segment(line)) for line in parsed]

    def texts(self) -> list[PieceText]:
        """Words and pieces of the lines encoded last: the parse's tokens, else those of the text."""
        found = []
        for line, parsed in self._encoded:
            side = self._raw_text(line) if parsed is None else self._parsed_text(line, parsed)
            if self.source_tag:
                side = PieceText(side.text, side.words, [(0, 0), *side.pieces, (0, 0)])
            found.append(side)
        return found

    def _parsed_text(self, line: str, parsed: ParsedLine) -> PieceText:
        """Every token is a word, on all of which each of its pieces stands."""
        forms = [token.form for token in parsed.tokens]
        text = line
        words = None if is_parsed(line) else locate(line, forms)
        if words is None:
            text = text_of(parsed)
            words = locate(text, forms) or []
        return PieceText(text, words, [w for w, t in zip(words, parsed.tokens) for _ in range(t.pieces or 0)])

    def _raw_text(self, line: str) -> PieceText:
        segmenter = self.task.source_segmenter
        spans: list[Span] = []
        at = 0
        for word in line.split():
            start = line.index(word, at)
            at = start + len(word)
            own = spell(segmenter.encode_text(word), segmenter.decode) if segmenter else None
            if own is not None and own.text == word:
                spans += [(start + first, start + last) for first, last in own.pieces]
            else:  # a piece that is the word, or pieces that a normaliser has changed
                spans += [(start, at)] * (len(own.pieces) if own else 1)
        return PieceText(line, words_of(line), spans)

    def _has_parser(self) -> bool:
        return self.given_parser is not None or bool(self.task.cfg.syntax_parser_dir)

    def _remember(self, parsed: list[ParsedLine]) -> None:
        if not self.needs:
            self._store = None
            return
        labels = LabelInventory(self.task.source_labels, frozen=True)
        stored = [to_stored(line, labels) for line in parsed]
        for sentence in stored:
            if sentence.arcs is None and not sentence.pieces:
                sentence.arcs = []
        self._store = MemoryStore(stored)

    def dataset(
        self, src_tokens: list, src_lengths: list, constraints: Any = None, *, rebuilt: bool = False
    ) -> SyntaxPairDataset:
        """The dataset of the lines encoded last.

        Args:
            rebuilt: whether :meth:`attach` will be given batches that were made anew from the tokens of this dataset's
        """
        syntax = None
        if self._store is not None:
            if len(self._store) != len(src_tokens):
                raise SyntaxDataError(f"{len(src_tokens)} sentences, but {len(self._store)} were encoded")
            syntax = SideSyntax([self._store], [1], arcs="arcs" in self.needs)
        arguments = (src_tokens, src_lengths, self.task.source_dictionary)
        options = {
            "tgt_dict": self.task.target_dictionary,
            "constraints": constraints,
            "source_syntax": syntax,
        }
        if not rebuilt:
            return SyntaxPairDataset(*arguments, **options)
        first, self._read = self._read, self._read + len(src_tokens)
        return _NotingDataset(self._batches, first, *arguments, **options)

    def attach(self, sample: dict[str, Any]) -> None:
        """Give a batch that was rebuilt from its tokens its syntax back, and the numbers of its sentences as ``id``.

        Raises:
            SyntaxDataError: the model needs syntax, and these tokens are not those of a batch made here
        """
        net_input = sample["net_input"]
        tokens = net_input["src_tokens"]
        while self._batches:
            known, ids, syntax = self._batches.pop(0)
            if known.shape == tokens.shape and torch.equal(known, tokens.cpu()):
                sample.setdefault("id", ids.to(tokens.device))
                if syntax is not None:
                    net_input["src_syntax"] = {**syntax, "packed": syntax["packed"].to(tokens.device)}
                return
        if self.needs:
            raise SyntaxDataError("a batch came without its syntax, and was not made by this task's own dataset")


class _NotingDataset(SyntaxPairDataset):
    """A dataset that notes what it collates, for :meth:`InteractiveInput.attach`."""

    def __init__(self, batches: list, first: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batches, self._first = batches, first

    def collater(self, samples: list[dict], pad_to_length: dict | None = None) -> dict:
        batch = super().collater(samples, pad_to_length)
        if batch:
            net_input = batch["net_input"]
            self._batches.append((net_input["src_tokens"], batch["id"] + self._first, net_input.get("src_syntax")))
        return batch


_NUMBER = re.compile(r"#\s*(lines?)\s*=\s*([0-9]+)\s*\Z", re.ASCII)


def read_blocks(lines: Iterable[str]) -> Iterator[str]:
    """CoNLL-U sentences, each ended by a blank line, as a flattened line each.

    In a file with ``# line = N`` comments the sentences of a line come together, and an empty string for each empty
    line, so that translations go by the lines of the text.

    Raises:
        SyntaxDataError: the CoNLL-U is wrong, or its line numbers do not rise
    """
    block: list[str] = []
    number, done, total = None, 0, 0  # of the block; lines yielded; lines of the text, where the file says so
    for row in lines:
        row = row.rstrip("\r\n")
        if match := _NUMBER.match(row):
            value = int(match[2])
            if match[1] == "lines":
                total = value
            elif value != number:
                if block:
                    yield _flattened(block)
                    block, done = [], done + 1
                if value <= done:
                    raise SyntaxDataError(f"'# line = {value}' comes after line {done}")
                yield from _empty(value - done - 1)
                number, done = value, value - 1
        elif row.strip():
            block.append(row)
        elif number is not None:
            block.append("")
        elif block:
            yield _flattened(block)
            block, done = [], done + 1
    if block:
        yield _flattened(block)
        done += 1
    yield from _empty(total - done)


def _empty(lines: int) -> list[str]:
    if lines > MOST_EMPTY_LINES:
        raise SyntaxDataError(f"{lines} lines without a sentence", hint="is a number in '# line = N' wrong?")
    return [""] * lines


def _flattened(block: list[str]) -> str:
    return flatten(parse_conllu_block("\n".join(block)))


def read_blocks_in_interactive() -> None:
    """Let fairseq-interactive read CoNLL-U blocks: its own reader takes one line at a time and strips it."""
    from fairseq_cli import interactive

    def buffered_read(input: str, buffer_size: int) -> Iterator[list[str]]:
        buffer: list[str] = []
        with fileinput.input(files=[input], openhook=fileinput.hook_encoded("utf-8")) as rows:
            for block in read_blocks(rows):
                buffer.append(block)
                if len(buffer) >= buffer_size:
                    yield buffer
                    buffer = []
        if buffer:
            yield buffer

    interactive.buffered_read = buffered_read
