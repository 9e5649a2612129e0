r"""Align words by a model's attention.

Write one line of links such as 0-0 2-1 for each sentence and its translation. With --choose, try every head and the
mean of every layer on these pairs instead, and save the best next to the checkpoint, where translate --alignments,
align and export find it.

    fairseq-syntax align checkpoints/checkpoint_best.pt --input test.en --translations test.de \
        --output test.align
"""

import os
import sys
from argparse import Namespace
from shlex import quote

from fairseq_syntax.cli.arguments import MODEL, TRANSLATOR
from fairseq_syntax.cli.command import Command, Flag, Option
from fairseq_syntax.cli.common import opened, read_sentences, refuse, translator_options
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_output, read_lines
from fairseq_syntax.runtime.named_files import files_of

ARGUMENTS = [
    MODEL,
    Option("--input FILE", "source sentences: text, or a .conllu file", required=True),
    Option("--translations FILE", "their translations, one per line", required=True),
    Option(
        "--output FILE", "file for the links; with character positions if named .jsonl (default: stdout)", default="-"
    ),
    Flag("--choose", "choose the head that aligns best on these pairs"),
    Option(
        "--gold FILE",
        "gold links (0-0 2-1; 1p1 is possible, not sure): print precision, recall, F1 and AER; with --choose, choose "
        "by F1 instead of the mutual information of linked words",
    ),
    *TRANSLATOR,
]
COMMAND = Command(__doc__, "use", ARGUMENTS, step=3, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.inference.alignment import agreement, check_gold, read_gold, written
    from fairseq_syntax.inference.alignment_head import save_head
    from fairseq_syntax.lab.scoring.outputs import check_parallel
    from fairseq_syntax.use.exported import CHECKPOINT, Exported, checkpoint_of
    from fairseq_syntax.use.translator import Translator

    checkpoints = [checkpoint_of(path) for path in files_of(args.model)]
    options = translator_options(args)
    if args.choose:
        refuse(args, ["output"], "--choose writes no links", "align once more without --choose")
        if len(checkpoints) > 1:
            raise SyntaxDataError("a head is chosen for one model", option="--choose")
        options["alignment_heads"] = None  # all heads are tried, regardless of an earlier choice
    check_output(args.output, args.input, args.translations, args.gold)
    sentences = list(read_sentences(args.input))
    translations = list(read_lines(args.translations))
    gold = read_gold(list(read_lines(args.gold)), args.gold) if args.gold else None
    counts = [(args.input, len(sentences)), (args.translations, len(translations))]
    check_parallel([*counts, *([] if gold is None else [(args.gold, len(gold))])])
    translator = Translator.load(checkpoints, **options)
    translator.check_parses(args.input)
    if args.choose:
        ranked = translator.rank_heads(sentences, translations, gold)
        score = "bits" if gold is None else "f1"
        for place, candidate in enumerate(ranked, start=1):
            print(f"{place:3}  {score} {candidate.score:.4f}  {candidate.head}")
        if not ranked or ranked[0].score <= 0:
            hint = "give more pairs; nothing has been saved"
            raise SyntaxDataError("no head aligns these pairs better than chance", path=args.input, hint=hint)
        best, (model,) = ranked[0], checkpoints
        exported = Exported.load(model) if os.path.isdir(model) else None
        checkpoint = os.path.join(model, CHECKPOINT) if exported else model
        path = save_head(best.head, checkpoint, by=score, score=round(best.score, 4), pairs=len(sentences))
        if exported is not None:
            exported.save(model)  # updates the checksums in its description
        finished(path, str(best.head), f"fairseq-syntax translate {quote(model)} --input FILE --alignments FILE")
        return
    alignments = translator.align(sentences, translations)
    if gold is not None:
        check_gold(gold, alignments)
    with opened(args.output) as file:
        file.writelines(written(alignment, args.output) + "\n" for alignment in alignments)
    if gold is not None:
        rates = agreement([a.links for a in alignments], gold)
        figures = f"precision {rates.precision:.3f}, recall {rates.recall:.3f}, F1 {rates.f1:.3f}, AER {rates.aer:.3f}"
        print(figures, file=sys.stderr)
    if args.output != "-":
        finished(args.output, f"the alignments of {len(alignments)} pairs")
