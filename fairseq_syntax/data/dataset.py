"""fairseq's language-pair dataset, with syntax in its batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fairseq.data import ConcatDataset, LanguagePairDataset
from torch import Tensor

from fairseq_syntax.corpus.store.flat import concatenate
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import STORE_SUFFIX, sizes_fingerprint
from fairseq_syntax.data.directory import (
    dictionary_path,
    file_fingerprint,
    folder_and_language,
    segmentation_of,
    tokens_fingerprint,
)
from fairseq_syntax.data.packing import PackedSyntax, in_one_transfer, pack
from fairseq_syntax.errors import SyntaxDataError

if TYPE_CHECKING:
    from fairseq_syntax.corpus.store.memory import MemoryStore


class SideSyntax:
    """The syntax of one side of a dataset.

    Args:
        stores: one per part that the dataset concatenates (``train``, ``train1``, …)
        repeats: the number of times that each part occurs in the dataset (``--upsample-primary``)
        arcs: whether batches contain the parser's distributions
    """

    def __init__(self, stores: Sequence[SyntaxStore | MemoryStore], repeats: list[int], *, arcs: bool) -> None:
        self.stores = stores
        self.arcs = arcs
        self._sizes = np.array([len(s) for s in stores])
        self._ends = np.cumsum(self._sizes * np.array(repeats))

    @classmethod
    def load(
        cls, paths: Sequence[str], tokens: Any, labels: dict[str, list[str]], checksums: Mapping[str, str], arcs: bool
    ) -> SideSyntax:
        """The stores of a token dataset, checked against it (:func:`check_against_tokens`).

        Args:
            paths: one for each part that ``tokens`` concatenates
            checksums: of token files by path, if known
            arcs: whether distributions are needed

        Raises:
            SyntaxDataError: a store is missing, does not belong to the tokens, or has no distributions
        """
        stores = [SyntaxStore(path) for path in paths]
        parts, repeats = [tokens], [1]
        if isinstance(tokens, ConcatDataset):
            parts, repeats = tokens.datasets, list(map(int, tokens.sample_ratios))
        for store, part in zip(stores, parts):
            if arcs:
                store.check_arcs()  # not in the first batch of another split, after an epoch of training
            content = checksums.get(f"{store.path.removesuffix(STORE_SUFFIX)}.bin")
            check_against_tokens(store, np.asarray(part.sizes), labels, content)
        return cls(stores, repeats, arcs=arcs)

    def collate(self, ids: Tensor) -> PackedSyntax:
        """Fetch the syntax of the sentences ``ids`` [B], in this order."""
        numbers = ids.numpy()
        part = np.searchsorted(self._ends, numbers, side="right")
        # % because --upsample-primary may repeat a part
        within = (numbers - (self._ends - np.diff(self._ends, prepend=0))[part]) % self._sizes[part]
        seams = np.flatnonzero(np.diff(part)) + 1  # between runs of sentences from one part
        runs = zip(np.split(part, seams), np.split(within, seams))
        flats = [self.stores[p[0]].fetch(w, arcs=self.arcs) for p, w in runs]
        return pack(flats[0] if len(flats) == 1 else concatenate(flats))


def check_against_tokens(
    store: SyntaxStore, sizes: np.ndarray, labels: dict[str, list[str]] | None = None, content: str | None = None
) -> None:
    """Check that a store belongs to the tokens, dictionary and segmentation of its folder.

    Args:
        sizes: [N] int, the lengths of the dataset's sentences, including ``</s>``
        labels: the label inventory in use; None to skip this check
        content: the fingerprint of the dataset's ``.bin``, if already known

    Raises:
        SyntaxDataError: the number of sentences, their lengths, the dictionary or the label ids differ
    """
    hint = "run fairseq-syntax binarize on this dataset"
    if len(store) != len(sizes):
        raise SyntaxDataError(f"holds {len(store)} sentences, the tokens {len(sizes)}", path=store.path, hint=hint)
    prefix = store.path.removesuffix(STORE_SUFFIX)
    folder, lang = folder_and_language(prefix)
    dictionary, segmenter = dictionary_path(folder, lang), segmentation_of(folder, lang)
    words = file_fingerprint(dictionary) if os.path.exists(dictionary) else None
    for key, here, message in (
        ("tokens", sizes_fingerprint(sizes), "from another segmentation: its sentences have other lengths"),
        ("tokens_content", content or tokens_fingerprint(prefix), "beside other tokens of these lengths"),
        ("segmentation_fingerprint", segmenter and segmenter.fingerprint, "with another segmentation model"),
        ("dictionary_fingerprint", words, "with another dictionary"),
    ):
        recorded = store.metadata.get(key)  # stores by other programs may not record it
        if here and recorded and here != recorded:
            raise SyntaxDataError(f"was made {message}", path=store.path, hint=hint)
    # The first of several training texts has the first labels; the others may have added more.
    known = {column: names[: len(store.labels.get(column, ()))] for column, names in (labels or {}).items()}
    if labels is not None and store.labels != known:
        raise SyntaxDataError(
            "was made with labels other than those in its folder, or those of the first directory",
            path=store.path,
            hint="binarize all splits together, or with the training data's labels.LANG.json (--source-labels)",
        )


class SyntaxPairDataset(LanguagePairDataset):
    """A language pair whose batches hold ``net_input.src_syntax`` and ``tgt_syntax``; see ``data/batch.py``.

    Attributes:
        epoch: the current epoch of this process, from 1; the loader's workers keep the one in which they started
        fills_batches: whether batches are as full as possible (:meth:`ordered_indices`, :meth:`batch_by_size`)
    """

    def __init__(
        self, *args, source_syntax: SideSyntax | None = None, target_syntax: SideSyntax | None = None, **kwargs
    ) -> None:
        super().__init__(*args, **kwargs)
        self.source_syntax, self.target_syntax = source_syntax, target_syntax
        self.epoch = 1
        self.fills_batches = False

    @classmethod
    def of(cls, pair: LanguagePairDataset, **syntax: SideSyntax | None) -> SyntaxPairDataset:
        """Add syntax to a fairseq dataset."""
        options = ("left_pad_source", "left_pad_target", "align_dataset", "eos", "shuffle", "pad_to_multiple")
        sides = (pair.src, pair.src_sizes, pair.src_dict, pair.tgt, pair.tgt_sizes, pair.tgt_dict)
        return cls(*sides, **{name: getattr(pair, name) for name in options}, **syntax)

    def ordered_indices(self) -> np.ndarray:
        """fairseq's order, by the length of the source; to fill batches, by that of the longer side.

        ``--max-tokens`` limits the longer side, so a long translation among short ones makes a batch small.
        """
        indices: np.ndarray = super().ordered_indices()
        if not self.fills_batches or self.tgt_sizes is None or self.buckets is not None:
            return indices
        longer = np.maximum(self.src_sizes[indices], self.tgt_sizes[indices])
        return indices[np.argsort(longer, kind="mergesort")]

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """fairseq's batches, including the last one.

        fairseq drops the last batch if its size is not a multiple of ``--required-batch-size-multiple`` (8 by default).
        Its sentences, always the longest ones, would not be trained on, or not be translated in fairseq-generate.
        To fill batches, they have any number of sentences.
        """
        if self.fills_batches:
            required_batch_size_multiple = 1
        if not len(indices):
            return []
        batches = list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))
        rest = indices[sum(map(len, batches)) :]
        return [*batches, rest] if len(rest) else batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, in which other sentences are drawn whose parse is dropped."""
        super().set_epoch(epoch)
        self.epoch = epoch

    def collater(self, samples: list[dict], pad_to_length: dict | None = None) -> dict:
        """fairseq's batch with syntax, in the order of the batch (fairseq sorts it by length)."""
        batch = super().collater(samples, pad_to_length)
        if batch and self.source_syntax is not None:
            batch["net_input"]["src_syntax"] = self.source_syntax.collate(batch["id"])
        if batch and self.target_syntax is not None:
            batch["tgt_syntax"] = self.target_syntax.collate(batch["id"])
            if self.source_syntax is not None:
                batch = in_one_transfer(batch)
        return batch
