"""What the corpus scripts share: text → filter → parse → segment → binarize, by the commands of this project.

A script says where its corpus lies (``take``) and what its usual options are; the rest is here. Each command is
printed, and does nothing where its work is done.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout that is not installed
    sys.path.append(str(ROOT))

from sources import Pair  # noqa: E402

from fairseq_syntax.errors import SyntaxDataError  # noqa: E402
from fairseq_syntax.runtime.files import atomic_open, file_sha256, fingerprint, make_folder  # noqa: E402

# Name (train, valid, test, test1, …) and pairs of each split.
Splits = Iterable[tuple[str, Iterable[Pair]]]


def arguments(description: str | None, **defaults) -> argparse.ArgumentParser:
    """The options that all corpus scripts have.

    Args:
        description: the script's docstring
        defaults: values of options, by name, where a corpus has its own
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where the corpus lies")
    parser.add_argument("--download", action="store_true", help="fetch into --data what is not there")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="bin/ in it is for fairseq-train")
    parser.add_argument("--source-lang", default="en", metavar="CODE", help="default: %(default)s")
    parser.add_argument("--target-lang", default="de", metavar="CODE", help="default: %(default)s")
    filters = parser.add_argument_group("filter, of the training data")
    filters.add_argument("--max-length", type=int, metavar="N", help="most tokens of a side (default: %(default)s)")
    filters.add_argument("--max-ratio", type=float, metavar="R", help="of the longer side to the shorter")
    filters.add_argument("--identify-languages", action="store_true", help="remove pairs that are in other languages")
    parsing = parser.add_argument_group("parse")
    parsing.add_argument("--parser", default="stanza", metavar="NAME", help="see fairseq-syntax parse --help")
    parsing.add_argument("--model-dir", metavar="DIR", help="of the parser for the source")
    parsing.add_argument("--target-model-dir", metavar="DIR", help="of the parser for the target, with --parse-target")
    parsing.add_argument("--parse-target", action="store_true", help="parse the target too: for LaSyn")
    parsing.add_argument("--distributions", action="store_true", help="with the parser's probabilities: for LDD")
    parsing.add_argument("--split-sentences", action="store_true", help="a line may hold several sentences")
    parsing.add_argument("--device", default="cpu", metavar="NAME", help="default: %(default)s")
    parsing.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    pieces = parser.add_argument_group("segment")
    pieces.add_argument("--segmentation", choices=("sentencepiece", "subword_nmt"), default="sentencepiece")
    pieces.add_argument("--vocab-size", type=int, default=8000, metavar="N", help="default: %(default)s")
    pieces.add_argument("--joint", action="store_true", help="one model and dictionary for both languages")
    pieces.add_argument("--train-lines", type=int, default=0, metavar="N", help="train it on N lines (default: all)")
    parser.set_defaults(**defaults)
    return parser


def run(args: argparse.Namespace, take: Callable[[argparse.Namespace], Splits]) -> int:
    """All steps; returns the exit status. A failed step says why, and the next run goes on from it."""
    try:
        _run(args, take)
    except SyntaxDataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"this command failed; run the script again to go on from it: {shlex.join(error.cmd)}", file=sys.stderr)
        return 1
    return 0


