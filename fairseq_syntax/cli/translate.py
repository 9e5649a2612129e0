"""Translate raw text or CoNLL-U with a trained model, line by line.

Text is parsed if the model needs a parse, segmented, translated and detokenized. Empty lines stay empty.

    fairseq-syntax translate checkpoints/checkpoint_best.pt --input test.en --output test.de
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from shlex import quote

from fairseq_syntax.cli.arguments import BEAM, MISSING_PARSE, MODEL, TRANSLATOR, positive
from fairseq_syntax.cli.command import Choice, Command, Option
from fairseq_syntax.cli.common import is_stream, opened, read_sentences, translator_options
from fairseq_syntax.corpus.text_parts import count_lines
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.runtime.bounds import real
from fairseq_syntax.runtime.console import CountedWarnings, finished, progress
from fairseq_syntax.runtime.files import check_output
from fairseq_syntax.runtime.named_files import files_of

RULES = "fairseq", "transformers"
ARGUMENTS = [
    MODEL,
    Option("--input FILE", "text, or a .conllu file (default: text on stdin)", default="-"),
    Option("--output FILE", "file for the translations (default: stdout)", default="-"),
    Option(
        "--alignments FILE",
        "also write word alignments: one line of links per sentence, such as 0-0 2-1, source word first; with "
        "character positions if FILE ends in .jsonl",
    ),
    *TRANSLATOR,
    MISSING_PARSE,
    BEAM,
    Option("--lenpen P", "length penalty", type=real(-10.0, 10.0), default=1.0),
    Option("--max-len-b", "maximum number of pieces per translation", type=positive, default=200),
    Choice("--search-rules", "when a beam search ends: as in fairseq, or as in Hugging Face's transformers", *RULES),
    Option("--source-name NAME", "for an imported multilingual model: the language to translate from", default=""),
    Option("--target-name NAME", "likewise, the language to translate into", default=""),
]


def needs_fairseq(args: Namespace) -> bool:
    """False for a model that CTranslate2 runs, which then starts in less than a second."""
    from fairseq_syntax.use.opening import need_fairseq

    return need_fairseq([files_of(args.model)], args.user_dir)


COMMAND = Command(__doc__, "use", ARGUMENTS, step=1, needs_fairseq=needs_fairseq)


def prompted(lines: Iterator[Sentence], prompt: str) -> Iterator[Sentence]:
    """Yield lines of interactive input, with a prompt on stderr."""
    print(prompt, end="", file=sys.stderr, flush=True)
    for line in lines:
        yield line
        print(prompt, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)  # so that the shell's prompt is on a new line


def main(args: Namespace) -> int:
    """Translate; returns 1 if a line could not be translated."""
    from fairseq_syntax.inference.alignment import written
    from fairseq_syntax.use.base_translator import cut_short
    from fairseq_syntax.use.opening import open_translator

    check_output(args.output, args.input)
    check_output(args.alignments, args.input, args.output)
    translator = open_translator(
        files_of(args.model),
        missing_parse=args.missing_parse,
        beam=args.beam,
        lenpen=args.lenpen,
        max_len_b=args.max_len_b,
        search_rules=args.search_rules,
        source_name=args.source_name,
        target_name=args.target_name,
        **translator_options(args),
    )
    translator.check_parses(args.input)
    total = None if is_stream(args.input) else count_lines(args.input)
    lines = iter(read_sentences(args.input))
    prompt = f"{translator.task.cfg.source_lang}> " if args.input == "-" and sys.stdin.isatty() else ""
    if prompt:
        print("One sentence per line; Ctrl-D ends.", file=sys.stderr)
        lines = prompted(lines, prompt)
    count = bad = 0
    cut, unknown = (
        CountedWarnings(lambda text: print(f"fairseq-syntax translate: warning: {text}", file=sys.stderr))
        for _ in range(2)
    )

    with (
        opened(args.output) as file,
        opened(args.alignments) if args.alignments else nullcontext() as links,
        progress(total=total, of="translating", quiet=bool(prompt)) as bar,
    ):
        # A few batches at a time: sorting them by length keeps padding low, and a pipe gets output early.
        while chunk := list(islice(lines, 1 if prompt else args.batch_size * 4)):
            best_first = translator.translations(chunk, alignments=links is not None, first_line=count)
            for number, (best, *_) in enumerate(best_first, count + 1):
                where = f"{'<stdin>' if args.input == '-' else args.input}:{number}"
                if best.error is not None:
                    bad += 1
                    print(f"fairseq-syntax translate: error: {where}: {best.error}", file=sys.stderr)
                if best.cut:
                    cut.add(f"{where}: may be cut: {cut_short(best).replace('max_len_b', '--max-len-b')}")
                if best.unknown:
                    unknown.add(f"{where}: unknown words: {len(best.unknown)} of {best.words}")
                file.write(best.text + "\n")
                if links is not None:  # one line per sentence, even if it is empty
                    links.write((written(best.alignment, args.alignments) if best.alignment else "") + "\n")
            file.flush()
            count += len(chunk)
            bar.update(len(chunk))
    cut.end("lines that may be cut")
    unknown.end("lines with unknown words")
    if unknown.count and translator.task.segmenter("source") is None:
        note = "the model's data do not say how its words are split; give the input as the training text was"
        print(f"fairseq-syntax translate: note: {note} (tokenized, with BPE or SentencePiece)", file=sys.stderr)
    if args.output != "-":
        finished(args.output, f"{count} lines", f"fairseq-syntax score --ref REFERENCE --sys {quote(args.output)}")
    if args.alignments:
        finished(args.alignments, f"the alignments of {count} lines", file=sys.stderr)
    if bad:
        print(f"{bad} of {count} lines could not be translated and are empty", file=sys.stderr)
    return 1 if bad else 0
