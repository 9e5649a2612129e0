"""A recipe's report, as Markdown and as one HTML page: the table that a reader looks for, and then the rest."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_syntax.lab.recipes.environment import described
from fairseq_syntax.lab.recipes.layout import MAIN, Run, located
from fairseq_syntax.lab.recipes.layout import Table as Scored
from fairseq_syntax.lab.recipes.model_stages import tokenizer
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.schema import Published
from fairseq_syntax.lab.recipes.verdict import verdict
from fairseq_syntax.lab.scoring.logs import Curves
from fairseq_syntax.lab.scoring.names import LOWER_IS_BETTER, METRICS
from fairseq_syntax.lab.scoring.report import DISTINCT, tables
from fairseq_syntax.lab.scoring.shares import by_table, share_table
from fairseq_syntax.lab.scoring.tables import Table, number
from fairseq_syntax.runtime.files import atomic_open, make_folder


@dataclass
class Results:
    """What a report is written from.

    Attributes:
        reports: of each scored table, what ``fairseq-syntax score --json`` wrote
        facts: of each finished run: ``seconds`` by kind of stage, ``commands``, ``values`` by name
        environments: hardware and versions
        curves: of each run whose training log is there
    """

    reports: Mapping[Scored, Mapping[str, Any]]
    facts: Mapping[Run, Mapping[str, Any]]
    environments: Sequence[Mapping[str, Any]] = ()
    curves: Mapping[Run, Curves] = field(default_factory=dict)


@dataclass
class Picture:
    """A figure, in a file beside the report."""

    path: Path
    title: str


@dataclass
class Section:
    """A heading with paragraphs, tables, code (texts that begin with ``$``) and pictures; ``rest``: folded away."""

    title: str
    blocks: Sequence[str | Table | Picture]
    rest: bool = False


def write_report(plan: Plan, results: Results) -> tuple[Path, Path]:
    """Write report.md and report.html into the recipe's folder; their paths."""
    text = list(report(plan, results))
    sections = [*text, *pictures(plan, results)]
    pages = plan.folder / "report.md", plan.folder / "report.html"
    make_folder(plan.folder)
    with atomic_open(pages[0]) as file:
        file.write(as_markdown(plan, sections))
    if plan.recipe.page:  # beside the recipe, without the pictures, which are the folder's
        with atomic_open(located(plan.recipe.page, plan.base)) as file:
            file.write(as_markdown(plan, text))
    with atomic_open(pages[1]) as file:
        file.write(as_html(plan, sections, results))
    return pages


def report(plan: Plan, results: Results) -> Iterator[Section]:
    """The sections of a report."""
    recipe = plan.recipe
    for variant in [MAIN, *recipe.translate.variants]:
        for lines in ["", *recipe.score.lines]:
            some = [t for t in results.reports if t.variant == variant and t.lines == lines]
            if some:
                said = ", ".join(filter(None, [variant, lines]))
                blocks: list[str | Table] = [main_table(plan, results, some)]
                yield Section(f"Scores: {said}" if said else "Scores", blocks)
    if missing := unfinished(plan, results):
        yield Section("Not finished", [missing])
    values = values_table(plan, results)
    if values is not None:
        yield Section("Measured beside", [values])
    shares = {str(table): one["shares"] for table, one in results.reports.items() if "shares" in one}
    if shares:
        words, how = verdict(plan, shares)
        yield Section("How much of each gain is syntax", list(words))
        yield Section("How to read these shares", list(how), rest=True)
        for name, one in shares.items():
            found = [share_table(metric, rows, f"{metric}, {name}") for metric, rows in one["metrics"].items() if rows]
            by = [by_table(metric, each) for metric, of in one["by"].items() for each in of]
            yield Section(
                f"{name}: gains with controls", [*found, *(each for each in by if each is not None)], rest=True
            )
    if recipe.published:
        yield Section("Published", published(plan, results))
    for table, one in results.reports.items():
        yield Section(str(table), list(tables(dict(one))), rest=True)
    about = {name: one.about for name, one in recipe.systems.items() if one.about}
    if about:
        yield Section("Systems", [f"{name}: {text}" for name, text in about.items()], rest=True)
    yield Section("Wall time", [seconds_table(plan, results)], rest=True)
    yield Section("Commands", ["Of the first seed of each system.", "$" + commands(plan, results)], rest=True)
    yield Section("Hardware and versions", [described(dict(one)) for one in results.environments], rest=True)


