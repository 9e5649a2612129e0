"""The interface of the task for models, searches and the input reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fairseq_syntax.data.parse_origins import ParseOrigins


class SyntaxTask(Protocol):
    """The dictionaries, labels, segmentations and needs of a translation task.

    :class:`~fairseq_syntax.tasks.syntax_translation.SyntaxTranslationTask` implements it; tests have smaller classes.

    Attributes:
        cfg: the task's options
        source_dictionary, target_dictionary: fairseq's, of the pieces
        source_labels, target_labels: label names by column (``deprel``, ``upos``, ``xpos``), in the order of their ids
        source_segmenter, target_segmenter: None if the data have no segmentation
        datasets: the loaded datasets by split
        data_dir: the data directory, for error messages
        parse_origins: how the training text of the loaded models was parsed
    """

    cfg: Any
    datasets: Any

    @property
    def source_dictionary(self) -> Any: ...
    @property
    def target_dictionary(self) -> Any: ...
    @property
    def source_labels(self) -> dict[str, list[str]]: ...
    @property
    def target_labels(self) -> dict[str, list[str]]: ...
    @property
    def source_segmenter(self) -> Any: ...
    @property
    def target_segmenter(self) -> Any: ...
    @property
    def data_dir(self) -> str: ...
    @property
    def parse_origins(self) -> ParseOrigins: ...

    def needs(self, side: str) -> frozenset[str] | None:
        """What models need of the syntax of a side (``source``, ``target``): ``tree``, ``arcs``; None if unknown."""
