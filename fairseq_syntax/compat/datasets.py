"""Changes to fairseq's older token datasets (``--dataset-impl lazy`` and ``cached``): each process reads by itself.

fairseq opens such a dataset in the training process and leaves the open file to the workers of its data loader, which
share the position in it: with several of them, a sentence may have the tokens of others. ``cached`` datasets can only
read sentences that they were told to prefetch, which fails in these workers, and where a checkpoint asks for the
batches of all processes.
"""

from __future__ import annotations

import io
import os
from typing import Any

from fairseq.data import indexed_dataset


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


def install() -> None:
    """Make fairseq read datasets of both kinds sentence by sentence, in any process."""
    indexed_dataset.IndexedDataset.read_data = read_data
    indexed_dataset.IndexedCachedDataset = indexed_dataset.IndexedDataset
