"""`fairseq-syntax tree`: the trees that a translation model's parent head predicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import (
    add_data,
    add_device,
    add_model,
    given,
    is_stream,
    positive,
    probability,
    read_sentences,
)
from fairseq_syntax.cli.parse import add_tokenizer, parser_options

if TYPE_CHECKING:
    from fairseq_syntax.corpus.conllu import ParsedLine

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
    text.add_argument(
        "--find-sentences",
        action="store_true",
        help="split lines into sentences at the predicted roots, if the words of each sentence are contiguous",
    )
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
    from contextlib import nullcontext

    from fairseq_syntax.corpus.conllu import is_conllu, write_conllu
    from fairseq_syntax.corpus.title import title
    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.runtime.console import finished, progress
    from fairseq_syntax.runtime.files import atomic_open, check_output
    from fairseq_syntax.use.parent_head import ParentHeadParser, load_model

    check_output(args.output, args.input)
    if is_conllu(args.input):
        of_raw_text = {"lang": None, "tokenizer": "auto", "pretokenized": False, "split_sentences": False}
        if unused := given(args, of_raw_text):
            raise SyntaxDataError(f"{unused} with CoNLL-U, whose tokens are taken", path=args.input, hint="drop it")
    if not args.distributions and (unused := given(args, {"min_prob": 0.01})):
        raise SyntaxDataError(f"{unused} without --distributions: nothing would be written of it", hint="give both")
    model, task = load_model(args.model, args.data, args.device)
    lang = args.lang or task.cfg.source_lang
    options = parser_options(args, lang=lang, device="cpu", max_words=sys.maxsize)
    parser = ParentHeadParser(options, model, task, args.system, args.find_sentences)
    sentences, n_lines = counted(args.input)
    words = lines = 0
    opened = nullcontext(sys.stdout) if args.output == "-" else atomic_open(args.output)
    with opened as output:
        output.write(title(n_lines))
        for chunk in chunks(progress(sentences, total=n_lines, of="parsing")):
            parsed = parser.predict(chunk) if is_conllu(args.input) else parser.parse(chunk, first_line=lines)
            for line in parsed:
                write_conllu(output, line)
                words += len(line.words)
            lines += len(parsed)
    then = f"fairseq-syntax eval-tree GOLD.conllu {args.output}"
    finished(args.output, f"{lines} lines, {words} words", then, file=sys.stderr)
    return 0


def counted(path: str) -> tuple[Iterable[str | ParsedLine], int]:
    """The sentences of a file and their number, which the title of their trees says.

    Of stdin, or a FIFO, all are read first: it can be read only once.
    """
    if is_stream(path):
        lines = list(read_sentences(path))
        return lines, len(lines)
    return read_sentences(path), sum(1 for _ in read_sentences(path))


def chunks(lines: Iterable[Any], size: int = 2000) -> Iterator[list[Any]]:
    """The lines, so many at a time."""
    from itertools import islice

    source = iter(lines)
    while chunk := list(islice(source, size)):
        yield chunk
