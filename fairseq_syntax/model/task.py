"""The interface of the task for models, searches and the input reader, and that of a system's search for the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fairseq.dataclass.configs import FairseqDataclass

if TYPE_CHECKING:
    from fairseq_syntax.data.parse_origins import ParseOrigins


class SyntaxTask(Protocol):
    """The dictionaries, labels, segmentations and needs of a translation task.

    :class:`~fairseq_syntax.tasks.syntax_translation.SyntaxTranslationTask` implements it; tests have smaller classes.

    Attributes:
        cfg: the task's options
        source_dictionary, target_dictionary: fairseq's, of the pieces
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
    def data_dir(self) -> str: ...
    @property
    def parse_origins(self) -> ParseOrigins: ...

    def labels(self, side: str) -> dict[str, list[str]]:
        """Label names of a side (``source``, ``target``) by column (``deprel``, …), in the order of their ids."""

    def segmenter(self, side: str) -> Any:
        """The segmentation of a side; None if the data have none."""

    def needs(self, side: str) -> frozenset[str] | None:
        """What models need of the syntax of a side (``source``, ``target``): ``tree``, ``arcs``; None if unknown."""


class SystemSearch:
    """The search of a system, with one instance per task; registered by :func:`register_search`.

    Attributes:
        config: its options, which become options of the task
    """

    config: ClassVar[type[FairseqDataclass]] = FairseqDataclass

    def __init__(self, task: SyntaxTask) -> None:
        self.task = task

    def generator(self, models: Sequence[Any], args: Any, taken: bool) -> tuple[type, dict[str, Any]] | None:
        """The class of these models' generator and its further arguments; None for fairseq's or another system's.

        Args:
            args: the options of generation
            taken: whether the caller has its own generator

        Raises:
            SyntaxDataError: options of this search are set, but the models are not of its system
        """
        return None

    def observe(self, generator: Any, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]]) -> None:
        """Receive the hypotheses of a batch, the best one first, before the caller does."""


SEARCHES: list[type[SystemSearch]] = []


def register_search(search: type[SystemSearch]) -> type[SystemSearch]:
    """A class decorator that adds the search to all tasks."""
    SEARCHES.append(search)
    return search
