"""Parsing a whole corpus: in parts that are written whole or not at all, in any order, by any number of processes.

The text is cut into parts of ``part_lines`` lines, always at the same places, and each is parsed by itself. So a run
that was killed continues with the parts that are missing, shards may run anywhere, and the bytes of the result are
those of one uninterrupted run. Each part says which lines it holds, a digest of its content, and a fingerprint of
what it was made from; only parts that agree are put together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import torch
from tqdm import tqdm

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.parsing.base import Parser, ParserOptions, load_parser, parser_module
from fairseq_syntax.text.conllu import format_conllu, read_conllu
from fairseq_syntax.text.files import read_lines, whole_file

logger = logging.getLogger(__name__)

# To be raised where the same text, options and models give another parse, by another tokenizer for one.
VERSION = 1
# What does not change the parse, or names a place only.
_NO_PART_OF_THE_RESULT = ("device", "model_dir")


@dataclass(frozen=True)
class Job:
    """A corpus to be parsed into one file.

    ``shard`` is (number from 1, count): only the parts of this shard are parsed, and nothing is merged. ``threads``
    are torch's, per worker process; the last digit of a probability may depend on them, as it does on the device.
    """

    text: Path
    output: Path
    options: ParserOptions
    part_lines: int = 2000
    workers: int = 1
    threads: int | None = None
    shard: tuple[int, int] | None = None

    @property
    def folder(self) -> Path:
        """Where the parts lie until they are merged."""
        return self.output.with_name(self.output.name + ".parts")


@dataclass(frozen=True)
class Plan:
    """A job whose text was read: its lines, its parts, and the fingerprint of all that the parse depends on."""

    job: Job
    n_lines: int
    fingerprint: str

    @classmethod
    def of(cls, job: Job) -> Plan:
        """Raises SyntaxDataError where the text is empty or unreadable, or the parser has no models."""
        digest = hashlib.sha256()
        n_lines = 0
        for line in read_lines(job.text):
            digest.update(line.encode() + b"\n")
            n_lines += 1
        if n_lines == 0:
            raise SyntaxDataError("is empty", path=job.text)
        options = {name: value for name, value in asdict(job.options).items() if name not in _NO_PART_OF_THE_RESULT}
        module = parser_module(job.options.parser)
        models = module.fingerprint(job.options) if hasattr(module, "fingerprint") else ""
        made_from = json.dumps([VERSION, digest.hexdigest(), options, models, job.part_lines], sort_keys=True)
        return cls(job, n_lines, hashlib.sha256(made_from.encode()).hexdigest()[:32])

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The line spans [start, end) of all parts of the text."""
        step = self.job.part_lines
        return [(start, min(start + step, self.n_lines)) for start in range(0, self.n_lines, step)]

    @property
    def own_parts(self) -> list[tuple[int, int]]:
        """Those of this shard: together the shards have every part once."""
        number, count = self.job.shard or (1, 1)
        parts = self.parts
        return parts[(number - 1) * len(parts) // count : number * len(parts) // count]

    def path(self, part: tuple[int, int]) -> Path:
        return self.job.folder / f"{part[0]:012d}-{part[1]:012d}.conllu"

    @property
    def title(self) -> str:
        """The first line of the finished file, from which a later run sees that nothing is to be done."""
        return f"# lines = {self.n_lines}\n# made_from = {self.fingerprint}\n"


def parse_corpus(job: Job) -> Path | None:
    """Parses what is not yet parsed, and merges unless the job is a shard.

    Returns:
        the finished file, or None after a shard

    Raises:
        SyntaxDataError: bad text or models, parts or a result of another job in the way, or a full disk
    """
    plan = Plan.of(job)
    if _is_done(plan):
        logger.info("%s is up to date", job.output)
        return job.output
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SyntaxDataError(f"cannot be made: {error.strerror}", path=job.folder) from error
    missing = [part for part in plan.own_parts if not _is_whole(plan, part)]
    done = sum(end - start for start, end in plan.own_parts) - sum(end - start for start, end in missing)
    with tqdm(total=sum(e - s for s, e in plan.own_parts), initial=done, unit="line", disable=None) as progress:
        for start, end in _parse_parts(plan, missing):
            progress.update(end - start)
    return merge(plan) if job.shard is None else None


def merge(plan: Plan) -> Path:
    """Puts the parts together, and removes them after that.

    Raises:
        SyntaxDataError: a part is missing or damaged, or belongs to another job
    """
    if _is_done(plan):
        return plan.job.output
    missing = [part for part in plan.parts if not _is_whole(plan, part)]
    if missing:
        lines = ", ".join(f"{start + 1} to {end}" for start, end in missing[:5])
        raise SyntaxDataError(
            f"{len(missing)} of {len(plan.parts)} parts are missing: lines {lines}{', …' if len(missing) > 5 else ''}",
            path=plan.job.folder,
            hint="run the shards that are not finished, or the command without --shard and --merge: it parses the rest",
        )
    try:
        with whole_file(plan.job.output) as file:
            file.write(plan.title)
            for part in plan.parts:
                file.write(_body(plan, part))
    except OSError as error:
        raise _unwritable(plan.job.output, error) from error
    shutil.rmtree(plan.job.folder, ignore_errors=True)
    return plan.job.output


def _is_done(plan: Plan) -> bool:
    output = plan.job.output
    if not output.exists():
        return False
    with open(output, encoding="utf-8", errors="replace") as file:
        if "".join(islice(file, 2)) == plan.title:
            return True
    raise SyntaxDataError(
        "exists, and was made from another text, with other options or by another parser",
        path=output,
        hint="give another --output, or --overwrite",
    )


def _header(plan: Plan, part: tuple[int, int], body: str) -> str:
    return f"# part = {part[0]}-{part[1]} {plan.fingerprint} {hashlib.sha256(body.encode()).hexdigest()}\n"


def _is_whole(plan: Plan, part: tuple[int, int]) -> bool:
    """Whether the part was parsed; a damaged one is to be parsed again."""
    path = plan.path(part)
    if not path.exists():
        return False
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        header = file.readline()
        body = file.read()
    if header == _header(plan, part, body):
        return True
    words = header.split()
    if header.startswith("# part = ") and len(words) == 6 and words[4] != plan.fingerprint:
        raise SyntaxDataError(
            "was made from another text, with other options or by another parser",
            path=path,
            hint=f"remove {plan.job.folder}, or give --overwrite",
        )
    logger.warning("%s is damaged, and is parsed again", path)
    return False


def _body(plan: Plan, part: tuple[int, int]) -> str:
    text = plan.path(part).read_bytes().decode("utf-8", "replace")
    header, _, body = text.partition("\n")
    if header + "\n" != _header(plan, part, body):
        raise SyntaxDataError("changed while it was being merged", path=plan.path(part), hint="run the command again")
    return body


def _unwritable(path: Path, error: OSError) -> SyntaxDataError:
    return SyntaxDataError(
        f"cannot be written: {error.strerror}",
        path=path,
        hint="make room and run the command again: it continues with what is missing",
    )


# ------------------------------------------------------------------------------------------------ the parts' work


def _lines_of(plan: Plan, parts: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], list[str]]]:
    lines = read_lines(plan.job.text)
    at = 0
    for start, end in parts:
        for _ in islice(lines, start - at):
            pass
        yield (start, end), list(islice(lines, end - start))
        at = end


