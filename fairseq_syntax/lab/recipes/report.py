"""A recipe's report as Markdown and as one HTML page, which begin with the main table."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.hardware import described
from fairseq_syntax.lab.recipes.layout import MAIN, Run
from fairseq_syntax.lab.recipes.layout import Table as Scored
from fairseq_syntax.lab.recipes.model_stages import tokenizer
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.schema import Published
from fairseq_syntax.lab.scoring.logs import Curves
from fairseq_syntax.lab.scoring.names import LOWER_IS_BETTER, METRICS
from fairseq_syntax.lab.scoring.report import DISTINCT, tables
from fairseq_syntax.lab.scoring.shares import by_table, share_table
from fairseq_syntax.lab.scoring.tables import Table, number, over_seeds
from fairseq_syntax.runtime.files import atomic_open, make_folder

_SHARES = """\
Gain is a system's score less that of {baseline}. A control is the same system, trained and tested on parses that have \
the form of the real ones and less, or nothing, of their syntax. What a system gains with a control, it does not owe \
to the syntax that the control leaves out; syntax is the score with the parse less the score with the control. \
Intervals hold 95 % of {draws} bootstrap draws over sentences and, where there are several, seeds: those from two or \
three seeds are too narrow where seeds differ by far more than sentences. No correction is made for the number of \
comparisons, and all share the runs of {baseline}."""


@dataclass
class Results:
    """The data of a report.

    Attributes:
        reports: for each scored table, the output of ``fairseq-syntax score --json``
        facts: for each finished run, ``seconds`` by kind of stage, ``commands``, and ``values`` by name
        environments: hardware and versions
        curves: for each run with a training log, its curves
    """

    reports: dict[Scored, Mapping[str, Any]]
    facts: dict[Run, Mapping[str, Any]]
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    curves: dict[Run, Curves] = field(default_factory=dict)


@dataclass
class Picture:
    """A figure in a file next to the report."""

    path: Path
    title: str


@dataclass
class Section:
    """A heading with paragraphs, tables, code (text beginning with ``$``) and pictures; collapsed if ``rest``."""

    title: str
    blocks: Sequence[str | Table | Picture]
    rest: bool = False


def write_report(plan: Plan, results: Results) -> tuple[Path, Path]:
    """Write report.md and report.html into the result folder.

    Returns:
        their paths

    Raises:
        SyntaxDataError: there are no results
    """
    if not results.reports:
        raise SyntaxDataError("there are no results yet", path=plan.folder, hint="run the recipe first")
    text = list(report(plan, results))
    sections = [*text, *pictures(plan, results)]
    pages = plan.folder / "report.md", plan.folder / "report.html"
    make_folder(plan.folder)
    with atomic_open(pages[0]) as file:
        file.write(as_markdown(plan, sections))
    if plan.recipe.page:  # next to the recipe, without pictures, which are in the result folder
        with atomic_open(plan.place(plan.recipe.page)) as file:
            file.write(as_markdown(plan, text))
    with atomic_open(pages[1]) as file:
        file.write(as_html(plan, sections))
    return pages


