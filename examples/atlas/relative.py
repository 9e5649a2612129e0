"""Relative positions, which need no parse, against systems that do: the tables and the sentence of the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from by_language import gains_head, named
from wording import (
    NOT_RUN,
    SEEDS,
    Figures,
    interval,
    is_significant,
    listed,
    low_to_high,
    row_of,
    seeds_of,
    shown,
    twin_of,
)

from fairseq_syntax.lab.scoring.tables import Table

# What measure.py says of relative positions, by where: in French, on ATIS.
Corpora = Mapping[str, Mapping[str, Any]]


def corpora_of(results: Mapping[str, Any]) -> Corpora:
    """The corpora of a page, in which relative positions may not have been run."""
    corpora = {f"in {lang}": of.get("relative", {}) for lang, of in results["languages"].items()}
    quality = results.get("parse_quality")
    return {**corpora, "on ATIS": quality.get("relative", {})} if quality else corpora


def figures_of(corpus: Mapping[str, Any], kind: str, metric: str = "BLEU") -> Figures | None:
    """What was measured in a corpus; None if it was not run.

    Args:
        kind: ``gain`` of relative positions; against them, ``parse``, the page's first system, and ``control``, its
            first control; with them, what a system gains, ``SYSTEM``, and what is syntax, ``SYSTEM.CONTROL``
    """
    row = corpus.get("metrics", {}).get(metric, {})
    if kind in ("gain", "parse", "control"):
        found: Figures | None = row.get(kind)
        return found
    system, _, control = kind.partition(".")
    beside = row_of(row.get("beside", []), system)
    return twin_of(beside, control).get("syntax") if control else beside.get("gain")


def relative_table(corpora: Corpora, system: str, controls: Sequence[str], metric: str = "BLEU") -> Table:
    """What relative positions gain over the plain Transformer, and a system over them."""
    columns = {"gain": "relative positions gain", "parse": f"{shown(system)} − relative"}
    if controls:
        columns["control"] = f"{shown(system)}, *{controls[0]}* − relative"
    columns[system] = "both − relative"
    if controls:
        columns[f"{system}.{controls[0]}"] = f"both: the parse − *{controls[0]}*"
    rows = []
    for where, corpus in corpora.items():
        row, seeds = corpus.get("metrics", {}).get(metric, {}), corpus.get("seeds", {})
        plain = f"{row['plain']:.2f}" if row else NOT_RUN
        gains = [interval(figures_of(corpus, kind, metric)) for kind in columns]
        rows.append([where.partition(" ")[2], plain, *gains, str(seeds.get("relative", 0))])
    head = ["corpus", "plain", *columns.values(), "seeds"]
    notes = ["95 % intervals as in the tables of these corpora; bold: significant; seeds: of relative positions"]
    title = f"{metric} of a plain Transformer with relative positions"
    return Table(title, head, rows, notes)


def others_beside(corpora: Corpora, system: str, metric: str = "BLEU") -> Table | None:
    """What the other systems gain with relative positions, and what of it their controls do not; None if none was run.

    Args:
        system: the system that :func:`relative_table` is about
    """
    columns = {
        kind: title
        for name, controls in beside(corpora).items()
        if name != system
        for kind, title in zip([name, *(f"{name}.{control}" for control in controls)], gains_head(name, controls))
    }
    if not columns:
        return None
    found = {where: [figures_of(corpus, kind, metric) for kind in columns] for where, corpus in corpora.items()}
    rows = [[where.partition(" ")[2], *map(interval, row)] for where, row in found.items() if any(row)]
    title = f"{metric} gained over a plain Transformer with relative positions, by other systems with them"
    names = {kind.partition(".")[0] for kind in columns}
    counts = [
        count
        for corpus in corpora.values()
        for name, count in corpus.get("seeds", {}).items()
        if name.removeprefix("relative+").partition(".")[0] in names
    ]
    seeds = seeds_of(counts[0]) if len({*counts}) == 1 else f"{low_to_high(counts, '{}')} seeds"
    return Table(title, ["corpus", *columns.values()], rows, [f"{seeds} each"])


def beside(corpora: Corpora) -> dict[str, list[str]]:
    """The systems that were run with relative positions, each with its controls."""
    found: dict[str, list[str]] = {}
    for corpus in corpora.values():
        for row in corpus.get("metrics", {}).get("BLEU", {}).get("beside", []):
            controls = found.setdefault(row["system"], [])
            controls += [control for control in row["controls"] if control not in controls]
    return found


def relative_sentence(corpora: Corpora, system: str) -> str:
    """What relative positions gain, how a system compares with them, and what systems and controls add to them."""
    found = {where: corpus for where, corpus in corpora.items() if corpus.get("metrics")}
    if not found:
        return f"Whether {shown(system)} gives more than relative positions has not been measured yet."
    fewest = min(min(corpus["seeds"].values()) for corpus in found.values())
    few = f" ({seeds_of(fewest)})" if fewest < SEEDS else ""
    gains = verdicts(corpora, "gain")
    text = f"In BLEU, relative positions, which need no parse, make a plain Transformer {gains}"
    if compared := verdicts(corpora, "parse"):
        text += f". In comparison, {shown(system)} without them is {compared}"
    for name, its_controls in beside(corpora).items():
        text += f". With them, {shown(name)} is {verdicts(corpora, name)}"
        for control in its_controls[:1]:
            if syntax := verdicts(corpora, f"{name}.{control}", f" on *{control}* trees"):
                text += f"; on the parse, it is {syntax}"
    return f"{text}{few}."


def verdicts(corpora: Corpora, kind: str, other: str = "") -> str:
    """``significantly better in French (+1.0) and not significantly different on ATIS (+0.5)``; empty if not run.

    Args:
        other: with what it is compared, if that has to be said: `` on *linear* trees``
    """
    groups: dict[str, dict[str, float]] = {"better": {}, "worse": {}, "different": {}}
    for where, corpus in corpora.items():
        if figures := figures_of(corpus, kind):
            verdict = ("better" if figures[0] > 0 else "worse") if is_significant(figures) else "different"
            groups[verdict][where] = figures[0]
    parts = []
    for verdict, places in groups.items():
        if places:
            doubt, than = ("not ", " from that") if verdict == "different" else ("", " than")
            compared = f"{than}{other}" if other else ""
            sizes = low_to_high(list(places.values()), "{:+.1f}")
            parts.append(f"{doubt}significantly {verdict}{compared} {named_places(places, corpora)} ({sizes})")
            other = ""  # said once
    return listed(parts)


def named_places(places: Collection[str], of: Collection[str]) -> str:
    """``in French and German and on ATIS``, or ``in all six languages``."""
    languages, every = ([place[3:] for place in each if place.startswith("in ")] for each in (places, of))
    others = [place for place in places if not place.startswith("in ")]
    return " and ".join([*([f"in {named(languages, every)}"] if languages else []), *others])
