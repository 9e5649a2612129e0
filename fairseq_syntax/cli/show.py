r"""Draw a model's attention with the parse.

Translate sentences with one or several models, and show parse, texts, scores and attention: in a self-contained HTML
page, or as heat maps of one sentence by the first model (.png, .svg, .pdf).

    fairseq-syntax show plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --data bin --split test \
        --sentences 1-20 --output page.html
"""

from argparse import Namespace

from fairseq_syntax.cli.arguments import BEAM, DEVICE, SEVERAL, TOKENIZE, USER_DIR, models, natural, sentences
from fairseq_syntax.cli.command import Command, Group, Option
from fairseq_syntax.cli.common import refuse, sentence_numbers
from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.runtime.bounds import whole
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, check_output
from fairseq_syntax.runtime.named_files import file_by_name, model_name

ARGUMENTS = [
    models(several=False, kinds="checkpoints"),
    Option("--data DIR", "the binarized data", required=True),
    Option("--output FILE", "FILE.html, FILE.png, FILE.svg or FILE.pdf", required=True),
    Option("--split NAME", "split of the data", default="valid"),
    sentences("1-10; for a picture: 1"),
    Option("--sys [NAME=]FILE", "translations of the whole split", **SEVERAL, default=[]),
    Option("--gold FILE", "gold parses of the split, CoNLL-U"),
    BEAM,
    DEVICE,
    USER_DIR,
    TOKENIZE,
    Group(
        "pictures",
        Option("--layers L", "numbers from 0, or -1 for the top layer (default: all)", **SEVERAL, type=whole(-1)),
        Option("--heads H", "numbers from 0 (default: all)", **SEVERAL, type=natural),
        Option("--kind", "kind of attention (default: encoder)", choices=("encoder", "cross", "decoder")),
        Option("--tree NAME", "tree to draw: parser, gold, or 'NAME (predicted)'"),
    ),
]
COMMAND = Command(__doc__, "evaluate", ARGUMENTS, step=4, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.figures.exhibits import collect
    from fairseq_syntax.lab.figures.heatmap import heat_maps
    from fairseq_syntax.lab.figures.plot import check_ending, save_figure
    from fairseq_syntax.use.pages.page import page

    is_page = args.output.lower().endswith((".html", ".htm"))
    numbers = sentence_numbers(args)
    if is_page:
        of_pictures = ("layers", "heads", "kind", "tree")
        refuse(args, of_pictures, "only applies to pictures; a page shows all of them")
    else:
        check_ending(args.output)
        numbers = numbers[:1] if numbers else [1]
    models = file_by_name(args.model, model_name)
    files = file_by_name(args.sys, others=models)
    check_output(args.output, args.gold, *models.values(), *files.values())
    exhibits, src, tgt = collect(
        args.data,
        args.split,
        numbers,
        models,
        files=files,
        gold=list(read_conllu(args.gold)) if args.gold else None,
        beam=args.beam,
        tokenize=args.tokenize,
        device=args.device,
    )
    if is_page:
        with atomic_open(args.output) as file:
            file.write(page(exhibits, src, tgt, f"{args.split}: {src} → {tgt}"))
        finished(args.output, f"{len(exhibits)} sentences", "open it in a browser")
        return
    first = next(iter(models))
    options = {"kind": args.kind or "encoder", "layers": args.layers, "heads": args.heads, "tree": args.tree}
    save_figure(heat_maps(exhibits[0], first, **options, src=src), args.output)
    finished(args.output, f"sentence {exhibits[0].number} by {first}")
