"""Writes the pages of the site that come from elsewhere: READMEs, tables, the command line, the options of systems.

They go to ``docs/generated``, which git ignores. A link of a README to another page becomes a link to that page, one to
any other file of the project becomes a download; one that leads nowhere stops the build.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from bench.harness import records
from fairseq_syntax.corpus.multitask import linearize

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUT = DOCS / "generated"

# Read as they are: file -> page. Those of examples/ come to them.
FIXED = {
    "docs/ways.md": "results/ways.md",
    "fairseq_syntax/README.md": "house.md",
    "fairseq_syntax/corpus/store/README.md": "store.md",
    "fairseq_syntax/corpus/parsing/README.md": "parsing.md",
    "fairseq_syntax/corpus/readers/README.md": "corpora.md",
    "preprocess/README.md": "preprocess.md",
    "emulated_cuda/README.md": "emulated-cuda.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

# What the tables of recipes are called on the site, by their pages; recipes have short names.
TITLES = {
    "cpu": "Multi30k: all systems, six epochs",
    "field": "Multi30k: newer Transformers, six epochs",
    "lstm": "Multi30k: LSTMs, eight epochs",
    "field-lstm": "Multi30k: newer LSTMs, eight epochs",
    "lasyn": "Multi30k: LaSyn, four epochs",
    "lasyn-trained": "Multi30k: LaSyn, 2,800 updates",
    "trained": "Multi30k: gains and controls, 4,000 updates",
    "trained-longer": "Multi30k: gains and controls, 8,000 updates",
    "without-parser": "Multi30k: no parser at inference, six epochs",
    "without-parser-trained": "Multi30k: no parser at inference, 4,000 updates",
    "distillation-toy": "Distillation on the toy corpus",
    "missing_parse-toy": "Missing parses on the toy corpus",
}

LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)")
# Where the page of a system shows what `terms.py` draws of it.
FIGURE = "<!-- figure -->"
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.M | re.S)


@cache
def pages() -> dict[Path, Path]:
    """Absolute path of each file that the site shows, with that of its page.

    The examples in the README's table are the systems; other files than READMEs are tables.
    """
    found = {}
    for source in sorted((ROOT / "examples").glob("*/*.md")):
        name, stem = source.parent.name, source.stem.lower()
        if stem != "readme":
            found[source] = OUT / "results" / (f"{stem}.md" if name == "multi30k" else f"{name}-{stem}.md")
        else:
            found[source] = OUT / ("systems" if name in systems() else "examples") / f"{name}.md"
    return found | {ROOT / source: OUT / page for source, page in FIXED.items() if (ROOT / source).exists()}


# What a program makes a page of.
MADE_FROM = {ROOT / "bench/results.jsonl": OUT / "speed.md"}


def linked_pages() -> dict[Path, Path]:
    """Absolute path of each file that a link may name, with that of the page that shows it."""
    own = {page: page for page in DOCS.glob("*.md")}
    return {**own, **pages(), **MADE_FROM}


def relink(text: str, source: Path, page: Path) -> str:
    """A file's Markdown with links that hold from a page of the site.

    Raises:
        ValueError: a link leads to no file
    """
    shown = linked_pages()

    def change(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not path:
            return match[0]
        file = (source.parent / path).resolve()
        if not file.exists():
            raise ValueError(f"{source.relative_to(ROOT)}: the link {target} leads nowhere")
        if image:
            return f"![{label}]({os.path.relpath(file, page.parent)})"
        if (file / "README.md") in shown:
            file /= "README.md"
        if file in shown:
            to = os.path.relpath(shown[file], page.parent) + (f"#{anchor}" if anchor else "")
            return f"[{label}]({to})"
        if file.is_dir():
            return label
        if file.suffix == ".md":  # no page of its own: a link would look for one
            return label
        return f"[{label}]({os.path.relpath(file, page.parent)})"

    return "".join(part if code else LINK.sub(change, part) for part, code in _split(text))


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """The text in parts, fenced code apart from the rest."""
    at = 0
    for match in FENCE.finditer(text):
        yield text[at : match.start()], False
        yield match[0], True
        at = match.end()
    yield text[at:], False


@cache
def systems() -> list[str]:
    """The systems' folders of ``examples``, in the order of the README's table."""
    _, _, below = (ROOT / "README.md").read_text("utf-8").partition("\n## The systems\n")
    return re.findall(r"\]\(examples/(\w+)\)", below.partition("\n## ")[0])


def picture_of(system: str) -> str:
    """What is drawn of a system, as Markdown in place of :data:`FIGURE`."""
    import terms

    def image(label: str, path: str) -> str:
        return f"\n```{{image}} {path}\n:class: drawing\n:alt: {label}\n```\n"

    if system in terms.DRAWN:
        drawing = terms.DRAWN[system]()
        numbered = enumerate((panel.title for panel in drawing.panels), start=1)
        text = "".join(image(title, f"../pictures/terms/{system}-{n}.svg") for n, title in numbered)
        text += f"\n*{drawing.caption}*\n"
        if system == "pascal":
            text += image("Attention of a trained PASCAL model, its first layer", "../../pascal-attention.svg")
            text += "\n*Two heads of the first layer of a model that was trained on the toy corpus, drawn by "
            text += "`python docs/pictures.py attention`.*\n"
        return text
    if system == "multitask":
        line = terms.parsed_line()
        return f"\n{terms.NOT_DRAWN[system]}\n\n```text\n{' '.join(linearize(line))}\n```\n"
    return f"\n{terms.NOT_DRAWN[system]}\n" + image("Measured ratios", f"../pictures/terms/{system}.svg")


def without_section(text: str, title: str) -> str:
    """The text without a section of the second level."""
    return re.sub(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", "", text, flags=re.M | re.S)


def write(page: Path, text: str) -> Path:
    """Write a page, unless it stands there: Sphinx builds again what is newer."""
    page.parent.mkdir(parents=True, exist_ok=True)
    if not page.exists() or page.read_text("utf-8") != text:
        page.write_text(text, encoding="utf-8")
    return page


def write_pages() -> None:
    """Every page of :func:`pages`, and those that programs make; pages of files that are gone, go."""
    written, shown = set(), pages()
    for source, page in shown.items():
        text = relink(source.read_text("utf-8"), source, page)
        if page.parent.name == "systems" and FIGURE in text:
            text = text.replace(FIGURE, picture_of(page.stem).strip())
        if page.parent.name == "results":
            text = without_section(text, "Commands")
            if page.stem in TITLES:
                text = re.sub(r"\A# .*", f"# {TITLES[page.stem]}", text)
        written.add(write(page, text))
    for name, made in (("speed", speed_table), ("commands", commands), ("options", options)):
        written.add(write(OUT / f"{name}.md", made()))
    for folder, title in (("systems", "The systems"), ("examples", "Examples"), ("results", "All tables")):
        names = [f"{folder}/{page.stem}" for page in shown.values() if page.parent.name == folder]
        if folder == "systems":
            names.sort(key=lambda name: systems().index(Path(name).stem))
        names += {"examples": ["preprocess", "corpora"], "results": ["speed"]}.get(folder, [])
        written.add(write(OUT / f"{folder}.md", "\n".join([f"# {title}", "", *_toctree(names), ""])))
    for page in {*OUT.rglob("*.md")} - written:
        page.unlink()


def _toctree(names: Iterable[str]) -> list[str]:
    return ["```{toctree}", ":maxdepth: 1", "", *names, "```"]


# --- measured speed ---


def speed_table() -> str:
    """bench/results.jsonl as a page: the last measurement of every name."""
    last = {row["name"]: row for row in records()}
    lines = [
        "# Measured speed",
        "",
        "Written from `bench/results.jsonl`, which `make bench` writes: medians of ratios that were taken in one run,",
        "with the lowest and the highest. The unit says what is divided by what: of speeds, ours is faster above 1.",
        "The oldest do not say when and with which commit they were taken; + stands for changes to it.",
        "",
        "| measure | ratio | from | to | unit | device | threads | date | commit |",
        "|:--|--:|--:|--:|:--|:--|--:|:--|:--|",
    ]
    for name, row in sorted(last.items()):
        ratios = (row[key] for key in ("ratio", "ratio_min", "ratio_max"))
        numbers = " | ".join(f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}" for ratio in ratios)
        taken = " | ".join(row.get(key) or "" for key in ("date", "commit"))
        lines.append(f"| `{name}` | {numbers} | {row['unit']} | {row['device']} | {row['threads']} | {taken} |")
    return "\n".join(lines) + "\n"


# --- the command line ---


def commands() -> str:
    """Every subcommand, from its parser."""
    from fairseq_syntax.cli import command as cli

    subparsers = argparse.ArgumentParser(prog="fairseq-syntax").add_subparsers()
    parts = ["# The command line", "", "`fairseq-syntax SUBCOMMAND --help` says the same.", ""]
    group = None
    for name, module in cli.commands().items():
        if module.COMMAND.group != group:
            group = module.COMMAND.group
            parts += [f"## {group.capitalize()}", ""]
        parts += _command(name, module.COMMAND.add_to(subparsers, name), 3)
    return "\n".join(parts) + "\n"


def _command(name: str, parser: argparse.ArgumentParser, level: int) -> list[str]:
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    parts = [f"{'#' * level} `{name}`", "", _cell(parser.description or ""), "", "```text", usage, "```", ""]
    formatter = parser._get_formatter()
    rows: list[str] = []
    nested: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested += action.choices.items()
            continue
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
        names = ", ".join(action.option_strings)
        shown = f"{names} {value}".strip() if names else value
        text = formatter._expand_help(action) if action.help else ""
        rows.append(f"| `{shown.replace('|', '/')}` | {_cell(text)} |")
    if rows:
        parts += ["| argument | meaning |", "|:--|:--|", *rows, ""]
    example = dedent((parser.epilog or "").removeprefix("example:\n"))
    parts += ["```sh", example, "```", ""]
    for sub_name, sub in nested:
        parts += _command(f"{name} {sub_name}", sub, level + 1)
    return parts


def _cell(text: str) -> str:
    """Plain text as Markdown in one line; options are code, whose hyphens would be made a dash."""
    text = " ".join(text.split())
    for character in "\\|<>*_[]$`#{}":
        text = text.replace(character, "\\" + character)
    return re.sub(r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`", text)


# --- the options ---


def options() -> str:
    """The options of every system, criterion and of the task, from where fairseq has them."""
    import dataclasses

    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.models import MODEL_REGISTRY
    from fairseq.models.lstm import LSTMModel
    from fairseq.tasks.translation import TranslationConfig

    import fairseq_syntax
    from fairseq_syntax.model.decoder import DECODER_SYSTEMS
    from fairseq_syntax.model.encoder import ENCODER_SYSTEMS

    fairseq_syntax.register()
    parts = [
        "# Options",
        "",
        "Options of fairseq's commands that this package adds, read from the program. Those of fairseq hold too.",
        "",
    ]

    def table(title: str, rows: list[str]) -> None:
        if rows:
            parts.extend([f"## {title}", "", "| option | meaning |", "|:--|:--|", *rows, ""])

    def of_dataclass(config: Any, without: frozenset[str] = frozenset()) -> list[str]:
        rows = []
        for f in dataclasses.fields(config):
            if f.name not in without and f.metadata.get("help"):
                rows.append(f"| `--{f.name.replace('_', '-')}` | {_cell(f.metadata['help'])} |")
        return rows

    parts += ["## Architectures", "", *_architectures(), ""]
    for flag, registry in (("--encoder-syntax", ENCODER_SYSTEMS), ("--decoder-syntax", DECODER_SYSTEMS)):
        for name, system in sorted(registry.items()):
            table(f"`{flag} {name}`", of_dataclass(system.config))
    known = _options_of(LSTMModel)
    for name, model in sorted(MODEL_REGISTRY.items()):
        if model.__module__.startswith("fairseq_syntax") and issubclass(model, LSTMModel):
            more = {key: text for key, text in _options_of(model).items() if key not in known}
            table(f"`--arch {name}`", [f"| `{key}` | {_cell(text)} |" for key, text in more.items()])
    inherited = frozenset(f.name for f in dataclasses.fields(TranslationConfig))
    table("`--task syntax_translation`", of_dataclass(_task_config(), inherited))
    for name, config in sorted(CRITERION_DATACLASS_REGISTRY.items()):
        if config.__module__.startswith("fairseq_syntax"):
            table(f"`--criterion {name}`", of_dataclass(config))
    return "\n".join(parts) + "\n"


def _architectures() -> list[str]:
    """Every ``--arch`` of this package: the systems that it has, and the criterion that trains them."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_syntax.model.lstm import SyntaxLSTMModel
    from fairseq_syntax.model.transformer import PRESETS, SIZES, criterion_of

    sizes = [f"`{suffix}`" for suffix in SIZES if suffix]
    lstms = [f"`{arch}`" for arch, model in sorted(ARCH_MODEL_REGISTRY.items()) if issubclass(model, SyntaxLSTMModel)]
    rows = []
    for arch, preset in sorted(PRESETS.items()):
        sides = [(side, preset.get(f"{side}_syntax")) for side in ("encoder", "decoder")]
        given = " ".join(f"`--{side}-syntax {names}`" for side, names in sides if names)
        rows.append(f"| `{arch}` | {given or 'any'} | {f'`{criterion_of(preset)}`' if given else 'as they need'} |")
    return [
        f"Each has smaller sizes, too: {' and '.join(sizes)} after its name. `syntax_transformer` takes any of the "
        "systems, with commas (`--encoder-syntax pascal,supervised_heads`). Models whose systems have no losses can be "
        "trained with any criterion.",
        "",
        "| `--arch` | systems | `--criterion` |",
        "|:--|:--|:--|",
        *rows,
        "",
        f"LSTMs, each with a system of its own: {', '.join(lstms)}.",
    ]


def _task_config() -> Any:
    from fairseq_syntax.tasks.config import SyntaxTranslationConfig

    return SyntaxTranslationConfig


def _options_of(model: Any) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    model.add_args(parser)
    formatter = parser._get_formatter()
    return {
        action.option_strings[-1]: formatter._expand_help(action) if action.help else ""
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    }
