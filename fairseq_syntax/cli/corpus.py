"""``fairseq-syntax corpus``: convert a parallel corpus to plain text files, one sentence per line."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import PAIRS, SEVERAL, add_languages, natural, positive
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import say

COMMAND = Command(
    group="data",
    summary="write a corpus as plain text",
    description="Write SPLIT.LANG for train, valid and each test set. A split is a prefix (corpus/train for "
    "corpus/train.en and corpus/train.de), two files, or a .tsv file; all may be .gz. A reader reads "
    "a standard corpus from a folder with its files.",
    example=r"""
        fairseq-syntax corpus -s en -t de --train corpus/train --valid corpus/valid --test test=corpus/test \
            --output text""",
    step=0,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_languages(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="output folder")
    files = parser.add_argument_group("files")
    for name in ("train", "valid"):
        files.add_argument(f"--{name}", **SEVERAL, metavar="FILE", help="a prefix, two files, or a .tsv file")
    parser.add_argument(
        "--test",
        **SEVERAL,
        default=[],
        metavar="[NAME=]FILE",
        help="test sets, likewise; with --reader, the names of their splits",
    )
    files.add_argument(
        "--references",
        **PAIRS,
        metavar="NAME=N",
        help="number of references of a test set; the others are FILE.1 and so on",
    )
    reader = parser.add_argument_group("a corpus in its own format")
    reader.add_argument("--reader", metavar="NAME", help="multi30k, iwslt, wmt, …, or your own Python file")
    reader.add_argument("--data", metavar="DIR", help="folder with the reader's files")
    reader.add_argument("--download", action="store_true", help="download missing files")
    reader.add_argument("--option", **PAIRS, metavar="NAME=VALUE", help="options of the reader")
    chosen = parser.add_argument_group("of it")
    chosen.add_argument("--subset", type=positive, help="use N random pairs of the training data")
    chosen.add_argument("--first", type=positive, help="use the first N pairs of valid and the test sets")
    chosen.add_argument("--seed", type=natural, default=1, help="random seed")
    chosen.add_argument("--words", **PAIRS, metavar="LANG=PROGRAM", help="word segmenter, such as 'ja=mecab -Owakati'")


def main(args: argparse.Namespace) -> int:
    import yaml

    from fairseq_syntax.corpus.gathering import gathered, named_splits, read_split, split_files
    from fairseq_syntax.corpus.parallel_text import Split
    from fairseq_syntax.corpus.readers import read_corpus, write_corpus

    langs = (args.source_lang, args.target_lang)
    tests = named_splits(args.test)
    references = dict(args.references)
    if (args.reader is None) == (args.train is None) or (args.reader is not None) != (args.data is not None):
        raise SyntaxDataError("give --train, --valid and --test, or --reader and --data")
    if args.reader is not None:
        # parsed as YAML, like the reader's options in a recipe: 2017 is a number, [a, b] a list
        options: dict[str, Any] = {name: yaml.safe_load(text) for name, text in args.option}
        splits = read_corpus(args.reader, args.data, *langs, download=args.download, options=options)
        names = {name: texts[0] for name, texts in tests.items()} or None
    else:
        if args.valid is None:
            raise SyntaxDataError("is required with --train", option="--valid")
        files = {
            name: split_files(texts, langs, int(references.get(name, 1)))
            for name, texts in {"train": args.train, "valid": args.valid, **tests}.items()
        }
        splits = (Split(name, read_split(of)) for name, of in files.items())
        names = None
    limits = {"pairs": args.subset, "seed": args.seed, "first": args.first}
    taken = gathered(splits, langs, tests=names, **limits, programs=dict(args.words))
    for split in write_corpus(taken, args.output, *langs):
        say(f"{split.paths[0]}, {split.paths[1].suffix}: {split.sentences} pairs")
    return 0
