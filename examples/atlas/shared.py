"""Names, tables, rows and axes that all parts of the page of the atlas share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_syntax.lab.scoring.intervals import BOLD, Estimate, cells
from fairseq_syntax.lab.scoring.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SYSTEMS = {"PSH": "PSH", "CSH+PSH": "CSH+PSH", "sennrich_haddow": "S&H", "PASCAL": "PASCAL", "LDD": "LDD", "UDD": "UDD"}
SYSTEMS |= {"sennrich_haddow+PSH": "S&H+PSH", "tree_planting": "tree planting"}
NOT_RUN = "not run"
OF_SEEDS = "seeds: those that have been run, of those in the recipe if there are more"
PLACEBO = "shuffled"  # the control that is nearest to one
Cell = str | Estimate | None


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], notes: Sequence[str] = ()) -> Table:
    """A table in which the estimates are bold that are significant with Holm's correction for all of them."""
    texts, marked = cells(rows, BOLD, NOT_RUN)
    partly = head[-1] == "seeds" and any(" of " in row[-1] for row in texts)
    return Table(title, list(head), texts, [*marked, *notes, *([OF_SEEDS] if partly else [])])


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


def differences(row: Mapping[str, Any], controls: Sequence[str]) -> list[Cell]:
    """A system's gain; and of each control, what it gains, and what the parse gains over it."""
    of_controls = [twin_of(row, control).get(kind) for control in controls for kind in ("gain", "syntax")]
    return [row.get("gain"), *of_controls]


def differences_head(system: str, controls: Sequence[str], baseline: str) -> list[str]:
    """The titles of :func:`differences`."""
    of_controls = [title for one in controls for title in (f"*{one}* − {baseline}", f"the parse − *{one}*")]
    return [f"{shown(system)} − {baseline}", *of_controls]


def counted(seeds: Mapping[str, int], names: Mapping[str, str], planned: Mapping[str, int] | None = None) -> str:
    """The seeds of a row's systems: ``3``, or ``2 of 3 (relative), 1 of 3 (the parse, linear)`` where they differ.

    Args:
        names: the systems by what they are called in the table
        planned: the seeds of each system in the recipe, if known
    """
    by_count: dict[tuple[int, str], list[str]] = {}
    for title, name in names.items():
        if of := of_planned(seeds.get(name, 0), (planned or {}).get(name, 0)):
            by_count.setdefault((seeds.get(name, 0), of), []).append(title)
    if len(by_count) > 1:
        return ", ".join(f"{of} ({', '.join(titles)})" for (_, of), titles in sorted(by_count.items(), reverse=True))
    return next(iter(by_count))[1] if by_count else "0"


def of_planned(run: int, planned: int) -> str:
    """``2 of 3`` if not all seeds have been run, else ``3``; empty if there are none."""
    return f"{run} of {planned}" if run < planned else str(run or "")


WIDTH = 4.3  # inches: on a phone, letters of 9 points are hardly smaller than the text around them
MARKERS = {"the parse": "o", "linear": "s", "random": "^", "parser": "D", "relabelled": "v", PLACEBO: "x"}


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
