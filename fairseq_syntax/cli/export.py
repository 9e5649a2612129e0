r"""Write a model for stock fairseq, CTranslate2 or transformers.

The output folder has the model, its dictionaries and its segmentation, and does not need this package. This works for
models that are plain Transformers at inference; label embeddings become source factors of CTranslate2.

    fairseq-syntax export checkpoints/checkpoint_best.pt --to ctranslate2 --output exported \
        --quantization int8
"""

from argparse import Namespace
from shlex import quote

from fairseq_syntax.cli.arguments import CHECKPOINT, DATA, OUTPUT_FOLDER, USER_DIR
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.use.exported import KINDS, QUANTIZATIONS, TO

ARGUMENTS = [
    CHECKPOINT,
    Option("--to", "target format", choices=TO, required=True),
    OUTPUT_FOLDER,
    Option("--quantization", "quantization of CTranslate2's weights (default: none, float32)", choices=QUANTIZATIONS),
    DATA,
    USER_DIR,
    Option("--source-tag TAG", "for multi-task models: the tag that requests a translation", default=""),
]
COMMAND = Command(__doc__, "use", ARGUMENTS, step=4, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.use import export

    model = export.load_exported_folder(args.model, args.data)
    exported = export.export(model, args.to, args.output, quantization=args.quantization, source_tag=args.source_tag)
    factors = f", with {' and '.join(exported.factors)} as source factors" if exported.factors else ""
    then = f"fairseq-syntax translate {quote(args.output)} --input FILE" if args.to in KINDS else ""
    finished(args.output, f"a model for {exported.kind}{factors}", then)
