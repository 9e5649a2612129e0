r"""Contrastive evaluation: does the model prefer correct translations?

Score the translations of contrastive sets by forced decoding, and compare how often systems prefer the correct one.
Intervals and tests treat items with the same source as dependent.

    fairseq-syntax contrast plain=plain.pt PASCAL=pascal.pt --set lingeval97.de.json \
        --conllu lingeval97.en.conllu
"""

from __future__ import annotations

import math
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from fairseq_syntax.cli.arguments import (
    BASELINE,
    DATA,
    DEVICE,
    REPORT,
    SEVERAL,
    USER_DIR,
    models,
    positive,
    source_parser,
)
from fairseq_syntax.cli.command import Choice, Command, Flag, Group, Option
from fairseq_syntax.cli.common import print_report, refuse
from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.corpus.parsed_line import take_spaces
from fairseq_syntax.errors import SyntaxDataError, meant, quoted
from fairseq_syntax.runtime.console import finished, progress
from fairseq_syntax.runtime.files import atomic_open, check_output, check_outputs, errors_in, make_folder, read_lines
from fairseq_syntax.runtime.named_files import file_by_name, model_name, named_files, systems_by_name

if TYPE_CHECKING:
    from fairseq_syntax.lab.scoring.contrast_sets import ContrastSet

_OF_MODELS = ("data", "conllu", "parser", "lang", "model_dir", "device", "score", "max_tokens")

