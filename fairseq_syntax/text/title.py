"""The title of a parse: the comments above its first sentence that are of the whole text.

- ``# lines = N``: the number of lines.
- ``# made_from = …``: a fingerprint of what the parse depends on, in files of ``fairseq-syntax parse``.
- ``# parsed_with = {…}``: the parser's options, so that a model's raw text can be parsed as its training text was; and
  under ``control`` the names of the controls that a control parse was made by, in their order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from fairseq_syntax.text.files import read_raw_lines

_PARSED_WITH = "# parsed_with = "
_LONGEST = 8  # rows: a file may be comments without end


def title(n_lines: int, *, made_from: str | None = None, parsed_with: Mapping[str, Any] | None = None) -> str:
    """The rows of a title, each with its line end.

    Args:
        n_lines: of the text
        made_from: the fingerprint, if there is one
        parsed_with: the parser's options, where they are known
    """
    rows = f"# lines = {n_lines}\n"
    if made_from is not None:
        rows += f"# made_from = {made_from}\n"
    if parsed_with is not None:
        rows += _PARSED_WITH + json.dumps(parsed_with, ensure_ascii=False) + "\n"
    return rows


def parsed_with(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The parser's options by the title of a CoNLL-U file; None where it has none."""
    for number, raw in enumerate(read_raw_lines(path)):
        row = raw.decode("utf-8", "replace")
        if number == _LONGEST or not row.startswith("#"):
            return None
        if row.startswith(_PARSED_WITH):
            try:
                found = json.loads(row.removeprefix(_PARSED_WITH))
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


def controls(parsed_with: Mapping[str, Any] | None) -> list[str]:
    """The controls that a parse was made by, in their order; none if it is a real one, or nothing is known of it."""
    found = (parsed_with or {}).get("control")
    return [str(name) for name in found] if isinstance(found, list) else []


def is_of_title(row: str) -> bool:
    """Whether a row without its line end is one of a title, its number of lines aside."""
    return row.startswith((_PARSED_WITH, "# made_from = "))
