"""How the training text of the loaded models was parsed, which decides which parses they accept as input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fairseq_syntax.corpus.header import check_controls, controls

# A parser's options, with the control for a control parse; None or empty if not recorded.
ParsedWith = Mapping[str, Any] | None


class ParseOrigins:
    """The parser options of the training text of each loaded model that reads a parse.

    Args:
        of_data: the options recorded in the data directory, for models in training and checkpoints without any
    """

    def __init__(self, of_data: ParsedWith) -> None:
        self._of_data = of_data
        self._of_models: list[ParsedWith] = []

    def add(self, parsed_with: ParsedWith) -> None:
        """Add the options of a model; None if its checkpoint records none."""
        self._of_models.append(self._of_data if parsed_with is None else parsed_with)

    @property
    def all(self) -> list[ParsedWith]:
        """One entry per model, or the data directory's if no model reads a parse."""
        return self._of_models or [self._of_data]

    @property
    def any_control(self) -> bool:
        """Whether any model was trained on control parses."""
        return any(map(controls, self.all))

    def check(self, parsed_with: ParsedWith, path: str | os.PathLike[str]) -> None:
        """Check that parses with these options, from a file, are of the kind on which every model was trained.

        Raises:
            SyntaxDataError: a model was trained on control parses, and these are real, or other controls
        """
        for trained in self.all:
            check_controls(trained, parsed_with, path)

    def for_raw_text(self, *, read: bool) -> ParsedWith:
        """The options for parsing raw text: the first model's, or those of a model trained on control parses.

        Args:
            read: whether a model reads the parse; otherwise control parses in training do not matter
        """
        first = [*filter(controls, self.all), *filter(None, self.all), self._of_data][0]
        if read or first is None:
            return first
        return {name: value for name, value in first.items() if name != "control"}
