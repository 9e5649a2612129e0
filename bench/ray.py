"""Parsing on Ray: two workers of one core each against one, both on a cluster of this machine.

Parser and models are those of ``bench/parse.py``. Counted is the time in which all workers work, each part committed:
from the moment that the last of them has done its first part to the end of the text, without the start of Ray and of
the parsers.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from bench.harness import measure, record
from bench.parse import _folder, _models, _parser

LINES = 6000
PART_LINES = 100
PAIRS = 2


@measure("ray/parse@2")
def two_against_one() -> None:
    """The speed of two workers over twice that of one."""
    from parse_models import sentences

    from fairseq_syntax.corpus.parsing import jobs
    from fairseq_syntax.runtime.parts import _Part
    from fairseq_syntax.runtime.ray_workers import RayWorkers
    from fairseq_syntax.runtime.workers import in_workers

    options = _parser().options
    texts = {count: _folder() / f"text.{count}" for count in (1, 2)}
    for count, path in texts.items():
        path.write_text("".join(f"{line}\n" for line in sentences(LINES * count // 2, seed=1)), encoding="utf-8")
    with RayWorkers.connected(count=2) as workers:

        def lines_a_second(count: int) -> float:
            plan = jobs.Plan.of(jobs.Job(texts[count], _folder() / "out.ray", options, PART_LINES))
            workers.count = count
            done: dict[int, int] = {}
            begin = end = 0.0
            lines = 0
            plan.files.make_folder()
            work = _Named(_Part(plan.files, jobs._ParsePart(options, 1)))
            for worker in in_workers(work, plan.source(), workers=workers):
                end = time.perf_counter()
                lines += PART_LINES if begin else 0
                done[worker] = done.get(worker, 0) + 1
                if not begin and len(done) == count:
                    begin = end
            plan.files.remove()
            return lines / (end - begin)

        speeds = [(lines_a_second(1), lines_a_second(2)) for _ in range(PAIRS)]
    record(
        "ray/parse@2",
        [two / one / 2 for one, two in speeds],
        unit="speed of two workers over twice that of one",
        detail={
            "lines_per_second": [[round(one), round(two)] for one, two in speeds],
            "lines": LINES,
            "part_lines": PART_LINES,
            "models": _models()[1],
        },
    )


@dataclass(frozen=True)
class _Named:
    """Parses and commits a part, and says which process did."""

    work: Any

    def __call__(self, task: Any) -> int:
        self.work(task)
        return os.getpid()