def _parse_parts(plan: Plan, parts: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields parts as they are committed."""
    if not parts:
        return
    if plan.job.workers <= 1:
        _start(plan.job.threads)
        parser = load_parser(plan.job.options)
        for part, lines in _lines_of(plan, parts):
            _commit(plan, parser, part, lines)
            yield part
        return
    threads = plan.job.threads or max(1, (os.cpu_count() or 1) // plan.job.workers)
    pool = ProcessPoolExecutor(plan.job.workers, get_context("spawn"), _start_worker, (plan, threads))
    waiting: set[Future[tuple[int, int]]] = set()
    try:
        for part, lines in _lines_of(plan, parts):
            waiting.add(pool.submit(_work, part, lines))
            if len(waiting) >= 2 * plan.job.workers:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in list(waiting):
            yield future.result()
    except BrokenProcessPool as error:
        raise SyntaxDataError(
            "a worker process was killed, for want of memory as a rule",
            hint="run the command again with fewer --workers or a smaller --batch-size: it continues",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _commit(plan: Plan, parser: Parser, part: tuple[int, int], lines: list[str]) -> None:
    parsed = parser.parse(lines, first_line=part[0])
    body = "".join(format_conllu(line) for line in parsed)
    # A parser may give what is no tree; better here than after the merge.
    rows = [f"# lines = {part[1]}", "", *body.split("\n")]
    found = sum(1 for _ in read_conllu(rows, n_lines=part[1], first_line=part[0]))
    if not len(parsed) == found == len(lines) == part[1] - part[0]:
        raise SyntaxDataError(f"{len(lines)} lines went into the parser, {found} came out", path=plan.job.text)
    path = plan.path(part)
    try:
        with whole_file(path) as file:
            file.write(_header(plan, part, body) + body)
    except OSError as error:
        raise _unwritable(path, error) from error


def _start(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)


_worker: tuple[Plan, Parser] | None = None


def _start_worker(plan: Plan, threads: int) -> None:
    global _worker
    _start(threads)
    parent = parent_process()
    if parent is not None:
        # A parent that is killed cannot tell its workers, and they would wait for work for ever.
        threading.Thread(target=lambda: (connection.wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    _worker = plan, load_parser(plan.job.options)


def _work(part: tuple[int, int], lines: list[str]) -> tuple[int, int]:
    assert _worker is not None
    _commit(*_worker, part, lines)
    return part