def _run(args: argparse.Namespace, take: Callable[[argparse.Namespace], Splits]) -> None:
    langs = (args.source_lang, args.target_lang)
    if args.output.resolve().is_relative_to(args.data.resolve()):
        raise SyntaxDataError(
            "lies in --data, where its files would be looked for", path=args.output, hint="another --output"
        )
    names = write_text(args.output / "text", take(args), langs)
    text = {(name, lang): args.output / "text" / f"{name}.{lang}" for name in names for lang in langs}

    kept = {(name, lang): args.output / "filtered" / f"{name}.{lang}" for name in names[:1] for lang in langs}
    options = ["--max-length", args.max_length] if args.max_length else []
    options += ["--max-ratio", args.max_ratio] if args.max_ratio else []
    options += ["--languages", *langs] if args.identify_languages else []
    make_folder(args.out / "filtered")
    unfiltered = [text[key] for key in kept]
    run_command([*verb("filter"), "--input", *unfiltered, "--output", *kept.values(), *options])
    text |= kept

    words = dict(text)
    for lang, model_dir in ((langs[0], args.model_dir), (langs[1], args.target_model_dir)):
        if lang == langs[1] and not args.parse_target:
            continue
        options = ["--parser", args.parser, "--lang", lang, "--device", args.device, "--workers", args.workers]
        options += ["--model-dir", model_dir] if model_dir else []
        options += ["--distributions"] if args.distributions and lang == langs[0] else []
        options += ["--split-sentences"] if args.split_sentences else []
        for name in names:
            parse = args.output / "parsed" / f"{name}.{lang}.conllu"
            command = [*verb("parse"), "--input", text[name, lang], "--output", parse, *options, "--overwrite"]
            run_command(command)
            words[name, lang] = parse

    pieces = args.output / "pieces"
    train = ["--train", args.segmentation, "--vocab-size", args.vocab_size]
    train += ["--train-lines", args.train_lines] if args.train_lines else []
    for lang in langs:
        files = [words[name, lang] for name in names]
        model = train + (["--train-on", *(words[names[0], each] for each in langs)] if args.joint else [])
        if args.joint and lang == langs[1]:
            model = ["--model", pieces / f"segmentation.{langs[0]}.json"]
        run_command([*verb("segment"), "--lang", lang, *model, "--input", *files, "--output", pieces])

    tests = [pieces / name for name in names[2:]]
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--user-dir", user_dir(), "--task", "syntax_translation"]
    command += ["-s", langs[0], "-t", langs[1], "--destdir", args.output / "bin", "--workers", args.workers]
    command += ["--trainpref", pieces / names[0], "--validpref", pieces / names[1]]
    command += ["--testpref", ",".join(map(str, tests))] if tests else []
    command += ["--joined-dictionary"] if args.joint else []
    # fairseq-preprocess takes no dictionary of another text; where it was made here, it may go.
    made_from = fingerprint("dictionaries", args.joint, [file_sha256(pieces / f"{names[0]}.{lang}") for lang in langs])
    record = args.output / ".dictionaries"
    if not record.exists() or record.read_text("utf-8") != made_from:
        for lang in langs:
            (args.output / "bin" / f"dict.{lang}.txt").unlink(missing_ok=True)
        with atomic_open(record) as file:
            file.write(made_from)
    run_command(command)
    print(f"binarized for fairseq-train in {args.output / 'bin'}")


def write_text(directory: Path, splits: Splits, langs: tuple[str, str]) -> list[str]:
    """Writes each split as two plain text files; returns the names, training data first.

    Later steps see by the content which of them have changed.
    """
    make_folder(directory)
    names = []
    for name, pairs in splits:
        names.append(name)
        files = [directory / f"{name}.{lang}" for lang in langs]
        with atomic_open(files[0]) as source, atomic_open(files[1]) as target:
            count = 0
            for one, other in pairs:
                source.write(" ".join(one.split()) + "\n")
                target.write(" ".join(other.split()) + "\n")
                count += 1
        print(f"{name}: {count} pairs")
        if not count:
            raise SyntaxDataError("holds no sentences", path=directory / f"{name}.{langs[0]}", hint="check --data")
    return names


def run_command(command: list) -> None:
    """Runs a command and shows it. It knows by itself what of its work is done, by content and not by name.

    Raises:
        subprocess.CalledProcessError: the command failed
    """
    words = [str(word) for word in command]
    shown = ["fairseq-syntax", *words[3:]] if words[1:3] == ["-m", "fairseq_syntax"] else words
    print(f"\n{shlex.join(shown)}", flush=True)
    begin = time.monotonic()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": path})
    print(f"({time.monotonic() - begin:.0f} s)", flush=True)


def verb(name: str) -> list[str]:
    """A command of this project, run by the same Python as this script."""
    return [sys.executable, "-m", "fairseq_syntax", name]


def user_dir() -> str:
    """What ``fairseq-syntax user-dir`` prints."""
    spec = importlib.util.find_spec("fairseq_syntax")
    return os.path.dirname(spec.origin) if spec and spec.origin else str(ROOT / "fairseq_syntax")
