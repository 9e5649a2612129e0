"""Kills nodes of a Ray cluster at random moments, and compares what is parsed meanwhile with the parse of one process.

    python tools/ray_kills.py --kills 20

The cluster's nodes are processes of this machine, on the loopback interface, one core each. The parser is the smallest
there is: what is tried is the work's coming and going, not the parser.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import ray_cluster  # noqa: E402

from fairseq_syntax.corpus.parsing.base import ParserOptions  # noqa: E402
from fairseq_syntax.corpus.parsing.jobs import Job, parse_corpus  # noqa: E402
from fairseq_syntax.runtime.ray_workers import RayWorkers  # noqa: E402


def main() -> int:
    """Runs until so many nodes were killed; 1 if a result was another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument("--lines", type=int, default=900, metavar="N", help="of the text (default: 900, 18 s of work)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    killed = runs = 0
    with tempfile.TemporaryDirectory() as name:
        text = Path(name, "text")
        text.write_text("".join(f"SLOW line {number} of the text\n" for number in range(args.lines)))

        def job(output: str, workers: int | RayWorkers = 1) -> Job:
            options = ParserOptions(parser="chain_parser")
            return Job(text, Path(name, output), options, part_lines=5, workers=workers)

        whole = Path(str(parse_corpus(job("one")))).read_bytes()
        # One thread for all kills: Linux ends a node, which Ray has bound to its parent, with the thread that added it.
        with (
            ThreadPoolExecutor(1) as killer,
            ray_cluster.ray_cluster(2) as nodes,
            RayWorkers(nodes.address, count=2) as workers,
        ):
            while killed < args.kills:
                over = threading.Event()
                output = f"out{runs}"

                def kill(
                    over: threading.Event = over, parts: Path = Path(name, f"{output}.parts"), run: int = runs + 1
                ) -> None:
                    nonlocal killed
                    done = 0
                    while not over.is_set() and killed < args.kills:
                        before = sum(1 for _ in parts.glob("*.part")) if parts.is_dir() else 0
                        if before <= done:  # no worker has come so far since the last kill
                            time.sleep(0.05)
                            continue
                        time.sleep(draw.uniform(0.1, 4.0))
                        done = sum(1 for _ in parts.glob("*.part")) if parts.is_dir() else 0
                        if over.is_set() or not done:
                            return
                        nodes.kill(draw.randrange(len(nodes.nodes)))
                        killed += 1
                        print(f"kill {killed}: after {done} parts of run {run}", flush=True)
                        nodes.add()

                kills = killer.submit(kill)
                begin = time.monotonic()
                result = parse_corpus(job(output, workers))
                over.set()
                kills.result()
                runs += 1
                if Path(str(result)).read_bytes() != whole:
                    print(f"run {runs}: other bytes than one process")
                    return 1
                print(f"run {runs}: the bytes of one process, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{killed} nodes killed in {runs} runs; every result is that of one process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
