"""The site: built without a warning, every link of it leads somewhere, and its tutorial runs."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import warnings
from contextlib import redirect_stderr
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import browser
import pytest
from kills import ended, forked
from matrix_part import of_half_a_minute
from notebooks import run_notebook
from warm_commands import WarmCommands

from fairseq_syntax.lab.recipes.reading import load_recipe as load_recipe

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(ROOT / "docs"))  # its modules import each other
site_pages, pictures, stated, terms = map(load, ("site_pages", "pictures", "stated", "terms"))


class Links(HTMLParser):
    """What a page points to, and the places in it that can be pointed to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.targets.append(value)


def broken_links(site: Path) -> list[str]:
    """Links within a site that lead nowhere, and whatever would be fetched from elsewhere."""
    pages = {path: Links(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for target in page.targets:
            file, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            to = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            if not to.exists() or (anchor and to in pages and unquote(anchor) not in pages[to].ids):
                broken.append(f"{path.relative_to(site)}: {target}")
    return broken


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y"></a><a href="#x"></a><a href="http://e.org"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#no"></a><img src="none.svg"><p id="y">')
    assert broken_links(tmp_path) == ["b.html: a.html#no", "b.html: none.svg"]


def build(site: Path, log: Path) -> int:
    """Sphinx's status, in a fork of this process, which has imported what is documented."""

    def work() -> int:
        with log.open("w", encoding="utf-8", buffering=1) as said, redirect_stderr(said):
            warnings.simplefilter("ignore")
            sphinx = importlib.import_module("sphinx.cmd.build").main
            return sphinx(["-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(site)])

    return ended(forked(work))


# Half a minute, which continuous integration takes in each run, by itself.
@pytest.mark.matrix(0, of="builds of the site")
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    gone = site_pages.OUT / "results" / "of-a-file-that-is-gone.md"
    gone.parent.mkdir(parents=True, exist_ok=True)
    gone.write_text("# Gone\n")
    site, log = tmp_path / "site", tmp_path / "log"
    assert build(site, log) == 0, log.read_text("utf-8")[-3000:]
    assert broken_links(site) == [] and not gone.exists()
    fetched = [
        tag
        for path in site.rglob("*.html")
        for tag in re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?:https?:)?//[^>]*>", path.read_text("utf-8"))
    ]
    assert fetched == []
    ldd = (site / "generated/systems/ldd.html").read_text("utf-8")
    assert "<math" in ldd and "--ldd-variant" in ldd
    check_widths(site)


def check_widths(site: Path) -> None:
    """No table is cut at 1,280 pixels or more, and no page is wider than a phone; checked where there is a browser."""
    if (program := browser.find()) is None:
        return
    cut = "[...document.querySelectorAll('.table-wrapper')].filter(w => w.scrollWidth > w.clientWidth + 1).length"
    pages = ("what-syntax-gives", "which-system", "generated/options", "generated/speed", "ways", "index")
    window = browser.Browser(program, site / "profile")
    try:
        for width in (1280, 1440):
            window.send(
                "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
            )
            for page in pages:
                window.open(f"file://{site}/{page}.html")
                assert window.run(cut) == 0, (page, width)
        window.send("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        for page in pages:
            window.open(f"file://{site}/{page}.html")
            assert window.run("document.documentElement.scrollWidth") <= 390, page
    finally:
        window.close()


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text("utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def programs(warm: WarmCommands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm.put(tmp_path_factory.mktemp("programs"))


def run_blocks(folder: Path, commands: list[str], programs: Path) -> str:
    """Runs blocks of a page as one script in a folder; what they print."""
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = ["bash", "-c", "set -euo pipefail\n" + "\n".join(commands)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def steps(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which the blocks of step-by-step.md were run, and what they printed."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "examples").symlink_to(ROOT / "examples")
    commands = blocks("step-by-step.md", "bash")
    assert len(commands) > 8
    return folder, run_blocks(folder, commands, programs)


@of_half_a_minute
@pytest.mark.slow
def test_the_single_steps_run(steps: tuple[Path, str]) -> None:
    folder, printed = steps
    generated, interactive = (
        {m[1]: m[2] for m in re.finditer(r"^H-(\d+)\t\S+\t(.*)$", (folder / name).read_text("utf-8"), re.M)}
        for name in ("pascal.out", "interactive.out")
    )
    assert len(interactive) == 60 and generated == interactive
    assert "BLEU" in printed and "UAS" in printed
    for name in ("page.html", "curves.svg", "test.txt"):
        assert (folder / name).stat().st_size > 0


@of_half_a_minute
@pytest.mark.slow
def test_the_python_of_the_reference_runs(steps: tuple[Path, str], programs: Path) -> None:
    """With the models and data of the single steps, and a parser that needs no models."""
    folder, chain = steps[0], "fairseq_syntax.corpus.parsing.chain"
    names = {
        "test.de": "clean/test.tgt",
        "train.en.conllu": "parse/train.src.conllu",
        "data-bin/train.en-de.en.syntax.arrow": "bin/train.src-tgt.src.syntax.arrow",
    }
    for name, target in names.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(folder / target)
    program = "\n".join(blocks("api.md", "python"))
    program = program.replace('load("models/pascal")', f'load("models/pascal", parser_name="{chain}")')
    program = program.replace("ParserOptions(", f'ParserOptions("{chain}", ')
    (folder / "reference.py").write_text(program)
    assert "Scores of 60 sentences" in run_blocks(folder, ["python reference.py"], programs)


# The tutorial's recipe, made small: a parser without models, and trainings of seconds.
SMALL = """
import sys, yaml
def merge(a, b):
    for key, value in b.items():
        merge(a[key], value) if isinstance(value, dict) and key in a else a.update({key: value})
recipe = yaml.safe_load(open("recipe.yaml"))
for change in sys.argv[1:]:
    merge(recipe, yaml.safe_load(change))
yaml.safe_dump(recipe, open("recipe.yaml", "w"), sort_keys=False)
"""
CHANGES = """
parse: {source: {parser: PARSER}}
pieces: {size: {en: 150, de: 200}}
size: {encoder-embed-dim: 32, decoder-embed-dim: 32, encoder-layers: 2, decoder-layers: 2}
train: {max-update: 4, total-num-update: 4, warmup-updates: 1}
"""


@of_half_a_minute
@pytest.mark.slow
def test_the_tutorial_runs(programs: Path, tmp_path: Path) -> None:
    """On a small text, with a parser that needs no models."""
    text = ["toy", "--train", "200", "--valid", "10", "--test", "20"]
    subprocess.run([sys.executable, ROOT / "examples/toy/generate.py", "--output", *text], cwd=tmp_path, check=True)
    (tmp_path / "text").mkdir()
    for path in (tmp_path / "toy").glob("*.[st][rg][ct]"):
        path.rename(tmp_path / "text" / f"{path.stem}{'.en' if path.suffix == '.src' else '.de'}")
    chain = "fairseq_syntax.corpus.parsing.chain"
    first, *others, last = blocks("tutorial.md", "bash")
    others = [block.replace("syntax translate", f"syntax translate --parser {chain}") for block in others]
    (tmp_path / "change.py").write_text(SMALL)
    asked = " ".join(shlex.quote(block) for block in blocks("tutorial.md", "yaml"))
    commands = [
        first,
        f"python change.py {shlex.quote(CHANGES.replace('PARSER', chain))}",
        *others,
        f"python change.py {asked}",
        last,
    ]
    run_blocks(tmp_path, commands, programs)
    report = (tmp_path / "runs/recipe/report.md").read_text("utf-8")
    assert "supervised_heads.linear" in report and (tmp_path / "page.html").stat().st_size > 0


@of_half_a_minute
@pytest.mark.slow
def test_the_notebook_runs(steps: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the models of the single steps in place of those of the demo, which take minutes."""
    nbformat = pytest.importorskip("nbformat")
    demo = tmp_path / "runs/toy/demo"
    (demo / "data").mkdir(parents=True)
    (demo / "data/bin").symlink_to(steps[0] / "bin")
    for name, folder in (("transformer", "plain"), ("PASCAL", "pascal")):
        (demo / "models" / name).mkdir(parents=True)
        (demo / "models" / name / "1").symlink_to(steps[0] / "models" / folder)
    notebook = nbformat.read(ROOT / "examples/notebooks/first-steps.ipynb", as_version=4)
    assert any(cell.get("outputs") for cell in notebook.cells), "it is kept with its outputs"
    run_notebook(notebook, tmp_path, tmp_path / "ipython", monkeypatch)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    pages = [output["data"]["text/html"] for output in shown if "text/html" in output["data"]]
    assert len(pages) == 6 and "telescope  obl" in pages[0] and "telescope  nmod" in pages[3]


@pytest.mark.checkout
def test_links_of_readmes_lead_to_their_pages(tmp_path: Path) -> None:
    source, page = ROOT / "examples/pascal/README.md", site_pages.OUT / "systems/pascal.md"
    text = "[a](../ldd/README.md) [b](../toy) `[c](no)` [d](https://e.org/x) [e](../../fairseq_syntax/errors.py)"
    changed = site_pages.relink(text.replace("`[c](no)` ", ""), source, page)
    assert changed == "[a](ldd.md) [b](../examples/toy.md) [d](https://e.org/x) [e](../../../fairseq_syntax/errors.py)"
    assert site_pages.relink("```\n[c](no)\n```", source, page) == "```\n[c](no)\n```"
    with pytest.raises(ValueError, match="leads nowhere"):
        site_pages.relink("[x](none.md)", source, page)


def readme(system: str) -> str:
    return (ROOT / "examples" / system / "README.md").read_text("utf-8")


@pytest.mark.checkout
def test_every_example_has_a_page_and_every_system_its_equation() -> None:
    shown = site_pages.pages()
    assert set((ROOT / "examples").glob("*/README.md")) <= set(shown)
    here = {page.stem for page in shown.values() if page.parent.name == "systems"}
    rooms = {path.stem for path in (ROOT / "fairseq_syntax/systems").iterdir()} - {"__init__", "__pycache__"}
    assert rooms & {path.name for path in (ROOT / "examples").iterdir()} <= here == set(site_pages.systems())
    assert [name for name in here if "\n$$" not in readme(name)] == []


def test_a_page_without_a_section() -> None:
    assert site_pages.without_section("# T\n\n## A\n\na\n\n## Commands\n\nc\n\n## B\n\nb\n", "Commands") == (
        "# T\n\n## A\n\na\n\n## B\n\nb\n"
    )


def test_every_subcommand_and_option_is_in_the_reference() -> None:
    from fairseq_syntax.cli.command import commands as subcommands
    from fairseq_syntax.model.decoder import DECODER_SYSTEMS
    from fairseq_syntax.model.encoder import ENCODER_SYSTEMS

    commands = site_pages.commands()
    for name in subcommands():
        assert f"\n### `{name}`\n" in commands, name
    assert "`--shard I/N`" in commands and "%(default)" not in commands
    options = site_pages.options()
    for option in (
        "--pascal-heads",
        "--ldd-variant",
        "--dlaa-block-size",
        "--em-steps",
        "--syntax-input",
        "--gcn-after",
    ):
        assert f"| `{option}` |" in options, option
    assert "| `pascal_transformer` | `--encoder-syntax pascal` | `chunked_cross_entropy` |" in options
    assert "| `lasyn_transformer` | `--decoder-syntax lasyn` | `lasyn_em` |" in options
    architectures = options.partition("## Architectures")[2].partition("\n## ")[0]
    for system in (*ENCODER_SYSTEMS, *DECODER_SYSTEMS, "dlaa_lstm", "tree2seq_lstm"):
        assert re.search(rf"\b{system}\b", architectures), system


@pytest.mark.checkout
def test_pictures_draw_what_the_tables_say() -> None:
    rows = {(row["corpus"], row["system"]): float(row["exact"]) for row in pictures.toy_rows()}
    recipes = map(load_recipe, (ROOT / "examples/toy/table").glob("*.yaml"))
    assert len(rows) == sum(len(recipe.systems) for recipe in recipes) and rows["attachment", "PASCAL"] > 95
    scores = pictures.multi30k_scores("CPU.md")
    assert len(scores) == 2 and all(len(of_test) == 13 for of_test in scores.values())
    for grid, page in (("trained", "TRAINED.md"), ("trained-longer", "TRAINED-LONGER.md")):
        gains, verdict = pictures.gains(grid), (ROOT / "examples/multi30k" / page).read_text("utf-8")
        assert list(gains) == ["test_2016", "test_2017"] and "PSH, linear" in gains["test_2017"]
        for of_test in gains.values():
            assert all(f"| {x:+.2f} ({low:+.2f} to {high:+.2f}) |" in verdict for x, low, high in of_test.values())
    assert next(iter(pictures.bench("layer/ldd"))) == 32


@pytest.mark.checkout
def test_a_report_of_other_translations_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(pictures.by_property("dependency-length", 2017)) == 4
    longer = pictures.kept("trained-longer")
    monkeypatch.setattr(pictures, "kept", lambda grid: longer)
    with pytest.raises(ValueError, match="other translations"):
        pictures.by_property("dependency-length", 2017)


def test_the_table_of_speeds_says_when_and_shows_small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"unit": "u", "device": "d", "threads": 1, "ratio_min": 0.9, "ratio_max": 2.0}
    new = {"name": "b", "ratio": 1.0, "date": "2026-11-29", "commit": "12345678"}
    monkeypatch.setattr(site_pages, "records", lambda: [row | {"name": "a", "ratio": 0.00114}, row | new])
    assert site_pages.speed_table().endswith(
        "| `a` | 0.0011 | 0.90 | 2.00 | u | d | 1 |  |  |\n"
        "| `b` | 1.00 | 0.90 | 2.00 | u | d | 1 | 2026-11-29 | 12345678 |\n"
    )


def labels(picture: Path) -> list[str]:
    """What is written in an SVG by Matplotlib, which draws letters as paths and says beside them what they are."""
    return re.findall("<!-- (.*) -->", picture.read_text("utf-8"))


@pytest.mark.checkout
def test_pictures_are_those_of_the_results(tmp_path: Path) -> None:
    """By what is written in them: places differ between versions of Matplotlib."""
    pictures.figures(tmp_path)
    drawn = sorted(tmp_path.glob("*.svg"))
    assert drawn and all(labels(picture) for picture in drawn)
    stale = [one.name for one in drawn if labels(one) != labels(ROOT / "docs" / "figures" / one.name)]
    assert stale == [], "python docs/pictures.py figures"


@pytest.mark.checkout
def test_prose_states_what_the_tables_say() -> None:
    for file, pieces in stated.stated().items():
        text = " ".join((ROOT / file).read_text("utf-8").split())
        for piece in pieces:
            assert piece in text, f"{file} should say: {piece}"
        assert stated.unstated(text, pieces) == [], file


def public_modules() -> list[str]:
    """The modules that the reference of the Python API shows."""
    return re.findall(r"^\.\. automodule:: (\S+)$", (ROOT / "docs/api.md").read_text("utf-8"), re.M)


def without_docstring(module: ModuleType) -> list[str]:
    """Public names of a module, and public methods of its classes, that say nothing of themselves."""
    result = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            result += [] if inspect.getdoc(value) else [name]
        if inspect.isclass(value):
            members = [key for key, one in vars(value).items() if inspect.isroutine(one) or isinstance(one, property)]
            # getattr: an override has the docstring of what it overrides
            result += [f"{name}.{key}" for key in members if key[0] != "_" and not inspect.getdoc(getattr(value, key))]
    return result


def test_every_public_name_has_a_docstring() -> None:
    modules = public_modules()
    assert len(modules) >= 15
    for name in modules:
        module = importlib.import_module(name)
        assert module.__all__ and set(module.__all__) <= set(vars(module)), name
        assert without_docstring(module) == [], name


def test_a_name_without_a_docstring_is_found() -> None:
    module = ModuleType("example")
    source = "class A:\n 'x'\n def m(self): pass\n def _p(self): pass\ndef f(): pass\n__all__ = ['A', 'f']"
    exec(source, vars(module))
    assert without_docstring(module) == ["A.m", "f"]


def test_every_system_is_drawn_or_says_why_not() -> None:
    shown = {name for name in site_pages.systems() if site_pages.FIGURE in readme(name)}
    assert set(terms.DRAWN) | set(terms.NOT_DRAWN) == shown
    assert not set(terms.DRAWN) & set(terms.NOT_DRAWN)
    assert "trained model" in site_pages.picture_of("gcn") and "pascal-attention" in site_pages.picture_of("pascal")
    assert ")nsubj VERB (obj" in site_pages.picture_of("multitask")


def test_terms_say_what_the_parse_says() -> None:
    """By hand: the 8th word, "telescope", hangs on the 3rd, "saw"."""
    parents = terms.lisa().panels[0].values
    assert [int(row.argmax()) for row in parents] == terms.HEADS and parents.sum() == len(terms.WORDS)
    gaussian = terms.pascal().panels[0].values
    assert gaussian[7].argmax() == 2 and abs(gaussian[7, 2] - 0.3989) < 1e-3 and abs(gaussian[7, 3] - 0.2420) < 1e-3
    depth = {"the": 2, "man": 1, "saw": 0, "girl": 1, "with": 2, "telescope": 1, ".": 1}
    assert terms.relative_depth().panels[0].values[2].tolist() == [depth[word] for word in terms.WORDS]
    assert terms.ldd().panels[0].values[7].round(3).tolist() == [0, 0, 0.6, 0, 0.4, 0, 0, 0, 0]
    sends = terms.gcn().panels[0].values
    assert sends[2].tolist() == [0, 3, 1, 0, 3, 0, 0, 3, 3] and sends[7].tolist() == [0, 0, 2, 0, 0, 3, 3, 1, 0]
    assert terms.senmt().panels[0].values[:, 2].argmax() == 8 and terms.senmt().panels[1].values[:, 2].argmax() == 0


def test_a_figure_without_a_source_is_found() -> None:
    assert stated.unstated("a 3.5 b\n12 % c 0.12.3.1", ["a 3.5 b"]) == ["a 3.5 b 12 % c 0.12.3."]


def test_the_picture_of_the_readme_marks_what_is_right(tmp_path: Path) -> None:
    right = "der Mann sah das Mädchen mit dem Fernrohr (sah)."
    reading = pictures.Reading([1, 2, 2, 4, 2, 7, 7, 2, 2], pictures.LABELS, "g", right, {"a": right, "b": "other"})
    texts = [text.get_text() for text in pictures.point([reading]).axes[0].texts]
    assert texts.count("✓") == 1 and texts.count("✗") == 1 and texts[-1] == "other" and texts[-2] == "✗"
