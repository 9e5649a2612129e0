#!/usr/bin/env python3
"""Writes a toy corpus whose translation depends on the parse, and says how well it can be translated without.

    python examples/toy/generate.py --output corpus
    python examples/toy/generate.py --output corpus --mode lexical
    python examples/toy/generate.py --output corpus --mode homograph
    python examples/toy/generate.py --output corpus --parser-accuracy 0.8 --lexical 0.5

For each split NAME (train, valid, test): ``NAME.src.conllu`` (the parse), ``NAME.src`` and ``NAME.tgt`` (plain text),
``NAME.align``, the links between the words of both (``0-0 1p2``; p: possible, not sure), and ``NAME.open``, with the
number of choices of each decision that the source text leaves open: an empty line is an unambiguous sentence. With
``--target-parse`` or ``--mode homograph`` also ``NAME.tgt.conllu``, tags and parse of the translation. With
``--parser-accuracy``, ``NAME.src.conllu`` is what such a parser says, with its probabilities (``Arcs=``), and
``NAME.gold.conllu`` the truth. ``contrast.tsv`` has contrastive pairs of the test set (not for homographs): every
wrong attachment of its phrases, for ``fairseq-syntax contrast``, and ``contrast.src.conllu`` their parse.
``info.json`` holds the options and the best accuracies.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from random import Random

from grammar import Pair, Sentence, alignment_of, attachment, best_accuracy, best_on_pairs, homograph, pairs, parse_of

from fairseq_syntax.corpus.conllu import text_of, write_conllu

# The decisions of each sentence of a line, and how often such a line comes. Of the lines with a decision, 3 in 10
# have one (1/2), 6 in 10 have two (1/2 · 1/3) and 1 in 10 is two sentences with one each (1/2 · 1/2), so that the best
# accuracy without the parse is 0.3 / 2 + 0.6 / 6 + 0.1 / 4 = 27.5 %.
SHAPES = {(0,): 0.15, (1,): 0.255, (2,): 0.51, (1, 1): 0.085}
LEXICAL = {"attachment": 0.0, "lexical": 1.0, "homograph": 0.0}


def draw_line(rng: Random, mode: str, lexical: float, accuracy: float | None) -> list[Sentence]:
    """One line of the corpus: a sentence, or two."""
    shape = rng.choices(list(SHAPES), list(SHAPES.values()))[0]
    if mode == "homograph":
        return [homograph(rng, count) for count in shape]
    return [attachment(rng, count, lexical=lexical, accuracy=accuracy) for count in shape]


def write_split(out: Path, name: str, lines: list[list[Sentence]], *, parser: bool, target_parse: bool) -> None:
    sources = [parse_of(line, number) for number, line in enumerate(lines)]
    targets = [parse_of([s.target for s in line if s.target], number) for number, line in enumerate(lines)]
    parses = {"src": sources}
    if parser:
        parses = {"src": [parse_of(line, number, gold=False) for number, line in enumerate(lines)], "gold": sources}
    if target_parse:
        parses["tgt"] = targets
    for side, records in parses.items():
        with open(out / f"{name}.{side}.conllu", "w", encoding="utf-8") as file:
            file.write(f"# lines = {len(records)}\n")
            for record in records:
                write_conllu(file, record)
    for side, records in (("src", sources), ("tgt", targets)):
        (out / f"{name}.{side}").write_text("".join(f"{text_of(record)}\n" for record in records), encoding="utf-8")
    links = [alignment_of(line) for line in lines]
    (out / f"{name}.align").write_text("".join(f"{row}\n" for row in links), encoding="utf-8")
    choices = [" ".join(str(len(p.sites)) for s in line for p in s.phrases.values()) for line in lines]
    (out / f"{name}.open").write_text("".join(f"{row}\n" for row in choices), encoding="utf-8")


def ceilings(lines: list[list[Sentence]], lexical: float, accuracy: float | None) -> dict[str, dict[str, float]]:
    """The best possible accuracy on the ambiguous lines, and its standard error, for each kind of knowledge."""
    ambiguous = [line for line in lines if any(sentence.phrases for sentence in line)]
    found = {}
    for knows in kinds_of_knowledge(accuracy):
        chances = [best_accuracy(line, lexical, knows=knows, accuracy=accuracy) for line in ambiguous]
        count = max(len(chances), 1)
        error = math.sqrt(sum(p * (1 - p) for p in chances)) / count
        found[knows] = {"accuracy": sum(chances) / count, "error": error}
    return found


def write_pairs(out: Path, lines: list[list[Sentence]], lexical: float, accuracy: float | None) -> dict:
    """Writes the contrastive pairs of the test set; returns their number and the best accuracies on them."""
    found: list[tuple[list[Sentence], Pair]] = [(line, pair) for line in lines for pair in pairs(line)]
    with (
        open(out / "contrast.tsv", "w", encoding="utf-8") as table,
        open(out / "contrast.src.conllu", "w", encoding="utf-8") as parses,
    ):
        table.write("source\tcorrect\tincorrect\tcategory\tdistance\n")
        parses.write(f"# lines = {len(found)}\n")
        for number, (line, pair) in enumerate(found):
            parse = parse_of(line, number, gold=accuracy is None)
            write_conllu(parses, parse)
            both = ["\t".join(detokenized(words) for words in (pair.correct, pair.incorrect))]
            table.write("\t".join([text_of(parse), *both, pair.category, str(pair.distance)]) + "\n")
    sentences = [sentence for line in lines for sentence in line]
    count, best = max(len(found), 1), {}
    for knows in kinds_of_knowledge(accuracy):
        known = [best_on_pairs(sentence, lexical, knows=knows, accuracy=accuracy) for sentence in sentences]
        means, variances = zip(*known, (0.0, 0.0))
        best[knows] = {"accuracy": sum(means) / count, "error": math.sqrt(sum(variances)) / count}
    return {"pairs": len(found), "best": best}


def detokenized(words: list[str]) -> str:
    """As the targets are written: a full stop has no space before it."""
    return " ".join(words).replace(" .", ".")


def kinds_of_knowledge(accuracy: float | None) -> list[str]:
    """What can be known of a sentence: with a parser that errs, its tree or its probabilities."""
    return ["text", "tree", "arcs", "parse"] if accuracy is not None else ["text", "labels", "depth", "parse"]


def generate(
    out: Path,
    *,
    mode: str = "attachment",
    train: int = 12000,
    valid: int = 500,
    test: int = 1000,
    seed: int = 1,
    lexical: float | None = None,
    accuracy: float | None = None,
    target_parse: bool = False,
) -> dict:
    """Writes the corpus and returns what ``info.json`` holds. The same arguments write the same bytes."""
    lexical = LEXICAL[mode] if lexical is None else lexical
    out.mkdir(parents=True, exist_ok=True)
    rng = Random(seed)
    for name, size in (("train", train), ("valid", valid), ("test", test)):
        lines = [draw_line(rng, mode, lexical, accuracy) for _ in range(size)]
        write_split(out, name, lines, parser=accuracy is not None, target_parse=target_parse or mode == "homograph")
    info = {
        "mode": mode,
        "seed": seed,
        "sizes": {"train": train, "valid": valid, "test": test},
        "lexical": lexical,
        "parser_accuracy": accuracy,
        "ambiguous": sum(any(sentence.phrases for sentence in line) for line in lines),
        "best": ceilings(lines, lexical, accuracy),
    }
    if mode != "homograph":
        info["contrast"] = write_pairs(out, lines, lexical, accuracy)
    (out / "info.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    return info


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must lie between 0 and 1")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--mode", choices=tuple(LEXICAL), default="attachment")
    parser.add_argument("--train", type=int, default=12000, metavar="N", help="lines (default: %(default)s)")
    parser.add_argument("--valid", type=int, default=500, metavar="N", help="default: %(default)s")
    parser.add_argument("--test", type=int, default=1000, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lexical", type=_share, metavar="P", help="how often the words tell (default: by the mode)")
    parser.add_argument("--parser-accuracy", type=_share, metavar="P", help="at least 0.5; default: the true parse")
    parser.add_argument("--target-parse", action="store_true", help="write the translation's parse too")
    args = parser.parse_args()
    if args.parser_accuracy is not None and (args.mode == "homograph" or args.parser_accuracy < 0.5):
        parser.error("--parser-accuracy is at least 0.5, chance between two sites, and not for --mode homograph")
    if args.lexical is not None and args.mode == "homograph":
        parser.error("--lexical does not go with --mode homograph")
    info = generate(
        args.output,
        mode=args.mode,
        train=args.train,
        valid=args.valid,
        test=args.test,
        seed=args.seed,
        lexical=args.lexical,
        accuracy=args.parser_accuracy,
        target_parse=args.target_parse,
    )
    print(
        f"{args.output}: {info['ambiguous']} of {args.test} test lines are ambiguous; best possible exact match on "
        "them:"
    )
    target_tags = "text and the target's tags" if args.mode == "homograph" else "text and true parse"
    names = {
        "text": "text alone",
        "labels": "text and dependency labels",
        "depth": "text and depths in the tree",
        "tree": "text and best tree",
        "arcs": "text and probabilities",
        "parse": target_tags,
    }
    for knows, value in info["best"].items():
        if args.mode == "homograph" and knows in ("labels", "depth"):
            continue
        print(f"  {names[knows]:28} {100 * value['accuracy']:5.1f} % (standard error {100 * value['error']:.1f})")
    if "contrast" in info:
        print(f"  and the best accuracy on {info['contrast']['pairs']} contrastive pairs, of the wrong attachment:")
        for knows, value in info["contrast"]["best"].items():
            print(f"  {names[knows]:28} {100 * value['accuracy']:5.1f} % (standard error {100 * value['error']:.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