def report(plan: Plan, results: Results) -> Iterator[Section]:
    """The sections of a report."""
    recipe = plan.recipe
    for variant in [MAIN, *recipe.translate.variants]:
        for lines in ["", *recipe.score.lines]:
            if scored := [table for table in results.reports if (table.variant, table.lines) == (variant, lines)]:
                which = ", ".join(filter(None, [variant, lines]))
                title = f"Scores: {which}" if which else "Scores"
                yield Section(title, [main_table(plan, results, scored)])
    seeds = {
        name: [str(run.seed) for run in plan.runs if run.system == name and run not in results.facts]
        for name in recipe.systems
    }
    if missing := [f"{name} {', '.join(of)}" for name, of in seeds.items() if of]:
        yield Section("Not finished", [f"Systems and their seeds: {'; '.join(missing)}"])
    if recipe.published:
        yield Section("Published", published(plan, results))
    if any(facts["values"] for facts in results.facts.values()):
        yield Section("Measured beside", [of_systems(plan, results, "values", "Values", 2)])
    for table, scores in results.reports.items():
        if (shares := scores.get("shares")) is None:
            continue
        gains = [share_table(metric, rows, f"{metric}, {table}") for metric, rows in shares["metrics"].items() if rows]
        by = [by_table(metric, part) for metric, parts in shares["by"].items() for part in parts]
        yield Section(f"How much of each gain is syntax: {table}", gains[:1])
        rest = [*gains[1:], *filter(None, by)]
        how = _SHARES.format(baseline=shares["baseline"], draws=shares["draws"])
        yield Section(f"{table}: gains with controls", [*rest, how], rest=True)
    for table, scores in results.reports.items():
        yield Section(str(table), list(tables(dict(scores))), rest=True)
    parses = {system.parse for system in recipe.systems.values()}
    controls = [(name, control) for name, control in recipe.parse.controls.items() if name in parses]
    entries: list[tuple[str, Any]] = [*recipe.systems.items(), *controls]
    if descriptions := [f"{name}: {entry.about}" for name, entry in entries if entry.about]:
        yield Section("Systems", descriptions, rest=True)
    seconds = of_systems(plan, results, "seconds", "Seconds, mean over the seeds", 0)
    yield Section("Wall time", [seconds], rest=True)
    yield Section("Commands", ["Of the first seed of each system.", "$" + commands(plan, results)], rest=True)
    yield Section("Hardware and versions", [described(one) for one in results.environments], rest=True)


def main_table(plan: Plan, results: Results, scored: Sequence[Scored]) -> Table:
    """For each test set, the systems' scores and gains in the recipe's first metric, and their significance."""
    recipe = plan.recipe
    variant = recipe.translate.variants.get(scored[0].variant)
    baseline = (variant and variant.baseline) or recipe.baseline
    # In the order of the recipe, since stored reports sort metrics by name.
    signatures = results.reports[scored[0]]["signatures"]
    metric = next(name for key in recipe.score.metrics if (name := METRICS.get(key, DISTINCT)) in signatures)
    several = len(recipe.seeds) > 1
    header = ["system", *(["seeds"] if several else [])]
    for table in scored:
        header += [f"{metric}, {table.test}", "gain", "significant"]
    header += ["mean of the tests"] if recipe.score.mean else []
    rows = []
    for name in recipe.systems:
        entries = [_entry(results.reports[table], name) for table in scored]
        if not any(entries):
            continue
        seeds = dict.fromkeys(len(entry["runs"]) for entry in entries if entry)
        row = [name, *(["/".join(map(str, seeds))] if several else [])]
        for entry in entries:
            row += _cells(entry, metric, name == baseline)
        if recipe.score.mean:
            scores = [entry["mean"][metric] for entry in entries if entry]
            row.append(number(statistics.fmean(scores) if len(scores) == len(scored) else None))
        rows.append(row)
    compared = sum(row[0] != baseline for row in rows)
    notes = [f"gain over {baseline}; significant: p < 0.05 in {_bootstrap(results.reports[scored[0]])}"]
    notes[0] += f", with Holm's correction for {compared} comparisons" if compared > 1 else ""
    notes += ["± standard deviation over the seeds"] if several else []
    part = "".join(f", {each}" for each in (scored[0].variant, scored[0].lines) if each)
    return Table(f"{metric} of {recipe.name}{part}", header, rows, notes)


