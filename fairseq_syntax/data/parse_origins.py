"""How the training text of the loaded models was parsed, which decides which parses they accept as input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fairseq_syntax.corpus.header import check_controls, controls, without_control

# The options of a parser, with its control where the parse is a control parse; None or empty: not recorded.
ParsedWith = Mapping[str, Any] | None


class ParseOrigins:
    """The parser options of the training text of each loaded model that reads a parse.

    Args:
        of_data: those of the data directory, for a model in training and for a checkpoint that records none
    """

    def __init__(self, of_data: ParsedWith) -> None:
        self._of_data = of_data
        self._of_models: list[ParsedWith] = []

    def add(self, parsed_with: ParsedWith) -> None:
        """Add the options of a model."""
        self._of_models.append(parsed_with)

    @property
    def all(self) -> list[ParsedWith]:
        """One entry per model, or that of the data directory where no model reads a parse."""
        return [self._of_data if one is None else one for one in self._of_models] or [self._of_data]

    @property
    def any_control(self) -> bool:
        """Whether a model was trained on control parses."""
        return any(map(controls, self.all))

    def check(self, parsed_with: ParsedWith, path: str | os.PathLike[str]) -> None:
        """Check that parses are of the kind on which every model was trained.

        Args:
            parsed_with: of the parses
            path: of their file, for errors

        Raises:
            SyntaxDataError: a model was trained on control parses, and these are real, or other controls
        """
        for trained in self.all:
            check_controls(trained, parsed_with, path)

    def for_raw_text(self, *, read: bool) -> ParsedWith:
        """The options to parse raw text with: the first model's, or those of one that was trained on control parses.

        Args:
            read: whether a model reads the parse; if not, it does not matter that one was trained on control parses
        """
        first = [*filter(controls, self.all), *filter(None, self.all), self._of_data][0]
        return first if read else without_control(first)
