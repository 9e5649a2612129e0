#!/usr/bin/env python3
"""The share of a toy corpus's ambiguous test sentences that are translated exactly, in %, as JSON.

python examples/distillation/exact.py TRANSLATIONS CORPUS
"""

import json
import sys
from pathlib import Path


def exact_share(found: list[str], corpus: Path) -> tuple[float, int]:
    """The share of ambiguous sentences that are translated exactly, in %, and how many there are."""
    references, choices = (
        (corpus / name).read_text(encoding="utf-8").splitlines() for name in ("test.tgt", "test.open")
    )
    exact = [a == b for a, b, open_choices in zip(found, references, choices, strict=True) if open_choices]
    return 100 * sum(exact) / len(exact), len(exact)


def main() -> None:
    output, corpus = map(Path, sys.argv[1:])
    share, sentences = exact_share(output.read_text(encoding="utf-8").splitlines(), corpus)
    print(json.dumps({"ambiguous": share, "sentences": sentences}))


if __name__ == "__main__":
    main()
