"""Binarized data directories: file names, checks of files against the manifest, and the syntax of a split."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax.corpus.store.schema import STORE_SUFFIX, store_path
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import file_sha256
from fairseq_syntax.runtime.manifest import Manifest, file_checksum

if TYPE_CHECKING:
    from fairseq_syntax.corpus.segmentation import Segmenter
    from fairseq_syntax.data.dataset import SideSyntax


def dictionary_path(directory: str | os.PathLike[str], lang: str) -> str:
    """The path of a language's dictionary in a directory."""
    return os.path.join(directory, f"dict.{lang}.txt")


def segmentation_path(directory: str | os.PathLike[str], lang: str) -> str:
    """The path of a language's segmentation in a directory."""
    return os.path.join(directory, f"segmentation.{lang}.json")


def segmentation_of(directory: str | os.PathLike[str], lang: str) -> Segmenter | None:
    """A language's segmentation in a directory; None if there is none. Raises SyntaxDataError if it is damaged."""
    from fairseq_syntax.corpus.segmentation import load_segmenter

    path = segmentation_path(directory, lang)
    return load_segmenter(path) if os.path.exists(path) else None


def folder_and_language(prefix: str) -> tuple[str, str]:
    """The folder and the language of a token dataset ``FOLDER/SPLIT.SRC-TGT.LANG``."""
    return os.path.dirname(prefix) or ".", prefix.rpartition(".")[2]


def language_files(lang: str) -> tuple[str, ...]:
    """The files of a language that all splits share: dictionary, labels and segmentation."""
    model = f"segmentation.{lang}.model"
    return dictionary_path("", lang), labels_path("", lang), segmentation_path("", lang), model


def split_files(split: str, source_lang: str, target_lang: str | None, *, combine: bool = False) -> re.Pattern[str]:
    """The files of a split: tokens, alignments and stores; with ``combine``, also of ``train1`` and so on."""
    pair, number = re.escape(f"{source_lang}-{target_lang}"), r"\d*" if combine else ""
    return re.compile(rf"{re.escape(split)}{number}(\.align)?\.{pair}\..+\Z")


def file_fingerprint(path: str) -> str:
    """The shortened SHA-256 of a file."""
    return file_sha256(path)[:16]


