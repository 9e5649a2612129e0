#!/usr/bin/env python3
"""Translates the test set of a toy corpus with its parse, and its text alone as if there were no parser.

python examples/missing_parse/toy.py CHECKPOINT --data BIN --corpus CORPUS --output FOLDER

Writes ``with.txt`` and ``without.txt``, a translation a line, and ``exact.json``: of both, the share in % of the
ambiguous sentences that are translated exactly.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from fairseq_syntax import register
from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.runtime.files import atomic_open, write_json

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "distillation"))

from exact import exact_share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="the model")
    parser.add_argument("--data", required=True, help="the binarized data")
    parser.add_argument("--corpus", required=True, type=Path, help="what generate.py wrote")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--beam", type=int, default=4)
    args = parser.parse_args()
    register()
    logging.disable(logging.WARNING)  # that there is no parser is what is measured
    from fairseq_syntax.use.translator import Translator

    translator = Translator.load(
        args.checkpoint, args.data, parser_name="none", missing_parse="neutral", device="cpu", beam=args.beam
    )
    parses = list(read_conllu(args.corpus / "test.src.conllu"))
    exact = {}
    for name, sentences in (("with", parses), ("without", [text_of(line) for line in parses])):
        said = [translation.text for translation in translator.translate(sentences)]  # type: ignore[arg-type]
        with atomic_open(args.output / f"{name}.txt") as file:
            file.writelines(f"{line}\n" for line in said)
        exact[name], _ = exact_share(said, args.corpus)
    write_json(args.output / "exact.json", exact)


if __name__ == "__main__":
    main()
