"""Words, rows and axes that all parts of the page of the atlas share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_syntax.lab.scoring.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SYSTEMS = {"PSH": "PSH", "CSH+PSH": "CSH+PSH", "sennrich_haddow": "S&H", "PASCAL": "PASCAL", "LDD": "LDD", "UDD": "UDD"}
NOT_RUN = "not run"
SEEDS = 3  # of all rows, unless a table or a sentence says otherwise
Figures = Sequence[float]  # value, low, high, and of some the smallest that would be found


def is_significant(figures: Figures) -> bool:
    """Whether the 95 % interval excludes 0."""
    return figures[1] > 0 or figures[2] < 0


def interval(figures: Figures | None) -> str:
    """``+1.26 (+0.60 to +1.92)``, in bold where it is significant."""
    if figures is None:
        return NOT_RUN
    text = f"{figures[0]:+.2f} ({figures[1]:+.2f}\u00a0to\u00a0{figures[2]:+.2f})"  # in a narrow column, two lines
    return f"**{text}**" if is_significant(figures) else text


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def seeds_of(count: int) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{count} seed{'' if count == 1 else 's'}"


def low_to_high(values: Sequence[float], form: str = "{:.1f}") -> str:
    """``1.3 to 1.6``, or one figure where they do not differ."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def shown(system: str) -> str:
    """A system's name on the page."""
    return SYSTEMS.get(system, system)


def folded(summary: str, table: Table) -> str:
    """A table that a click shows: who looks for one does not scroll through the others."""
    return f"<details><summary>{summary}</summary>\n\n{table.render('markdown')}\n\n</details>"


def row_of(rows: Sequence[Mapping[str, Any]], system: str) -> Mapping[str, Any]:
    """The row of a system, empty where it has not been run."""
    return next((row for row in rows if row["system"] == system), {})


def twin_of(row: Mapping[str, Any], control: str) -> Mapping[str, Any]:
    """What a row says of a control, empty where that has not been run."""
    return row.get("controls", {}).get(control, {})


WIDTH = 4.3  # inches: on a phone, letters of 9 points are hardly smaller than the text around them
MARKERS = {"the parse": "o", "linear": "s", "random": "^", "parser": "D"}


def with_zero(line: Any, axes: Axes) -> None:
    """A grid without a box around it, and a line at 0."""
    line(0, color="#8a939c", linewidth=0.8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def new_figure(width: float, height: float) -> Figure:
    """A white figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure
