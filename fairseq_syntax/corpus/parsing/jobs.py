"""Parsing a whole corpus: in parts that are written whole or not at all, in any order, by any number of processes.

The text is cut into parts of ``part_lines`` lines, always at the same places, and each is parsed by itself. So a run
that was killed continues with the parts that are missing, shards may run anywhere, and the bytes of the result are
those of one uninterrupted run. Each part says which lines it holds, a digest of its content, and a fingerprint of
what it was made from; only parts that agree are put together.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from fairseq_syntax.corpus.conllu import check_text, format_conllu, read_conllu
from fairseq_syntax.corpus.parsing.base import Parser, ParserOptions, fingerprint_of_models, load_parser
from fairseq_syntax.corpus.title import title
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.files import (
    atomic_open_binary,
    check_apart,
    check_rereadable,
    errors_in,
    file_sha256,
    fingerprint,
    is_replaced,
    locked,
    make_folder,
    read_lines,
    read_raw_lines,
)
from fairseq_syntax.runtime.jobs import Parts, Step, Workers, cores, in_workers, part_spans, read_record
from fairseq_syntax.runtime.uris import Uri

logger = logging.getLogger(__name__)

# To be raised where the same text, options and models give another parse, by another tokenizer for one.
VERSION = 1


@dataclass(frozen=True)
class Job:
    """A corpus to be parsed into one file.

    ``shard`` is (number from 1, count): only the parts of this shard are parsed, and nothing is merged. ``threads``
    are torch's, per worker process; the last digit of a probability may depend on them, as it does on the device.
    ``overwrite``: an earlier result, which stays until the new one is whole, and the parts of another job are replaced.
    """

    text: Path | Uri
    output: Path | Uri
    options: ParserOptions
    part_lines: int = 2000
    workers: int = 1
    threads: int | None = None
    shard: tuple[int, int] | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Plan:
    """A job whose text was read: its lines, its parts, and the fingerprint of all that the parse depends on."""

    job: Job
    n_lines: int
    fingerprint: str

    @classmethod
    def of(cls, job: Job) -> Plan:
        """Reads the text and the models.

        Raises:
            SyntaxDataError: the text is empty, unreadable, a pipe, a parse or the output, or the parser has no models
        """
        check_apart(job.output, job.text)
        check_rereadable("it is read once for its lines and once to be parsed", job.text)
        check_text(job.text, "--parser conllu takes what is parsed already")
        digest = hashlib.sha256()
        n_lines = 0
        for line in read_lines(job.text):
            digest.update(line.encode() + b"\n")
            n_lines += 1
        if n_lines == 0:
            raise SyntaxDataError("is empty", path=job.text)
        models = fingerprint_of_models(job.options, job.output)
        return cls(
            job, n_lines, fingerprint(VERSION, digest.hexdigest(), job.options.of_the_result, models, job.part_lines)
        )

    @property
    def files(self) -> Parts:
        """The files of the parts."""
        return Parts(self.job.output, self.fingerprint, ".conllu")

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The line spans [start, end) of all parts of the text."""
        return part_spans(self.n_lines, self.job.part_lines)

    @property
    def own_parts(self) -> list[tuple[int, int]]:
        """Those of this shard: together the shards have every part once."""
        number, count = self.job.shard or (1, 1)
        parts = self.parts
        return parts[(number - 1) * len(parts) // count : number * len(parts) // count]


def parse_corpus(job: Job, workers: Workers | None = None) -> Path | Uri | None:
    """Parses what is not yet parsed, and merges unless the job is a shard.

    Args:
        workers: those of a cluster, in place of ``job.workers`` processes

    Returns:
        the finished file, or None after a shard

    Raises:
        SyntaxDataError: bad text or models, parts or a result of another job in the way, or a full disk
    """
    return carry_out(Plan.of(job), workers)


def carry_out(plan: Plan, workers: Workers | None = None) -> Path | Uri | None:
    """As :func:`parse_corpus`, of a job whose text was read."""
    job = plan.job
    with _by_itself(job):
        if _is_done(plan):
            plan.files.remove_own()  # a run that was killed after its last commit left them
            logger.info("%s is up to date", job.output)
            return job.output
        if job.overwrite:
            plan.files.clear_others()
        else:
            plan.files.check_others("give --overwrite" if job.shard is None else "")
        plan.files.make_folder(plan.own_parts)
        missing = [part for part in plan.own_parts if not plan.files.is_whole(part)]
        done = sum(end - start for start, end in plan.own_parts) - sum(end - start for start, end in missing)
        with progress(total=sum(e - s for s, e in plan.own_parts), done=done, of="parsing") as bar:
            for start, end in _parse_parts(plan, missing, workers):
                bar.update(end - start)
        return merge(plan) if job.shard is None else None


def _by_itself(job: Job) -> AbstractContextManager[None]:
    """Whoever else makes the whole of the same output waits; shards are made side by side.

    Beside a FIFO or a device, such as ``/dev/stdout``, nothing can be locked, and nobody else writes to it.
    """
    if job.shard is not None or isinstance(job.output, Uri) or not is_replaced(job.output):
        return nullcontext()
    make_folder(job.output.parent)
    return locked(job.output.with_name(f"{job.output.name}.parse"))


def merge(plan: Plan) -> Path | Uri:
    """Puts the parts together, and removes them after that.

    Raises:
        SyntaxDataError: a part is missing or damaged, or belongs to another job
    """
    with locked(plan.job.output):
        if _is_done(plan):  # by another process that was merging, or by one that was killed after that
            plan.files.remove_own()
            return plan.job.output
        missing = [part for part in plan.parts if not plan.files.is_whole(part)]
        if missing:
            shown = ", ".join(f"{start + 1} to {end}" for start, end in missing[:5])
            more = ", …" if len(missing) > 5 else ""
            raise SyntaxDataError(
                f"{len(missing)} of {len(plan.parts)} parts are missing: lines {shown}{more}",
                path=plan.files.folder,
                hint="run the shards that are not finished, or the command without --shard and --merge: it parses the "
                "rest",
            )
        step = None
        if isinstance(plan.job.output, Path) and is_replaced(plan.job.output):
            step = Step((plan.job.output,), plan.fingerprint)
            step.begin()
        with atomic_open_binary(plan.job.output) as file:
            options = plan.job.options.of_the_result
            file.write(title(plan.n_lines, made_from=plan.fingerprint, parsed_with=options).encode())
            for part in plan.parts:
                file.write(plan.files.body(part))
        if step is not None:
            step.finish()
        plan.files.remove()
    return plan.job.output


def _is_done(plan: Plan) -> bool:
    output = plan.job.output
    if not output.is_file():  # a FIFO or a device is never done
        return False
    first = title(plan.n_lines, made_from=plan.fingerprint).encode()
    message = "exists, and was made from another text, with other options or by another parser"
    if b"".join(islice(read_raw_lines(output), first.count(b"\n"))) == first:
        if not _has_changed(plan):
            return True
        message = "has changed since it was made, by this command"
    if plan.job.overwrite:
        return False
    raise SyntaxDataError(message, path=output, hint="give another --output, or --overwrite")


def _has_changed(plan: Plan) -> bool:
    """Whether a result of this job is not what was noted of it; an object store sees to that itself."""
    output = plan.job.output
    if isinstance(output, Uri):
        return False
    found = read_record(output) or {}  # none of a result of an earlier version, or one that was moved here
    noted = (found.get("outputs") or {}).get(output.name) if found.get("made_from") == plan.fingerprint else None
    return noted not in (None, file_sha256(output))


# ------------------------------------------------------------------------------------------------ the parts' work


def _lines_of(plan: Plan, parts: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], list[str]]]:
    lines = read_lines(plan.job.text)
    at = 0
    for start, end in parts:
        for _ in islice(lines, start - at):
            pass
        yield (start, end), list(islice(lines, end - start))
        at = end


def _parse_parts(plan: Plan, parts: list[tuple[int, int]], others: Workers | None) -> Iterator[tuple[int, int]]:
    """Yields parts as they are committed."""
    if not parts:
        return
    workers: int | Workers = plan.job.workers
    threads = plan.job.threads
    if others is not None:
        workers, threads = others, threads or 1
        plan = replace(plan, job=replace(plan.job, output=plan.job.output.absolute()))
    elif plan.job.workers > 1 and threads is None and not os.environ.get("OMP_NUM_THREADS"):  # which torch heeds
        threads = max(1, cores() // plan.job.workers)
    hint = "run the command again with fewer --workers or a smaller --batch-size: it continues"
    yield from in_workers(
        _work,
        _lines_of(plan, parts),
        workers=workers,
        start=_start,
        arguments=(plan, threads),
        method="spawn",
        ordered=False,
        hint=hint,
    )


def _commit(plan: Plan, parser: Parser, part: tuple[int, int], lines: list[str]) -> None:
    with errors_in(plan.job.text):
        parsed = parser.parse(lines, first_line=part[0])
        body = "".join(format_conllu(line) for line in parsed)
    # A parser may give what is no tree; better here than after the merge.
    rows = [f"# lines = {part[1]}", "", *body.split("\n")]
    found = sum(1 for _ in read_conllu(rows, n_lines=part[1], first_line=part[0]))
    if not len(parsed) == found == len(lines) == part[1] - part[0]:
        raise SyntaxDataError(f"{len(lines)} lines went into the parser, {found} came out", path=plan.job.text)
    plan.files.commit(part, body.encode())


_worker: tuple[Plan, Parser] | None = None


def _start(plan: Plan, threads: int | None) -> None:
    global _worker
    plan.files.check_folder()
    if threads is not None:
        torch.set_num_threads(threads)
    _worker = plan, load_parser(plan.job.options)


def _work(task: tuple[tuple[int, int], list[str]]) -> tuple[int, int]:
    assert _worker is not None
    part, lines = task
    _commit(*_worker, part, lines)
    return part
