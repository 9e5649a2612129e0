"""``fairseq-syntax inventory``: one dictionary and one inventory of labels for several data directories."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import SEVERAL, add_file_language, add_workers, natural, positive
from fairseq_syntax.runtime.bounds import whole
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_rereadable
from fairseq_syntax.runtime.jobs import Step
from fairseq_syntax.runtime.ray_workers import chosen_workers

COMMAND = Command(
    group="data",
    summary="make one dictionary and label inventory for several data directories",
    description="Make OUTPUT/dict.LANG.txt and, if the texts have parses, OUTPUT/labels.LANG.json from several "
    "segmented texts. They equal those of a single data directory of all texts. Pass them to "
    "fairseq-preprocess (--srcdict, --tgtdict, --source-labels, --target-labels) to binarize each "
    "text on any machine; fairseq-train then reads DIR0:DIR1:….",
    example="fairseq-syntax inventory --lang en --input pieces/0/train.en pieces/1/train.en --output common",
    needs_fairseq=True,
    step=4,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_language(parser)
    parser.add_argument(
        "--input",
        **SEVERAL,
        required=True,
        metavar="FILE",
        help="pieces of the training texts, in order; FILE.conllu is the parse",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="output folder")
    parser.add_argument(
        "--joined", **SEVERAL, default=[], metavar="FILE", help="texts of the other side, for a joined dictionary"
    )
    parser.add_argument("--threshold", type=natural, default=0, help="like --thresholdsrc of fairseq-preprocess")
    parser.add_argument("--nwords", type=whole(-1), default=-1, help="like --nwordssrc of fairseq-preprocess")
    parser.add_argument(
        "--padding-factor", type=positive, default=8, help="like --padding-factor of fairseq-preprocess"
    )
    add_workers(parser)


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.data.directory import dictionary_path
    from fairseq_syntax.data.inventory import label_inventory, parses_of
    from fairseq_syntax.data.labels import labels_path
    from fairseq_syntax.data.tokens import make_dictionary

    parses = parses_of(args.input)
    texts = [*args.input, *args.joined]
    check_rereadable("it is read several times", *texts, *parses)
    options = {"threshold": args.threshold, "nwords": args.nwords, "padding_factor": args.padding_factor}
    with chosen_workers(args, count=args.workers) as workers:
        path = dictionary_path(args.output, args.lang)
        step = Step.of("dictionary", [path], texts, **options)
        finished(path, f"{make_dictionary(step, texts, workers=workers, **options)} symbols")
        if parses:
            path = labels_path(args.output, args.lang)
            counts = label_inventory(parses, path, workers=workers)
            finished(path, ", ".join(f"{count} of {column}" for column, count in counts.items()))
    return 0
