"""Score predicted trees against a treebank.

UAS and LAS are those of the CoNLL 2018 shared task: the files must contain the same text, but may split it differently
into tokens, words and sentences. LAS is reported if both files have labels.

    fairseq-syntax eval-tree gold.conllu trees.conllu
"""

import json
from argparse import Namespace
from dataclasses import asdict, astuple

from fairseq_syntax.cli.command import Command, Flag, Option
from fairseq_syntax.corpus.conllu import read_conllu

ARGUMENTS = [
    Option("gold", "CoNLL-U file of the gold trees (may be compressed)"),
    Option("system", "CoNLL-U file of the predicted trees (may be compressed)"),
    Flag("--json", "print fractions as JSON instead of a table"),
]
COMMAND = Command(__doc__, "evaluate", ARGUMENTS, step=5)


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.scoring.attachment import collect_words, score_trees

    scores = score_trees(*(collect_words(read_conllu(path), path) for path in (args.gold, args.system)))
    if args.json:
        print(json.dumps({name: asdict(score) for name, score in scores.items()}, indent=1))
        return
    print("Metric | Precision |    Recall |  F1 Score | AlignedAcc")
    for name, score in scores.items():
        print(f"{name:<6} | " + " | ".join(f"{100 * share:9.2f}" for share in astuple(score)[:4]))
