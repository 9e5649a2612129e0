"""Runs every system in every way of fairseq and writes the table: ``make ways``; see ``tests/helpers/ways.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]
    import ways

    sys.exit(ways.main())
