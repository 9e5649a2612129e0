"""Parsing of whole corpora, in parts made by several processes or by the jobs of a job array.

The text is divided into parts of ``part_lines`` lines, which are parsed independently
(:mod:`fairseq_syntax.runtime.parts`). A shard makes some of the parts; a merge joins the parts of all shards.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from fairseq_syntax.corpus.conllu import check_text, format_conllu
from fairseq_syntax.corpus.header import header
from fairseq_syntax.corpus.parsed_line import check_parse
from fairseq_syntax.corpus.parsing.base import Parser, ParserOptions, fingerprint_of_models, load_parser
from fairseq_syntax.corpus.parsing.tokenizers import BasicTokenizer, cannot_cut
from fairseq_syntax.corpus.text_parts import TextPart, text_parts, with_spans
from fairseq_syntax.corpus.words import has_no_spaces, looks_tokenized
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import (
    atomic_open_binary,
    check_apart,
    check_rereadable,
    errors_in,
    fingerprint,
    read_lines,
)
from fairseq_syntax.runtime.jobs import Step
from fairseq_syntax.runtime.parts import Made, MadeParts, Parts, Span, make_parts, map_parts, part_spans
from fairseq_syntax.runtime.workers import Workers, cores

logger = logging.getLogger(__name__)

# To be increased if the same text, options and models give another parse, for example after a change of tokenizer.
VERSION = 1


@dataclass(frozen=True)
class Job:
    """A corpus to parse into one file.

    ``shard`` is (number from 1, count): only the parts of this shard are parsed, and nothing is merged. ``threads`` is
    PyTorch's number of threads per worker process, which can affect the last digit of a probability, like the device.
    ``overwrite``: replace an earlier result and the parts of other jobs, once the new result is complete.
    """

    text: Path
    output: Path
    options: ParserOptions
    part_lines: int = 2000
    workers: int = 1
    threads: int | None = None
    shard: tuple[int, int] | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Plan:
    """A job after reading its text: the number of lines, and fingerprints of the models and of the whole job."""

    job: Job
    n_lines: int
    models: str
    fingerprint: str

    @classmethod
    def of(cls, job: Job) -> Plan:
        """Read the text and the models.

        Raises:
            SyntaxDataError: the text is empty, unreadable, a pipe, a parse or the output; or the models do not exist
        """
        check_apart(job.output, job.text)
        check_rereadable("it is read once for its lines and once to be parsed", job.text)
        check_text(job.text, "--parser conllu takes what is parsed already")
        digest = hashlib.sha256()
        n_lines = 0
        first: list[str] = []
        for line in read_lines(job.text):
            digest.update(line.encode() + b"\n")
            n_lines += 1
            if len(first) < 1000:
                first.append(line)
        if job.options.tokenizer != "whitespace" and looks_tokenized(first):
            logger.warning("%s looks tokenized already: is --pretokenized meant?", job.text)
        if n_lines == 0:
            raise SyntaxDataError("is empty", path=job.text)
        models = fingerprint_of_models(job.options, job.output)
        depends_on = digest.hexdigest(), job.options.of_the_result, models, job.part_lines
        return cls(job, n_lines, models, fingerprint(VERSION, *depends_on))

    @property
    def step(self) -> Step:
        """The step that makes the whole output."""
        return Step((self.job.output,), self.fingerprint)

    @property
    def parts(self) -> Parts:
        """The files of the output's parts."""
        return Parts.of(self.step, self.job.part_lines)

    @property
    def spans(self) -> list[Span]:
        """The line spans [start, end) of all parts of the text."""
        return part_spans(self.n_lines, self.job.part_lines)

    @property
    def shard_spans(self) -> list[Span]:
        """The spans of this shard's parts; all shards together contain each part once."""
        number, count = self.job.shard or (1, 1)
        spans = self.spans
        return spans[(number - 1) * len(spans) // count : number * len(spans) // count]

    def source(self) -> Iterator[tuple[Span, TextPart]]:
        """The parts of this shard with their text."""
        starts = {start for start, _ in self.shard_spans}
        parts = with_spans(text_parts(self.job.text, self.job.part_lines))
        return ((span, part) for span, part in parts if span[0] in starts)


def parse_corpus(job: Job | Plan, workers: Workers | None = None) -> Path | None:
    """Parse the missing parts of a text, and merge all parts unless the job is a shard.

    Args:
        job: the job, or a plan whose text was already read
        workers: the workers of a cluster, instead of ``job.workers`` processes

    Returns:
        the finished file, or None for a shard

    Raises:
        SyntaxDataError: the text or the models are invalid, the output was made by another job, or the disk is full
    """
    plan = job if isinstance(job, Plan) else Plan.of(job)
    job, source = plan.job, plan.source()
    parse_part = _ParsePart(job.options, _threads(job, workers))
    how: dict[str, Any] = {
        "workers": workers or job.workers,
        "method": "spawn",
        "hint": "run the command again with fewer --workers or a smaller --batch-size: it continues",
    }
    if job.shard is not None:
        if plan.step.record() is None:
            plan.step.check_replaceable()
            plan.parts.make_folder(plan.shard_spans)
            total = sum(end - start for start, end in plan.shard_spans)
            make_parts(plan.parts, source, parse_part, total=total, **how)
        return None
    how |= {"part_lines": job.part_lines, "total": plan.n_lines, "replace": job.overwrite}
    outcome = map_parts(plan.step, source, parse_part, lambda made: _write(plan, made), **how)
    if outcome.was_done:
        logger.info("%s is up to date", job.output)
    return job.output


def merge(plan: Plan) -> Path:
    """Merge the parts of all shards, and remove them.

    Raises SyntaxDataError if a part is missing or damaged.
    """

    def is_missing(span: Span) -> NoReturn:
        hint = "run the shards that are not finished, or the command without --shard and --merge: it parses the rest"
        raise SyntaxDataError(f"lines {span[0] + 1} to {span[1]} are missing", path=plan.parts.folder, hint=hint)

    map_parts(
        plan.step,
        ((span, span) for span in plan.spans),
        is_missing,
        lambda made: _write(plan, made),
        part_lines=plan.job.part_lines,
        replace=plan.job.overwrite,
    )
    return plan.job.output


def _write(plan: Plan, made: MadeParts) -> None:
    with atomic_open_binary(plan.job.output) as file:
        options = {**plan.job.options.of_the_result, "models": plan.models}
        file.write(header(plan.n_lines, parsed_with=options).encode())
        for _, body in made:
            file.write(body)


# ------------------------------------------------------------------------------------------------ the parts' work


def _threads(job: Job, workers: Workers | None) -> int | None:
    """The number of threads per worker; None for PyTorch's default, OMP_NUM_THREADS or all cores."""
    if job.threads is None and workers is not None:
        return 1
    if job.threads is None and job.workers > 1 and not os.environ.get("OMP_NUM_THREADS"):
        return max(1, cores() // job.workers)
    return job.threads


@dataclass
class _ParsePart:
    """Makes the CoNLL-U of a part."""

    options: ParserOptions
    threads: int | None

    @cached_property
    def parser(self) -> Parser:
        """The parser, loaded in the process that parses."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        return load_parser(self.options)

    def __call__(self, part: TextPart) -> Made:
        lines = list(part.texts())
        with errors_in(part.path):
            if isinstance(self.parser.tokenizer, BasicTokenizer) and has_no_spaces(lines):
                raise cannot_cut(f"the text of lines {part.start + 1} to {part.end}")
            parsed = self.parser.parse(lines, first_line=part.start)
            if len(parsed) != len(lines):  # otherwise the following parts would have wrong line numbers
                raise SyntaxDataError(f"{len(lines)} lines went into the parser, {len(parsed)} came out")
        rows = []
        for line in parsed:
            with errors_in(part.path, line.line_number + 1):
                # A parser may not return a tree, which should be reported before the merge.
                rows.append(format_conllu(check_parse(line)))
        return {}, "".join(rows).encode()