def main_table(plan: Plan, results: Results, scored: Sequence[Scored]) -> Table:
    """System, score, gain and whether it is significant, for each test set, in the recipe's first metric."""
    recipe = plan.recipe
    variant = recipe.translate.variants.get(scored[0].variant)
    baseline = (variant and variant.baseline) or recipe.baseline
    # By the recipe: kept reports have their metrics in the order of their names.
    there = results.reports[scored[0]]["signatures"]
    metric = next(n for key in recipe.score.metrics if (n := METRICS.get(key, DISTINCT)) in there)
    lines = scored[0].lines or None
    # a paper's figures in another metric stand in a table of their own
    figures = [one for one in recipe.published if one.metric == metric and one.lines == lines]
    figures = figures if scored[0].variant == MAIN else []
    header, several = ["system"], len(recipe.seeds) > 1
    header += ["seeds"] if several else []
    for table in scored:
        header += [f"{metric}, {table.test}", "gain", "significant"]
        header += [one.source for one in figures if one.test == table.test]
    header += [one.source for one in figures if one.test is None]
    means = (
        [one for one in recipe.published if one.metric == f"mean {metric} of the tests" and figures]
        if recipe.score.mean
        else []
    )
    header += ["mean of the tests", *(one.source for one in means)] if recipe.score.mean else []
    rows = []
    names = [name for name in recipe.systems if any(_entry(results.reports[t], name) for t in scored)]
    names += [name for one in figures for name in one.figures if name not in recipe.systems]
    for name in dict.fromkeys(names):
        entries = [_entry(results.reports[table], name) for table in scored]
        row = [name]
        row += ["/".join(str(n) for n in dict.fromkeys(len(e["runs"]) for e in entries if e)) or "–"] if several else []
        for table, entry in zip(scored, entries):
            row += _cells(entry, metric, name == baseline)
            row += [number(one.figures.get(name)) for one in figures if one.test == table.test]
        row += [number(one.figures.get(name)) for one in figures if one.test is None]
        if recipe.score.mean:
            scores = [entry["mean"][metric] for entry in entries if entry]
            row.append(number(statistics.fmean(scores) if len(scores) == len(scored) else None))
            row += [number(one.figures.get(name)) for one in means]
        rows.append(row)
    compared = sum(1 for name in names if name in recipe.systems and name != baseline)
    notes = [f"gain over {baseline}; significant: p < 0.05 in the bootstrap over sentences and seeds"]
    notes[0] += f", with Holm's correction for {compared} comparisons" if compared > 1 else ""
    if results.reports[scored[0]].get("format", 2) < 2:
        notes[0] = notes[0].replace("sentences and seeds", "sentences, one-sided, by an earlier version")
    notes += ["± standard deviation over the seeds"] if several else []
    return Table(f"{metric} of {recipe.name}", header, rows, notes)


