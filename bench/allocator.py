"""What the C library's allocator costs a training run on a CPU."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys

from bench import corpus
from bench.harness import device, measure, record

# The variables of docs/how-to.md.
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}

STEPS = """
import sys
import time
import fairseq_syntax
from bench.training import PLAIN, training

run, tokens = training(PLAIN["transformer"], sys.argv[1], count=6)
run()
begin = time.process_time()
run()
print(time.process_time() - begin)
"""


@measure("allocator/keeps-memory")
def keeps_memory() -> None:
    """Training steps of the plain Transformer: processes that keep freed memory, and those that give it back."""
    if device() != "cpu":
        print("allocator/keeps-memory: it is the memory of CPUs")
        return

    def seconds(variables: dict[str, str]) -> float:
        environment = {name: value for name, value in os.environ.items() if name not in KEEPS_MEMORY} | variables
        command = [sys.executable, "-c", STEPS, corpus.corpus()]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, encoding="utf-8")
        return float(done.stdout.splitlines()[-1])

    times = [(seconds(KEEPS_MEMORY), seconds({})) for _ in range(5)]
    detail = {
        "ours_seconds": statistics.median(kept for kept, _ in times),
        "plain_seconds": statistics.median(given for _, given in times),
        "libc": " ".join(platform.libc_ver()),
    }
    ratios = [given / kept for kept, given in times]
    record("allocator/keeps-memory", ratios, unit="speed, memory kept over given back", detail=detail)
