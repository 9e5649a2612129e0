r"""Make the corpus of the multi-task baseline (Currey and Heafield, 2019).

Each source sentence appears twice, with a task tag at both ends: once with its translation and once with its linearized
parse, shuffled together. Reads PREFIX.SRC, PREFIX.SRC.conllu and PREFIX.TGT from `fairseq-syntax segment`.

    fairseq-syntax multitask -s en -t de --train pieces/train --translate-only pieces/valid pieces/test \
        --output multitask
"""

from argparse import Namespace
from pathlib import Path
from shlex import quote

from fairseq_syntax.cli.arguments import LANGUAGES, OUTPUT_FOLDER, PROCESSES, SEED, SEVERAL
from fairseq_syntax.cli.command import Choice, Command, Flag, Option
from fairseq_syntax.cli.common import refuse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import check_outputs, make_folder

ARGUMENTS = [
    *LANGUAGES,
    Option("--train PREFIX", "training corpora, to be doubled and shuffled", **SEVERAL, default=[]),
    Option("--translate-only PREFIX", "corpora to tag for translation (valid, test)", **SEVERAL, default=[]),
    OUTPUT_FOLDER,
    Choice("--form", "form of the linearized parse", "brackets", "relations"),
    Flag("--words", "put the words' pieces into the brackets, not their UPOS"),
    Option(
        "--tags TRANSLATE PARSE",
        "tags at both ends of a source sentence (default: <translate> <parse>)",
        nargs=2,
        default=("<translate>", "<parse>"),
    ),
    SEED,
    PROCESSES,
]
COMMAND = Command(__doc__, "research", ARGUMENTS, step=3)


def main(args: Namespace) -> None:
    from fairseq_syntax.corpus.multitask import Doubling, write_multitask

    if not args.train and not args.translate_only:
        raise SyntaxDataError("nothing to do", hint="give --train PREFIX or --translate-only PREFIX")
    if args.form != "brackets":
        refuse(args, ["words"], "only applies to --form brackets")
    if args.tags[0] == args.tags[1] or any(len(tag.split()) != 1 for tag in args.tags):
        raise SyntaxDataError("must be two different tags without spaces", option="--tags")
    outdir = Path(args.output)
    make_folder(outdir)
    langs = args.source_lang, args.target_lang
    read = [f"{prefix}.{lang}" for prefix in (*args.train, *args.translate_only) for lang in langs]
    check_outputs([outdir / Path(path).name for path in read], read)
    for prefix in (*args.train, *args.translate_only):
        doubling = Doubling(prefix, *langs, tuple(args.tags), args.form, args.words)
        how = {"parsed": prefix in args.train, "seed": args.seed, "workers": args.workers}
        print(write_multitask(doubling, str(outdir / Path(prefix).name), **how))
    train = quote(f"{outdir}/TRAIN")
    print(f"next: fairseq-preprocess -s {langs[0]} -t {langs[1]} --trainpref {train} --destdir BIN")
