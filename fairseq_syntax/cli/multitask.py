"""`fairseq-syntax multitask`: the corpus of the multi-task baseline, which learns to translate and to parse."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import SEVERAL, add_languages, natural, positive, refuse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import check_outputs, make_folder

COMMAND = Command(
    group="research",
    summary="make the corpus of the multi-task baseline",
    description="Write a corpus for multi-task learning (Currey and Heafield, 2019). Each source sentence appears "
    "twice, with a task tag at both ends: once with its translation and once with its linearized "
    "parse, shuffled together. Reads PREFIX.SRC, PREFIX.SRC.conllu and PREFIX.TGT from "
    "`fairseq-syntax segment`.",
    example=r"""
        fairseq-syntax multitask -s en -t de --train pieces/train --translate-only pieces/valid pieces/test \
            --output multitask""",
    step=3,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_languages(parser)
    parser.add_argument(
        "--train", **SEVERAL, default=[], metavar="PREFIX", help="training corpora, to be doubled and shuffled"
    )
    parser.add_argument(
        "--translate-only", **SEVERAL, default=[], metavar="PREFIX", help="corpora to tag for translation (valid, test)"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="output folder; must not contain the input")
    parser.add_argument(
        "--form", choices=("brackets", "relations"), default="brackets", help="form of the linearized parse"
    )
    parser.add_argument("--words", action="store_true", help="put the words' pieces into the brackets, not their UPOS")
    parser.add_argument(
        "--tags",
        nargs=2,
        default=("<translate>", "<parse>"),
        metavar=("TRANSLATE", "PARSE"),
        help="tags at both ends of a source sentence (default: <translate> <parse>)",
    )
    parser.add_argument("--seed", type=natural, default=1, help="seed for shuffling")
    parser.add_argument("--workers", type=positive, default=1, help="number of processes")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.corpus.multitask import Doubling, write_multitask

    if not args.train and not args.translate_only:
        raise SyntaxDataError("nothing to do", hint="give --train PREFIX or --translate-only PREFIX")
    if args.form != "brackets":
        refuse(args, add_arguments, ["words"], "only applies to --form brackets")
    if args.tags[0] == args.tags[1] or any(len(tag.split()) != 1 for tag in args.tags):
        raise SyntaxDataError("must be two different tags without spaces", option="--tags")
    outdir = Path(args.output)
    make_folder(outdir)
    langs = args.source_lang, args.target_lang
    corpora = [(prefix, True) for prefix in args.train] + [(prefix, False) for prefix in args.translate_only]
    read = [f"{prefix}.{lang}" for prefix, _ in corpora for lang in langs]
    check_outputs([outdir / Path(path).name for path in read], read)
    then = f"fairseq-preprocess -s {langs[0]} -t {langs[1]} --trainpref {outdir}/TRAIN --destdir BIN"
    for prefix, parsed in corpora:
        doubling = Doubling(prefix, *langs, tuple(args.tags), args.form, args.words)
        out = str(outdir / Path(prefix).name)
        print(write_multitask(doubling, out, parsed=parsed, seed=args.seed, workers=args.workers))
    print(f"next: {then}")
    return 0
