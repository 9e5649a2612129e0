"""`fairseq-syntax tree`: the trees that a translation model's parent head predicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import (
    add_data,
    add_device,
    add_model,
    is_stream,
    opened,
    positive,
    probability,
    read_sentences,
    refuse,
)
from fairseq_syntax.cli.parse import add_tokenizer, parser_options
from fairseq_syntax.corpus.conllu import is_conllu, write_conllu
from fairseq_syntax.corpus.header import header
from fairseq_syntax.runtime.console import finished, progress
from fairseq_syntax.runtime.files import check_output

COMMAND = Command(
    group="use",
    summary="write the trees that a model predicts",
    description="Write the trees that a trained model's parent head predicts (supervised_heads or lisa in its "
    "encoder) as CoNLL-U. The input is raw text, or CoNLL-U, of which only the tokens are used. MISC "
    "has the probability of each head, as Arcs=HEAD:dep:P.",
    example="fairseq-syntax tree checkpoints/checkpoint_best.pt --input test.en --output trees.conllu",
    needs_fairseq=True,
    step=5,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    add_data(parser)
    parser.add_argument(
        "--input", default="-", metavar="FILE", help="text or .conllu, may be .gz (default: text on stdin)"
    )
    parser.add_argument("--output", default="-", metavar="FILE", help="CoNLL-U file to write (default: stdout)")
    parser.add_argument("--system", metavar="NAME", help="which system's head, if several have one")
    add_device(parser)
    parser.add_argument("--batch-size", type=positive, default=4000, metavar="PIECES", help="pieces per batch")
    text = parser.add_argument_group("tokens and sentences")
    text.add_argument("--lang", metavar="LANG", help="language of the tokenizer (default: the model's source)")
    add_tokenizer(text, ("auto", "basic", "spacy"), "should match the tokenizer of the training text's parse")
    arcs = parser.add_argument_group("probabilities")
    arcs.add_argument(
        "--distributions",
        action="store_true",
        help="write all likely heads of each word, not only the head in the tree",
    )
    arcs.add_argument(
        "--min-prob",
        type=probability,
        default=0.01,
        metavar="P",
        help="minimum probability written with --distributions",
    )


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.use.loading import load_models
    from fairseq_syntax.use.parent_head import ParentHeadParser

    check_output(args.output, args.input)
    if is_conllu(args.input):
        of_raw_text = ("lang", "tokenizer", "pretokenized", "split_sentences")
        refuse(args, add_arguments, of_raw_text, f"the tokens of {args.input} are taken")
    if not args.distributions:
        refuse(args, add_arguments, ["min_prob"], "only applies with --distributions", "give both")
    # Without lisa_gold, with which the head would attend to given parents.
    (model,), _, task = load_models([args.model], args.data, device=args.device, lisa_gold=False)
    lang = args.lang or task.cfg.source_lang
    # No limit of words, since the model encodes whole lines.
    options = parser_options(args, lang=lang, device="cpu", max_words=sys.maxsize)
    parser = ParentHeadParser(options, model, task, args.system)
    sentences: Iterable[Any] = read_sentences(args.input)
    if is_stream(args.input):  # a stream can be read only once
        sentences = list(sentences)
        n_lines = len(sentences)
    else:
        n_lines = sum(1 for _ in read_sentences(args.input))
    words = lines = 0
    with opened(args.output) as output:
        output.write(header(n_lines))
        source = iter(progress(sentences, total=n_lines, of="parsing"))
        while chunk := list(islice(source, 2000)):
            parsed = parser.predict(chunk) if is_conllu(args.input) else parser.parse(chunk, first_line=lines)
            for line in parsed:
                write_conllu(output, line)
                words += len(line.words)
            lines += len(parsed)
    then = f"fairseq-syntax eval-tree GOLD.conllu {args.output}"
    finished(args.output, f"{lines} lines, {words} words", then, file=sys.stderr)
    return 0
