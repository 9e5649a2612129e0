"""A recipe's report as Markdown and as one HTML page, which begin with the main table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.hardware import described
from fairseq_syntax.lab.recipes.layout import MAIN, Run, Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.schema import Published
from fairseq_syntax.lab.recipes.side_by_side import SideBySide, first_run, side_by_side
from fairseq_syntax.lab.recipes.verdict import (
    caption,
    command,
    leader,
    pairs_of,
    sentence,
    significance,
    told,
)
from fairseq_syntax.lab.scoring.evaluation import DISTINCT, score_tables
from fairseq_syntax.lab.scoring.logs import Curves
from fairseq_syntax.lab.scoring.names import METRICS, is_too_low, too_low
from fairseq_syntax.lab.scoring.shares import shares_tables as share_tables
from fairseq_syntax.lab.scoring.shares import units_drawn
from fairseq_syntax.lab.scoring.tables import Table, number, over_seeds
from fairseq_syntax.runtime.files import atomic_open, make_folder

SCORES = "Scores"  # the titles of the first sections begin with it
OTHER_LENGTH = 3  # percent of the references' tokens; in BLEU's brevity penalty, about as many percent of the score
_SHARES = """\
Gain is a system's score less that of {baseline}. A control is the same system, trained and tested on parses that have \
the form of the real ones and less, or nothing, of their syntax. What a system gains with a control can be had without \
the syntax that the control lacks. If the system loses with a control, the parse − control contains this loss, and \
does not measure syntax alone. Intervals hold 95 % of {draws} bootstrap draws over {over} and, where there are \
several, seeds: those from two or three seeds are too narrow where seeds differ by far more than sentences. All share \
the runs of {baseline}."""


@dataclass
class Results:
    """The data of a report.

    Attributes:
        reports: for each scored table, the output of ``fairseq-syntax score --json``
        facts: for each finished run, ``seconds`` by kind of stage, ``commands``, ``values`` by name and, if known, the
            number of training ``pairs``
        environments: hardware and versions
        curves: for each run with a training log, its curves
        unscored: finished runs that cannot be scored beside stored ones
    """

    reports: dict[Scored, Mapping[str, Any]]
    facts: dict[Run, Mapping[str, Any]]
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    curves: dict[Run, Curves] = field(default_factory=dict)
    unscored: Sequence[Run] = ()


@dataclass
class Picture:
    """A figure in a file next to the report."""

    path: Path
    title: str


@dataclass
class PageSection:
    """A heading with paragraphs, tables, code (text beginning with ``$``) and pictures; collapsed if ``rest``."""

    title: str
    blocks: Sequence[str | Table | Picture | SideBySide]
    rest: bool = False


def write_report(plan: Plan, results: Results) -> tuple[Path, Path]:
    """Write report.md and report.html into the result folder, and the recipe's page, and return the first two paths.

    Raises:
        SyntaxDataError: there are no results
    """
    if not results.reports:
        raise SyntaxDataError("there are no results yet", path=plan.folder, hint="run the recipe first")
    text = list(page_sections(plan, results))
    after = sum(section.title.startswith(SCORES) for section in text)
    sections = [*text[:after], *sentences_section(plan, results), *text[after:], *pictures(plan, results)]
    markdown, page = plan.folder / "report.md", plan.folder / "report.html"
    pages = {markdown: as_markdown(plan, sections), page: as_html(plan, sections)}
    if plan.recipe.page:  # next to the recipe, without pictures, which are in the result folder
        pages[plan.place(plan.recipe.page)] = as_markdown(plan, text)
    make_folder(plan.folder)
    for path, content in pages.items():
        with atomic_open(path) as file:
            file.write(content)
    return markdown, page


