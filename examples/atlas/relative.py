"""Relative positions, which need no parse, against supervised heads: a table and a sentence of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wording import NOT_RUN, SEEDS, interval, is_significant, listed, seeds_of

from fairseq_syntax.lab.scoring.tables import Table

# What measure.py says of relative positions, by where: in French, on ATIS.
Corpora = Mapping[str, Mapping[str, Any]]


def corpora_of(results: Mapping[str, Any]) -> Corpora:
    """The corpora of a page, in which relative positions may not have been run."""
    corpora = {f"in {lang}": of.get("relative", {}) for lang, of in results["languages"].items()}
    quality = results.get("parse_quality")
    return {**corpora, "on ATIS": quality.get("relative", {})} if quality else corpora


def relative_table(corpora: Corpora, system: str, controls: Sequence[str], metric: str = "BLEU") -> Table:
    """What relative positions gain over the plain Transformer, and a system over them."""
    columns = {"gain": "relative positions gain", "parse": f"{system} − relative"}
    if controls:
        columns["control"] = f"{system}, *{controls[0]}* − relative"
    columns["both"] = "both − relative"
    if controls:
        columns["both_parse"] = f"both: the parse − *{controls[0]}*"
    rows = []
    for where, corpus in corpora.items():
        row, seeds = corpus.get("metrics", {}).get(metric, {}), corpus.get("seeds", {})
        plain = f"{row['plain']:.2f}" if row else NOT_RUN
        gains = [interval(row.get(kind)) for kind in columns]
        rows.append([where.partition(" ")[2], plain, *gains, str(seeds.get("relative", 0))])
    head = ["corpus", "plain", *columns.values(), "seeds"]
    notes = ["95 % intervals as in the tables of these corpora; bold: significant; seeds: of relative positions"]
    title = f"{metric} of a plain Transformer with relative positions"
    return Table(title, head, rows, notes)


def relative_sentence(corpora: Corpora, system: str, controls: Sequence[str]) -> str:
    """What relative positions gain, how a system compares with them, and what it and its control add to them."""
    found = {where: corpus for where, corpus in corpora.items() if corpus.get("metrics")}
    if not found:
        return f"Whether {system} gives more than relative positions has not been measured yet."
    fewest = min(min(corpus["seeds"].values()) for corpus in found.values())
    few = f" ({seeds_of(fewest)})" if fewest < SEEDS else ""
    text = f"From relative positions, which need no parse, a plain Transformer gains {gained(found, 'gain')}"
    if verdict := better_or_worse(found, "parse"):
        text += f"; compared with it, {system} is {verdict}"
    if added := gained(found, "both"):
        text += f"; added to it, {system} gains {added}"
        if verdict := better_or_worse(found, "both_parse"):
            text += f"; beside it, {system} with the parse is {verdict} than {system} with *{controls[0]}* trees"
    return f"{text}{few}."


def better_or_worse(corpora: Corpora, kind: str) -> str:
    """``significantly worse in French and not significantly better on ATIS``; empty if nothing was run."""
    verdicts: dict[str, list[str]] = {}
    for where, corpus in corpora.items():
        if figures := corpus["metrics"]["BLEU"].get(kind):
            better = "better" if figures[0] > 0 else "worse"
            verdicts.setdefault(f"{'' if is_significant(figures) else 'not '}significantly {better}", []).append(where)
    return listed([f"{verdict} {listed(places)}" for verdict, places in verdicts.items()])


def gained(corpora: Corpora, kind: str) -> str:
    """``+1.0 BLEU in French and +0.5 on ATIS (not significant)``."""
    parts: list[str] = []
    for where, corpus in corpora.items():
        if figures := corpus["metrics"]["BLEU"].get(kind):
            doubt = "" if is_significant(figures) else " (not significant)"
            parts.append(f"{figures[0]:+.1f}{'' if parts else ' BLEU'} {where}{doubt}")
    return listed(parts)