def _entry(report: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((system for system in report["systems"] if system["name"] == name), None)


def _bootstrap(report: Mapping[str, Any]) -> str:
    """Describe the bootstrap of a report by its signature, since some stored results used a one-sided one."""
    tests = [one for system in report["systems"] for one in system.get("tests", {}).values()]
    signature = next((one["bootstrap"]["signature"] for one in tests if "bootstrap" in one), "")
    parts = dict(part.split(":", 1) for part in signature.split("|") if part)
    sides = "one-sided " if parts.get("sides") == "1" else ""
    return f"the {sides}bootstrap over {parts.get('over', 'sentences and seeds')}"


def _cells(entry: Mapping[str, Any] | None, metric: str, is_baseline: bool) -> list[str]:
    """The cells of a system: score, gain and significance."""
    if entry is None:
        return ["–", "–", "–"]
    score = over_seeds(entry["mean"][metric], entry["sd"][metric])
    tests = entry.get("tests", {}).get(metric)
    if is_baseline or tests is None:
        return [score, "", ""]
    p = tests.get("holm", {}).get("bootstrap")
    worse = (tests["difference"] < 0) is not (metric in LOWER_IS_BETTER)
    said = "–" if p is None else "no" if p >= 0.05 else "yes, worse" if worse else "yes"
    return [score, f"{tests['difference']:+.2f}", said]


def pictures(plan: Plan, results: Results) -> Iterator[Section]:
    """Draw and save BLEU and gains by length, box plots of sentence scores, and perplexity during training."""
    from fairseq_syntax.lab.figures.plot import bleu_by_length, box_plot, gain_by_length, save, training_curves

    drawn: dict[str, dict[str, Any]] = {}
    score = plan.recipe.score
    metric = next((key for key in score.metrics if key in METRICS), None) if score.box else None
    for table, scores in results.reports.items():
        figures = drawn.setdefault(str(table), {})
        if "by_length" in scores:
            figures["BLEU by length"] = bleu_by_length(scores["by_length"])
            if scores.get("baseline") and len(scores["systems"]) > 1:
                figures["Gains by length"] = gain_by_length(scores["by_length"], scores["baseline"])
        if metric is not None and not table.lines and (by_system := sentence_scores(plan, table, scores, metric)):
            figures["Scores of sentences"] = box_plot(by_system, METRICS[metric])
    first: dict[str, Curves] = {}
    for run, curves in results.curves.items():
        if curves.get("valid", {}).get("ppl"):
            first.setdefault(run.system, curves)
    if first:
        drawn["training"] = {"Perplexity of the validation data": training_curves(first, ["ppl"])}
    for name, figures in drawn.items():
        saved = []
        for title, figure in figures.items():
            picture = Picture(plan.folder / "figures" / f"{name}.{title.lower().replace(' ', '-')}.svg", title)
            make_folder(picture.path.parent)
            save(figure, picture.path)
            saved.append(picture)
        if saved:
            yield Section(f"Figures: {name}", saved)


def sentence_scores(plan: Plan, table: Scored, report: Mapping[str, Any], metric: str) -> dict[str, np.ndarray]:
    """The sentence scores [N] of each system with outputs for a test set, averaged over its seeds.

    Args:
        metric: a key of :data:`.names.METRICS`
    """
    from fairseq_syntax.lab.scoring.metrics import Scorer
    from fairseq_syntax.lab.scoring.outputs import read_text, read_translations

    references = [path for path in plan.references(table.test) if path.exists()]
    if not references:
        return {}
    scorer = Scorer(metric, [read_text(path) for path in references], tokenizer(plan), plan.recipe.score.lowercase)
    scores = {}
    for system in report["systems"]:
        paths = [plan.output(run, table) for run in plan.runs if run.system == system["name"]]
        runs = [scorer.sentences(read_translations(path).lines) for path in paths if path.exists()]
        if runs:
            scores[system["name"]] = np.mean(runs, axis=0)
    return scores


def of_systems(plan: Plan, results: Results, what: str, title: str, digits: int) -> Table:
    """A table of further numbers of the systems: mean ± standard deviation over seeds.

    Args:
        what: which facts, ``values`` or ``seconds``
    """
    names = list(dict.fromkeys(name for facts in results.facts.values() for name in facts[what]))
    rows = []
    for system in plan.recipe.systems:
        of_runs = [facts[what] for run, facts in results.facts.items() if run.system == system]
        row = [system]
        for name in names:
            values = [one[name] for one in of_runs if name in one]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            row.append(over_seeds(statistics.fmean(values) if values else None, deviation, digits))
        if any(of_runs):
            rows.append(row)
    return Table(title, ["system", *names], rows)


def published(plan: Plan, results: Results) -> list[Table]:
    """One table for each table of a paper, with our scores in the same metric and test set next to them."""
    compared: list[Table] = []
    for source in dict.fromkeys(one.source for one in plan.recipe.published):
        some = [one for one in plan.recipe.published if one.source == source]
        titles = [", ".join(filter(None, [one.metric, one.test])) for one in some]
        ours = [measured(plan, results, one) for one in some]
        header = ["system"]
        for title, scores in zip(titles, ours):
            header += [title, f"{title}: ours"] if scores else [title]
        rows = []
        for name in dict.fromkeys(name for one in some for name in one.figures):
            row = [name]
            for one, scores in zip(some, ours):
                row += [number(one.figures.get(name)), *([number(scores.get(name))] if scores else [])]
            rows.append(row)
        notes = [f"{title}: {one.note}" for title, one in zip(titles, some) if one.note]
        compared.append(Table(source, header, rows, notes))
    return compared


def measured(plan: Plan, results: Results, one: Published) -> dict[str, float]:
    """Our scores in the metric of a paper's figures, by system; ``mean METRIC of the tests`` covers all test sets."""
    metric = one.metric.removeprefix("mean ").removesuffix(" of the tests")
    tests = plan.tests if metric != one.metric else [one.test] if one.test else plan.tests[:2]
    reports = [results.reports.get(Scored(test, lines=one.lines or "")) for test in tests]
    if metric == one.metric and len(reports) > 1:
        return {}  # the paper does not name the test set
    scores = {}
    for name in plan.recipe.systems:
        entries = [report and _entry(report, name) for report in reports]
        values = [entry["mean"].get(metric) for entry in entries if entry]
        if len(values) == len(tests) and None not in values:
            scores[name] = statistics.fmean(values)
    return scores


def commands(plan: Plan, results: Results) -> str:
    """The commands of the first finished run of each system."""
    parts = []
    for system in plan.recipe.systems:
        first = next((run for run in results.facts if run.system == system and results.facts[run]["commands"]), None)
        if first is not None:
            parts.append("\n".join([f"# {first}", *results.facts[first]["commands"]]))
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------------------------------------ pages


def as_markdown(plan: Plan, sections: Sequence[Section]) -> str:
    """The report as Markdown."""
    parts = [f"# {plan.recipe.name}", *([plan.recipe.about] if plan.recipe.about else [])]
    for section in sections:
        parts += ["<details>", f"<summary>{section.title}</summary>"] if section.rest else []
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Picture):
                parts.append(f"![{block.title}]({block.path.relative_to(plan.folder).as_posix()})")
            elif isinstance(block, Table):
                parts.append(block.render("markdown"))
            else:
                parts.append(f"```bash\n{block[1:]}\n```" if block.startswith("$") else block)
        parts += ["</details>"] if section.rest else []
    return "\n\n".join(parts) + f"\n\nWritten by `fairseq-syntax run {plan.path.name}`.\n"