def page_sections(plan: Plan, results: Results) -> Iterator[PageSection]:
    """The sections of a report."""
    recipe = plan.recipe
    for variant in [MAIN, *recipe.translate.variants]:
        for lines in ["", *recipe.score.lines]:
            if scored := [table for table in results.reports if (table.variant, table.lines) == (variant, lines)]:
                title = ": ".join(filter(None, [SCORES, ", ".join(filter(None, [variant, lines]))]))
                yield PageSection(title, [*verdicts(plan, results, scored), main_table(plan, results, scored)])
    if missing := by_system([run for run in plan.runs if run not in results.facts]):
        yield PageSection("Not finished", [f"Systems and their seeds: {missing}"])
    if results.unscored:
        why = "The results that are kept have no translations to compare theirs with."
        yield PageSection("Not scored", [f"Systems and their seeds: {by_system(results.unscored)}. {why}"])
    if recipe.published:
        yield PageSection("Published", published(plan, results))
    if any(facts["values"] for facts in results.facts.values()):
        yield PageSection("Measured beside", [of_systems(plan, results, "values", "Values", 2)])
    for table, scores in results.reports.items():
        if (shares := scores.get("shares")) is None:
            continue
        gains, by = share_tables(scores, str(table))
        yield PageSection(f"The parse and controls: {table}", gains[:1])
        how = _SHARES.format(baseline=shares["baseline"], draws=shares["draws"], over=units_drawn(scores))
        yield PageSection(f"{table}: the parse and controls, further tables", [*gains[1:], *by, how], rest=True)
    for table, scores in results.reports.items():
        yield PageSection(str(table), list(score_tables(scores)), rest=True)
    parses = {system.parse for system in recipe.systems.values()}
    controls = {name: control for name, control in recipe.parse.controls.items() if name in parses}
    entries: list[tuple[str, Any]] = [*recipe.systems.items(), *controls.items()]
    if descriptions := [f"{name}: {entry.about}" for name, entry in entries if entry.about]:
        yield PageSection("Systems", descriptions, rest=True)
    seconds = of_systems(plan, results, "seconds", "Seconds, mean over the seeds", 0)
    yield PageSection("Wall time", [seconds], rest=True)
    yield PageSection(
        "Commands", ["Of the first seed of each system.", "$" + commands_section(plan, results)], rest=True
    )
    yield PageSection("Hardware and versions", [described(one) for one in results.environments], rest=True)


def verdicts(plan: Plan, results: Results, scored: Sequence[Scored]) -> list[str]:
    """A paragraph for each test set: which system is ahead, by how much, and whether that can be told."""
    metric, baseline = first_metric(plan, results.reports[scored[0]]), plan.baseline_of(scored[0])
    told = [sentence(results.reports[table], metric, baseline, table.test) for table in scored]
    return list(filter(None, told))


def sentences_section(plan: Plan, results: Results) -> Iterator[PageSection]:
    """Ten sentences of the first test set, as the baseline and the best other system translate them."""
    for table, scores in results.reports.items():
        baseline, metric = plan.baseline_of(table), first_metric(plan, scores)
        best = leader(scores, metric, baseline)
        runs = [first_run(plan, name, list(results.facts)) for name in (baseline, best) if name is not None]
        finished = [run for run in runs if run is not None]
        if len(finished) == 2 and not table.lines and (shown := side_by_side(plan, table, *finished)):
            yield PageSection(f"Sentences: {table}", shown)
            return


def first_metric(plan: Plan, report: Mapping[str, Any]) -> str:
    """The first of the recipe's metrics that a report has, since stored reports sort metrics by name."""
    names = [METRICS.get(key, DISTINCT) for key in plan.recipe.score.metrics]
    return next(name for name in names if name in report["signatures"])


def by_system(runs: Sequence[Run]) -> str:
    """Runs in words: each system with its seeds."""
    seeds: dict[str, list[str]] = {}
    for run in runs:
        seeds.setdefault(run.system, []).append(str(run.seed))
    return "; ".join(f"{system} {', '.join(of_system)}" for system, of_system in seeds.items())


def main_table(plan: Plan, results: Results, scored: Sequence[Scored]) -> Table:
    """For each test set, the systems' scores and gains in the recipe's first metric, and their significance."""
    recipe, several = plan.recipe, len(plan.recipe.seeds) > 1
    metric = first_metric(plan, results.reports[scored[0]])
    header = ["system"]
    header += ["seeds"] if several else []
    for table in scored:
        header += [f"{metric}, {table.test}", "gain", "significant"]
    header += ["mean of the tests"] if recipe.score.mean else []
    rows = [row for name in recipe.systems if (row := _row(plan, results, scored, name, metric))]
    title = filter(None, [f"{metric} of {recipe.name}", scored[0].variant, scored[0].lines, ran(plan, results)])
    below = _below_main(plan, results, scored, metric)
    return Table(", ".join(title), header, rows, below)


