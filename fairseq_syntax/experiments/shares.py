"""How much of a system's gain is syntax: its gain over a baseline with the parse, and with control parses.

A control parse has the form of a parse and less, or nothing, of its syntax (:mod:`fairseq_syntax.text.controls`).
What a system gains with it over the baseline is not due to the syntax that the control leaves out, but to parameters,
to one more objective, or to a bias towards neighbours. So of a system S, its twin S.c trained and tested on control
c, and a baseline B::

    gain          = score(S) − score(B)
    gain with c   = score(S.c) − score(B)
    syntax        = score(S) − score(S.c)
    kept with c   = gain with c / gain       the share of the gain that does not need the syntax

Intervals are percentiles over a bootstrap in which every draw resamples the sentences, the same for all systems, and
independently the seeds of each system. Of n seeds a draw takes n − 1 (Rao and Wu 1988, Resampling Inference With
Complex Survey Data): n of n would make the variance of a mean over n seeds too small by a factor of (n − 1) / n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_syntax.scoring.metrics import Scorer
from fairseq_syntax.scoring.properties import Property, interval_label
from fairseq_syntax.scoring.significance import LEAST_SENTENCES
from fairseq_syntax.scoring.tables import Table, number
from fairseq_syntax.text.conllu import ParsedLine

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


class Resampled:
    """Scores of systems, as they are and in each draw of the bootstrap.

    Args:
        scorer: the metric and the references
        runs: of each system its translations by each seed
        draws: of the bootstrap
        seed: of the random numbers
        subset: 0-based numbers of the sentences to look at (default: all)

    Attributes:
        score: of each system, the mean over its seeds
        scores: of each system, [draws] float64
    """

    def __init__(
        self,
        scorer: Scorer,
        runs: Mapping[str, Sequence[Sequence[str]]],
        draws: int = 1000,
        seed: int = 1,
        subset: Sequence[int] | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.score: dict[str, float] = {}
        self.scores: dict[str, Floats] = {}
        counts: NDArray[np.int64] | None = None
        for system, translations in runs.items():
            per_seed = []
            for lines in translations:
                statistics = np.asarray(scorer.statistics(lines), dtype=np.float64)
                if subset is not None:
                    statistics = statistics[list(subset)]
                size = len(statistics)
                if counts is None:
                    counts = rng.multinomial(size, np.full(size, 1 / size), size=draws)
                sums = np.concatenate((statistics.sum(0, keepdims=True), counts @ statistics))
                per_seed.append(np.array([scorer.of_sums(row) for row in sums]))
            table = np.stack(per_seed)  # [seeds, 1 + draws]
            n = len(table)
            self.score[system] = float(table[:, 0].mean())
            taken = rng.integers(n, size=(max(n - 1, 1), draws))
            self.scores[system] = np.take_along_axis(table[:, 1:], taken, axis=0).mean(0)

    def difference(self, system: str, other: str) -> Estimate:
        """``score(system) − score(other)``."""
        return _estimate(self.score[system] - self.score[other], self.scores[system] - self.scores[other])

    def ratio(self, system: str, other: str, baseline: str) -> Estimate | None:
        """The gain of ``system`` over the gain of ``other``; None where the interval of the latter has 0 in it."""
        if not self.difference(other, baseline).above_zero:
            return None
        base = self.scores[baseline]
        value = (self.score[system] - self.score[baseline]) / (self.score[other] - self.score[baseline])
        gains = self.scores[other] - base
        ratios = np.divide(self.scores[system] - base, gains, out=np.full_like(gains, np.inf), where=gains > 0)
        return _estimate(value, ratios)


def _estimate(value: float, draws: Floats) -> Estimate:
    low, high = np.percentile(draws, (2.5, 97.5), method="nearest")
    return Estimate(float(value), float(low), float(high))


def measure(
    scorer: Scorer,
    runs: Mapping[str, Sequence[Sequence[str]]],
    baseline: str,
    controls: Sequence[str],
    *,
    draws: int = 1000,
    seed: int = 1,
    subset: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """The gain of every system, and what is left of it with each control.

    Args:
        scorer: a metric of which more is better
        runs: of each system its translations by each seed; the twin of S that control c trained is called ``S.c``
        baseline: one of them
        controls: names of controls; those of which a system has no twin are left out
        draws, seed, subset: as in :class:`Resampled`

    Returns:
        for each system that is no twin: ``system``, ``seeds``, ``gain``, and ``controls`` by name with ``seeds``,
        ``gain``, ``syntax`` and ``kept`` (None where the gain may be 0). Figures are [value, low, high].
    """
    resampled = Resampled(scorer, runs, draws, seed, subset)
    twins = {name for name in runs if name.rpartition(".")[2] in controls}  # whose system may not be finished
    rows = []
    for system in runs:
        if system == baseline or system in twins:
            continue
        row: dict[str, Any] = {"system": system, "seeds": len(runs[system])}
        row["gain"] = _plain(resampled.difference(system, baseline))
        row["controls"] = {}
        for control in controls:
            twin = f"{system}.{control}"
            if twin in runs:
                row["controls"][control] = {
                    "seeds": len(runs[twin]),
                    "gain": _plain(resampled.difference(twin, baseline)),
                    "syntax": _plain(resampled.difference(system, twin)),
                    "kept": _plain(resampled.ratio(twin, system, baseline)),
                }
        rows.append(row)
    return rows


def measure_by(
    scorer: Scorer,
    runs: Mapping[str, Sequence[Sequence[str]]],
    baseline: str,
    controls: Sequence[str],
    parses: Sequence[ParsedLine],
    properties: Sequence[Property],
    *,
    draws: int = 1000,
) -> list[dict[str, Any]]:
    """:func:`measure` in the intervals of each property of the source's parse.

    Args:
        parses: of the source's lines

    Returns:
        ``{"property", "intervals"}``, and of each interval ``{"over", "to", "sentences", "rows"}``
    """
    found = []
    for prop in properties:
        intervals = []
        for interval in prop.intervals(prop.values(parses)):
            chosen = interval.lines.tolist()
            entry: dict[str, Any] = {"over": interval.over, "to": interval.to, "sentences": len(chosen)}
            entry["rows"] = measure(scorer, runs, baseline, controls, draws=draws, subset=chosen)
            intervals.append(entry)
        found.append({"property": prop.name, "intervals": intervals})
    return found


def _plain(estimate: Estimate | None) -> list[float] | None:
    return None if estimate is None else [estimate.value, estimate.low, estimate.high]


def share_table(metric: str, rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows of :func:`measure` as a table: a line for each system and control."""
    body = []
    for row in rows:
        first = [row["system"], str(Estimate(*row["gain"]))]
        if not row["controls"]:
            body.append([*first, "", "", "", ""])
        for control, found in row["controls"].items():
            kept = "" if found["kept"] is None else percent(found["kept"])
            figures = [str(Estimate(*found[what])) for what in ("gain", "syntax")]
            body.append([*first, control, *figures, kept])
            first = ["", ""]
    header = ["system", f"gain, {metric}", "control", "gain with it", "syntax", "kept with it"]
    notes = ["in brackets: 95 % intervals over sentences, and over seeds where there are several"]
    if any(found["kept"] is None for row in rows for found in row["controls"].values()):
        notes.append("no share is given of a gain that may be 0")
    return Table(title, header, body, notes)


