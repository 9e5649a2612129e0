"""Make one dictionary and label inventory for several data directories.

OUTPUT/dict.LANG.txt and, if the texts have parses, OUTPUT/labels.LANG.json equal those of a single data directory of
all texts. Pass them to fairseq-preprocess (--srcdict, --tgtdict, --source-labels, --target-labels) to binarize each
text on any machine; fairseq-train then reads DIR0:DIR1:….

    fairseq-syntax inventory --lang en --input pieces/0/train.en pieces/1/train.en --output common
"""

from argparse import Namespace

from fairseq_syntax.cli.arguments import FILE_LANGUAGE, OUTPUT_FOLDER, RAY, SEVERAL, WORKERS, natural, positive
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.runtime.bounds import whole
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_rereadable
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.ray_workers import chosen_workers

ARGUMENTS = [
    FILE_LANGUAGE,
    Option(
        "--input FILE", "pieces of the training texts, in order; FILE.conllu is the parse", **SEVERAL, required=True
    ),
    OUTPUT_FOLDER,
    Option("--joined FILE", "texts of the other side, for a joined dictionary", **SEVERAL, default=[]),
    Option("--threshold", "like --thresholdsrc of fairseq-preprocess", type=natural, default=0),
    Option("--nwords", "like --nwordssrc of fairseq-preprocess", type=whole(-1), default=-1),
    Option("--padding-factor", "like --padding-factor of fairseq-preprocess", type=positive, default=8),
    WORKERS,
    RAY,
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=4, needs_fairseq=True)


def main(args: Namespace) -> None:
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
        step = RecordedStep.of("dictionary", [path], texts, **options)
        finished(path, f"{make_dictionary(step, texts, workers=workers, **options)} symbols")
        if parses:
            path = labels_path(args.output, args.lang)
            counts = label_inventory(parses, path, workers=workers)
            finished(path, ", ".join(f"{count} of {column}" for column, count in counts.items()))
