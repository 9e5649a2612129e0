"""The header of a parse: comments above its first sentence that concern the whole text.

- ``# lines = N``: the number of lines.
- ``# parsed_with = {…}``: the parser's options and a digest of its ``models``, so that raw text can be parsed like the
  training text; and, for a control parse, ``control`` with the names of the controls in order, including the share of
  wrong arcs (``damaged --wrong-arcs 0.1``).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import is_read_once, read_lines

if TYPE_CHECKING:
    from fairseq_syntax.corpus.parsed_line import ParsedLine

logger = logging.getLogger(__name__)

PARSED_WITH = "# parsed_with = "
_LONGEST = 8  # rows, since a file may consist of comments


def header(n_lines: int, *, parsed_with: Mapping[str, Any] | None = None) -> str:
    """The rows of the header of a text of ``n_lines`` lines, with the parser's options if known."""
    rows = f"# lines = {n_lines}\n"
    if parsed_with is not None:
        rows += PARSED_WITH + json.dumps(parsed_with, ensure_ascii=False) + "\n"
    return rows


def parsed_with(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The parser's options in the header of a CoNLL-U file; None if there are none, or for a pipe."""
    if is_read_once(path):
        return None
    for row in takewhile(lambda row: row.startswith("#"), islice(read_lines(path), _LONGEST)):
        if row.startswith(PARSED_WITH):
            with suppress(ValueError):
                options = json.loads(row.removeprefix(PARSED_WITH))
                return options if isinstance(options, dict) else None
    return None


def controls(parsed_with: Mapping[str, Any] | None) -> list[str]:
    """The names of the controls that made a parse, in order; empty for a real parse or if unknown."""
    names = (parsed_with or {}).get("control")
    return [str(name) for name in names] if isinstance(names, list) else []


def parse_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options that affect every sentence and differ between two parses, with both values.

    Options that only one of them records are ignored, as are limits for long sentences and, if one parse has no
    distributions, options of distributions, which do not affect the trees.
    """
    passed_over = {"max_words", "long_lines", "distributions"}
    if not (one.get("distributions") and other.get("distributions")):
        passed_over |= {"min_prob", "structured", "temperature", "label_temperature"}
    pairs = {name: (one[name], other[name]) for name in one if name in other and name not in passed_over}
    if controls(one) != controls(other):
        pairs["control"] = (controls(one), controls(other))
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


@dataclass
class Spacing:
    """Counts that show whether a parse records the spaces of its text."""

    marks: int = 0  # tokens without letters and digits, most of which are not preceded by a space in running text
    joined: int = 0  # tokens not followed by a space

    def add(self, line: ParsedLine) -> None:
        """Count the tokens of a line."""
        self.joined += sum(not token.space_after for token in line.tokens)
        self.marks += sum(not any(map(str.isalnum, token.form)) for token in line.tokens)

    def warn(self, path: str | os.PathLike[str]) -> None:
        """Warn if a parse seems to lack spacing although it was not made from tokenized text."""
        if self.marks and not self.joined and (parsed_with(path) or {}).get("tokenizer") != "whitespace":
            logger.warning(
                "%(path)s has no SpaceAfter=No: all its tokens are taken to have spaces between them. If the text has "
                "not, give it: fairseq-syntax parse --parser conllu --input %(path)s --text TEXT",
                {"path": path},
            )


def check_controls(
    trained_with: Mapping[str, Any] | None, parsed_with: Mapping[str, Any] | None, path: str | os.PathLike[str]
) -> None:
    """Check that a model gets parses (in ``path``) like those of its training text: real ones, or the same controls.

    Raises:
        SyntaxDataError: the model was trained on control parses, and these are real or other controls
    """
    of_training, of_these = controls(trained_with), controls(parsed_with)
    if of_training and of_training != of_these:
        raise SyntaxDataError(
            f"the model was trained on control parses ({', '.join(of_training)}), and these are "
            + (f"others ({', '.join(of_these)})" if of_these else "real"),
            path=path,
            hint=f"give what fairseq-syntax control {' '.join(of_training)} makes of the parse",
        )
    if of_these and not of_training:
        logger.warning("%s: control parses (%s), for a model that knows real ones", path, ", ".join(of_these))
