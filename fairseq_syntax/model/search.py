"""Searches of systems: options of the task, a generator for the system's models, and access to the hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from fairseq.dataclass.configs import FairseqDataclass

from fairseq_syntax.model.task import SyntaxTask


class Generator(NamedTuple):
    """A replacement of fairseq's generator: its class, and arguments beyond fairseq's."""

    cls: type
    arguments: dict[str, Any]


class SystemSearch:
    """The search of a system, one for each task; registered by :func:`register_search`.

    Args:
        task: a ``syntax_translation`` task, whose configuration has the options of :attr:`config`
    """

    config: ClassVar[type[FairseqDataclass]] = FairseqDataclass

    def __init__(self, task: SyntaxTask) -> None:
        self.task = task

    def generator(self, models: Sequence[Any], args: Any, taken: bool) -> Generator | None:
        """The generator for these models; None: fairseq's, or another system's.

        Args:
            args: options of generation
            taken: whether the caller has a generator of its own

        Raises:
            SyntaxDataError: this system's options are set, and the models are not its own
        """
        return None

    def observe(self, generator: Any, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]]) -> None:
        """See the hypotheses of a batch, the best first, before the caller does."""


SEARCHES: list[type[SystemSearch]] = []


def register_search(search: type[SystemSearch]) -> type[SystemSearch]:
    """Let tasks have this search."""
    SEARCHES.append(search)
    return search
