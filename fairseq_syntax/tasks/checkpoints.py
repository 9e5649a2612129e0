"""Whether training may go on from a checkpoint: its numbers must mean the words and labels of these data."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.options import REMEMBERED_NAMES, REMEMBERED_TEXTS
from fairseq_syntax.runtime.files import fingerprint

if TYPE_CHECKING:
    from fairseq_syntax.corpus.segmentation import Segmenter
    from fairseq_syntax.data.directory import DataDirectory


class Dictionaries:
    """The fingerprints of a task's dictionaries, by side (``source``, ``target``), which checkpoints record.

    Args:
        source, target: fairseq dictionaries
    """

    def __init__(self, source: Any, target: Any) -> None:
        self.fingerprints = {"source": fingerprint(source.symbols), "target": fingerprint(target.symbols)}

    def check_model(self, recorded: Mapping[str, str], data_dir: str, hint: str) -> None:
        """Check that a model was trained with these dictionaries.

        Args:
            recorded: the fingerprints in its checkpoint; a side that is not there is not checked
            data_dir: where the dictionaries lie, for the error

        Raises:
            SyntaxDataError: it was trained with others
        """
        for side, value in self.fingerprints.items():
            if recorded.get(side, value) != value:
                raise SyntaxDataError(
                    f"the model was trained with another {side} dictionary than that of these data",
                    path=data_dir,
                    hint=hint,
                )

    def check_directory(self, side: str, symbols: list[str], path: str) -> None:
        """Check that a further directory of training data numbers its pieces in the same way.

        Raises:
            SyntaxDataError: its dictionary is another one
        """
        if fingerprint(symbols) != self.fingerprints[side]:
            raise SyntaxDataError(
                "is another dictionary than that of the first directory: its pieces would be taken for others",
                path=path,
                hint="give fairseq-preprocess --srcdict and --tgtdict, those of the first directory",
            )


class Segmentations:
    """The segmentations beside a task's data, and whether the models were trained on their pieces.

    Args:
        directory: the data directory
    """

    hint = "put segmentation.LANG.json and .model of the training data there"

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._trained: set[str] = set()  # the sides of which a loaded model knows the pieces of a segmentation

    @cached_property
    def fingerprints(self) -> dict[str, str | None]:
        """By side (``source``, ``target``); None where the directory has none."""
        both = {side: self._directory.segmenter(side) for side in ("source", "target")}
        return {side: None if found is None else fingerprint(found.note) for side, found in both.items()}

    def check_model(self, recorded: Mapping[str, str | None]) -> None:
        """Check that a model was trained on pieces of these segmentations.

        Args:
            recorded: the fingerprints in its checkpoint; where either side knows of none, nothing is checked

        Raises:
            SyntaxDataError: it was trained on others
        """
        for side, value in self.fingerprints.items():
            if None not in (value, recorded.get(side)) and recorded[side] != value:
                raise SyntaxDataError(
                    f"the model was trained on pieces of another {side} segmentation than that of these data",
                    path=self._directory.segmentation_path(side),
                    hint=self.hint,
                )

    def add_model(self, recorded: Mapping[str, str | None]) -> None:
        """Check a model that is loaded, and note of which sides it knows the pieces of a segmentation."""
        self.check_model(recorded)
        self._trained |= {side for side, value in recorded.items() if value is not None}

    def segmenter(self, side: str) -> Segmenter | None:
        """The segmentation of a side; None where there is none, and no model asks for it.

        Raises:
            SyntaxDataError: a loaded model was trained on pieces of one that is missing
        """
        found = self._directory.segmenter(side)
        if found is None and side in self._trained:
            raise SyntaxDataError(
                f"is missing: the model was trained on the pieces of a {side} segmentation, and knows no others",
                path=self._directory.segmentation_path(side),
                hint=self.hint,
            )
        return found


def check_labels(state: Mapping[str, Any], model: Any, path: str) -> None:
    """Check that the labels and tags of a checkpoint are those of the data.

    Args:
        state: the checkpoint
        model: the options of the model that is trained
        path: of the checkpoint, for errors

    Raises:
        SyntaxDataError: they are others
    """
    before = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    before, now = (vars(options) if isinstance(options, Namespace) else dict(options) for options in (before, model))
    for name, what in REMEMBERED_TEXTS.items():
        if None not in (before.get(name), now.get(name)) and before[name] != now[name]:
            raise SyntaxDataError(f"this model was trained with other {what}", path=path, hint="give the same file")
    for name, side in REMEMBERED_NAMES.items():
        trained, here = before.get(name), now.get(name)
        if trained is not None and here is not None and list(trained) != list(here):
            raise SyntaxDataError(
                f"this model was trained with {len(trained)} names of labels or tags of the {side} that are not the "
                f"{len(here)} of these data",
                path=path,
                hint=f"binarize the data with the labels of the first training (--{side}-labels)",
            )
