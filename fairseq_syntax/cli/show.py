"""``fairseq-syntax show``: a model's attention with the parse, as a picture or an interactive page."""

from __future__ import annotations

import argparse

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import (
    SEVERAL,
    add_beam,
    add_device,
    add_models,
    add_sentences,
    natural,
    refuse,
    sentence_numbers,
)
from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, check_output
from fairseq_syntax.runtime.named_files import file_by_name, model_name

COMMAND = Command(
    group="evaluate",
    summary="draw a model's attention with the parse",
    description="Translate sentences with one or several models, and show parse, texts, scores and attention. The "
    "output is a self-contained HTML page, or (.png, .svg, .pdf) heat maps of one sentence.",
    example=r"""
        fairseq-syntax show plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --data bin --split test \
            --sentences 1-20 --output page.html""",
    needs_fairseq=True,
    step=4,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_models(parser, several=False)
    parser.add_argument("--data", required=True, metavar="DIR", help="the binarized data")
    parser.add_argument("--output", required=True, metavar="FILE", help="FILE.html, FILE.png, FILE.svg or FILE.pdf")
    parser.add_argument("--split", default="valid", metavar="NAME", help="split of the data")
    add_sentences(parser, "1-10; for a picture: 1")
    parser.add_argument("--sys", **SEVERAL, default=[], metavar="[NAME=]FILE", help="translations of the whole split")
    parser.add_argument("--gold", metavar="FILE", help="gold parses of the split, CoNLL-U")
    add_beam(parser)
    add_device(parser)
    parser.add_argument("--tokenize", default="13a", metavar="NAME", help="sacrebleu's tokenizer (zh, ja-mecab, char…)")
    picture = parser.add_argument_group("pictures")
    picture.add_argument("--layers", **SEVERAL, type=natural, metavar="L", help="numbers from 0 (default: all)")
    picture.add_argument("--heads", **SEVERAL, type=natural, metavar="H", help="numbers from 0 (default: all)")
    picture.add_argument("--kind", choices=("encoder", "cross", "decoder"), help="kind of attention (default: encoder)")
    picture.add_argument("--tree", metavar="NAME", help="tree to draw: parser, gold, or 'NAME (predicted)'")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.lab.figures.plot import FORMATS, save
    from fairseq_syntax.lab.figures.sentences import collect

    page_wanted = args.output.lower().endswith((".html", ".htm"))
    if not page_wanted and not args.output.lower().endswith(FORMATS):
        raise SyntaxDataError("cannot be written in this form", path=args.output, hint=".html, .png, .svg or .pdf")
    if page_wanted:
        refuse(
            args,
            add_arguments,
            ("layers", "heads", "kind", "tree"),
            "only applies to pictures; a page shows all of them",
        )
    numbers = sentence_numbers(args)
    if not page_wanted:
        numbers = numbers[:1] if numbers else [1]
    models = file_by_name(args.model, model_name)
    files = file_by_name(args.sys, others=models)
    check_output(args.output, args.gold, *models.values(), *files.values())
    gold = list(read_conllu(args.gold)) if args.gold else None
    exhibits, src, tgt = collect(
        args.data,
        args.split,
        numbers,
        models,
        files=files,
        gold=gold,
        beam=args.beam,
        tokenize=args.tokenize,
        device=args.device,
    )
    if page_wanted:
        from fairseq_syntax.use.pages.page import page

        with atomic_open(args.output) as file:
            file.write(page(exhibits, src, tgt, f"{args.split}: {src} → {tgt}"))
        finished(args.output, f"{len(exhibits)} sentences", "open it in a browser")
        return 0
    from fairseq_syntax.lab.figures.heatmap import heat_maps

    options = {"kind": args.kind or "encoder", "layers": args.layers, "heads": args.heads, "tree": args.tree}
    save(heat_maps(exhibits[0], next(iter(models)), **options, src=src), args.output)
    finished(args.output, f"sentence {exhibits[0].number}")
    return 0