def _row(plan: Plan, results: Results, scored: Sequence[Scored], name: str, metric: str) -> list[Any]:
    """The row of a system in the main table; empty if it has not been scored."""
    entries = [_entry(results.reports[table], name) for table in scored]
    if not any(entries):
        return []
    row: list[Any] = [name]
    if len(plan.recipe.seeds) > 1:
        row.append("/".join(dict.fromkeys(str(len(entry["runs"])) for entry in entries if entry)))
    is_baseline = name == plan.baseline_of(scored[0])
    for table, entry in zip(scored, entries):
        row += _cells(entry, metric, is_baseline, is_too_low(results.reports[table], metric))
    if plan.recipe.score.mean:
        row.append(number(statistics.fmean(e["mean"][metric] for e in entries) if all(entries) else None))
    return row


def _below_main(plan: Plan, results: Results, scored: Sequence[Scored], metric: str) -> list[str]:
    """The sentences below the main table: what its marks mean, and what its first metric does not show."""
    reports = [results.reports[table] for table in scored]
    baseline = plan.baseline_of(scored[0])
    compared = max(sum(metric in one.get("tests", {}) for one in report["systems"]) for report in reports)
    corrected = f", with Holm's correction for {compared} comparisons" if compared > 1 else ""
    below = []
    if any(system.get("tests") for report in reports for system in report["systems"]):
        below.append(f"gain over {baseline}; significant: p < 0.05 in {_bootstrap(reports[0])}{corrected}")
    if any(is_too_low(report, metric) for report in reports):
        below.append(too_low(metric))
    if len(plan.recipe.seeds) > 1:
        below.append("± standard deviation over the seeds")
    below += told(plan)
    below += _in_other_metrics(results, scored, metric)
    below += _of_other_length(results, scored, baseline)
    return below


def ran(plan: Plan, results: Results) -> str:
    """The training pairs, parsers and seeds of the finished runs."""
    seeds = sorted({run.seed for run in results.facts})
    return caption(plan, pairs_of(list(results.facts.values())), seeds)


def _of_fewer_seeds(results: Results) -> str:
    """The systems that not all seeds were run of, in brackets; empty if there is none."""
    seeds = {run.seed for run in results.facts}
    runs: dict[str, list[Run]] = {}
    for run in results.facts:
        runs.setdefault(run.system, []).append(run)
    fewer = by_system([run for of in runs.values() if len(of) < len(seeds) for run in of])
    return f" ({fewer})" if fewer else ""


def _in_other_metrics(results: Results, scored: Sequence[Scored], metric: str) -> Iterator[str]:
    """Notes on the systems that another metric finds significantly better or worse, and the first one does not."""
    for table in scored:
        systems = results.reports[table]["systems"]
        for other in results.reports[table]["signatures"]:
            differing = []
            for system in systems:
                first, said = (significance(system, name) for name in (metric, other))
                if said.startswith("yes") and said != first:
                    differing.append(f"{system['name']} ({'worse' if said.endswith('worse') else 'better'})")
            if differing and not is_too_low(results.reports[table], other):
                yield f"significant in {other}, {table.test}, unlike in {metric}: {', '.join(differing)}"


def _of_other_length(results: Results, scored: Sequence[Scored], baseline: str) -> Iterator[str]:
    """Notes on the systems whose translations are so much shorter or longer than the baseline that BLEU differs."""
    for table in scored:
        report = results.reports[table]
        usual = _entry(report, baseline).get("length")  # not in older reports
        lengths = {system["name"]: system.get("length") for system in report["systems"]}
        differing = [
            f"{name} {length:.0f} %"
            for name, length in lengths.items()
            if usual and length and abs(length - usual) >= OTHER_LENGTH
        ]
        if differing:
            yield f"length of the translations, {table.test}: {baseline} {usual:.0f} %, {', '.join(differing)}"


