"""What the systems cost a GPU beside the plain models: counted on an emulated one, and estimated from that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.harness import measure, record

ROOT = Path(__file__).resolve().parents[1]


@measure("gpu/update", "gpu/search_step", "gpu/kernels", "gpu/peak_bytes", "gpu/estimate", "gpu/layer_estimate")
def counted() -> None:
    """See ``tools/gpu_tables.py``, which has its own process."""
    command = [sys.executable, str(ROOT / "tools" / "gpu_tables.py"), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for name, rows in (("update", found["updates"]), ("search_step", found["steps"])):
        for row, costs in rows.items():
            record(f"gpu/{name}/{row}", [costs["kernels"]], unit="kernels, counted", detail=costs)
    plain = found["base"].pop("transformer")
    for row, costs in found["base"].items():
        for name, what in (("kernels", "kernels"), ("peak_bytes", "peak")):
            record(f"gpu/{name}/{row}", [costs[what] / plain[what]], unit="counted, ours over plain", detail=costs)
        ratios = [plain[device] / costs[device] for device in ("A100", "H100")]
        record(f"gpu/estimate/{row}", ratios, unit="estimated speed, ours over plain, A100 and H100", detail=costs)
    for name, by_length in found["layers"].items():
        for length, costs in by_length.items():
            unit = "estimated time, over plain attention, A100 and H100"
            record(f"gpu/layer_estimate/{name}@{length}", [costs["A100"], costs["H100"]], unit=unit, detail=costs)
