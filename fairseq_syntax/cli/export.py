"""``fairseq-syntax export``: a trained model for stock fairseq, CTranslate2 or transformers."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import add_data, add_model
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.use.exported import KINDS, QUANTIZATIONS, TO

COMMAND = Command(
    group="use",
    summary="write a model for stock fairseq, CTranslate2 or transformers",
    description="Write a folder with a model that no longer needs this package, its dictionaries and its "
    "segmentation. This works for models that are plain Transformers at inference; label embeddings "
    "become source factors of CTranslate2.",
    example=r"""
        fairseq-syntax export checkpoints/checkpoint_best.pt --to ctranslate2 --output exported \
            --quantization int8""",
    needs_fairseq=True,
    step=4,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    parser.add_argument("--to", choices=TO, required=True, help="target format")
    parser.add_argument("--output", required=True, metavar="DIR", help="output folder")
    parser.add_argument(
        "--quantization", choices=QUANTIZATIONS, help="quantization of CTranslate2's weights (default: none, float32)"
    )
    add_data(parser)
    parser.add_argument(
        "--source-tag", default="", metavar="TAG", help="for multi-task models: the tag that requests a translation"
    )


def main(args: argparse.Namespace) -> None:
    from fairseq_syntax.use import export

    exported = export.export(
        export.load(args.model, args.data),
        args.to,
        args.output,
        quantization=args.quantization,
        source_tag=args.source_tag,
    )
    factors = f", with {' and '.join(exported.factors)} as source factors" if exported.factors else ""
    then = f"fairseq-syntax translate {args.output} --input FILE" if args.to in KINDS else ""
    finished(args.output, f"a model for {exported.kind}{factors}", then)
