"""Parsing of whole corpora, in parts made by several processes or by the jobs of a job array.

The text is divided into parts of ``part_lines`` lines, which are parsed independently
(:mod:`fairseq_syntax.runtime.parts`). A shard makes some of the parts; a merge joins the parts of all shards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

from fairseq_syntax.corpus.conllu import check_text, format_conllu
from fairseq_syntax.corpus.distinct_labels import DistinctLabels
from fairseq_syntax.corpus.header import header
from fairseq_syntax.corpus.parsed_line import check_parse
from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, fingerprint_of_models, load_parser
from fairseq_syntax.corpus.parsing.tokenizers import BasicTokenizer, cannot_cut
from fairseq_syntax.corpus.text_parts import TextPart, text_parts, with_spans
from fairseq_syntax.corpus.words import has_no_spaces, language_of, looks_tokenized
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import fingerprint, sha256_of
from fairseq_syntax.runtime.files import (
    atomic_open_binary,
    check_apart,
    check_rereadable,
    errors_in,
    read_lines,
    uncompressed_name,
)
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.parts import Made, MadeParts, Parts, Span, make_parts, map_parts, part_spans
from fairseq_syntax.runtime.workers import Workers, cores, worker_number

logger = logging.getLogger(__name__)

# To be increased if the same text, options and models give another parse, for example after a change of tokenizer.
VERSION = 1


@dataclass(frozen=True)
class Job:
    """A corpus to parse into one file. Its text and its models are read when they are first needed, and only once.

    ``shard`` is (number from 1, count): only the parts of this shard are parsed, and nothing is merged. ``threads`` is
    PyTorch's number of threads per worker process, which can affect the last digit of a probability, like the device.
    ``overwrite``: replace an earlier result and the parts of other jobs, once the new result is complete.
    """

    text: Path
    output: Path
    options: ParserOptions
    part_lines: int = 2000
    workers: int | Workers = 1
    threads: int | None = None
    shard: tuple[int, int] | None = None
    overwrite: bool = False

    @cached_property
    def _lines_and_digest(self) -> tuple[int, str]:
        """The number of lines of the text and the SHA-256 of their content."""
        check_apart(self.output, self.text)
        check_rereadable("it is read once for its lines and once to be parsed", self.text)
        check_text(self.text, "--parser conllu takes what is parsed already")
        n_lines = 0
        first: list[str] = []

        def counted() -> Iterator[bytes]:
            nonlocal n_lines
            for line in read_lines(self.text):
                n_lines += 1
                if len(first) < 1000:
                    first.append(line)
                yield line.encode() + b"\n"

        digest = sha256_of(counted())
        if self.options.tokenizer != "whitespace" and looks_tokenized(first):
            logger.warning("%s looks tokenized already: is --pretokenized meant?", self.text)
        ending, lang = Path(uncompressed_name(self.text)).suffix[1:].lower(), language_of(self.options.lang)
        if len(ending) == 2 and ending.isalpha() and lang not in (ending, "xx"):
            logger.warning("%s is parsed as %s: is --lang %s meant?", self.text, self.options.lang, ending)
        if n_lines == 0:
            raise SyntaxDataError("is empty", path=self.text)
        return n_lines, digest

    @property
    def n_lines(self) -> int:
        """The number of lines of the text."""
        return self._lines_and_digest[0]

    @cached_property
    def models(self) -> str:
        """The fingerprint of the models."""
        return fingerprint_of_models(self.options, self.output)

    @property
    def step(self) -> RecordedStep:
        """The step that makes the whole output."""
        _, digest = self._lines_and_digest
        depends_on = digest, self.options.of_the_result, self.models, self.part_lines
        return RecordedStep((self.output,), fingerprint(VERSION, *depends_on))

    @property
    def parts(self) -> Parts:
        """The files of the output's parts."""
        return Parts.of(self.step, self.part_lines)

    @property
    def spans(self) -> list[Span]:
        """The line spans [start, end) of all parts of the text."""
        return part_spans(self.n_lines, self.part_lines)

    @property
    def shard_spans(self) -> list[Span]:
        """The spans of this shard's parts; all shards together contain each part once."""
        number, count = self.shard or (1, 1)
        spans = self.spans
        return spans[(number - 1) * len(spans) // count : number * len(spans) // count]

    def source(self) -> Iterator[tuple[Span, TextPart]]:
        """The parts of this shard with their text."""
        starts = {start for start, _ in self.shard_spans}
        parts = with_spans(text_parts(self.text, self.part_lines))
        return ((span, part) for span, part in parts if span[0] in starts)


def parse_corpus(job: Job) -> Path | None:
    """Parse the missing parts of a text, and merge all parts unless the job is a shard.

    Returns:
        the finished file, or None for a shard

    Raises:
        SyntaxDataError: the text or the models are invalid, the output was made by another job, or the disk is full
    """
    parse_part = _ParsePart(job.options, _threads(job))
    how: dict[str, Any] = {"workers": job.workers, "method": "spawn"}
    if job.shard is not None:
        if job.step.record() is None:
            job.step.check_replaceable()
            job.parts.make_folder(job.shard_spans)
            total = sum(end - start for start, end in job.shard_spans)
            make_parts(job.parts, job.source(), parse_part, total=total, **how)
        return None
    how |= {"part_lines": job.part_lines, "total": job.n_lines, "replace": job.overwrite}
    _, was_done = map_parts(job.step, job.source(), parse_part, partial(_write, job), **how)
    if was_done:
        logger.info("%s is up to date", job.output)
    return job.output


def merge(job: Job) -> Path:
    """Merge the parts of all shards, and remove them. Raises SyntaxDataError if a part is missing or damaged."""

    def is_missing(span: Span) -> NoReturn:
        hint = "run the shards that are not finished, or the command without --shard and --merge: it parses the rest"
        raise SyntaxDataError(f"lines {span[0] + 1} to {span[1]} are missing", path=job.parts.folder, hint=hint)

    source = ((span, span) for span in job.spans)
    how: dict[str, Any] = {"part_lines": job.part_lines, "replace": job.overwrite}
    map_parts(job.step, source, is_missing, partial(_write, job), **how)
    return job.output


def _write(job: Job, made: MadeParts) -> None:
    with atomic_open_binary(job.output) as file:
        file.write(header(job.n_lines, parsed_with={**job.options.of_the_result, "models": job.models}).encode())
        labels = DistinctLabels()
        for note, body in made:
            with errors_in(job.text):
                labels.merge(note.get("labels", {}))  # parts of earlier versions have none
            file.write(body)


# ------------------------------------------------------------------------------------------------ the parts' work


def _threads(job: Job) -> int | None:
    """The number of threads per worker; None for PyTorch's default, OMP_NUM_THREADS or all cores."""
    if job.threads is not None:
        return job.threads
    if not isinstance(job.workers, int):
        return 1
    share_cores = job.workers > 1 and not os.environ.get("OMP_NUM_THREADS")
    return max(1, cores() // job.workers) if share_cores else None


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
        if self.options.device == "cuda" and (number := worker_number()):
            import torch

            # Each process uses one GPU. On a cluster, Ray has assigned one.
            torch.cuda.set_device(number % torch.cuda.device_count())
        return load_parser(self.options)

    def __call__(self, part: TextPart) -> Made:
        lines = list(part.texts())
        with errors_in(part.path):
            if isinstance(self.parser.tokenizer, BasicTokenizer) and has_no_spaces(lines):
                raise cannot_cut(f"the text of lines {part.start + 1} to {part.end}")
            parsed = self.parser.parse(lines, first_line=part.start)
            if len(parsed) != len(lines):  # otherwise the following parts would have wrong line numbers
                raise SyntaxDataError(f"{len(lines)} lines went into the parser, {len(parsed)} came out")
        rows, labels = [], DistinctLabels()
        for line in parsed:
            with errors_in(part.path, line.line_number + 1):
                # A parser may not return a tree, which should be reported before the merge.
                rows.append(format_conllu(check_parse(line)))
                labels.add(line)
        return {"labels": labels.labels}, "".join(rows).encode()
