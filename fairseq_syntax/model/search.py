"""Searches of systems: options of the task, a generator for the system's models, and access to the hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from fairseq.dataclass.configs import FairseqDataclass

from fairseq_syntax.model.task import SyntaxTask


class Generator(NamedTuple):
    """A replacement of fairseq's generator: its class and its additional arguments."""

    cls: type
    arguments: dict[str, Any]


class SystemSearch:
    """The search of a system, with one instance per task; registered by :func:`register_search`.

    Attributes:
        config: its options, which become options of the task
    """

    config: ClassVar[type[FairseqDataclass]] = FairseqDataclass

    def __init__(self, task: SyntaxTask) -> None:
        self.task = task

    def generator(self, models: Sequence[Any], args: Any, taken: bool) -> Generator | None:
        """The generator for these models; None for fairseq's or that of another system.

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