def by_table(metric: str, found: Mapping[str, Any]) -> Table | None:
    """One property of :func:`measure_by` as a table: gains, and what the parse adds to each control; None: no rows."""

    def shown(figures: Sequence[float], sentences: int) -> str:
        return str(Estimate(*figures)) if sentences >= LEAST_SENTENCES else f"{figures[0]:+.2f}"

    header, rows = ["", *(interval_label(found["property"], i["over"], i["to"]) for i in found["intervals"])], []
    for place, row in enumerate(found["intervals"][0]["rows"]):
        of_intervals = [(interval["rows"][place], interval["sentences"]) for interval in found["intervals"]]
        rows.append([f"{row['system']}, gain", *(shown(one["gain"], n) for one, n in of_intervals)])
        for control in row["controls"]:
            cells = (shown(one["controls"][control]["syntax"], n) for one, n in of_intervals)
            rows.append([f"{row['system']}, syntax against {control}", *cells])
    if not rows:
        return None
    rows.insert(0, ["sentences", *(str(interval["sentences"]) for interval in found["intervals"])])
    notes = ["in brackets: 95 % intervals over sentences, and over seeds where there are several"]
    if any(interval["sentences"] < LEAST_SENTENCES for interval in found["intervals"]):
        notes.append(f"none for fewer than {LEAST_SENTENCES} sentences")
    return Table(f"{metric} by {found['property']}", header, rows, notes)


def percent(figures: Sequence[float]) -> str:
    """A share and its interval in percent."""
    value, low, high = (number(100 * figure, 0) for figure in figures)
    return f"{value} % ({low} to {high})"
