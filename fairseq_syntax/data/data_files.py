"""The files of a data directory by their names, and whether they are those that were made.

``fairseq-preprocess`` and ``fairseq-syntax binarize`` note what they make in the directory's manifest; whoever reads
the data compares.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator
from itertools import count

from fairseq_syntax.runtime.manifest import Manifest, note_files

_SPLITS = (("train", "trainpref"), ("valid", "validpref"), ("test", "testpref"))


def language_files(lang: str) -> tuple[str, ...]:
    """What a directory has of a language beside the text: dictionary, labels, segmentation."""
    return f"dict.{lang}.txt", f"labels.{lang}.json", f"segmentation.{lang}.json", f"segmentation.{lang}.model"


def note_data(args: Namespace) -> None:
    """Note what a run with these options of ``fairseq-preprocess`` made in ``args.destdir``.

    Raises:
        SyntaxDataError: a file cannot be read, or the manifest not written
    """
    note_files(args.destdir, list(_made(args)))


def _made(args: Namespace) -> Iterator[str]:
    langs = [args.source_lang, *([] if args.only_source or not args.target_lang else [args.target_lang])]
    for lang in langs:
        yield from language_files(lang)
    there = os.listdir(args.destdir)
    for kind, option in _SPLITS:
        prefixes = getattr(args, option, None)
        for number in range(len(prefixes.split(",")) if prefixes else 0):
            of_split = _of_split(f"{kind}{number or ''}", args.source_lang, args.target_lang)
            yield from filter(of_split.match, there)


def _of_split(split: str, source_lang: str, target_lang: str | None, *, with_more: bool = False) -> re.Pattern[str]:
    """The names of the tokens, alignments and stores of a split, and of ``train1`` and so on where those are wanted."""
    pair, number = re.escape(f"{source_lang}-{target_lang}"), r"\d*" if with_more else ""
    return re.compile(rf"{re.escape(split)}{number}(\.align)?\.{pair}\..+\Z")


def check_language(directory: str | os.PathLike[str], *langs: str) -> None:
    """Make sure that dictionary, labels and segmentation of languages are those that were made with the data.

    Raises:
        SyntaxDataError: one is missing, or is another
    """
    manifest = Manifest.read(directory)
    if manifest is not None:
        manifest.check([name for lang in langs for name in language_files(lang)])


def check_split(
    directory: str | os.PathLike[str], split: str, source_lang: str, target_lang: str, *, combine: bool
) -> dict[str, str]:
    """Make sure that the tokens of both sides of a split are those that were made; their checksums by path.

    Stores are left to their reader, which verifies each block that it reads.

    Args:
        combine: whether ``train1`` and so on are read with ``train``

    Raises:
        SyntaxDataError: a file is missing or has changed
    """
    manifest = Manifest.read(directory)
    if manifest is None:
        return {}
    for pair in ((source_lang, target_lang), (target_lang, source_lang)):
        of_split = _of_split(split, *pair, with_more=combine)
        names = [name for name in manifest.files if of_split.match(name)]
        if names:
            found = manifest.check(name for name in names if name.endswith((".bin", ".idx")))
            return {os.path.join(directory, name): checksum for name, checksum in found.items()}
    return {}


def tokens_of(
    directory: str | os.PathLike[str], split: str, source_lang: str, target_lang: str, *, combine: bool
) -> Iterator[str]:
    """The token datasets that fairseq reads of a split, without ``.bin`` and ``.idx``.

    Of a target, one whose index is there: a source may be without one.
    """
    for number in count():
        part = f"{split}{number or ''}"
        for pair in (f"{source_lang}-{target_lang}", f"{target_lang}-{source_lang}"):
            if os.path.exists(os.path.join(directory, f"{part}.{pair}.{source_lang}.idx")):
                break
        else:
            return
        for lang in (source_lang, target_lang):
            if lang == source_lang or os.path.exists(os.path.join(directory, f"{part}.{pair}.{lang}.idx")):
                yield f"{part}.{pair}.{lang}"
        if not combine:
            return