def _entry(report: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((system for system in report["systems"] if system["name"] == name), None)


def _cells(entry: Mapping[str, Any] | None, metric: str, is_baseline: bool) -> list[str]:
    """Score, gain and whether it is significant."""
    if entry is None:
        return ["–", "–", "–"]
    deviation = entry["sd"][metric]
    score = number(entry["mean"][metric]) + (f" ± {number(deviation)}" if deviation is not None else "")
    tests = entry.get("tests", {}).get(metric)
    if is_baseline or tests is None:
        return [score, "", ""]
    p = tests.get("holm", {}).get("bootstrap")
    worse = (tests["difference"] < 0) is not (metric in LOWER_IS_BETTER)
    said = "–" if p is None else "no" if p >= 0.05 else "yes, worse" if worse else "yes"
    return [score, f"{tests['difference']:+.2f}", said]


def pictures(plan: Plan, results: Results) -> Iterator[Section]:
    """Draw and save: BLEU and gains by length, box plots of the sentences' scores."""
    from fairseq_syntax.lab.figures.plot import bleu_by_length, box_plot, gain_by_length, save

    folder = plan.folder / "figures"
    for table, one in results.reports.items():
        drawn = {}
        if "by_length" in one:
            drawn["BLEU by length"] = bleu_by_length(one["by_length"])
            if one.get("baseline") and len(one["systems"]) > 1:
                drawn["Gains by length"] = gain_by_length(one["by_length"], one["baseline"])
        if plan.recipe.score.box and not table.lines and (scores := sentence_scores(plan, table, one)):
            metric = next(METRICS[key] for key in plan.recipe.score.metrics if key in METRICS)
            drawn["Scores of sentences"] = box_plot(scores, metric)
        saved = []
        for title, figure in drawn.items():
            make_folder(folder)
            picture = Picture(folder / f"{table}.{title.lower().replace(' ', '-')}.svg", title)
            save(figure, picture.path)
            saved.append(picture)
        if saved:
            yield Section(f"Figures: {table}", saved)


def sentence_scores(plan: Plan, table: Scored, report: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Each system's scores [N] of the sentences of a test, mean over its seeds; of systems whose outputs are there."""
    from fairseq_syntax.lab.scoring.metrics import Scorer
    from fairseq_syntax.lab.scoring.outputs import read_text, read_translations

    score = plan.recipe.score
    references = [path for path in plan.references(table.test) if path.exists()]
    key = next((key for key in score.metrics if key in METRICS), None)
    if key is None or not references:
        return {}
    scorer = Scorer(key, [read_text(path) for path in references], tokenizer(plan), score.lowercase)
    scores = {}
    for system in report["systems"]:
        paths = [plan.output(run, table.test, table.variant) for run in plan.runs if run.system == system["name"]]
        runs = [scorer.sentences(read_translations(path).lines) for path in paths if path.exists()]
        if runs:
            scores[system["name"]] = np.mean(runs, axis=0)
    return scores


def unfinished(plan: Plan, results: Results) -> str:
    """The runs that have no scores; empty where all have."""
    scored: set[tuple[str, int]] = set()
    for one in results.reports.values():
        scored |= {(system["name"], len(system["runs"])) for system in one["systems"]}
    counts = {name: max((n for other, n in scored if other == name), default=0) for name in plan.recipe.systems}
    planned = {name: len(system.seeds or plan.recipe.seeds) for name, system in plan.recipe.systems.items()}
    missing = [f"{name} ({counts[name]} of {planned[name]} seeds)" for name in planned if counts[name] < planned[name]]
    return ", ".join(missing)


def values_table(plan: Plan, results: Results) -> Table | None:
    """Numbers of the runs beside their scores: mean ± standard deviation over the seeds."""
    names = list(dict.fromkeys(name for facts in results.facts.values() for name in facts["values"]))
    rows = []
    for system in plan.recipe.systems:
        row, own = [system], [facts["values"] for run, facts in results.facts.items() if run.system == system]
        for name in names:
            found = [values[name] for values in own if name in values]
            text = number(statistics.fmean(found) if found else None)
            if len(found) > 1:
                text += f" ± {number(statistics.stdev(found))}"
            row.append(text)
        if own and any(own):
            rows.append(row)
    return Table("Values", ["system", *names], rows) if rows else None


def published(plan: Plan, results: Results) -> list[Table]:
    """Figures of papers, a table for each of theirs, with ours of the same metric and test beside them."""
    found: list[Table] = []
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
        found.append(Table(source, header, rows, notes))
    return found


def measured(plan: Plan, results: Results, one: Published) -> dict[str, float]:
    """Our scores of what a paper's figures measure, by system; of no test alone, those of the recipe's only test."""
    tests = [one.test] if one.test else plan.tests
    report = results.reports.get(Scored(tests[0])) if len(tests) == 1 else None
    scores = {system["name"]: system["mean"].get(one.metric) for system in report["systems"]} if report else {}
    return {name: score for name, score in scores.items() if score is not None}


def seconds_table(plan: Plan, results: Results) -> Table:
    """Mean seconds of a run's stages."""
    kinds = list(dict.fromkeys(kind for facts in results.facts.values() for kind in facts["seconds"]))
    rows = []
    for system in plan.recipe.systems:
        own = [facts["seconds"] for run, facts in results.facts.items() if run.system == system]
        if own:
            means = [[seconds[kind] for seconds in own if kind in seconds] for kind in kinds]
            rows.append([system, *(number(statistics.fmean(of) if of else None, 0) for of in means)])
    return Table("Seconds, mean over the seeds", ["system", *kinds], rows)


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


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
caption { text-align: left; font-weight: 600; }
pre { overflow-x: auto; background: #8881; padding: 1rem; font-size: 13px; }
summary { cursor: pointer; font-weight: 600; margin: .75rem 0; }
.note { font-size: 85%; opacity: .8; margin: .1rem 0; }
.yes { font-weight: 600; }
svg { max-width: 100%; height: auto; background: #fff; }
"""


def as_html(plan: Plan, sections: Sequence[Section], results: Results) -> str:
    """The report as one page that needs nothing else."""
    escape = html.escape
    name = escape(str(plan.recipe.name))
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
    head += f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
    parts = [head, f"<body><h1>{name}</h1>", *([f"<p>{escape(plan.recipe.about)}</p>"] if plan.recipe.about else [])]
    for section in sections:
        inner = "\n".join(_html_block(block) for block in section.blocks)
        title = escape(section.title)
        if section.rest:
            parts.append(f"<details><summary>{title}</summary>{inner}</details>")
        else:
            parts.append(f"<h2>{title}</h2>{inner}")
    drawn = _curves(results)
    parts += [f"<h2>Training</h2>{drawn}"] if drawn else []
    return "\n".join(
        [*parts, f"<p class=note>Written by fairseq-syntax run {escape(plan.path.name)}</p></body></html>\n"]
    )


def _html_block(block: str | Table | Picture) -> str:
    escape = html.escape
    if isinstance(block, Picture):
        text = block.path.read_text(encoding="utf-8")
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


def _curves(results: Results) -> str:
    """The perplexity of the validation data over updates, of the first seed of each system, as SVG; empty without."""
    first: dict[str, Curves] = {}
    for run, curves in results.curves.items():
        if curves.get("valid", {}).get("ppl"):
            first.setdefault(run.system, curves)
    if not first:
        return ""
    import io

    from fairseq_syntax.lab.figures.plot import training_curves

    text = io.StringIO()
    training_curves(first, ["ppl"]).savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
