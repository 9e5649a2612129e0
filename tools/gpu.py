"""``make gpu``: the tests that need a GPU, then the measures on it, written down in one record that can be committed.

``python tools/gpu.py [--multi30k]``. The record is ``bench/gpu.json``: the device and the versions, each test's outcome
and what the measures say; the measures are in ``bench/results.jsonl`` as ever.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
RESULTS, RECORD = ROOT / "bench" / "results.jsonl", ROOT / "bench" / "gpu.json"
MEASURES = ("layer/", "train/", "generate/", "memory/")


def tests() -> dict[str, str]:
    """The outcome of each test marked ``gpu``: passed, failed or skipped."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={report}"], cwd=ROOT, check=False)
        outcomes = {}
        for case in ElementTree.parse(report).iter("testcase"):
            bad = [c.tag for c in case if c.tag in ("failure", "error", "skipped")]
            outcome = "passed" if not bad else "skipped" if bad == ["skipped"] else "failed"
            outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


def measures() -> list[dict]:
    """What the measures have appended to the results."""
    before = len(RESULTS.read_text(encoding="utf-8").splitlines())
    subprocess.run([sys.executable, "-m", "bench", *MEASURES], cwd=ROOT, check=True)
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()[before:]]


def main() -> int:
    """Run all, and write the record; 1 if a test failed or there is no GPU."""
    parser = argparse.ArgumentParser(description="Tests and measures on a GPU, and their record.")
    parser.add_argument("--multi30k", action="store_true", help="then train examples/multi30k/gpu.yaml (DATA, PARSER)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("make gpu: PyTorch finds no GPU here", file=sys.stderr)
        return 1
    failed = tests()
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tests": failed,
    }
    # The tests come first in the record, too, should a measure fail.
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record["measures"] = measures()
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {RECORD.relative_to(ROOT)} and {RESULTS.relative_to(ROOT)}: commit both")
    if args.multi30k:
        recipe = ROOT / "examples" / "multi30k" / "gpu.yaml"
        subprocess.run([sys.executable, "-m", "fairseq_syntax", "run", recipe], cwd=ROOT, check=True)
    for name, outcome in failed.items():
        if outcome == "failed":
            print(f"differs from the emulated device, on which it passes: {name}")
    return int("failed" in failed.values())


if __name__ == "__main__":
    sys.exit(main())
