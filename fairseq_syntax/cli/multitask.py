"""`fairseq-syntax multitask`: a corpus that teaches a plain Transformer to translate and to parse."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "multitask",
        help="double a corpus: each source with its translation and with its linearised parse",
        description="Write a corpus for multi-task learning (Currey and Heafield, 2019): each source sentence twice, "
        "with a tag at both ends that says what is wanted, once with its translation and once with its linearised "
        "parse, shuffled together. Reads PREFIX.SRC, PREFIX.SRC.conllu and PREFIX.TGT from `fairseq-syntax segment`.",
    )
    parser.add_argument("--src", required=True, metavar="LANG", help="language of the source, which is parsed")
    parser.add_argument("--tgt", required=True, metavar="LANG", help="language of the target")
    parser.add_argument(
        "--train", nargs="*", action="extend", default=[], metavar="PREFIX", help="corpora to double and shuffle"
    )
    parser.add_argument(
        "--translate-only",
        nargs="*",
        action="extend",
        default=[],
        metavar="PREFIX",
        help="corpora to tag for translation (valid, test)",
    )
    parser.add_argument("--outdir", required=True, metavar="DIR", help="made if need be; must not hold the input")
    parser.add_argument("--form", choices=("brackets", "relations"), default="brackets", help="default: %(default)s")
    parser.add_argument(
        "--words", action="store_true", help="the words' own pieces within the brackets, not their UPOS"
    )
    parser.add_argument(
        "--tags",
        nargs=2,
        default=("<translate>", "<parse>"),
        metavar=("TRANSLATE", "PARSE"),
        help="default: %(default)s",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the shuffle")
    return parser


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.errors import SyntaxDataError

    if not args.train and not args.translate_only:
        raise SyntaxDataError("nothing to do", hint="give --train PREFIX or --translate-only PREFIX")
    if args.words and args.form != "brackets":
        raise SyntaxDataError("--words needs --form brackets")
    if args.tags[0] == args.tags[1] or any(len(tag.split()) != 1 for tag in args.tags):
        raise SyntaxDataError(f"--tags {' '.join(args.tags)}: two different tags without spaces are wanted")
    outdir = Path(args.outdir)
    outdir.mkdir(parents=True, exist_ok=True)
    for prefix in [*args.train, *args.translate_only]:
        if Path(prefix).parent.resolve() == outdir.resolve():
            raise SyntaxDataError("the output would overwrite the input", path=prefix, hint="give another --outdir")
    for prefix in args.train:
        print(write_doubled(args, Path(prefix), outdir))
    for prefix in args.translate_only:
        print(write_tagged(args, Path(prefix), outdir))
    return 0


def write_doubled(args: argparse.Namespace, prefix: Path, outdir: Path) -> str:
    """Write the doubled corpus of one prefix; returns a line of report."""
    import random

    from fairseq_syntax.text.conllu import read_conllu
    from fairseq_syntax.text.linearize import is_projective, linearize, piece_symbols

    translate, parse = args.tags
    source, target = read_pair(args, prefix)
    parse_path = f"{prefix}.{args.src}.conllu"
    pairs = [(f"{translate} {s} {translate}", t) for s, t in zip(source, target)]
    crossing = 0
    for text, line in zip(source, read_conllu(parse_path, n_lines=len(source))):
        if not line.words:
            continue
        symbols = piece_symbols(line, text.split()) if args.words else None
        pairs.append((f"{parse} {text} {parse}", " ".join(linearize(line, args.form, symbols))))
        crossing += not is_projective(line)
    parses = len(pairs) - len(source)
    random.Random(args.seed).shuffle(pairs)
    write_pairs(args, outdir / prefix.name, pairs)
    lost = f", {crossing} of them with crossing arcs, whose word order brackets lose" if args.form == "brackets" else ""
    return f"{outdir / prefix.name}: {len(source)} translations and {parses} parses{lost}"


def write_tagged(args: argparse.Namespace, prefix: Path, outdir: Path) -> str:
    """Write one prefix with the translation tag; returns a line of report."""
    source, target = read_pair(args, prefix)
    tag = args.tags[0]
    write_pairs(args, outdir / prefix.name, [(f"{tag} {s} {tag}", t) for s, t in zip(source, target)])
    return f"{outdir / prefix.name}: {len(source)} translations"


def read_pair(args: argparse.Namespace, prefix: Path) -> tuple[list[str], list[str]]:
    """Both sides of a corpus.

    Raises:
        SyntaxDataError: they differ in length, or the source uses one of the tags
    """
    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.text.files import read_lines

    source, target = (list(read_lines(f"{prefix}.{lang}")) for lang in (args.src, args.tgt))
    if len(source) != len(target):
        raise SyntaxDataError(
            f"{len(source)} lines, but {prefix}.{args.tgt} has {len(target)}", path=f"{prefix}.{args.src}"
        )
    for number, line in enumerate(source, start=1):
        for tag in args.tags:
            if tag in line.split():
                raise SyntaxDataError(
                    f"the text holds {tag}", path=f"{prefix}.{args.src}", line=number, hint="choose other --tags"
                )
    return source, target


def write_pairs(args: argparse.Namespace, prefix: Path, pairs: list[tuple[str, str]]) -> None:
    from fairseq_syntax.text.files import whole_file

    with whole_file(f"{prefix}.{args.src}") as source, whole_file(f"{prefix}.{args.tgt}") as target:
        for s, t in pairs:
            source.write(f"{s}\n")
            target.write(f"{t}\n")
