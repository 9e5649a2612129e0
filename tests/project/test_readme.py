"""The README's commands, and the links of every page."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bench.__main__ import every_measure

ROOT = Path(__file__).resolve().parents[2]
TREES = ("bench", "docs", "examples", "fairseq_syntax", "preprocess", "tests", "tools")


@pytest.mark.checkout
def test_commands_of_the_readme_are_ones() -> None:
    """Every command of this package in its blocks is accepted by its parser."""
    from fairseq_syntax.cli.command import load

    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("fairseq-syntax ")]
    assert len(commands) >= 3
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        parser = argparse.ArgumentParser()
        load(words[0]).COMMAND.add_to(parser.add_subparsers(dest="subcommand"), words[0])
        assert parser.parse_args(words).subcommand == words[0]


def anchors(page: Path) -> set[str]:
    """The places in a page of Markdown that a link can name, as code hosts make them of headings."""
    text = re.sub(r"^(```+|~~~+).*?^\1[ \t]*$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.checkout
def test_every_link_of_a_page_leads_somewhere_in_the_repository() -> None:
    """No page links to what only the built site has; anchors are headings."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    broken, count = [], 0
    for page in pages:
        text = re.sub(r"^(```+|~~~+).*?^\1[ \t]*$", "", page.read_text("utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if "://" in link or link.startswith("mailto:"):
                continue
            path, _, anchor = link.partition("#")
            file, count = (page.parent / path).resolve() if path else page, count + 1
            leads = file.exists() and "generated" not in file.parts
            if not leads or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert count > 200 and broken == []


@pytest.mark.checkout
def test_measures_that_prose_names_are_there() -> None:
    """In ``make bench ONLY=…``, the beginnings of names."""
    pages = [path for tree in ("docs", "examples") for path in (ROOT / tree).rglob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages if "generated" not in page.parts)
    named = {name for words in re.findall(r'ONLY=("[^"]+"|[\w/@]+)', text) for name in words.strip('"').split()}
    assert len(named) > 10
    assert [name for name in sorted(named) if not any(measure.startswith(name) for measure in every_measure())] == []


@pytest.mark.checkout
def test_files_that_prose_names_are_there() -> None:
    """In every page and docstring; NAME stands for the name of what one may write."""
    named = re.compile(rf"(?<![\w./-])((?:{'|'.join(TREES)})/[\w./-]+\.(?:md|py|sh|yaml))\b")
    trees = [ROOT / tree for tree in TREES if tree != "tests"]
    pages = [*ROOT.glob("*.md"), *(path for tree in trees for kind in ("md", "py") for path in tree.rglob(f"*.{kind}"))]
    pages = [page for page in pages if "generated" not in page.parts]
    actual = {name for page in pages for name in named.findall(page.read_text("utf-8")) if "NAME" not in name}
    assert len(actual) > 50
    assert sorted(name for name in actual if not (ROOT / name).exists()) == []


@pytest.mark.checkout
def test_the_first_recipe_compares_models_of_one_size() -> None:
    """The README shows that of ``examples/first.yaml``; its systems differ from the baseline in syntax alone."""
    import yaml
    from fairseq.models import ARCH_CONFIG_REGISTRY

    import fairseq_syntax

    fairseq_syntax.register()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    recipe = yaml.safe_load((ROOT / "examples/first.yaml").read_text("utf-8"))
    assert yaml.safe_load(shown) == recipe
    trained = [system for system in recipe["systems"].values() if "arch" in system]
    plain, *others = (argparse.Namespace() for _ in trained)
    for sizes, system in zip((plain, *others), trained, strict=True):
        ARCH_CONFIG_REGISTRY[system["arch"]](sizes)
        del sizes.encoder_syntax
    assert others and all(vars(plain).items() <= vars(of_system).items() for of_system in others)
