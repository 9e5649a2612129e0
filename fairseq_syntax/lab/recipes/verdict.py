"""In words: how much of each system's gain is syntax, from the shares of the test sets and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.scoring.shares import Estimate

_HOW_TO_READ = """\
Gain is a system's score less that of {baseline}. A control is the same system, trained and tested on parses that \
have the form of the real ones and not their syntax: {controls}. What a system gains with a control, it owes to \
something other than the syntax that the control leaves out. Syntax is what remains: the score with the parse less \
the score with the control. Kept is the share of the gain that the control keeps. Intervals hold 95 % of {draws} \
bootstrap draws, each of which takes other sentences (the same for all systems) and, where a system has several \
seeds, adds what its seeds differ beyond what these sentences make them differ. An interval from one seed says \
nothing of how another seed would come out, and those from two or three are too narrow where seeds differ by far \
more than sentences. Not significant means that the interval has 0 in it. No correction is made for the number of \
comparisons, and all of them share the runs of {baseline}. What holds for this corpus, this parser and models of \
this size, trained for this long, need not hold for others."""


class Measure(NamedTuple):
    """What a figure was measured in."""

    metric: str
    test: str

    def __str__(self) -> str:
        return f"{self.metric} on {self.test}"


def verdict(plan: Plan, shares: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """A paragraph for each system: does it gain, what of the gain does each control keep, is any of it syntax?

    Args:
        shares: of each test set, what :func:`.scoring.shares.shares` says

    Returns:
        the paragraphs, and how they are to be read
    """
    one = next(iter(shares.values()))
    baseline, asked = one["baseline"], one["controls"]
    rows: dict[str, list[tuple[Measure, Mapping[str, Any]]]] = {}
    for test, entry in shares.items():
        for metric, of in entry["metrics"].items():
            for row in of:
                rows.setdefault(row["system"], []).append((Measure(metric, test), row))
    paragraphs = []
    for system in [name for name in plan.recipe.systems if name in rows]:
        gains = {where: Estimate(*row["gain"]) for where, row in rows[system]}
        lines = [f"**{system}** against {baseline}: {_told(gains)}."]
        of_syntax: dict[str, dict[Measure, Estimate]] = {}
        for control in asked:
            with_it = [(where, row["controls"][control]) for where, row in rows[system] if control in row["controls"]]
            if with_it:
                of_syntax[control] = {where: Estimate(*row["syntax"]) for where, row in with_it}
                lines.append(_of_control(control, of_syntax[control], [row["kept"] for _, row in with_it]))
        planned = [control for control in asked if f"{system}.{control}" in plan.recipe.systems]
        lines.append(_conclusion(gains, of_syntax, [c for c in planned if len(of_syntax.get(c, ())) < len(gains)]))
        seeds = {system: min(row["seeds"] for _, row in rows[system])}
        for _, row in rows[system]:
            for control, twin in row["controls"].items():
                name = f"{system}.{control}"
                seeds[name] = min(twin["seeds"], seeds.get(name, twin["seeds"]))
        if lone := [name for name, count in seeds.items() if count == 1]:
            lines.append(f"One seed of {enumerated(lone)}: this is said of these runs, and not of others.")
        paragraphs.append(" ".join(lines))
    if not paragraphs:
        return [f"{baseline} is finished, and no other system is."], []
    controls = plan.recipe.parse.controls
    named = "; ".join(f"{name}{f', {controls[name].about}' if controls[name].about else ''}" for name in asked)
    how = [_HOW_TO_READ.format(baseline=baseline, controls=named, draws=one["draws"])]
    own = {Measure(m, test): s for test, e in shares.items() for m, s in e.get("own", {}).items() if s is not None}
    if own:
        said = enumerated(f"{share:.1f} ({where})" for where, share in own.items())
        how.append(
            "How well intervals over seeds hold depends on how much of a seed's score is its own, here as its standard "
            f"deviation over all systems, in those that the sentences give to a seed's score: {said}."
        )
    return paragraphs, how


def _told(figures: Mapping[Measure, Estimate]) -> str:
    """The figures, and which of them their intervals call significant."""
    tests: dict[str, list[str]] = {}
    for where, figure in figures.items():
        tests.setdefault(where.test, []).append(f"{figure.value:+.2f} {where.metric}")
    values = "; ".join(f"{enumerated(of_test)} on {test}" for test, of_test in tests.items())
    above = [str(where) for where, figure in figures.items() if figure.above_zero]
    below = [str(where) for where, figure in figures.items() if figure.high < 0]
    if len(above) == len(figures):
        return f"{values}: significant"
    if len(below) == len(figures):
        return f"{values}: a significant loss"
    if not above and not below:
        return f"{values}: not significant"
    said = [f"significant in {enumerated(above)}"] if above else []
    said += [f"a significant loss in {enumerated(below)}"] if below else []
    rest = "" if len(above) + len(below) == len(figures) else "; the rest is not significant"
    return f"{values}: {', '.join(said)}{rest}"


def _of_control(control: str, of_syntax: Mapping[Measure, Estimate], kept: Sequence[Sequence[float] | None]) -> str:
    shares = sorted(round(100 * share[0]) for share in kept if share is not None)
    text = f"The parse against the control *{control}*: {_told(of_syntax)}"
    if shares:
        between = f"{shares[0]} %" if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]} %"
        text += f"; with *{control}* it keeps {between} of its gain"
    return text + "."


def _conclusion(
    gains: Mapping[Measure, Estimate], of_syntax: Mapping[str, Mapping[Measure, Estimate]], unfinished: Sequence[str]
) -> str:
    """What the intervals say of the question itself."""
    gained = [where for where, gain in gains.items() if gain.above_zero]
    lines = [] if gained else ["No gain is shown, of which a part could be syntax."]
    if gained and not of_syntax and not unfinished:
        lines.append("No control is planned for it: what of its gain is syntax is open.")
    for control, figures in of_syntax.items() if gained else ():
        measures = [str(where) for where in gained if where in figures and figures[where].above_zero]
        if measures:
            lines.append(f"Part of the gain is syntax that *{control}* parses lack, in {enumerated(measures)}.")
        else:
            lines.append(f"No part of the gain is shown to need more than what *{control}* parses have.")
    lines += [f"The control *{control}* is not finished." for control in unfinished]
    return " ".join(lines)


def enumerated(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
