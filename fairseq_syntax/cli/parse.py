"""Parse text to CoNLL-U, line by line.

An interrupted run resumes when rerun, also after a full disk.

    fairseq-syntax parse --input train.en --output train.en.conllu --lang en --distributions --workers 4
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq_syntax.cli.arguments import GPUS_PER_WORKER, RAY, WORKERS, positive, probability, temperature
from fairseq_syntax.cli.command import Choice, Command, Flag, Group, Option
from fairseq_syntax.cli.common import refuse, then_segment
from fairseq_syntax.corpus.parsing.parser import ParserOptions
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_apart
from fairseq_syntax.runtime.ray_workers import chosen_workers

OF_THE_PARSER = ("parser", "lang", "model_dir", "device", "batch_size")
OF_RAW_TEXT = ("tokenizer", "split_sentences", "max_words", "long_lines")
OF_DISTRIBUTIONS = ("min_prob", "temperature", "label_temperature", "structured")
OF_JOBS = ("workers", "threads", "part_lines", "shard", "merge", "ray", "gpus_per_worker")
OF_NO_PARSE = ("model_dir", "device", "batch_size", *OF_RAW_TEXT, *OF_DISTRIBUTIONS, "distributions", "pretokenized")

USUAL = ParserOptions()
# The options that select a parser and its models.
PARSER = (
    Option(
        "--parser NAME",
        "stanza, supar, spacy, udpipe, conllu (check an existing parse), or your own module",
        default=USUAL.parser,
    ),
    Option("--lang LANG", "language of the text", default=USUAL.lang),
    Option(
        "--model-dir DIR",
        "the parser's models: for stanza, a folder with pos.pt and depparse.pt, or its resources; for supar and "
        "udpipe, a file; for spacy, a pipeline's name or folder (default: those that stanza and spacy have installed)",
    ),
    Option("--device NAME", "cpu or cuda", default=USUAL.device),
    Option("--batch-size WORDS", "words per batch", type=positive, default=USUAL.batch_size),
)


def tokenizer(choices: Sequence[str], help: str) -> tuple[Option, ...]:
    """The options for tokenizing raw text."""
    return (
        Choice("--tokenizer", help, *choices),
        Flag("--pretokenized", "the text is tokenized: split it at spaces"),
        Flag("--split-sentences", "split lines that contain several sentences"),
    )


def distributions(min_prob: float = USUAL.min_prob) -> tuple[Option, ...]:
    """The options for distributions."""
    return (
        Option("--min-prob P", "minimum probability of a stored arc", type=probability, default=min_prob),
        Option("--temperature T", "temperature of head scores", type=temperature, default=USUAL.temperature),
        Option(
            "--label-temperature T", "temperature of label scores", type=temperature, default=USUAL.label_temperature
        ),
        Flag("--structured", "use arc marginals over trees, not a softmax for each word"),
    )


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N")
    return int(number), int(count)


ARGUMENTS = [
    Option("--input FILE", "text, or CoNLL-U for --parser conllu", required=True, type=Path),
    Option("--output FILE", "the CoNLL-U file to write", required=True, type=Path),
    Option("--text FILE", "for --parser conllu: the text of the parse", type=Path),
    Group(
        "parser",
        *PARSER,
        *tokenizer(
            ("auto", "stanza", "spacy", "udpipe", "basic"), "auto: the parser's own if it has a model, otherwise basic"
        ),
    ),
    Group(
        "lines",
        Option("--max-words", "maximum number of words per sentence", type=positive, default=USUAL.max_words),
        Choice(
            "--long-lines",
            "sentences over --max-words: parsed in parts, split at punctuation if possible, or an error",
            "split",
            "error",
        ),
    ),
    Group(
        "distributions",
        Flag("--distributions", "also write p(head, label | word) as Arcs= in MISC"),
        *distributions(),
    ),
    Group(
        "work",
        WORKERS,
        RAY,
        GPUS_PER_WORKER,
        Option(
            "--threads",
            "torch threads per worker (default: the cores, shared by the workers; with --ray, 1)",
            type=positive,
        ),
        Option("--part-lines", "lines per part; finished parts survive an interruption", type=positive, default=2000),
        Option("--shard I/N", "parse only part I of N (from 1); use --merge afterwards", type=_shard),
        Flag("--merge", "merge the finished shards without parsing"),
        Flag("--overwrite", "replace an output made from other inputs or options"),
    ),
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=2, resumes=True)


def parser_options(args: argparse.Namespace, **more: Any) -> ParserOptions:
    """The options of a parser from parsed arguments; options that a subcommand lacks have their defaults."""
    names = {field.name for field in fields(ParserOptions)}
    values = {name: value for name, value in vars(args).items() if name in names} | more
    if getattr(args, "pretokenized", False):
        refuse(args, ("split_sentences", "tokenizer"), "--pretokenized lines are single sentences of tokens")
        values["tokenizer"] = "whitespace"
    return ParserOptions(**values)


def check(args: argparse.Namespace) -> None:
    from fairseq_syntax.corpus.parsing.parser import check_parser

    if args.parser == "conllu":
        refuse(args, (*OF_NO_PARSE, *OF_JOBS), "an existing parse is copied unchanged")
        return
    refuse(args, ["text"], "only applies to --parser conllu; the text to parse is --input")
    if args.merge:
        refuse(args, ("ray", "shard"), "--merge joins all shards, without workers")
    if not args.distributions:
        refuse(args, OF_DISTRIBUTIONS, "only applies with --distributions", "give both")
    if args.shard:
        refuse(args, ["overwrite"], "shards must not remove each other's parts", "remove them yourself")
    if not args.device.startswith("cuda"):
        refuse(args, ["gpus_per_worker"], "the parser runs on the CPU", "give --device cuda")
    options = parser_options(args)
    if not args.merge:
        check_parser(options)


def main(args: argparse.Namespace) -> None:
    from fairseq_syntax.corpus.parsing.conllu_file import pass_on
    from fairseq_syntax.corpus.parsing.parse_jobs import Job, merge, parse_corpus

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.parser == "conllu":
        check_apart(args.output, args.input, args.text)
        lines = pass_on(args.input, args.output, text=args.text, overwrite=args.overwrite)
        finished(args.output, f"{lines} lines", then_segment(args.output))
        return
    options = parser_options(args)
    gpus = 1.0 if options.device.startswith("cuda") else 0.0
    how = {"part_lines": args.part_lines, "threads": args.threads, "shard": args.shard, "overwrite": args.overwrite}
    then = then_segment(args.output, args.lang)
    if args.merge:
        job = Job(args.input, args.output, options, **how)
        merge(job)
        finished(args.output, f"{len(job.spans)} parts", then)
        return
    print(f"loading the parser {options.parser} …", file=sys.stderr, flush=True)  # which can take long
    with chosen_workers(args, count=args.workers, cpus=args.threads or 1, gpus=gpus) as workers:
        job = Job(args.input, args.output, options, workers=workers, **how)
        parsed = parse_corpus(job)
    if parsed is None:
        then = "the same command with --merge in place of --shard, when all shards are parsed"
        finished(args.output, f"shard {args.shard[0]} of {args.shard[1]} is parsed", then)
    else:
        finished(args.output, f"{job.n_lines} lines", then)
