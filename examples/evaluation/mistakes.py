#!/usr/bin/env python3
"""Writes the outputs of two "systems" that copy a reference with mistakes, to try the evaluation without a model.

python examples/evaluation/mistakes.py --output runs/demo

Makes ``test.txt``, the reference, and of three seeds each ``careless.N.out`` and ``careful.N.out``.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

WORDS = "a man in red shirt is riding his old bike near the green river dogs"
RATES = {"careless": 0.2, "careful": 0.1}  # how many words are wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sentences", type=int, default=200, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    reference = [draw.choices(WORDS.split(), k=draw.randint(5, 25)) for _ in range(args.sentences)]
    outputs = {"test.txt": reference}
    for name, rate in RATES.items():
        for seed in (1, 2, 3):
            draw = random.Random(seed)
            wrong = [[word if draw.random() > rate else "oops" for word in line] for line in reference]
            outputs[f"{name}.{seed}.out"] = wrong
    for name, lines in outputs.items():
        (args.output / name).write_text("".join(f"{' '.join(line)}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
