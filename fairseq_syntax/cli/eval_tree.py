"""`fairseq-syntax eval-tree`: UAS and LAS of a CoNLL-U file against another."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, astuple

from fairseq_syntax.cli.command import Command
from fairseq_syntax.corpus.conllu import read_conllu

COMMAND = Command(
    group="evaluate",
    summary="score predicted trees against a treebank",
    description="Compute UAS and LAS as in the CoNLL 2018 shared task. The files must contain the same text, but "
    "may split it differently into tokens, words and sentences. LAS is reported if both files have "
    "labels.",
    example="fairseq-syntax eval-tree gold.conllu trees.conllu",
    step=5,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gold", help="CoNLL-U file of the gold trees (may be .gz)")
    parser.add_argument("system", help="CoNLL-U file of the predicted trees (may be .gz)")
    parser.add_argument("--json", action="store_true", help="print fractions as JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.lab.scoring.trees import collect_words, evaluate

    scores = evaluate(*(collect_words(read_conllu(path), path) for path in (args.gold, args.system)))
    if args.json:
        print(json.dumps({name: asdict(score) for name, score in scores.items()}, indent=1))
        return 0
    print("Metric | Precision |    Recall |  F1 Score | AlignedAcc")
    for name, score in scores.items():
        print(f"{name:<6} | " + " | ".join(f"{100 * share:9.2f}" for share in astuple(score)[:4]))
    return 0
