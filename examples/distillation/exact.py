#!/usr/bin/env python3
"""The share of a toy corpus's ambiguous test sentences that are translated exactly, in %, as JSON.

python examples/distillation/exact.py TRANSLATIONS CORPUS
"""

import json
import sys
from pathlib import Path


def main() -> None:
    output, corpus = map(Path, sys.argv[1:])
    files = (output, corpus / "test.tgt", corpus / "test.open")
    found, references, choices = (path.read_text(encoding="utf-8").splitlines() for path in files)
    exact = [a == b for a, b, open_choices in zip(found, references, choices, strict=True) if open_choices]
    print(json.dumps({"ambiguous": 100 * sum(exact) / len(exact), "sentences": len(exact)}))


if __name__ == "__main__":
    main()
