"""Binarized data directories: the names of their files, and checks of files against the manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_syntax.corpus.store.store_format import STORE_SUFFIX, tokens_prefix
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import file_checksum, file_sha256
from fairseq_syntax.runtime.manifest import Manifest

if TYPE_CHECKING:
    from fairseq_syntax.corpus.segmentation import Segmenter


def dictionary_path(directory: str | os.PathLike[str], lang: str) -> str:
    """The path of a language's dictionary in a directory."""
    return os.path.join(directory, f"dict.{lang}.txt")


def segmentation_path(directory: str | os.PathLike[str], lang: str) -> str:
    """The path of a language's segmentation in a directory."""
    return os.path.join(directory, f"segmentation.{lang}.json")


def segmentation_of(directory: str | os.PathLike[str], lang: str) -> Segmenter | None:
    """A language's segmentation in a directory; None if there is none."""
    from fairseq_syntax.corpus.segmentation import load_segmenter

    path = segmentation_path(directory, lang)
    return load_segmenter(path) if os.path.exists(path) else None


def check_same_segmentation(directory: str | os.PathLike[str], first: str | os.PathLike[str], lang: str) -> None:
    """Check that a directory has the segmentation of the first one of a model's data, if both have one.

    Raises:
        SyntaxDataError: it has another one, so raw text would be segmented differently from its text
    """
    segmenter, of_first = segmentation_of(directory, lang), segmentation_of(first, lang)
    if segmenter is not None and of_first is not None and segmenter.note != of_first.note:
        message = f"is another model than that of the data in {os.fspath(first)}, or cut into words otherwise"
        hint = f"cut the text again: fairseq-syntax segment --model {segmentation_path(first, lang)}"
        raise SyntaxDataError(message, path=segmentation_path(directory, lang), hint=hint)


def folder_and_language(prefix: str) -> tuple[str, str]:
    """The folder and the language of a token dataset ``FOLDER/SPLIT.SRC-TGT.LANG``."""
    return os.path.dirname(prefix) or ".", prefix.rpartition(".")[2]


def _has_tokens(prefix: str) -> bool:
    """Whether there is a token dataset, of numbers or text (``--dataset-impl raw``)."""
    return os.path.exists(f"{prefix}.idx") or os.path.exists(prefix)


def language_files(lang: str) -> tuple[str, ...]:
    """The files of a language that all splits share: dictionary, labels and segmentation."""
    model = f"segmentation.{lang}.model"
    return dictionary_path("", lang), labels_path("", lang), segmentation_path("", lang), model


def split_pattern(split: str, source_lang: str, target_lang: str | None, *, combine: bool = False) -> re.Pattern[str]:
    """The files of a split: tokens, alignments and stores; with ``combine``, also of ``train1`` and so on."""
    pair, number = re.escape(f"{source_lang}-{target_lang}"), r"\d*" if combine else ""
    return re.compile(rf"{re.escape(split)}{number}(\.align)?\.{pair}\..+\Z")


def file_fingerprint(path: str) -> str:
    """The shortened SHA-256 of a file."""
    return file_sha256(path)[:16]


def tokens_fingerprint(prefix: str) -> str | None:
    """The checksum of a token dataset's ``.bin``; None if the file does not exist."""
    path = prefix + ".bin"
    return file_checksum(path) if os.path.exists(path) else None


def language_pair(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """The source and target language of a directory, from its dictionaries; None unless there are exactly two.

    fairseq expects a name with a single hyphen between them, but there are languages such as ``en-US``.
    """
    langs = [p.name.removeprefix("dict.").removesuffix(".txt") for p in Path(path).glob("dict.*.txt")]
    for source, target in (langs, langs[::-1]) if len(langs) == 2 else ():
        if any(Path(path).glob(f"*.{source}-{target}.*")):
            return source, target
    return None


class DataDirectory:
    """A data directory of one language pair, written by ``fairseq-preprocess``. Files are read on first use.

    Args:
        path: the directory
        source_lang, target_lang: language codes, as in the file names

    Attributes:
        inventory: the labels of a side (``source``, ``target``), or SyntaxDataError if there are none
        segmenter: the segmentation of a side; None if the directory has none
    """

    def __init__(self, path: str, source_lang: str, target_lang: str) -> None:
        self.path = path
        self.langs = {"source": source_lang, "target": target_lang}
        self.inventory = cache(lambda side: LabelInventory.load(labels_path(path, self.langs[side])))
        self.segmenter = cache(lambda side: segmentation_of(path, self.langs[side]))

    def parsed_with(self, side: str) -> Mapping[str, Any] | None:
        """The options of the parser that parsed a side; None if they were not recorded."""
        is_there = os.path.exists(labels_path(self.path, self.langs[side]))
        return self.inventory(side).parsed_with if is_there else None

    def splits(self) -> list[str]:
        """The names of the splits with token datasets."""
        source, target = self.langs.values()
        names = (path.name.removesuffix(".idx").split(".") for path in Path(self.path).glob("*.*-*.*"))
        pairs, langs = (f"{source}-{target}", f"{target}-{source}"), ([source], [target])
        return sorted({name for name, pair, *lang in names if pair in pairs and lang in langs})

    def prefix(self, split: str, side: str) -> str:
        """The path of a side of a split without its suffix; as in fairseq, also in data of the opposite direction."""
        (source, target), lang = self.langs.values(), self.langs[side]
        straight, reverse = (
            tokens_prefix(self.path, split, *pair, lang) for pair in ((source, target), (target, source))
        )
        return reverse if _has_tokens(reverse) and not _has_tokens(straight) else straight

    def store_path(self, split: str, side: str) -> str:
        """The store of a side of a split."""
        return self.prefix(split, side) + STORE_SUFFIX

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.read(self.path) or Manifest(self.path, {})

    def check_language_files(self) -> None:
        """Check dictionaries, labels and segmentations against their manifest. Raises SyntaxDataError."""
        self._manifest.check((name for lang in self.langs.values() for name in language_files(lang)), once=True)

    def check_files(self, split: str, *, combine: bool) -> dict[str, str]:
        """Check a split's tokens (with ``combine``, those of ``train1`` etc. too) and the files of both languages.

        Stores are checked where they are read (:meth:`check_stores`). A directory without a manifest is not checked.

        Returns:
            the checksums of the token files by path

        Raises:
            SyntaxDataError: a file is missing, damaged or has been replaced
        """
        self.check_language_files()
        tokens = [name for name in self._manifest.files if not name.endswith(STORE_SUFFIX)]
        for pair in (self.langs.values(), reversed(self.langs.values())):  # as in fairseq
            pattern = split_pattern(split, *pair, combine=combine)
            if names := list(filter(pattern.match, tokens)):
                checksums = self._manifest.check(names, once=True)
                return {os.path.join(self.path, name): checksum for name, checksum in checksums.items()}
        return {}

    def check_stores(self, paths: Iterable[str]) -> None:
        """Check stores that are read, in which another parse of the same tokens would not show. Raises SyntaxDataError.

        Their reader verifies them by themselves, block by block.
        """
        self._manifest.check(map(os.path.basename, paths), once=True)