def as_html(plan: Plan, sections: Sequence[Section]) -> str:
    """The report as one self-contained page."""
    name, about = html.escape(str(plan.recipe.name)), html.escape(plan.recipe.about)
    parts = [f"<h1>{name}</h1>", *([f"<p>{about}</p>"] if about else [])]
    for section in sections:
        inner = "\n".join(_html_block(block) for block in section.blocks)
        title = html.escape(section.title)
        folded = f"<details><summary>{title}</summary>{inner}</details>"
        parts.append(folded if section.rest else f"<h2>{title}</h2>{inner}")
    # The body is filled in last, since text in it may look like a placeholder.
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    for mark, text in {"RECIPE": html.escape(plan.path.name), "NAME": name, "BODY": "\n".join(parts)}.items():
        page = page.replace(f"__{mark}__", text)
    return page


def _html_block(block: str | Table | Picture) -> str:
    escape = html.escape
    if isinstance(block, Picture):
        text = block.path.read_text(encoding="utf-8")
        # In HTML, a drawing has no XML declaration.
        return f"<figure>{text[text.index('<svg') :]}<figcaption>{escape(block.title)}</figcaption></figure>"
    if isinstance(block, str):
        return f"<pre>{escape(block[1:])}</pre>" if block.startswith("$") else f"<p>{escape(block)}</p>"

    def row(cells: Sequence[str], tag: str) -> str:
        marked = (f"<{tag}{' class=yes' if cell.startswith('yes') else ''}>{escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(row(cells, "td") for cells in block.rows)
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in block.notes)
    caption = f"<caption>{escape(block.title)}</caption>"
    return f"<table>{caption}<thead>{row(block.header, 'th')}</thead><tbody>{body}</tbody></table>{notes}"
