"""The README's commands, run in their order in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREES = ("bench", "docs", "examples", "fairseq_syntax", "preprocess", "tests", "tools")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": python_path, "PYTHONWARNINGS": "ignore"}
    script = "set -euo pipefail\n" + "\n".join(blocks("bash"))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len((tmp_path / "test.txt").read_text("utf-8").splitlines()) == 50
    assert "BLEU" in done.stdout


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
def test_files_that_prose_names_are_there() -> None:
    """In every page and docstring; the manual's own examples of what one may write are named after siblings."""
    named = re.compile(rf"(?<![\w./-])((?:{'|'.join(TREES)})/[\w./-]+\.(?:md|py|sh|yaml))\b")
    trees = [ROOT / tree for tree in TREES if tree != "tests"]
    pages = [*ROOT.glob("*.md"), *(path for tree in trees for kind in ("md", "py") for path in tree.rglob(f"*.{kind}"))]
    pages = [page for page in pages if "generated" not in page.parts]
    found = {name for page in pages for name in named.findall(page.read_text("utf-8")) if "siblings" not in name}
    assert len(found) > 50
    assert sorted(name for name in found if not (ROOT / name).exists()) == []
