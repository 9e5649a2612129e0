"""``fairseq-syntax parse``: text to CoNLL-U, in the order of its lines."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import positive, probability, refuse, temperature, then_segment
from fairseq_syntax.corpus.parsing.base import ParserOptions
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_apart
from fairseq_syntax.runtime.ray_workers import add_ray_options, chosen_workers

OF_THE_PARSER = ("parser", "lang", "model_dir", "device", "batch_size")
OF_RAW_TEXT = ("tokenizer", "split_sentences", "max_words", "long_lines")
OF_DISTRIBUTIONS = ("min_prob", "temperature", "label_temperature", "structured")
OF_JOBS = ("workers", "threads", "part_lines", "shard", "merge", "ray", "gpus_per_worker")
OF_NO_PARSE = ("model_dir", "device", "batch_size", *OF_RAW_TEXT, *OF_DISTRIBUTIONS, "distributions", "pretokenized")

COMMAND = Command(
    group="data",
    summary="parse text to CoNLL-U",
    description="Parse a text line by line into one CoNLL-U file. An interrupted run resumes when rerun, also "
    "after a full disk.",
    example="fairseq-syntax parse --input train.en --output train.en.conllu --lang en --distributions --workers 4",
    step=2,
    resumes=True,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE", help="text, or CoNLL-U for --parser conllu"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the CoNLL-U file to write")
    parser.add_argument("--text", type=Path, metavar="FILE", help="for --parser conllu: the text of the parse")
    add_parser_options(parser)
    lines = parser.add_argument_group("lines")
    lines.add_argument("--max-words", type=positive, default=250, help="maximum number of words per sentence")
    lines.add_argument(
        "--long-lines",
        choices=("split", "error"),
        default="split",
        help="for sentences over --max-words: parse them in parts, split at punctuation if possible, or stop",
    )
    arcs = parser.add_argument_group("distributions")
    arcs.add_argument("--distributions", action="store_true", help="also write p(head, label | word) as Arcs= in MISC")
    add_distribution_options(arcs)
    work = parser.add_argument_group("work")
    work.add_argument(
        "--workers",
        type=positive,
        help="number of processes, each with its own parser (default: 1; with --ray, as many as fit the cluster)",
    )
    add_ray_options(work, gpus=True)
    work.add_argument("--threads", type=positive, help="torch threads per worker")
    work.add_argument(
        "--part-lines", type=positive, default=2000, help="lines per part; finished parts survive an interruption"
    )
    work.add_argument(
        "--shard", type=_shard, metavar="I/N", help="parse only part I of N (from 1); use --merge afterwards"
    )
    work.add_argument("--merge", action="store_true", help="merge the finished shards without parsing")
    work.add_argument("--overwrite", action="store_true", help="replace an output made from other inputs or options")


def add_parser_options(parser, *, raw_text: bool = True) -> None:
    """Add the options that select a parser, its models and, for raw text, its tokenizer."""
    group = parser.add_argument_group("parser")
    group.add_argument(
        "--parser",
        default="stanza",
        metavar="NAME",
        help="stanza, supar, conllu (check an existing parse), or your own module",
    )
    group.add_argument("--lang", default="en", metavar="LANG", help="language of the text")
    group.add_argument(
        "--model-dir",
        metavar="DIR",
        help="folder with pos.pt and depparse.pt, or Stanza's resources; for supar, a checkpoint (default: Stanza's)",
    )
    group.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda")
    group.add_argument("--batch-size", type=positive, default=4000, metavar="WORDS", help="words per batch")
    if raw_text:
        choices = ("auto", "stanza", "spacy", "basic")
        add_tokenizer(group, choices, "auto: the parser's own if it has a model, otherwise basic")


def add_tokenizer(group, choices: Sequence[str], help: str) -> None:
    """Add the options for tokenizing raw text."""
    group.add_argument("--tokenizer", choices=choices, default="auto", help=help)
    group.add_argument("--pretokenized", action="store_true", help="the text is tokenized: split it at spaces")
    group.add_argument("--split-sentences", action="store_true", help="split lines that contain several sentences")


def add_distribution_options(group, *, min_prob: float = 0.01) -> None:
    """Add the options for distributions."""
    group.add_argument(
        "--min-prob", type=probability, default=min_prob, metavar="P", help="minimum probability of a stored arc"
    )
    group.add_argument("--temperature", type=temperature, default=1.0, metavar="T", help="temperature of head scores")
    group.add_argument(
        "--label-temperature", type=temperature, default=1.0, metavar="T", help="temperature of label scores"
    )
    group.add_argument(
        "--structured", action="store_true", help="use arc marginals over trees instead of a softmax for each word"
    )


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N")
    return int(number), int(count)


def parser_options(args: argparse.Namespace, **more):
    """The ParserOptions from parsed arguments; options that a subcommand lacks have their defaults."""
    names = {field.name for field in fields(ParserOptions)}
    values = {name: value for name, value in vars(args).items() if name in names} | more
    if getattr(args, "pretokenized", False):
        why = "--pretokenized lines are single sentences of tokens"
        refuse(args, lambda parser: add_tokenizer(parser, (), ""), ("split_sentences", "tokenizer"), why)
        values["tokenizer"] = "whitespace"
    return ParserOptions(**values)


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.corpus.parsing.conllu_file import pass_on
    from fairseq_syntax.corpus.parsing.jobs import Job, Plan, merge, parse_corpus

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    lang = "LANG" if args.parser == "conllu" else args.lang
    then = then_segment(args.output, lang)
    if args.parser == "conllu":
        refuse(args, add_arguments, (*OF_NO_PARSE, *OF_JOBS), "an existing parse is copied unchanged")
        check_apart(args.output, args.input, args.text)
        lines = pass_on(args.input, args.output, text=args.text, overwrite=args.overwrite)
        finished(args.output, f"{lines} lines", then)
        return 0
    refuse(args, add_arguments, ["text"], "only applies to --parser conllu; the text to parse is --input")
    if args.merge:
        refuse(args, add_arguments, ("ray", "shard"), "--merge joins all shards, without workers")
    if not args.distributions:
        refuse(args, add_arguments, OF_DISTRIBUTIONS, "only applies with --distributions", "give both")
    options = parser_options(args)
    if args.shard:
        refuse(args, add_arguments, ["overwrite"], "shards must not remove each other's parts", "remove them yourself")
    work = args.part_lines, args.workers or 1, args.threads, args.shard
    job = Job(args.input, args.output, options, *work, overwrite=args.overwrite)
    if args.merge:
        plan = Plan.of(job)
        merge(plan)
        finished(args.output, f"{len(plan.spans)} parts", then)
        return 0
    gpus = 1.0 if options.device.startswith("cuda") else 0.0
    if not gpus:
        refuse(args, add_arguments, ["gpus_per_worker"], "the parser runs on the CPU", "give --device cuda")
    print(f"loading the parser {options.parser} …", file=sys.stderr, flush=True)  # which can take long
    with chosen_workers(args, count=args.workers, cpus=args.threads or 1, gpus=gpus) as workers:
        plan = Plan.of(job)
        # Local worker processes belong to the job anyway.
        parsed = parse_corpus(plan, None if isinstance(workers, int) else workers)
    if parsed is None:
        then = "the same command with --merge in place of --shard, when all shards are parsed"
        finished(args.output, f"shard {args.shard[0]} of {args.shard[1]} is parsed", then)
    else:
        finished(args.output, f"{plan.n_lines} lines", then)
    return 0