def _entry(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a report says of a system; empty if nothing."""
    return next((system for system in report["systems"] if system["name"] == name), {})


def _bootstrap(report: Mapping[str, Any]) -> str:
    """Describe the bootstrap of a report by its signature, since some stored results used a one-sided one."""
    tests = [one for system in report["systems"] for one in system.get("tests", {}).values()]
    signature = next((one["bootstrap"]["signature"] for one in tests if "bootstrap" in one), "")
    parts = dict(part.split(":", 1) for part in signature.split("|") if part)
    sides, over = "one-sided " if parts.get("sides") == "1" else "", parts.get("over", "sentences and seeds")
    if all(len(system["runs"]) == 1 for system in report["systems"]):
        over = over.removesuffix(" and seeds")
    return f"the {sides}bootstrap over {over}"


def _cells(entry: Mapping[str, Any], metric: str, is_baseline: bool, is_low: bool) -> list[str]:
    """The cells of a system: score, gain and significance, which is left out if the scores are too low."""
    if not entry:
        return ["–", "–", "–"]
    score = over_seeds(entry["mean"][metric], entry["sd"][metric])
    tests = entry.get("tests", {}).get(metric)
    if is_baseline or tests is None:
        return [score, "", ""]
    return [score, f"{tests['difference']:+.2f}", "too low" if is_low else significance(entry, metric)]


def pictures(plan: Plan, results: Results) -> Iterator[PageSection]:
    """Draw and save BLEU and gains by length, box plots of sentence scores, and perplexity during training."""
    from fairseq_syntax.lab.figures.plot import bleu_by_length, box_plot, save_figure, training_curves

    drawn: dict[str, dict[str, Any]] = {}
    metric = next((key for key in plan.recipe.score.metrics if key in METRICS), "")
    for table, scores in results.reports.items():
        figures = drawn.setdefault(str(table), {})
        if "by_length" in scores:
            figures["BLEU by length"] = bleu_by_length(scores["by_length"])
            if scores.get("baseline") and len(scores["systems"]) > 1:
                figures["Gains by length"] = bleu_by_length(scores["by_length"], scores["baseline"])
        has_box = plan.recipe.score.box and metric and not table.lines
        if has_box and (by_system := sentence_scores(plan, results, table, metric)):
            figures["Scores of sentences"] = box_plot(by_system, METRICS[metric])
    first: dict[str, Curves] = {}
    for run, curves in results.curves.items():
        if curves.get("valid", {}).get("ppl"):
            first.setdefault(run.system, curves)
    if first:
        figures = drawn.setdefault("training", {})  # which may also be the name of a test set
        figures["Perplexity of the validation data"] = training_curves(first, ["ppl"])
    for name, figures in drawn.items():
        saved = []
        for title, figure in figures.items():
            path = plan.folder / "figures" / f"{name}.{title.lower().replace(' ', '-')}.svg"
            make_folder(path.parent)
            save_figure(figure, path)
            saved.append(Picture(path, title))
        if saved:
            yield PageSection(f"Figures: {name}", saved)


def sentence_scores(plan: Plan, results: Results, table: Scored, metric: str) -> dict[str, np.ndarray]:
    """The sentence scores [N] of each system with outputs for a test set, averaged over its seeds."""
    from fairseq_syntax.lab.scoring.metrics import Scorer
    from fairseq_syntax.lab.scoring.outputs import read_text, read_translations

    references = [path for path in plan.references(table.test) if path.exists()]
    if not references:
        return {}
    scorer = Scorer(metric, [read_text(path) for path in references], plan.tokenizer, plan.recipe.score.lowercase)
    runs: dict[str, list[np.ndarray]] = {system["name"]: [] for system in results.reports[table]["systems"]}
    for run in results.facts:
        path = plan.output(run, table)
        if run.system in runs and path.exists():
            runs[run.system].append(scorer.sentences(read_translations(path).lines))
    return {name: np.mean(of, axis=0) for name, of in runs.items() if of}


def of_systems(plan: Plan, results: Results, what: str, title: str, digits: int) -> Table:
    """A table of the systems' facts called ``what``: mean ± standard deviation over seeds."""
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
        header, columns, notes = ["system"], [], []
        some = [one for one in plan.recipe.published if one.source == source]
        for one in some:
            title = ", ".join(filter(None, [one.metric, one.test]))
            header.append(title)
            columns.append(one.figures)
            if ours := measured(plan, results, one):
                header.append(f"{title}: ours")
                columns.append(ours)
            elif one.test is None and _is_measured(results, one.metric):
                notes.append(f"{title}: ours are left out, since `published` does not name the test set")
            notes += [f"{title}: {one.note}"] if one.note else []
        if any(title.endswith(": ours") for title in header):
            of_paper = [f"ours: {run}{_of_fewer_seeds(results)}" for run in [ran(plan, results)] if run]
            notes += [*of_paper, *told(plan)]
        names = dict.fromkeys(name for one in some for name in one.figures)
        digits = max(2, *(len(repr(figure).partition(".")[2]) for one in some for figure in one.figures.values()))
        rows = [[name, *(number(column.get(name), digits) for column in columns)] for name in names]
        compared.append(Table(source, header, rows, notes))
    return compared


def _is_measured(results: Results, metric: str) -> bool:
    """Whether the reports have scores in a metric."""
    return any(metric in system["mean"] for report in results.reports.values() for system in report["systems"])


def measured(plan: Plan, results: Results, one: Published) -> dict[str, float]:
    """Our scores in the metric of a paper's figures, by system; ``mean METRIC of the tests`` covers all test sets."""
    metric = one.metric.removeprefix("mean ").removesuffix(" of the tests")
    tests = plan.tests if metric != one.metric else [one.test] if one.test else plan.tests[:2]
    if metric == one.metric and len(tests) > 1:
        return {}  # the paper does not name the test set
    reports = [
        results.reports.get(Scored(test, one.variant or MAIN, one.lines or ""), {"systems": []}) for test in tests
    ]
    scores = {}
    for name in plan.recipe.systems:
        values = [_entry(report, name).get("mean", {}).get(metric) for report in reports]
        if None not in values:
            scores[name] = statistics.fmean(values)
    return scores


def commands_section(plan: Plan, results: Results) -> str:
    """The commands of the first finished run of each system."""
    parts: dict[str, str] = {}
    for run, facts in results.facts.items():
        if facts["commands"]:
            parts.setdefault(run.system, "\n".join([f"# {run}", *facts["commands"]]))
    return "\n\n".join(parts[system] for system in plan.recipe.systems if system in parts)


# ------------------------------------------------------------------------------------------------------------ pages


def as_markdown(plan: Plan, sections: Sequence[PageSection]) -> str:
    """The report as Markdown."""
    parts = [f"# {plan.recipe.name}", plan.recipe.about]
    for section in sections:
        parts += ["<details>", f"<summary>{section.title}</summary>"] if section.rest else []
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Picture):
                parts.append(f"![{block.title}]({block.path.relative_to(plan.folder).as_posix()})")
            elif isinstance(block, Table):
                parts.append(block.render("markdown"))
            elif isinstance(block, SideBySide):
                parts.append(block.markdown())
            else:
                parts.append(f"```bash\n{block[1:]}\n```" if block.startswith("$") else block)
        parts += ["</details>"] if section.rest else []
    parts.append(f"Written by `{command(plan)}`.\n")
    return "\n\n".join(filter(None, parts))


