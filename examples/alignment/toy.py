#!/usr/bin/env python3
"""Scores a model's word alignments on a toy corpus, by fairseq's heads and by the head that is chosen, as Markdown.

python examples/alignment/toy.py NAME=CHECKPOINT … --data BIN --corpus CORPUS > TOY.md
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fairseq_syntax import register
from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.runtime.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--data", required=True, help="the binarized data")
    parser.add_argument("--corpus", required=True, type=Path, help="what generate.py wrote")
    args = parser.parse_args()
    register()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    from fairseq_syntax.inference.alignment import agreement, read_gold
    from fairseq_syntax.inference.alignment_head import AlignmentHead
    from fairseq_syntax.use.translator import Translator

    def split(name: str) -> tuple:
        gold = read_gold(list(read_lines(args.corpus / f"{name}.align")))
        return (
            list(read_conllu(args.corpus / f"{name}.src.conllu")),
            list(read_lines(args.corpus / f"{name}.tgt")),
            gold,
        )

    valid, test = split("valid"), split("test")
    print("# Alignments on a toy corpus\n\nWritten by `examples/alignment/toy.py`: given translations of the test set,")
    print("aligned by the head that was chosen on the validation set without its links, and by fairseq's heads.\n")
    print("| model | attention | precision | recall | F1 | AER |\n|---|---|---|---|---|---|")
    # Every target word linked to the source word of the same number.
    same = [[(t, t) for t in range(1 + max((t for _, t in possible), default=-1))] for _, possible in test[2]]
    rows = [("none", "same position", same)]
    for item in args.models:
        name, _, path = item.partition("=")
        translator = Translator.load(path, args.data, device="cpu", alignment_heads=None)
        best = translator.rank_heads(valid[0], valid[1])[0].head
        heads: dict[str, list[AlignmentHead] | None] = {"fairseq's": None}
        if best.layer is None:  # of an LSTM
            heads = {"its only one": None}
        else:
            heads[f"layer {best.layer}, head {best.head}, shift {best.shift}"] = [best]
        for label, chosen in heads.items():
            own = Translator(translator.models, translator.task, alignment_heads=chosen)
            rows.append((name, label, [a.links for a in own.align(test[0], test[1])]))
    for name, label, links in rows:
        found = agreement(links, test[2])
        figures = " | ".join(f"{100 * x:.1f}" for x in (found.precision, found.recall, found.f1, found.aer))
        print(f"| {name} | {label} | {figures} |")
    print(f"\n{len(test[0])} sentences; figures in %.")


if __name__ == "__main__":
    main()
