"""``fairseq-syntax init``: a commented recipe for two text files."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import SEVERAL, add_languages
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, check_output

COMMAND = Command(
    group="start",
    summary="write a recipe for your own parallel text",
    description="Write a commented recipe for a corpus. It sets sizes of model, training and vocabulary that suit "
    "the corpus, the available parser, and the tokenizer for scoring the target language. A split is "
    "a prefix (corpus/train for corpus/train.en and corpus/train.ja), two files, or a .tsv file.",
    example=r"""
        fairseq-syntax init --train corpus/train --valid corpus/valid --test corpus/test -s en -t ja \
            --system pascal""",
    step=1,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_syntax.lab.recipes.start import systems

    names = sorted(systems())

    add_languages(parser)
    for name, text in (("train", "the training data"), ("valid", "the validation data")):
        parser.add_argument(f"--{name}", **SEVERAL, required=True, metavar="FILE", help=text)
    parser.add_argument(
        "--test",
        **SEVERAL,
        required=True,
        metavar="[NAME=]FILE",
        help="test sets: prefixes, pairs of files or .tsv files",
    )
    parser.add_argument(
        "--system",
        **SEVERAL,
        choices=names,
        metavar="NAME",
        help=f"beside the plain Transformer: {', '.join(names)} (default: pascal)",
    )
    parser.add_argument("--model-dir", metavar="DIR", help="models of the source parser (default: Stanza's own)")
    parser.add_argument("--output", default="recipe.yaml", metavar="FILE", help="recipe to write")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.corpus.gathering import named_splits
    from fairseq_syntax.corpus.parsing.stanza_models import model_folder
    from fairseq_syntax.lab.recipes.reading import load
    from fairseq_syntax.lab.recipes.start import first_recipe

    path = Path(args.output)
    check_output(path)
    if path.exists():
        raise SyntaxDataError("exists already", path=path, hint="remove it, or name another --output")
    text = first_recipe(
        path,
        args.source_lang,
        args.target_lang,
        args.train,
        args.valid,
        named_splits(args.test),
        args.system or ["pascal"],
        args.model_dir,
    )
    with atomic_open(path) as file:
        file.write(text)
    load(path)  # errors should be found here rather than by `run`
    try:
        model_folder(args.source_lang, args.model_dir)
    except SyntaxDataError as error:
        print(f"before you run it: {error}")
    finished(path, "the recipe", f"fairseq-syntax run {path}")
    return 0
