r"""Write a recipe for your own parallel text.

The commented recipe sets sizes of model, training and vocabulary that suit the corpus, and the tokenizer for scoring.
The baseline is a Transformer with relative positions in its encoder, which every system gets, too. A system that reads
the parse is also trained on other sentences' trees, as a placebo. A split is a prefix (corpus/train for corpus/train.en
and corpus/train.ja), two files, or a .tsv file. A recipe of init that nobody has changed is replaced.

With --from, all systems start from an imported model, the baseline too, and the model as it is has a row.

    fairseq-syntax init --train corpus/train --valid corpus/valid --test corpus/test -s en -t ja \
        --system supervised_heads
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from fairseq_syntax.cli.arguments import LANGUAGES, SEVERAL, USER_DIR
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.start import DEFAULT, recipe_system_names
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, check_output


def _add_system(parser: Any) -> None:
    about = (
        f"beside the baseline: {', '.join(recipe_system_names())}, transformer (without relative positions), or one of "
        f"a plugin; in any case (default: {DEFAULT})"
    )
    Option("--system NAME", about, **SEVERAL)(parser)


ARGUMENTS: list[Callable[[Any], None]] = [
    *LANGUAGES,
    Option("--train FILE", "the training data", **SEVERAL, required=True),
    Option("--valid FILE", "the validation data", **SEVERAL, required=True),
    Option("--test [NAME=]FILE", "the test sets", **SEVERAL, required=True),
    _add_system,
    Option("--parser NAME", "parser of the source: stanza, supar, spacy, udpipe, or your own module", default="stanza"),
    Option("--model-dir DIR", "models of the source parser (default: the parser's standard location)"),
    USER_DIR,
    Option("--from FOLDER", "start from a model that fairseq-syntax import wrote", dest="pretrained", type=Path),
    Option("--output FILE", "recipe to write", default="recipe.yaml"),
]
COMMAND = Command(__doc__, "start", ARGUMENTS, step=1)


def check(args: Namespace) -> None:
    """Files that do not exist, before the systems are imported with fairseq, which takes seconds."""
    from fairseq_syntax.corpus.gathering import named_splits, split_files
    from fairseq_syntax.runtime.files import read_raw_lines

    for texts in (args.train, args.valid, *named_splits(args.test).values()):
        for path in split_files(texts, (args.source_lang, args.target_lang)):
            next(iter(read_raw_lines(path)), None)


def main(args: Namespace) -> None:
    from fairseq_syntax.corpus.gathering import named_splits, read_split, split_files
    from fairseq_syntax.corpus.overlaps import remarks_on
    from fairseq_syntax.corpus.parsing.parser import ParserOptions, check_parser
    from fairseq_syntax.lab.recipes.reading import load_recipe
    from fairseq_syntax.lab.recipes.start import first_recipe, signed, written_by_init

    path = Path(args.output)
    check_output(path)
    langs = args.source_lang, args.target_lang
    chosen = args.system or [DEFAULT]
    tests = named_splits(args.test)
    parser = {"parser": args.parser, "models": args.model_dir}
    text = first_recipe(
        path,
        *langs,
        args.train,
        args.valid,
        tests,
        chosen,
        **parser,
        user_dir=args.user_dir,
        pretrained=args.pretrained,
    )
    if path.exists() and not written_by_init(path):
        raise SyntaxDataError(
            "exists already, and has been changed", path=path, hint="remove it, or name another --output"
        )
    text = signed(text)
    with atomic_open(path) as file:
        file.write(text)
    recipe = load_recipe(path)  # errors should be found here rather than by `run`
    if recipe.parse.source:
        try:
            check_parser(ParserOptions(args.parser, args.source_lang, args.model_dir))
        except SyntaxDataError as error:
            print(f"before you run it: {error}")
    splits = {"train": args.train, "valid": args.valid, **tests}
    files = {name: split_files(texts, langs) for name, texts in splits.items()}
    for remark in remarks_on({name: partial(read_split, paths, langs) for name, paths in files.items()}):
        print(f"before you run it: {remark}")
    finished(path, "the recipe", f"fairseq-syntax run {quote(args.output)}")
