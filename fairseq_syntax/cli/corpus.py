r"""Write a corpus as plain text.

The files are SPLIT.LANG for train, valid and each test set. A split is given as a prefix (corpus/train for
corpus/train.en and corpus/train.de), two files, a .tsv file, or a test set in WMT's XML; all may be compressed. A
reader reads a standard corpus from a folder with its files.

    fairseq-syntax corpus -s en -t de --train corpus/train --valid corpus/valid --test test=corpus/test \
        --output text
"""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_syntax.cli.arguments import LANGUAGES, OUTPUT_FOLDER, PAIRS, SEED, SEVERAL, positive
from fairseq_syntax.cli.command import Command, Flag, Group, Option
from fairseq_syntax.cli.common import refuse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import say

ARGUMENTS = [
    *LANGUAGES,
    OUTPUT_FOLDER,
    Group(
        "files",
        Option("--train FILE", "a prefix, two files, or a .tsv file", **SEVERAL),
        Option("--valid FILE", "a prefix, two files, or a .tsv file", **SEVERAL),
        Option("--test [NAME=]FILE", "test sets; with --reader, names of its splits", **SEVERAL, default=[]),
        Option("--references NAME=N", "number of references of a test set, in FILE, FILE.1, …", **PAIRS),
    ),
    Group(
        "a corpus in its own format",
        Option("--reader NAME", "multi30k, iwslt, wmt, …, or your own Python file"),
        Option("--data DIR", "folder with the reader's files"),
        Flag("--download", "download missing files"),
        Option("--option NAME=VALUE", "options of the reader", **PAIRS),
    ),
    Group(
        "of it",
        Option("--subset", "use N random pairs of the training data", type=positive),
        Option("--first", "use the first N pairs of valid and the test sets", type=positive),
        SEED,
        Option("--words LANG=PROGRAM", "word segmenter, such as 'ja=mecab -Owakati'", **PAIRS),
    ),
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=0)


def check(args: Namespace) -> None:
    from fairseq_syntax.corpus.gathering import check_programs
    from fairseq_syntax.corpus.readers import check_reader

    given = [value is not None for value in (args.reader, args.data, args.train, args.valid)]
    if given not in ([True, True, False, False], [False, False, True, True]):
        raise SyntaxDataError("give --train, --valid and --test, or --reader and --data")
    if args.reader is not None:
        check_reader(args.reader, args.data, download=args.download, options=dict(args.option))
    else:
        refuse(args, ("download", "option"), "only applies with --reader")
    check_programs(dict(args.words))


def main(args: Namespace) -> None:
    import yaml

    from fairseq_syntax.corpus.gathering import gathered, named_splits, read_split, split_files
    from fairseq_syntax.corpus.overlaps import remarks_on
    from fairseq_syntax.corpus.parallel_text import Split, parallel
    from fairseq_syntax.corpus.readers import read_corpus, write_corpus

    langs = (args.source_lang, args.target_lang)
    tests, names = named_splits(args.test, of_reader=args.reader is not None), None
    if args.reader is not None:
        # The reader alone knows which it reads, so all in the folder count; below it may be earlier outputs.
        inputs = [path for path in Path(args.data).glob("*") if path.is_file()]
        # parsed as YAML, like the reader's options in a recipe: 2017 is a number, [a, b] a list
        options: dict[str, Any] = {name: yaml.safe_load(text) for name, text in args.option}
        splits = read_corpus(args.reader, args.data, *langs, download=args.download, options=options)
        names = {name: texts[0] for name, texts in tests.items()} or None
    else:
        named = {"train": args.train, "valid": args.valid, **tests}
        for name, number in args.references:
            if name not in named or not number.isdecimal():
                message = f"not a test set and a number: {name}={number}"
                raise SyntaxDataError(message, option="--references", hint="NAME=N, with a NAME of --test")
        references = {name: int(number) for name, number in args.references}
        files = {name: split_files(texts, langs, references.get(name, 1)) for name, texts in named.items()}
        inputs = [path for of in files.values() for path in of]
        splits = (Split(name, read_split(of, langs)) for name, of in files.items())
    limits = {"pairs": args.subset, "seed": args.seed, "first": args.first}
    taken = gathered(splits, langs, tests=names, **limits, programs=dict(args.words))
    written = write_corpus(taken, args.output, *langs, inputs=inputs)
    for split in written:
        say(f"{split.paths[0]}, {split.paths[1].suffix}: {split.sentences} pairs")
    for remark in remarks_on({split.name: partial(parallel, *split.paths) for split in written}):
        print(f"warning: {remark}", file=sys.stderr)
