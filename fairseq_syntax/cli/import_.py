"""Import a model of Hugging Face's transformers, such as one of OPUS-MT, or a multilingual checkpoint of fairseq.

The folder is read from the disk, without running code from it, and nothing is downloaded. A checkpoint of fairseq
(mBART, M2M-100) has its dictionary and its segmentation beside it. The output folder has a checkpoint, its dictionaries
and its segmentation: to translate and serve, and to train further, with or without a parse. The two models are
compared, a folder of transformers if that is installed, and nothing is written if they differ.

    fairseq-syntax import opus-mt-en-de --output opus-en-de
"""

from argparse import Namespace
from shlex import quote

from fairseq_syntax.cli.arguments import OUTPUT_FOLDER, SEVERAL
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.runtime.console import finished

ARGUMENTS = [
    Option("folder FOLDER", "the model, as transformers saves it; or a checkpoint of fairseq"),
    OUTPUT_FOLDER,
    Option("-s --source-lang LANG", "the source language, as in the names of your files (default: the folder's)"),
    Option("-t --target-lang LANG", "the target language, likewise"),
    Option("--source-name NAME", "the source language as a multilingual model names it, if otherwise (eng_Latn)"),
    Option("--target-name NAME", "the target language, likewise"),
    Option("--keep-pieces TEXT", "keep only the pieces of these texts, in both languages", **SEVERAL, default=[]),
]
COMMAND = Command(__doc__, "start", ARGUMENTS, step=2, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.use.importing import import_model

    imported = import_model(
        args.folder,
        args.output,
        args.source_lang,
        args.target_lang,
        source_name=args.source_name,
        target_name=args.target_name,
        keep_pieces=args.keep_pieces,
    )
    if args.keep_pieces:
        counts = zip(("source", "target"), imported.symbols, imported.dropped)
        print("; ".join(f"{side}: {kept} symbols kept, {dropped} dropped" for side, kept, dropped in counts))
    if imported.comparison is None:
        print("not compared with transformers, which is not installed: pip install 'fairseq-syntax[transformers]'")
    else:
        states, log_probabilities = vars(imported.comparison).values()
        print(f"as in the original: states within {states:.1g}, log-probabilities within {log_probabilities:.1g}")
    what = f"a {imported.family} model of {imported.parameters / 1e6:.1f} million parameters"
    finished(args.output, what, f"fairseq-syntax translate {quote(args.output)} --input FILE")
