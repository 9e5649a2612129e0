"""``make gpu``: the tests that need a GPU, then the measures on it, written down in one record that can be committed.

``python tools/gpu.py [--multi30k]``. The record is ``bench/gpu.json``: the device, the commit and the versions, each
test's outcome and what the measures say; the measures are in ``bench/results.jsonl`` as ever. At its end it says what
differs from the emulated device. ``make gpu EMULATED=1`` tries all this where there is no GPU, with one measure, and
leaves no record: its times are a CPU's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import emulated_cuda  # noqa: E402
from bench.harness import commit  # noqa: E402

RESULTS, RECORD = ROOT / "bench" / "results.jsonl", ROOT / "bench" / "gpu.json"
MEASURES = ("layer/", "train/", "generate/", "memory/")
QUICK = ("train/pascal_transformer",)


def tests() -> dict[str, str]:
    """The outcome of each test marked ``gpu``: passed, failed or skipped."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "--cases", "all", f"--junitxml={report}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode not in (0, 1):  # 1: some failed
            sys.exit("make gpu: the tests did not run to their end")
        outcomes = {}
        for case in ElementTree.parse(report).iter("testcase"):
            bad = [c.tag for c in case if c.tag in ("failure", "error", "skipped")]
            outcome = "passed" if not bad else "skipped" if bad == ["skipped"] else "failed"
            outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


def measures(names: tuple[str, ...], *, keep: bool) -> list[dict]:
    """What the measures have appended to the results, and leave there if they are to be kept."""
    before = RESULTS.read_text(encoding="utf-8")
    try:
        subprocess.run([sys.executable, "-m", "bench", *names], cwd=ROOT, check=True)
        return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8")[len(before) :].splitlines()]
    finally:
        if not keep:
            RESULTS.write_text(before, encoding="utf-8")


def differences(outcomes: dict[str, str]) -> list[str]:
    """What another device than the emulated one does otherwise: all tests pass there but those of real kernels."""
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    skipped = sum(outcome == "skipped" for outcome in outcomes.values())
    return [
        *(f"differs from the emulated device, on which it passes: {name}" for name in failed),
        f"{len(outcomes) - skipped - len(failed)} tests pass, as on the emulated device; {skipped} are skipped here",
    ]


def main() -> int:
    """Run all, and write the record; 1 if a test failed, none passed or there is no GPU."""
    parser = argparse.ArgumentParser(description="Tests and measures on a GPU, and their record.")
    parser.add_argument("--multi30k", action="store_true", help="then train examples/multi30k/gpu.yaml (DATA, PARSER)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("make gpu: PyTorch finds no GPU here; EMULATED=1 tries it on an emulated one", file=sys.stderr)
        return 1
    emulated, outcomes = emulated_cuda.installed(), tests()
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tests": outcomes,
    }
    write: Callable[[str], Any] = print if emulated else partial(RECORD.write_text, encoding="utf-8")
    # The tests come first in the record, too, should a measure fail.
    write(json.dumps(record, indent=1) + "\n")
    record["measures"] = measures(QUICK if emulated else MEASURES, keep=not emulated)
    write(json.dumps(record, indent=1) + "\n")
    if not emulated:
        print(f"wrote {RECORD.relative_to(ROOT)} and {RESULTS.relative_to(ROOT)}: commit both")
    if args.multi30k:
        recipe = ROOT / "examples" / "multi30k" / "gpu.yaml"
        subprocess.run([sys.executable, "-m", "fairseq_syntax", "run", recipe], cwd=ROOT, check=True)
    print("\n".join(differences(outcomes)))
    return int("failed" in outcomes.values() or "passed" not in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
