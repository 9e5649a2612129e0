"""``fairseq-syntax export``: a trained model for stock fairseq, CTranslate2 or transformers."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_data, add_model
from fairseq_syntax.use.exported import KINDS, QUANTIZATIONS, TO

COMMAND = Command(
    group="use",
    summary="write a model for stock fairseq, CTranslate2 or transformers",
    description="Write a folder with a model that needs this package no more, its dictionaries and segmentation. "
    "For models that are plain Transformers at inference; label embeddings become source factors of CTranslate2.",
    example=r"""
        fairseq-syntax export checkpoints/checkpoint_best.pt --to ctranslate2 --output exported \
            --quantization int8""",
    needs_fairseq=True,
    step=4,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    parser.add_argument("--to", choices=TO, help="what is to run it")
    parser.add_argument("--output", metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--quantization", choices=QUANTIZATIONS, help="of CTranslate2's weights (default: none, float32)"
    )
    add_data(parser)
    parser.add_argument(
        "--segmentation", metavar="DIR", help="where segmentation.LANG.json are (default: the binarized data)"
    )
    parser.add_argument(
        "--source-tag", default="", metavar="TAG", help="of multi-task models: what asks for a translation"
    )
    parser.add_argument(
        "--distil", action="store_true", help="print how to train a plain model on this one's translations, and stop"
    )


def main(args: argparse.Namespace) -> None:
    """Export."""
    import logging

    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.runtime.console import finished
    from fairseq_syntax.use import export

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    if not args.distil and not (args.to and args.output):
        raise SyntaxDataError("--to and --output are needed, or --distil")
    loaded = export.load(args.model, args.data)
    if args.distil:
        print(export.recipe(args.model, loaded))
        return
    exported = export.export(
        loaded,
        args.to,
        args.output,
        quantization=args.quantization,
        segmentation=args.segmentation,
        source_tag=args.source_tag,
    )
    factors = f", with {' and '.join(exported.factors)} as source factors" if exported.factors else ""
    then = f"fairseq-syntax translate {args.output} --input FILE" if args.to in KINDS else ""
    finished(args.output, f"a model for {exported.kind}{factors}", then)
