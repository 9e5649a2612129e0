"""Write the trees that a model predicts.

These are the trees of the model's parent head (supervised_heads, lisa or dbsa in its encoder), or with --head of any
other, as CoNLL-U. The input is raw text, or CoNLL-U, of which only the tokens are used. MISC has the probability of
each head, as Arcs=HEAD:dep:P. With --choose, nothing is written, and all heads of the encoder are ranked by the share
of words that attend most to the parent that they have in the input, best first.

    fairseq-syntax tree checkpoints/checkpoint_best.pt --input test.en --output trees.conllu
"""

import sys
from argparse import Namespace
from collections.abc import Iterable
from itertools import islice
from shlex import quote
from typing import Any

from fairseq_syntax.cli.arguments import CHECKPOINT, DATA, DEVICE, USER_DIR, natural, positive, probability
from fairseq_syntax.cli.command import Command, Flag, Group, Option
from fairseq_syntax.cli.common import is_stream, opened, read_sentences, refuse
from fairseq_syntax.cli.parse import parser_options, tokenizer
from fairseq_syntax.corpus.conllu import is_conllu, read_conllu, write_conllu
from fairseq_syntax.corpus.header import header
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import finished, progress
from fairseq_syntax.runtime.files import check_output


def layer_and_head(text: str) -> tuple[int, int]:
    """``LAYER,HEAD`` as numbers."""
    layer, _, head = text.partition(",")
    return int(natural(layer)), int(natural(head))


ARGUMENTS = [
    CHECKPOINT,
    DATA,
    Option("--input FILE", "text or .conllu, may be compressed (default: text on stdin)", default="-"),
    Option("--output FILE", "CoNLL-U file to write (default: stdout)", default="-"),
    Option("--system NAME", "which system's head, if several have one"),
    Option("--head LAYER,HEAD", "any head of the encoder, both from 0; also of a plain model", type=layer_and_head),
    Flag("--choose", "rank all heads by the parses in --input, instead of writing trees"),
    DEVICE,
    USER_DIR,
    Option("--batch-size PIECES", "pieces per batch", type=positive, default=4000),
    Group(
        "tokens and sentences",
        Option("--lang LANG", "language of the tokenizer (default: the model's source)"),
        *tokenizer(("auto", "basic", "spacy"), "should match the tokenizer of the training text's parse"),
    ),
    Group(
        "probabilities",
        Flag("--distributions", "write all likely heads of each word, not only the head in the tree"),
        Option("--min-prob P", "minimum probability written with --distributions", type=probability, default=0.01),
    ),
]
COMMAND = Command(__doc__, "use", ARGUMENTS, step=5, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.use.loading import load_models
    from fairseq_syntax.use.parent_head import ParentHeadParser

    check_output(args.output, args.input)
    if is_conllu(args.input):
        of_raw_text = ("lang", "tokenizer", "pretokenized", "split_sentences")
        refuse(args, of_raw_text, f"the tokens of {args.input} are taken")
    if not args.distributions:
        refuse(args, ["min_prob"], "only applies with --distributions", "give both")
    if args.head is not None or args.choose:
        refuse(args, ["system"], "names a head that was trained on parents, instead of --head and --choose")
    if args.choose:
        refuse(args, ["head", "output", "distributions"], "--choose ranks all heads, and writes no trees")
        if not is_conllu(args.input):
            raise SyntaxDataError("heads are ranked by a parse: give a .conllu file", option="--input")
    # Without lisa_gold, with which the head would attend to given parents.
    (model,), _, task = load_models([args.model], args.data, device=args.device, lisa_gold=False)
    lang = args.lang or task.cfg.source_lang
    # No limit of words, since the model encodes whole lines.
    options = parser_options(args, lang=lang, device="cpu", max_words=sys.maxsize)
    parser = ParentHeadParser(options, model, task, args.system, head=args.head, choose=args.choose)
    if args.choose:
        for place, (share, (layer, head)) in enumerate(parser.rank_heads(read_conllu(args.input)), start=1):
            print(f"{place:3}  {100 * share:6.2f} %  layer {layer}, head {head}")
        return
    sentences: Iterable[Any] = read_sentences(args.input)
    if is_stream(args.input):  # a stream can be read only once
        sentences = list(sentences)
    n_lines = sum(1 for _ in (sentences if is_stream(args.input) else read_sentences(args.input)))
    words = lines = 0
    with opened(args.output) as output:
        output.write(header(n_lines))
        source = iter(progress(sentences, total=n_lines, of="parsing"))
        while chunk := list(islice(source, 2000)):
            parsed = parser.predict(chunk) if is_conllu(args.input) else parser.parse(chunk, first_line=lines)
            for line in parsed:
                write_conllu(output, line)
                words += len(line.words)
            lines += len(parsed)
    then = f"fairseq-syntax eval-tree GOLD.conllu {quote(args.output)}"
    finished(args.output, f"{lines} lines, {words} words", then, file=sys.stderr)
