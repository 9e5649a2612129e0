"""BLEU by sentence length, as in the figures of the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.tables import Table, number


def by_length(
    runs: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[Sequence[str]],
    width: int,
    sources: Sequence[str] | None = None,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> dict[str, Any]:
    """Corpus BLEU of the sentences in each interval of length, (0, w], (w, 2w], …, as in the papers' figures.

    The length is the number of tokens of the source, if given, otherwise of the first reference, by BLEU's tokenizer.

    Args:
        runs: for each system name, the translations of each seed, whose scores are averaged
        width: w, in tokens

    Returns:
        ``{"of": "source" or "reference", "width", "buckets": [{"over", "to", "sentences", "BLEU": {system: score}}]}``;
        empty intervals are left out
    """
    scorer = Scorer("bleu", references, tokenize, lowercase)
    tokenizer = cast(Any, scorer.metric).tokenizer
    lengths = np.array([len(tokenizer(line).split()) for line in (references[0] if sources is None else sources)])
    # An empty line belongs to no interval; it is counted in the first.
    bucket = np.maximum(np.ceil(lengths / width).astype(int) - 1, 0)
    buckets = []
    for k in np.unique(bucket):
        chosen = np.flatnonzero(bucket == k).tolist()
        scores = {
            name: float(np.mean([scorer.corpus(lines, chosen) for lines in seeds])) for name, seeds in runs.items()
        }
        buckets.append({"over": int(k) * width, "to": int(k + 1) * width, "sentences": len(chosen), "BLEU": scores})
    return {"of": "reference" if sources is None else "source", "width": width, "buckets": buckets}


def length_table(table: Mapping[str, Any], names: Sequence[str], sentences: int, baseline: str | None) -> Table:
    """The result of :func:`by_length` as a table, with gains over the baseline in brackets (Figure 2 of PASCAL).

    Args:
        names: the names of the systems, in the order of the columns
        sentences: the total number of sentences
    """
    rows = []
    for bucket in table["buckets"]:
        share = 100 * bucket["sentences"] / sentences
        row = [f"({bucket['over']}, {bucket['to']}]", str(bucket["sentences"]), f"{share:.1f}%"]
        for name in names:
            score = bucket["BLEU"][name]
            gain = "" if baseline in (None, name) else f" ({score - bucket['BLEU'][baseline]:+.1f})"
            row.append(number(score, 1) + gain)
        rows.append(row)
    notes = [] if baseline is None else [f"in brackets the gain over {baseline}"]
    return Table(f"BLEU by length of the {table['of']}", ["tokens", "sentences", "share", *names], rows, notes)