def as_html(plan: Plan, sections: Sequence[PageSection]) -> str:
    """The report as one self-contained page."""
    name, about = escape(str(plan.recipe.name)), escape(plan.recipe.about)
    parts = [f"<h1>{name}</h1>", *([f"<p>{about}</p>"] if about else [])]
    for section in sections:
        inner, title = "\n".join(map(_html_block, section.blocks)), escape(section.title)
        folded = f"<details><summary>{title}</summary>{inner}</details>"
        parts.append(folded if section.rest else f"<h2>{title}</h2>{inner}")
    # The body is filled in last, since text in it may look like a placeholder.
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    for mark, text in {"COMMAND": escape(command(plan)), "NAME": name, "BODY": "\n".join(parts)}.items():
        page = page.replace(f"__{mark}__", text)
    return page


def _html_block(block: str | Table | Picture | SideBySide) -> str:
    if isinstance(block, Table):
        return block.render("html")
    if isinstance(block, SideBySide):
        return block.html()
    if isinstance(block, Picture):
        text = block.path.read_text(encoding="utf-8")
        # In HTML, a drawing has no XML declaration.
        return f"<figure>{text[text.index('<svg') :]}<figcaption>{escape(block.title)}</figcaption></figure>"
    return f"<pre>{escape(block[1:])}</pre>" if block.startswith("$") else f"<p>{escape(block)}</p>"
