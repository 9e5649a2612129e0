"""What variety costs (LaSyn, Table 5 and Figure 3): BLEU and distinct-1 over the edit distance of the tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_syntax.lab.lasyn.diversity import Variation
from fairseq_syntax.lab.scoring.metrics import Scorer, distinct_1
from fairseq_syntax.lab.scoring.tables import Table, number
from fairseq_syntax.use.pages.fonts import any_script

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(variations: Sequence[Variation], references: Mapping[int, str], tokenize: str = "13a") -> list[dict]:
    """``bleu``, its ``signature``, and ``distinct1`` of the ``translations`` at each ``distance``."""
    rows = []
    for distance in sorted({v.distance for v in variations}):
        group = [v for v in variations if v.distance == distance]
        texts = [v.text for v in group]
        scorer = Scorer("bleu", [[references[v.sentence] for v in group]], tokenize=tokenize)
        rows.append(
            {
                "distance": distance,
                "translations": len(group),
                "bleu": scorer.corpus(texts),
                "distinct1": distinct_1(texts, tokenize),
                "signature": scorer.signature,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]], samples: int) -> Table:
    """The measures as a table."""
    return Table(
        f"Translations by varied tag sequences, {samples} of each sentence at each distance",
        ["edit distance", "translations", "BLEU", "distinct-1"],
        [[str(r["distance"]), str(r["translations"]), number(r["bleu"]), number(r["distinct1"], 3)] for r in rows],
        [rows[0]["signature"]] if rows else [],
    )


@any_script()
def diversity_curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """BLEU and distinct-1 over the edit distance, each with its own axis (Figure 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.subplots()
    right = left.twinx()
    x = [r["distance"] for r in rows]
    for axes, key, name, color, mark in (
        (left, "bleu", "BLEU", "#0072B2", "o"),
        (right, "distinct1", "distinct-1", "#D55E00", "s"),
    ):
        axes.plot(x, [r[key] for r in rows], color=color, marker=mark)
        axes.set_ylabel(name, color=color)
        axes.tick_params(axis="y", colors=color)
    left.set_xlabel("edit distance from the most likely tags")
    left.set_xticks(x)
    left.grid(axis="x", alpha=0.3)
    return figure
