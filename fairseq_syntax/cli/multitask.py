"""`fairseq-syntax multitask`: a corpus that teaches a plain Transformer to translate and to parse."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
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
    from fairseq_syntax.text.files import make_folder

    if not args.train and not args.translate_only:
        raise SyntaxDataError("nothing to do", hint="give --train PREFIX or --translate-only PREFIX")
    if args.words and args.form != "brackets":
        raise SyntaxDataError("--words needs --form brackets")
    if args.tags[0] == args.tags[1] or any(len(tag.split()) != 1 for tag in args.tags):
        raise SyntaxDataError(f"--tags {' '.join(args.tags)}: two different tags without spaces are wanted")
    outdir = Path(args.outdir)
    make_folder(outdir)
    for prefix in [*args.train, *args.translate_only]:
        if Path(prefix).parent.resolve() == outdir.resolve():
            raise SyntaxDataError("the output would overwrite the input", path=prefix, hint="give another --outdir")
    then = f"fairseq-preprocess -s {args.src} -t {args.tgt} --trainpref {outdir}/TRAIN --destdir BIN"
    for prefix, write in [(p, write_doubled) for p in args.train] + [(p, write_tagged) for p in args.translate_only]:
        print(unless_done(args, Path(prefix), outdir, write))
    print(f"next: {then}")
    return 0


def unless_done(args: argparse.Namespace, prefix: Path, outdir: Path, write: Callable[..., str]) -> str:
    """Write a corpus unless it was made from the same files with the same options; returns a line of report."""
    from fairseq_syntax.text.files import file_sha256, fingerprint
    from fairseq_syntax.text.jobs import Step

    endings = [args.src, args.tgt] + ([f"{args.src}.conllu"] if write is write_doubled else [])
    options = [write.__name__, args.form, args.words, list(args.tags), args.seed]
    inputs = [file_sha256(f"{prefix}.{ending}") for ending in endings]
    outputs = tuple(outdir / f"{prefix.name}.{lang}" for lang in (args.src, args.tgt))
    step = Step(outputs, fingerprint("multitask", options, inputs))
    with step.making() as done:
        if done is not None:
            return f"{outdir / prefix.name}: up to date"
        step.begin()
        report = write(args, prefix, outdir)
        step.finish()
    return report


def write_doubled(args: argparse.Namespace, prefix: Path, outdir: Path) -> str:
    """Write the doubled corpus of one prefix; returns a line of report.

    The pairs go to a temporary file, and the order in which they are read back is shuffled: 8 bytes of memory a pair.
    """
    import random
    import tempfile
    from array import array

    from fairseq_syntax.console import progress
    from fairseq_syntax.text.conllu import read_conllu
    from fairseq_syntax.text.files import unwritable
    from fairseq_syntax.text.linearize import is_projective, linearize, piece_symbols

    translate, parse = args.tags
    total = sum(1 for _ in read_pairs(args, prefix))
    lines = read_conllu(f"{prefix}.{args.src}.conllu", n_lines=total)
    places = [array("q"), array("q")]  # of the translations, and of the parses
    crossing = 0
    with unwritable(outdir), tempfile.TemporaryFile(dir=outdir) as spool:

        def keep(kind: int, source: str, target: str) -> None:
            places[kind].append(spool.tell())
            spool.write(f"{source}\n{target}\n".encode())

        pairs = progress(read_pairs(args, prefix), total=total, of=prefix.name)
        for (text, target), line in zip(pairs, lines, strict=True):
            keep(0, f"{translate} {text} {translate}", target)
            if line.words:
                symbols = piece_symbols(line, text.split()) if args.words else None
                keep(1, f"{parse} {text} {parse}", " ".join(linearize(line, args.form, symbols)))
                crossing += not is_projective(line)
        order = places[0] + places[1]
        random.Random(args.seed).shuffle(order)

        def shuffled() -> Iterator[tuple[str, str]]:
            for place in order:
                spool.seek(place)
                yield spool.readline().decode()[:-1], spool.readline().decode()[:-1]

        write_pairs(args, outdir / prefix.name, shuffled())
    lost = f", {crossing} of them with crossing arcs, whose word order brackets lose" if args.form == "brackets" else ""
    return f"{outdir / prefix.name}: {len(places[0])} translations and {len(places[1])} parses{lost}"


def write_tagged(args: argparse.Namespace, prefix: Path, outdir: Path) -> str:
    """Write one prefix with the translation tag; returns a line of report."""
    tag = args.tags[0]
    count = write_pairs(args, outdir / prefix.name, ((f"{tag} {s} {tag}", t) for s, t in read_pairs(args, prefix)))
    return f"{outdir / prefix.name}: {count} translations"


def read_pairs(args: argparse.Namespace, prefix: Path) -> Iterator[tuple[str, str]]:
    """The lines of both sides of a corpus.

    Raises:
        SyntaxDataError: they differ in number, or the source uses one of the tags
    """
    from itertools import zip_longest

    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.text.files import read_lines

    paths = [f"{prefix}.{lang}" for lang in (args.src, args.tgt)]
    for number, (source, target) in enumerate(zip_longest(*map(read_lines, paths)), start=1):
        if source is None or target is None:
            counts = [sum(1 for _ in read_lines(path)) for path in paths]
            raise SyntaxDataError(f"{counts[0]} lines, but {paths[1]} has {counts[1]}", path=paths[0])
        for tag in args.tags:
            if tag in source and tag in source.split():
                raise SyntaxDataError(f"the text holds {tag}", path=paths[0], line=number, hint="choose other --tags")
        yield source, target


def write_pairs(args: argparse.Namespace, prefix: Path, pairs: Iterable[tuple[str, str]]) -> int:
    """Writes both sides, whole or not at all; returns the number of pairs."""
    from fairseq_syntax.text.files import whole_file

    count = 0
    with whole_file(f"{prefix}.{args.src}") as source, whole_file(f"{prefix}.{args.tgt}") as target:
        for s, t in pairs:
            source.write(f"{s}\n")
            target.write(f"{t}\n")
            count += 1
    return count
