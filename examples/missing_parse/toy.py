#!/usr/bin/env python3
"""What models of a toy corpus say of its test set with the parse, and of its text alone, as a Markdown table.

python examples/missing_parse/toy.py plain=CHECKPOINT PASCAL=CHECKPOINT … --data BIN --corpus CORPUS

The first model is the one that reads no parse, to which the others are compared.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from sacrebleu import corpus_bleu

from fairseq_syntax import register
from fairseq_syntax.text.conllu import read_conllu, text_of
from fairseq_syntax.text.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--data", required=True, help="the binarized data")
    parser.add_argument("--corpus", required=True, type=Path, help="what generate.py wrote")
    parser.add_argument("--beam", type=int, default=4)
    args = parser.parse_args()
    register()
    logging.disable(logging.WARNING)  # that there is no parser is what is measured
    from fairseq_syntax.inference.translator import Translator

    parses = list(read_conllu(args.corpus / "test.src.conllu"))
    inputs = {"with": parses, "without": [text_of(line) for line in parses]}
    reference = list(read_lines(args.corpus / "test.tgt"))
    ambiguous = [bool(line) for line in read_lines(args.corpus / "test.open")]
    print(
        "| model | BLEU, with the parse | without | exact match, with the parse | without | BLEU without it, to plain |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    plain = None
    for item in args.models:
        name, _, path = item.rpartition("=")
        translator = Translator.load(
            path, args.data, parser_name="none", missing_parse="neutral", device="cpu", beam=args.beam
        )
        bleu, exact = {}, {}
        for kind, sentences in inputs.items():
            said = translator.translate(sentences)  # type: ignore[arg-type]
            right = [a == b for a, b, is_open in zip(said, reference, ambiguous, strict=True) if is_open]
            bleu[kind], exact[kind] = corpus_bleu(said, [reference]).score, 100 * sum(right) / len(right)
        plain = bleu["without"] if plain is None else plain
        figures = [bleu["with"], bleu["without"], exact["with"], exact["without"]]
        print(f"| {name} | {' | '.join(f'{x:.1f}' for x in figures)} | {bleu['without'] - plain:+.2f} |", flush=True)
    print(f"\n{len(reference)} sentences, {sum(ambiguous)} of them ambiguous (exact match, in %); beam {args.beam}.")


if __name__ == "__main__":
    main()
