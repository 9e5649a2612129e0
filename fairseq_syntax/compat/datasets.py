"""Changes to fairseq's token datasets: names of validation sets, and older kinds, which each process reads by itself.

fairseq opens a dataset of ``--dataset-impl lazy`` or ``cached`` in the training process and leaves the open file to the
workers of its data loader, which share the position in it: with several of them, a sentence may have the tokens of
others. ``cached`` datasets can only read sentences that they were told to prefetch, which fails in these workers, and
where a checkpoint asks for the batches of all processes.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any

from fairseq import utils
from fairseq.data import data_utils, indexed_dataset


class OwnPosition(io.FileIO):
    """A file whose position is that of this object, also where other processes have the file open."""

    _at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position, from the beginning of the file."""
        self._at = offset
        return offset

    def readinto(self, buffer: Any, /) -> int:
        """Read from the position, and move it."""
        count = os.preadv(self.fileno(), [buffer], self._at)
        self._at += count
        return count

    def __reduce__(self) -> Any:
        return type(self), (self.name,)  # for workers that are not forked


def read_data(self: indexed_dataset.IndexedDataset, path: str) -> None:
    """Open the file of tokens."""
    self.data_file = OwnPosition(indexed_dataset.data_file_path(path))


def extra_valid_subsets(paths: str) -> set[str]:
    """The validation sets beside ``valid``, which are to be named or left out: ``valid1`` and so on.

    fairseq takes the name of a file up to its last dot for one, so that no set could be named.
    """
    names = (name for path in utils.split_paths(paths) for name in os.listdir(path))
    return {match[0] for name in names if (match := re.match(r"valid\d+(?=\.)", name))}


def install() -> None:
    """Make fairseq read datasets of both kinds sentence by sentence, in any process, and know validation sets."""
    data_utils._find_extra_valid_paths = extra_valid_subsets
    indexed_dataset.IndexedDataset.read_data = read_data
    indexed_dataset.IndexedCachedDataset = indexed_dataset.IndexedDataset