def tokens_fingerprint(prefix: str) -> str | None:
    """The checksum of a token dataset's ``.bin``; None if the file does not exist. Raises SyntaxDataError."""
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
    """

    def __init__(self, path: str, source_lang: str, target_lang: str) -> None:
        self.path = path
        self.langs = {"source": source_lang, "target": target_lang}
        self.labels = lru_cache(maxsize=None)(self._labels)
        self.segmenter = lru_cache(maxsize=None)(self._segmenter)
        self.parsed_with = lru_cache(maxsize=None)(self._parsed_with)

    def _labels(self, side: str) -> dict[str, list[str]]:
        """The label names of a side (``source``, ``target``) by column (``deprel``, ``upos``, ``xpos``)."""
        return LabelInventory.load(labels_path(self.path, self.langs[side])).labels

    def _parsed_with(self, side: str) -> Mapping[str, Any] | None:
        """The options of the parser that parsed a side; None if they were not recorded."""
        path = labels_path(self.path, self.langs[side])
        return LabelInventory.load(path).parsed_with if os.path.exists(path) else None

    def _segmenter(self, side: str) -> Segmenter | None:
        """The segmentation of a side; None if the directory has none."""
        return segmentation_of(self.path, self.langs[side])

    def segmentation_path(self, side: str) -> str:
        """The segmentation of a side."""
        return segmentation_path(self.path, self.langs[side])

    def dictionary_path(self, side: str) -> str:
        """The dictionary of a side."""
        return dictionary_path(self.path, self.langs[side])

    def store_path(self, split: str, side: str) -> str:
        """The store of a side of a split; data of the opposite direction are used too, as in fairseq."""
        (source, target), lang = self.langs.values(), self.langs[side]
        straight = store_path(self.path, split, source, target, lang)
        reverse = store_path(self.path, split, target, source, lang)
        return reverse if os.path.exists(reverse) and not os.path.exists(straight) else straight

    def splits(self) -> list[str]:
        """The names of the splits with token datasets."""
        source, target = self.langs.values()
        names = (path.name.split(".") for path in Path(self.path).glob("*.*-*.*.idx"))
        return sorted({name for name, pair, *_ in names if pair in (f"{source}-{target}", f"{target}-{source}")})

    def without_split(self, split: str, kind: str | None) -> SyntaxDataError:
        """The error for a split that does not exist.

        Args:
            kind: ``--dataset-impl``, if given
        """
        splits = self.splits()
        hint = f"there are {', '.join(splits)}" if splits else "make it with fairseq-preprocess"
        if split in splits and kind is not None:
            hint = f"it is not of --dataset-impl {kind}; fairseq sees by itself of which it is"
        return SyntaxDataError(f"there is no split {split}", path=self.path, hint=hint)

    # -- verification of files ----------------------------------------------------------------------------------------

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.read(self.path) or Manifest(self.path, {})

    def check_language_files(self) -> None:
        """Check dictionaries, labels and segmentations against their manifest. Raises SyntaxDataError."""
        self._manifest.check((name for lang in self.langs.values() for name in language_files(lang)), once=True)

    def check_files(self, split: str, *, combine: bool, mmap: bool) -> dict[str, str]:
        """Check the tokens of a split, and all files that belong to them, against their manifest.

        Stores are verified by their reader, block by block.

        Args:
            combine: whether ``train1`` and so on are read with ``train``
            mmap: whether ``--dataset-impl`` is ``mmap``; an index without a checksum is then checked

        Returns:
            the checksums of the token files by path, if the directory has a manifest

        Raises:
            SyntaxDataError: a file is missing, damaged or has been replaced
        """
        self.check_language_files()
        source, target = self.langs.values()
        tokens = [name for name in self._manifest.files if name.endswith((".bin", ".idx"))]
        straight = split_files(split, source, target, combine=combine)
        reverse = split_files(split, target, source, combine=combine)
        names = [name for name in tokens if straight.match(name)] or [name for name in tokens if reverse.match(name)]
        checksums = self._manifest.check(names, once=True)
        unknown = [n for n in self._token_datasets(split, combine) if not {f"{n}.idx", f"{n}.bin"} <= checksums.keys()]
        if mmap and unknown:
            from fairseq_syntax.data.tokens import check_tokens  # imports the libraries that write such datasets

            for name in unknown:
                check_tokens(os.path.join(self.path, name))
        return {os.path.join(self.path, name): checksum for name, checksum in checksums.items()}

    def _token_datasets(self, split: str, combine: bool) -> Iterator[str]:
        """The token datasets of a split that fairseq reads, without ``.bin`` and ``.idx``.

        The target is included if its index exists, since a split may have only a source.
        """
        source, target = self.langs.values()
        for number in count():
            parts = [f"{split}{number or ''}.{pair}" for pair in (f"{source}-{target}", f"{target}-{source}")]
            part = next((p for p in parts if os.path.exists(os.path.join(self.path, f"{p}.{source}.idx"))), None)
            if part is None:
                return
            yield f"{part}.{source}"
            if os.path.exists(os.path.join(self.path, f"{part}.{target}.idx")):
                yield f"{part}.{target}"
            if not combine:
                return

    # -- syntax ------------------------------------------------------------------------------------------------------

    def side_syntax(
        self,
        side: str,
        tokens: Any,
        split: str,
        needs: frozenset[str] | None,
        labels: Callable[[], dict],
        checksums: Mapping[str, str] = MappingProxyType({}),
    ) -> SideSyntax | None:
        """The syntax of a side of a split, checked against its tokens.

        Args:
            tokens: the token dataset of the side, possibly of concatenated parts (``train``, ``train1``, …)
            needs: a subset of ``"tree"`` and ``"arcs"``; None for the tree if it exists
            labels: returns the label inventory with which the model is trained
            checksums: the checksums of token files by path, if known

        Returns:
            None if nothing is needed

        Raises:
            SyntaxDataError: a store is missing, does not belong to the tokens, or has no distributions
        """
        from fairseq.data import ConcatDataset  # imported here because it takes seconds

        from fairseq_syntax.corpus.store.reader import SyntaxStore
        from fairseq_syntax.data.dataset import SideSyntax, check_against_tokens

        parts = tokens.datasets if isinstance(tokens, ConcatDataset) else [tokens]
        repeats = [int(r) for r in tokens.sample_ratios] if isinstance(tokens, ConcatDataset) else [1]
        paths = [self.store_path(f"{split}{number or ''}", side) for number in range(len(parts))]
        if needs is None:
            needs = frozenset({"tree"}) if all(map(os.path.exists, paths)) else frozenset()
        if not needs:
            return None
        stores = [SyntaxStore(path) for path in paths]
        for store, part in zip(stores, parts):
            content = checksums.get(f"{store.path.removesuffix(STORE_SUFFIX)}.bin")
            check_against_tokens(store, np.asarray(part.sizes), labels(), content=content)
        if "arcs" in needs and not all(s.has_arcs for s in stores):
            raise SyntaxDataError(
                "holds 1-best trees only, and the model needs the parser's distributions",
                path=next(s.path for s in stores if not s.has_arcs),
                hint="parse with fairseq-syntax parse --distributions and binarize again",
            )
        return SideSyntax(stores, repeats, arcs="arcs" in needs)
