r"""Score translations, with significance.

Scores are those of sacrebleu and nltk. Systems are tested against a baseline.

    fairseq-syntax score --ref test.de --sys plain=plain.out PASCAL=pascal.1.out,pascal.2.out --metrics bleu chrf \
        --conllu test.en.conllu --by dependency-length
"""

import logging
from argparse import Namespace
from itertools import chain

from fairseq_syntax.cli.arguments import BASELINE, REPORT, SEVERAL, TRANSLATIONS, natural, positive
from fairseq_syntax.cli.command import Command, Flag, Option
from fairseq_syntax.cli.common import print_report, read_scored_systems, refuse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import DISTINCT_KEY, METRICS, USUAL
from fairseq_syntax.runtime.files import check_output

ARGUMENTS = [
    *TRANSLATIONS,
    Option("--src FILE", "source sentences; --by-length then counts their tokens"),
    Option("--groups FILE", "the document of each line; the bootstrap then resamples documents"),
    BASELINE,
    Option("--also-against NAME", "additional baselines", **SEVERAL, default=[]),
    Option("--by-length", "also report BLEU by length, in steps of N tokens", type=positive),
    Option("--conllu PARSE", "the source's parse, for --by"),
    Option(
        "--by PROPERTY",
        "also report all scores by intervals of a property of the parse: length, depth, dependency-length, "
        "longest-dependency, crossing, label=NAME, upos=NAME; length@10,20,30 sets the bounds",
        **SEVERAL,
    ),
    Option("--metrics", f"default: {' '.join(USUAL)}", **SEVERAL, choices=[*METRICS, DISTINCT_KEY]),
    Option("--lines FILE", "score only lines that are non-empty in this file"),
    Option(
        "--controls NAME",
        "compare SYSTEM, and what it gains over the baseline, with SYSTEM.NAME, trained on a control parse",
        **SEVERAL,
    ),
    Option("--controls-by PROPERTY", "with --controls: also by intervals of this property, as for --by", **SEVERAL),
    Flag("--lowercase", "compare lowercased text"),
    Option("--resamples", "bootstrap samples of sentences and seeds; 0: no test", type=natural, default=1000),
    Option("--trials", "trials of the randomization test; 0: no test", type=natural, default=10000),
    Option("--beer COMMAND", "the BEER program, if you have it"),
    *REPORT,
]
COMMAND = Command(__doc__, "evaluate", ARGUMENTS, step=1)


def check(args: Namespace) -> None:
    from fairseq_syntax.lab.scoring.metrics import check_metrics
    from fairseq_syntax.lab.scoring.properties import Property

    if not args.controls:
        refuse(args, ["controls_by"], "only applies with --controls", "give both")
    if not (args.by or args.controls_by):
        refuse(args, ["conllu"], "only applies with --by or --controls-by", "give both")
    for text in (*(args.by or ()), *(args.controls_by or ())):
        Property.of(text)
    if args.tokenize is not None:
        check_metrics([key for key in args.metrics or USUAL if key in METRICS], args.tokenize, args.beer)
    elif args.beer:
        check_metrics([], "13a", args.beer)


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.scoring.evaluation import ScoreOptions, evaluate, read_parses, score_tables
    from fairseq_syntax.lab.scoring.properties import Property
    from fairseq_syntax.lab.scoring.shares import shares_tables as share_tables

    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    systems, (references, sources, groups, lines) = read_scored_systems(args, args.src, args.groups, args.lines)
    runs = [run for system in systems for run in system.runs]
    check_output(args.json, *args.ref, args.src, args.conllu, args.groups, args.lines, *(run.path for run in runs))
    options = ScoreOptions(
        metrics=args.metrics or USUAL,
        tokenize=args.tokenize,
        lowercase=args.lowercase,
        resamples=args.resamples,
        trials=args.trials,
        by_length=args.by_length,
        beer=args.beer,
        by=[Property.of(text) for text in args.by or ()],
        controls=args.controls or (),
        controls_by=[Property.of(text) for text in args.controls_by or ()],
    )
    parses = read_parses(args.conllu, len(references[0]), sources) if args.conllu else None
    if lines is not None:
        chosen = [number for number, line in enumerate(lines) if line]
        if not chosen:
            raise SyntaxDataError("all lines are empty, so none would be scored", path=args.lines, option="--lines")

        def selected(rows):
            return rows and [rows[number] for number in chosen]

        references = [selected(reference) for reference in references]
        sources, groups, parses = selected(sources), selected(groups), selected(parses)
        for run in runs:
            run.lines, run.nbest = selected(run.lines), selected(run.nbest)
    report = evaluate(
        systems,
        references,
        options,
        baseline=args.baseline,
        also_against=args.also_against,
        sources=sources,
        parses=parses,
        groups=groups,
    )
    gains = chain(*share_tables(report, f"gains over {report['shares']['baseline']}")) if args.controls else ()
    print_report(args, report, chain(score_tables(report), gains))
