r"""Split the words of a parse, or text, into subword pieces.

The sentencepiece or subword-nmt model is trained here or supplied. For NAME.LANG.conllu, write the pieces to
OUTPUT/NAME.LANG, and the parse with the number of pieces of each token to OUTPUT/NAME.LANG.conllu. For plain text,
write only the pieces. Outputs that are up to date are not rewritten.

    fairseq-syntax segment --lang en --input train.en.conllu valid.en.conllu test.en.conllu --output pieces \
        --train sentencepiece --vocab-size 8000
"""

import sys
from argparse import Namespace
from itertools import chain
from pathlib import Path
from shlex import quote

from fairseq_syntax.cli.arguments import FILE_LANGUAGE, RAY, SEED, SEVERAL, WORKERS, positive, probability
from fairseq_syntax.cli.command import Choice, Command, Flag, OneOf, Option
from fairseq_syntax.cli.common import refuse
from fairseq_syntax.corpus.conllu import is_conllu
from fairseq_syntax.runtime.files import check_outputs, make_folder
from fairseq_syntax.runtime.ray_workers import chosen_workers

OF_SENTENCEPIECE = ("model_type", "character_coverage")
OF_TRAINING = ("train_on", "vocab_size", *OF_SENTENCEPIECE, "train_lines", "seed")

ARGUMENTS = [
    FILE_LANGUAGE,
    Option("--input FILE", ".conllu or plain text files; may be compressed", **SEVERAL, required=True),
    Option("--output DIR", "output folder; must not contain the input", required=True),
    OneOf(
        Option("--model FILE", "segmentation.LANG.json of an earlier run, a sentencepiece model or subword-nmt codes"),
        Option(
            "--train",
            "train a model of this kind; words: every word is a piece, and fairseq-preprocess drops rare ones by "
            "--nwordssrc and --thresholdsrc",
            choices=("sentencepiece", "subword_nmt", "words"),
        ),
        required=True,
    ),
    Option("--train-on FILE", "training texts (default: the first --input)", **SEVERAL),
    Option("--vocab-size", "vocabulary size; smaller if the text has fewer pieces", type=positive, default=8000),
    Choice("--model-type", "sentencepiece only", "unigram", "bpe"),
    Option(
        "--character-coverage SHARE",
        "share of characters covered, sentencepiece only; for Chinese or Japanese below 1, such as 0.9995",
        type=probability,
        default=1.0,
    ),
    Option("--train-lines", "train on N random lines (default: all)", type=positive, default=0),
    SEED,
    WORKERS,
    RAY,
    Flag("--overwrite", "train and segment again, even if outputs exist"),
]
COMMAND = Command(__doc__, "data", ARGUMENTS, step=3, resumes=True)


def check(args: Namespace) -> None:
    if args.model or args.train == "words":
        refuse(args, OF_TRAINING, "no model is trained with --model or --train words")
    if args.train == "subword_nmt":
        refuse(args, OF_SENTENCEPIECE, "is an option of sentencepiece, not of --train subword_nmt")


def main(args: Namespace) -> None:
    from fairseq_syntax.corpus.segmentation_files import output_paths, prepare_model, segment_file

    outdir = Path(args.output)
    outputs = [output_paths(path, args.lang, outdir) for path in args.input]
    texts = (args.train_on or args.input[:1]) if args.train else []
    check_outputs(chain.from_iterable(outputs), [*args.input, *texts])
    make_folder(outdir)

    training = args.train and {
        "kind": args.train,
        "files": texts,
        "vocab_size": args.vocab_size,
        "model_type": args.model_type,
        "character_coverage": args.character_coverage,
        "max_lines": args.train_lines,
        "seed": args.seed,
    }
    if args.train and args.train != "words":
        print(f"training a {args.train} model of {args.vocab_size} pieces on {', '.join(texts)} …", file=sys.stderr)
    prefix = outdir / f"segmentation.{args.lang}"
    of_parse = any(map(is_conllu, [*args.input, *texts]))
    remade = [paths[0] for paths in outputs]
    segmenter = prepare_model(prefix, args.model, training, args.overwrite, of_parse=of_parse, remade=remade)
    pieces = "" if segmenter.pieces is None else f"{segmenter.pieces} pieces, "
    if args.train and segmenter.pieces is not None and segmenter.pieces < args.vocab_size:
        pieces = f"{segmenter.pieces} pieces, as the text has not {args.vocab_size}, "
    print(f"{prefix}.json: {segmenter.kind}, {pieces}fingerprint {segmenter.fingerprint[:12]}")
    with chosen_workers(args, count=args.workers) as workers:
        for path, paths in zip(args.input, outputs):
            report = segment_file(segmenter, path, paths, overwrite=args.overwrite, workers=workers)
            print(f"{paths[0]}: {report}")
    if segmenter.altered:
        examples = ", ".join(f"{word!r} -> {back!r}" for word, back in sorted(segmenter.altered.items())[:5])
        print(
            f"warning: the model normalises text: {len(segmenter.altered)} distinct words do not come back as they "
            f"were, among them {examples}"
        )
    where = f"--trainpref {quote(f'{outdir}/TRAIN')} --validpref {quote(f'{outdir}/VALID')} --destdir BIN"
    plugin = '--user-dir "$(fairseq-syntax user-dir)" --task syntax_translation'
    print(f"next: fairseq-preprocess {plugin} -s SRC -t TGT {where}")
