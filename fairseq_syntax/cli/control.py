"""Make control parses, which have the form of a parse but less syntax.

Several controls are applied in order. fairseq_syntax/lab/controls.py documents what each control keeps.

    fairseq-syntax control linear --input train.en.conllu --output linear/train.en.conllu
"""

import sys
from argparse import Namespace
from pathlib import Path

from fairseq_syntax.cli.arguments import SEED, probability
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.cli.common import then_segment
from fairseq_syntax.corpus.conllu import read_conllu, write_conllu
from fairseq_syntax.corpus.distinct_labels import DistinctLabels
from fairseq_syntax.corpus.header import controls, header, parsed_with
from fairseq_syntax.lab.controls import CONTROLS, Control
from fairseq_syntax.runtime.bounds import whole
from fairseq_syntax.runtime.console import finished, progress
from fairseq_syntax.runtime.files import atomic_open, check_apart, check_rereadable, errors_in, make_folder

ARGUMENTS = [
    Option("control CONTROL", f"of: {', '.join(CONTROLS)}", nargs="+"),
    Option("--input FILE", "CoNLL-U parse; may be compressed", required=True),
    Option("--output FILE", "the control parse", required=True),
    SEED,
    Option("--wrong-arcs P", "for damaged: the share of arcs to replace", type=probability),
    Option("--block", "for shuffled: lines within which trees are moved", type=whole(2), default=50_000),
]
COMMAND = Command(__doc__, "research", ARGUMENTS, step=1)


def check(args: Namespace) -> None:
    Control(tuple(args.control), args.seed, args.block, args.wrong_arcs)


def main(args: Namespace) -> None:
    check_apart(args.output, args.input)
    check_rereadable("a control is made in two passes over it", args.input)
    control = Control(tuple(args.control), args.seed, args.block, args.wrong_arcs)
    # The header needs the number of lines, and errors at the end of a file are found before anything is written.
    n_lines, labels = 0, DistinctLabels()
    for line in read_conllu(args.input):
        with errors_in(args.input, line.file_line):
            labels.add(line)
        n_lines += 1
    before = parsed_with(args.input) or {}
    parser_options = before | {"control": [*controls(before), *control.for_header()]}
    make_folder(Path(args.output).parent)
    segmented = False
    with atomic_open(args.output) as file, errors_in(args.input):
        file.write(header(n_lines, parsed_with=parser_options))
        for number, line in enumerate(control(progress(read_conllu(args.input, n_lines=n_lines), total=n_lines))):
            segmented |= any(token.pieces is not None for token in line.tokens)
            if number == 0 and not line.words:
                file.write("\n")  # separates the header from an empty first line
            write_conllu(file, line)
    counts = control.counts
    if counts["without_partner"]:
        why = f"since no other among {min(args.block, n_lines)} lines has their length"
        print(f"sentences with random trees, {why}: {counts['without_partner']}", file=sys.stderr)
    if "damaged" in args.control:
        print(f"wrong arcs: {counts['wrong_arcs']} of {counts['words']}", file=sys.stderr)
    if counts["not_replaced"]:
        print(f"arcs kept, since no other gives a tree: {counts['not_replaced']}", file=sys.stderr)
    then = then_segment(args.output, how="--model segmentation.LANG.json")
    if segmented:
        then = "fairseq-syntax binarize --output DIR -s SOURCE -t TARGET --trainpref PREFIX …"  # next to its pieces
    what = f"{counts['lines']} lines, {counts['sentences']} sentences, {', '.join(control.for_header())}"
    finished(args.output, what, then)