ARGUMENTS = [
    Option(
        "--set [NAME=]SET",
        "FILE.json (LingEval97), FILE.tsv (source, correct, incorrect, category, distance), or "
        "SOURCE,CORRECT,INCORRECT (DistilLingEval); all may be compressed",
        **SEVERAL,
        required=True,
    ),
    models(required=False),
    Option(
        "--scores NAME=FILE",
        "systems scored elsewhere: one number per line, in the order of the set's own score files",
        **SEVERAL,
    ),
    Flag("--lower-is-better", "the numbers in --scores are costs"),
    DATA,
    BASELINE,
    Group(
        "the source's parse, for models that need one",
        Option("--conllu PARSE", "parses, one file per set (default: parse the sources)", **SEVERAL),
        *source_parser(),
    ),
    Group(
        "the decision",
        Choice(
            "--score",
            "how to combine the log-probabilities of the pieces; fairseq and DistilLingEval use mean",
            "sum",
            "mean",
        ),
        Choice("--ties", "how ties count; DistilLingEval uses right", "wrong", "right"),
    ),
    Option("--max-tokens", "maximum number of tokens per batch", type=positive, default=4000),
    DEVICE,
    USER_DIR,
    Option("--write-scores DIR", "write each system's scores to DIR/NAME.scores"),
    *REPORT,
]
COMMAND = Command(__doc__, "evaluate", ARGUMENTS, step=2, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.scoring.contrast import contrast_tables, decisions, evaluate_contrast, ties
    from fairseq_syntax.lab.scoring.contrast_sets import joined, read_set

    models = systems_by_name(args.model, model_name)
    ready = file_by_name(args.scores or (), others=models)
    names = [*models, *ready]
    if not names:
        raise SyntaxDataError(
            "nothing to compare", option="--scores", hint="give MODEL before --set, or --scores NAME=FILE"
        )
    if args.baseline is not None and args.baseline not in names:
        hint = meant(args.baseline, names)
        raise SyntaxDataError(f"there is no system {args.baseline}", option="--baseline", hint=hint)
    if args.conllu and len(args.conllu) != len(args.set):
        message = f"{len(args.conllu)} parses of {len(args.set)} sets"
        raise SyntaxDataError(message, option="--conllu", hint="one for each --set")
    if not models:
        refuse(args, _OF_MODELS, "without MODEL, no scores are computed here")
    if not ready:
        refuse(args, ["lower_is_better"], "models give log-probabilities, not costs; the option applies to --scores")
    inputs = [*ready.values(), *(args.conllu or ())]
    inputs += [path for text in args.set for path in named_files(text)[1]]
    check_output(args.json, *inputs)
    targets: dict[str, str] = {}
    if args.write_scores is not None:
        for name in names:
            targets[name] = os.path.join(args.write_scores, re.sub(r"[^-.\w]", "_", name) + ".scores")
        check_outputs(targets.values(), [*inputs, args.json])
    sets = [read_set(text) for text in args.set]
    contrast = joined(sets)
    # checked before models score for hours
    of_files = [(name, _read_scores(path, len(contrast.rows))) for name, path in ready.items()]
    if args.lower_is_better:
        of_files = [(name, [-cost for cost in costs]) for name, costs in of_files]
    if args.write_scores:
        make_folder(args.write_scores)
    scores: dict[str, list[float]] = {}
    of_models = _forced_scores(args, contrast, sets, models) if models else ()
    for name, values in chain(of_models, of_files):
        scores[name] = values
        if args.write_scores:  # written at once, so that a later failure does not lose them
            with atomic_open(targets[name]) as file:
                file.writelines(f"{value!r}\n" for value in values)
    right = {name: decisions(contrast, values, ties_right=args.ties == "right") for name, values in scores.items()}
    tied = {name: ties(contrast, values) for name, values in scores.items()}
    report = evaluate_contrast(contrast, right, baseline=args.baseline)
    report |= {"score": args.score, "ties": {"are": args.ties, "items": tied}}
    if print_report(args, report, contrast_tables(report)):
        for name, count in tied.items():
            if count:
                print(f"{name}: {count} items are ties and count as {args.ties}")
        if args.write_scores:
            finished(args.write_scores, f"the scores of {len(scores)} systems", file=sys.stderr)


def _read_scores(path: str, rows: int) -> list[float]:
    """Read a file with one score per row."""
    scores = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            scores.append(float(line))
        except ValueError:
            scores.append(math.nan)
        if math.isnan(scores[-1]):
            raise SyntaxDataError(f"not a number: {quoted(line)}", path=path, line=number)
    if len(scores) != rows:
        raise SyntaxDataError(f"{len(scores)} scores, but the sets have {rows} translations", path=path)
    return scores


def _forced_scores(
    args: Namespace, contrast: ContrastSet, sets: Sequence[ContrastSet], models: dict[str, list[str]]
) -> Iterator[tuple[str, list[float]]]:
    """Yield each model's name and scores of the rows; all models are loaded before the first one scores."""
    from fairseq_syntax.use.exported import data_for
    from fairseq_syntax.use.forced_decoding import ForcedDecoder
    from fairseq_syntax.use.translator import Translator

    # before models are loaded, so that a mismatched parse is reported at once
    sources: Sequence[str | ParsedLine] = _read_parses(args.conllu, sets) if args.conllu else contrast.sources
    options = {"parser_name": args.parser, "parser_lang": args.lang, "parser_dir": args.model_dir}
    options["device"] = args.device
    decoders = {
        name: ForcedDecoder(Translator.load(paths, data_for(paths, args.data), **options), max_tokens=args.max_tokens)
        for name, paths in models.items()
    }
    if args.conllu:
        without_arcs = any(isinstance(line, ParsedLine) and line.words and line.arcs is None for line in sources)
        for name, decoder in decoders.items():
            for parse in args.conllu:
                decoder.translator.check_parses(parse)
            if "arcs" in decoder.translator.needs and without_arcs:
                message = f"{name} reads a parser's probabilities, and the parses have none"
                raise SyntaxDataError(message, option="--conllu", hint="parse with --distributions")
    else:
        # parsed once for all models if any needs it, with distributions if needed
        translators = [decoder.translator for decoder in decoders.values()]
        most = max(translators, key=lambda translator: (len(translator.needs), "arcs" in translator.needs))
        sources = most.parse(sources) if most.needs else sources
    for name, decoder in decoders.items():
        values = [0.0] * len(contrast.rows)
        with progress(total=len(values), of=name, unit="translations") as bar:
            for row, score in decoder.scores(sources, contrast.rows):
                values[row] = score.total if args.score == "sum" else score.mean
                bar.update()
        yield name, values


def _read_parses(paths: Sequence[str], sets: Sequence[ContrastSet]) -> list[ParsedLine]:
    """Read the parses of the sets' sources, and check that each belongs to its source."""
    parses: list[ParsedLine] = []
    for path, contrast in zip(paths, sets):
        for line, source in zip(read_conllu(path, n_lines=len(contrast.sources)), contrast.sources):
            with errors_in(path):
                take_spaces(line, source)
            parses.append(line)
    return parses
