"""A small table, rendered for a terminal, as Markdown or as HTML.

We do not use tabulate: it pads Markdown cells, so one longer cell would change every row of a committed table, and it
needs another library to measure East Asian text.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, field
from html import escape

# A note for tables with this column.
DETECTABLE = "MDD: the minimal detectable difference, found at the 5% level with a probability of 80%"


@dataclass
class Table:
    """A title, a header, rows of text cells (the first column names the row), and notes below."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def render(self, style: str = "text") -> str:
        """Render the table as ``text``, ``markdown`` or ``html``, without a final line feed."""
        return {"text": self._text, "markdown": self._markdown, "html": self._html}[style]()

    def _text(self) -> str:
        widths = [max(map(_width, column)) for column in zip(self.header, *self.rows)]

        def line(row: list[str]) -> str:
            spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths)]
            cells = [space + cell for cell, space in zip(row, spaces)]
            cells[0] = row[0] + spaces[0]  # names are on the left, numbers on the right
            return "  ".join(cells).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, line(self.header), rule, *map(line, self.rows), *self.notes])

    def _markdown(self) -> str:
        def line(row: list[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

        rule = "|" + "|".join([":--"] + ["--:"] * (len(self.header) - 1)) + "|"
        title = [f"**{self.title}**", ""] if self.title else []
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([*title, line(self.header), rule, *map(line, self.rows), *notes])

    def _html(self) -> str:
        """A table in which cells that begin with "yes" have this class."""

        def row(cells: list[str], tag: str) -> str:
            classes = [" class=yes" if cell.startswith("yes") else "" for cell in cells]
            marked = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, classes))
            return f"<tr>{''.join(marked)}</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        notes = "".join(f"<p class=note>{escape(note)}</p>" for note in self.notes)
        head = f"<caption>{escape(self.title)}</caption><thead>{row(self.header, 'th')}</thead>"
        return f"<table>{head}<tbody>{body}</tbody></table>{notes}"


def number(value: float | None, digits: int = 2) -> str:
    """Format a number as ``12.30``, or a missing one as ``–``."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def over_seeds(mean: float | None, deviation: float | None, digits: int = 2) -> str:
    """``12.30 ± 0.40``: mean and standard deviation over seeds; without a deviation, as of one seed, the mean alone."""
    return number(mean, digits) + ("" if deviation is None else f" ± {number(deviation, digits)}")


def p_value(p: float | None, *, star: bool = True) -> str:
    """Format a p value as ``0.012*`` (the star is optional and marks p < 0.05), ``<0.001*``, or ``–`` for none."""
    if p is None or math.isnan(p):
        return "–"
    return ("<0.001" if p < 0.001 else f"{p:.3f}") + ("*" if star and p < 0.05 else "")


def corrected(comparisons: int) -> str:
    """The note about Holm's correction."""
    if comparisons == 1:
        return "Holm: one comparison, nothing to correct; * below 0.05"
    return f"Holm: corrected for {comparisons} comparisons; * below 0.05"


def _width(text: str) -> int:
    """The width on a terminal: East Asian wide characters take two columns, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)
