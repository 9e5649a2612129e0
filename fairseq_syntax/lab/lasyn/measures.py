"""BLEU and distinct-1 over the edit distance of the tags (LaSyn, Table 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_syntax.lab.lasyn.diversity import Variation
from fairseq_syntax.lab.scoring.metrics import Scorer, distinct_1
from fairseq_syntax.lab.scoring.tables import Table, number


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
