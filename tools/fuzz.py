"""Sends drawn requests to a server and shows how it bears them; see ``tests/helpers/fuzzing.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]
    import fuzzing

    sys.exit(fuzzing.main())
