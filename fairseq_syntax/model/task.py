"""The interface of the task for models, searches and the input reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fairseq_syntax.data.parse_origins import ParseOrigins


class SyntaxTask(Protocol):
    """The dictionaries, labels, segmentations and needs of a translation task.

    :class:`~fairseq_syntax.tasks.syntax_translation.SyntaxTranslationTask` implements it; tests have smaller classes.
    """

    @property
    def cfg(self) -> Any:
        """The task's options."""

    @property
    def source_dictionary(self) -> Any:
        """fairseq's dictionary of the source's pieces."""

    @property
    def target_dictionary(self) -> Any:
        """fairseq's dictionary of the target's pieces."""

    @property
    def source_labels(self) -> dict[str, list[str]]:
        """Label names of the source by column (``deprel``, ``upos``, ``xpos``); their indices are the label ids."""

    @property
    def target_labels(self) -> dict[str, list[str]]:
        """Label names of the target by column."""

    @property
    def source_segmenter(self) -> Any:
        """The source's segmentation; None if the data have none."""

    @property
    def target_segmenter(self) -> Any:
        """The target's segmentation; None if the data have none."""

    @property
    def datasets(self) -> Any:
        """The loaded datasets by split."""

    @property
    def data_dir(self) -> str:
        """The data directory, for error messages."""

    @property
    def parse_origins(self) -> ParseOrigins:
        """How the training text of the loaded models was parsed."""

    def needs(self, side: str) -> frozenset[str] | None:
        """What models need of the syntax of a side (``source``, ``target``): ``tree``, ``arcs``; None if unknown."""
