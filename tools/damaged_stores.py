"""Damages a store in many ways, and says what became of each: an error, no harm, or (never) another number in silence.

python tools/damaged_stores.py [--count 3000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.corpus import LABELS, random_sentence  # noqa: E402
from fairseq_syntax.corpus.store import SyntaxStore  # noqa: E402
from fairseq_syntax.corpus.store.flat import FlatSyntax  # noqa: E402
from fairseq_syntax.corpus.store.writer import SyntaxStoreWriter  # noqa: E402
from fairseq_syntax.errors import SyntaxDataError  # noqa: E402

KINDS = ("truncated", "a bit", "several bits", "a byte", "zeros", "two blocks swapped", "a block doubled", "longer")


def damaged(raw: bytes, kind: str, rng: random.Random) -> bytes:
    """The file with damage of a kind."""
    changed, size = bytearray(raw), len(raw)
    at = rng.randrange(size)
    if kind == "truncated":
        del changed[at:]
    elif kind in ("a bit", "several bits"):
        for _ in range(1 if kind == "a bit" else rng.randint(2, 20)):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif kind == "a byte":
        changed[at] = rng.randrange(256)
    elif kind == "zeros":
        length = min(rng.choice((8, 64, 512, 4096)), size - at)
        changed[at : at + length] = bytes(length)
    elif kind == "longer":
        changed += rng.randbytes(rng.randint(1, 200))
    else:
        length = rng.choice((8, 64, 512))
        one, other = (rng.randrange(max(1, size - length)) for _ in range(2))
        first, second = raw[one : one + length], raw[other : other + length]
        changed[one : one + len(second)] = second
        if kind == "two blocks swapped":
            changed[other : other + len(first)] = first
    return bytes(changed)


def numbers(flat: FlatSyntax[np.ndarray]) -> list:
    """All that a batch holds, to be compared."""
    columns = [value for name, value in vars(flat).items() if name != "arcs"]
    columns += vars(flat.arcs).values() if flat.arcs is not None else ()
    return [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]


def trial(count: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """What became of so many damaged stores, by the kind of damage: ``error``, ``harmless`` or ``silent``."""
    rng = random.Random(seed)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for number in range(count):
        if number % 500 == 0:  # another store now and then: with arcs or without, of one chunk or several
            with_arcs = number % 1000 == 0
            path = folder / "whole.arrow"
            with SyntaxStoreWriter(path, with_arcs=with_arcs, chunk=rng.choice((16, 64))) as writer:
                for _ in range(40):
                    sentence = random_sentence(rng, rng.randint(1, 20))
                    sentence.arcs = sentence.arcs if with_arcs else None
                    writer.add(sentence)
                writer.update_metadata({"labels": {"deprel": ["<unk>", *LABELS]}, "mass": 0.5})
            whole, ids = SyntaxStore(path), np.arange(40)
            right, raw = numbers(whole.fetch(ids, arcs=with_arcs)), path.read_bytes()
        kind = KINDS[number % len(KINDS)]
        changed = damaged(raw, kind, rng)
        copy = folder / "damaged.arrow"
        copy.write_bytes(changed)
        try:
            store = SyntaxStore(copy)
            store.verify()
            same = numbers(store.fetch(ids, arcs=with_arcs)) == right and store.metadata == whole.metadata
            found[kind]["harmless" if same else "silent"] += 1
        except SyntaxDataError:
            found[kind]["error"] += 1
        copy.unlink()
    return found


def main() -> int:
    """Try, and print the table; 1 if anything passed in silence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, metavar="N", help="default: 3000")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = trial(args.count, args.seed, Path(folder))
    total: Counter[str] = sum(found.values(), Counter())
    for kind, counts in [*found.items(), ("all", total)]:
        print(f"{kind:20} {counts['error']:5} errors {counts['harmless']:5} harmless {counts['silent']:5} silent")
    return 1 if total["silent"] else 0


if __name__ == "__main__":
    sys.exit(main())
