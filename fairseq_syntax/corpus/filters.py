"""Filters of parallel corpora: by length, length ratio, parse and language.

In the papers, PASCAL removes sentences over 80 tokens and, by a language identifier, those in another language; LDD
removes source sentences that its parser cannot parse or that have more than 256 tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from fairseq_syntax.corpus.conllu import parse_conllu_block, with_spaces
from fairseq_syntax.corpus.header import PARSED_WITH, header, parsed_with
from fairseq_syntax.corpus.line_numbers import LineNumbers, is_blank, is_line_comment
from fairseq_syntax.corpus.parsed_line import take_spaces, text_of
from fairseq_syntax.corpus.text_parts import TextPart, conllu_parts, count_parallel_lines, parallel_parts, text_parts
from fairseq_syntax.corpus.words import unspaced
from fairseq_syntax.errors import SyntaxDataError, imports_of
from fairseq_syntax.runtime.files import atomic_open, check_outputs, check_rereadable, decode_line
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts

REASONS = ("empty", "too short", "too long", "ratio", "no parse", "bad parse", "language")
PART_LINES = 5_000


@dataclass(frozen=True)
class Limits:
    """Thresholds that a line must meet in every file; None disables one.

    Attributes:
        min_length, max_length: in tokens between spaces, or characters without spaces if ``characters``
        max_ratio: the ratio of the longest to the shortest side
        languages: the ISO 639-1 code of each file; a line is removed if another language is the most probable
    """

    min_length: int = 1
    max_length: int | None = None
    max_ratio: float | None = None
    characters: bool = False
    languages: tuple[str, ...] | None = None


@dataclass
class Report:
    """Counts of a filter: lines read, kept, and removed by the first reason that applied to each.

    ``examples`` contains the first line removed for each reason: its number, the detail, and its texts.
    """

    lines: int = 0
    kept: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    examples: dict[str, tuple[int, str, Sequence[str]]] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [f"{self.lines} lines, {self.kept} kept, {self.lines - self.kept} removed"]
        for reason in REASONS:
            if reason in self.removed:
                number, detail, texts = self.examples[reason]
                rows.append(f"  {self.removed[reason]:>8}  {reason}; the first is line {number}: {detail}")
                rows += [f"            {text if len(text) <= 80 else text[:77] + '...'}" for text in texts]
        return "\n".join(rows)


def language_identifier(languages: Iterable[str]) -> Callable[[str], tuple[str, float]]:
    """Load py3langid (Lui and Baldwin 2012): a function from a text to its most probable language and probability."""
    with imports_of("filter"):
        from py3langid.langid import MODEL_FILE
        from py3langid.langid import LanguageIdentifier as Identifier
    identifier = Identifier.from_model_file(MODEL_FILE, norm_probs=True)
    if unknown := [language for language in languages if language not in identifier.labels]:
        raise SyntaxDataError(f"py3langid does not know the language {unknown[0]}", hint="ISO 639-1 codes: en, de")
    classify: Callable[[str], tuple[str, float]] = identifier.classify
    return classify


class Verdict(NamedTuple):
    """The decision on a line: the reason for its removal (in :data:`REASONS`) with a detail, or none if it is kept.

    ``parse`` is the CoNLL-U of a kept line, with the spaces of its text.
    """

    reason: str = ""
    detail: str = ""
    parse: str | None = None


class Judge:
    """Decides about the lines of parallel files by the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._identify = language_identifier(limits.languages) if limits.languages else None

    def __call__(self, texts: Sequence[str], parse: str | None = None) -> Verdict:
        """The decision on one line of each file, with its CoNLL-U, empty without a sentence, if parses are checked.

        Raises:
            SyntaxDataError: the parse belongs to none of the texts
        """
        limits = self.limits
        if not all(text.strip() for text in texts):
            empty = (str(i) for i, text in enumerate(texts, start=1) if not text.strip())
            return Verdict("empty", f"file {', '.join(empty)}")
        lengths = [len(unspaced(text) if limits.characters else text.split()) for text in texts]
        if min(lengths) < limits.min_length:
            return Verdict("too short", f"{min(lengths)} < {limits.min_length}")
        if limits.max_length is not None and max(lengths) > limits.max_length:
            return Verdict("too long", f"{max(lengths)} > {limits.max_length}")
        if limits.max_ratio is not None and max(lengths) > limits.max_ratio * min(lengths):
            return Verdict("ratio", f"{max(lengths)}:{min(lengths)}")
        if parse is not None:
            if not parse:
                return Verdict("no parse", "the parser gave no sentence")
            try:
                parsed = parse_conllu_block(parse + "\n")  # keep its rows as they are
            except SyntaxDataError as error:
                return Verdict("bad parse", error.message)
            before = text_of(parsed)
            take_spaces(parsed, *texts)
            parse = with_spaces(parse, parsed) if text_of(parsed) != before else parse
        if self._identify is not None:  # last, because it takes longest
            for text, wanted in zip(texts, limits.languages or ()):
                language, probability = self._identify(text)
                if language != wanted:
                    return Verdict("language", f"{language} ({float(probability):.2f}) where {wanted} is due")
        return Verdict(parse=parse)


def filter_files(
    inputs: Sequence[str],
    outputs: Sequence[str],
    limits: Limits,
    *,
    conllu: tuple[str, str] | None = None,
    removed: str | None = None,
    workers: int = 1,
) -> Report:
    """Write the lines of parallel files that meet the limits in all files.

    It works in parts, and a killed run resumes with the missing ones.

    Args:
        inputs, outputs: parallel UTF-8 files, which may be compressed
        conllu: the parse of one of the inputs, and the output for the kept parses. ``# line`` comments are renumbered
            and spaces are taken from the text; everything else is copied.
        removed: a file for the removed lines: number, reason, detail and texts, separated by tabs

    Raises:
        SyntaxDataError: the files differ in their number of lines, are not UTF-8 or are pipes; an output is also an
            input; or a parse belongs to another text
    """
    if len(inputs) != len(outputs) or (limits.languages and len(limits.languages) != len(inputs)):
        raise SyntaxDataError("as many outputs (and languages) as inputs are needed", hint="in the same order")
    parse, parse_output = conllu or (None, None)
    targets = [path for path in (*outputs, parse_output, removed) if path]
    read = [path for path in (*inputs, parse) if path]
    check_outputs(targets, read)
    check_rereadable("it is read several times", *read)
    total = count_parallel_lines(inputs)
    options = {"limits": asdict(limits), "parse": bool(parse), "removed": bool(removed)}
    step = RecordedStep.of("filter", targets, read, **options)

    def merge(made: MadeParts) -> dict[str, Any]:
        report = Report(made.lines, sum(note["kept"] for note in made.notes()))
        if report.lines and not report.kept:
            reasons = Counter(json.loads(row)[2][0] for _, body in made for row in body.splitlines())
            counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
            of_length = reasons.keys() & {"too short", "too long", "ratio"}
            hint = "wider limits, or --characters for text without spaces" if of_length else None
            raise SyntaxDataError(f"all {report.lines:,} lines would be removed: {counts}", path=inputs[0], hint=hint)
        rows = (json.loads(row) for _, body in made for row in body.splitlines())
        with ExitStack() as stack:  # all outputs are renamed together at the end
            files = [stack.enter_context(atomic_open(target)) for target in targets]
            of_parse = files[len(outputs)] if parse else None
            if parse and of_parse and report.kept:
                of_parse.write(header(report.kept, parsed_with=parsed_with(parse)))
            number = 0
            for line, texts, (reason, detail, block) in rows:
                if reason:
                    report.removed[reason] = report.removed.get(reason, 0) + 1
                    report.examples.setdefault(reason, (line, detail, texts))
                    if removed:
                        cells = [str(line), reason, detail, *texts]
                        files[-1].write("\t".join(cell.replace("\t", " ") for cell in cells) + "\n")
                    continue
                number += 1
                for file, text in zip(files, texts):
                    file.write(text + "\n")
                if of_parse:
                    for sentence in block.split("\n\n"):
                        of_parse.write(f"# line = {number}\n{sentence}\n\n")
        return asdict(report)

    sides = [text_parts(path, PART_LINES) for path in inputs]
    if parse:
        sides.append(conllu_parts(parse, PART_LINES, n_lines=total))
    judge = partial(_judge_part, Judge(limits), bool(parse))
    source = parallel_parts(*sides)
    note, _ = map_parts(step, source, judge, merge, part_lines=PART_LINES, total=total, workers=workers)
    return Report(**note)


def _judge_part(judge: Judge, parsed: bool, parts: tuple[TextPart, ...]) -> Made:
    """The lines of a part with the decisions on them, a row each; the last file is a parse if ``parsed``."""
    texts = zip(*(part.texts() for part in parts[: len(parts) - parsed]))
    blocks = conllu_blocks(parts[-1]) if parsed else repeat(None)
    rows = []
    kept = 0
    for number, (sides, block) in enumerate(zip(texts, blocks), parts[0].start + 1):
        try:
            verdict = judge(sides, block)
        except SyntaxDataError as error:
            raise SyntaxDataError(f"line {number}: {error.message}", path=parts[-1].path, hint=error.hint) from error
        rows.append(json.dumps([number, sides, verdict]))
        kept += not verdict.reason
    return {"kept": kept}, "\n".join(rows).encode()


def conllu_blocks(part: TextPart) -> list[str]:
    """The unchecked CoNLL-U of each text line of a part, without header, ``# line`` comments and blank line at the end.

    Blank lines separate the sentences of a line; one without a sentence is empty.
    """
    lines: list[list[str]] = [[] for _ in range(part.start, part.end)]
    numbers = LineNumbers(part.path, part.end, part.start, is_part=True)
    for line, first, block in numbers.blocks(part.rows, part.before):
        if line >= 0:
            rows = (decode_line(row, part.path, number) for number, row in enumerate(block, first))
            rows = (row for row in rows if not (is_blank(row) or is_line_comment(row) or row.startswith(PARSED_WITH)))
            lines[line - part.start].append("\n".join(rows))
    return ["\n\n".join(sentences) for sentences in lines]
