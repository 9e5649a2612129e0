"""The package has floors: no module imports one of a floor above, at the top of a file or inside a function."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from matrix_part import in_a_process

import fairseq_syntax

ROOT = Path(fairseq_syntax.__file__).parent
# From the ground up. A floor is a product; the packages of one line do not import each other.
FLOORS = {
    "ground": [("errors",)],
    "runtime": [("runtime",)],
    "corpus": [("corpus",), ("corpus.parsing", "corpus.readers", "corpus.store")],
    "plugin": [
        ("plugins",),
        ("compat",),
        ("data",),
        ("model",),
        ("systems",),
        ("criterions",),
        ("inference",),
        ("tasks",),
    ],
    "use": [("use",), ("use.pages",), ("use.serving",)],
    "lab": [("lab",), ("lab.scoring",), ("lab.figures",), ("lab.recipes",)],
    "command line": [("cli",)],
}
LEVEL = {
    package: level
    for level, packages in enumerate(line for floor in FLOORS.values() for line in floor)
    for package in packages
}
ENTRANCES = {"__init__", "__main__"}  # they put the house together, and nothing imports from them but its name


def package_of(module: str) -> str:
    """The longest package or module of :data:`LEVEL` that a dotted name lies in; empty for an entrance."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in LEVEL), "")


def imports(source: str) -> set[str]:
    """The modules of this package that a file imports, wherever in it, without the package's name."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            base = node.module or ""
            modules.add(base)
            if base.startswith("fairseq_syntax"):
                modules |= {f"{base}.{alias.name}" for alias in node.names}
    return {m.removeprefix("fairseq_syntax.") for m in modules if m.startswith("fairseq_syntax.")}


def test_a_module_name_stands_for_one_module():
    """A subcommand's module has the command's name, which may be that of what the command does."""
    places: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        if path.parent != ROOT / "cli" and path.stem not in ENTRANCES:
            places.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


_IMPORT = re.compile(r"^ *from fairseq_syntax([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


def missing(source: str) -> list[str]:
    """What a file imports of this package that is neither a module nor a name in one, also inside functions."""
    return [
        f"{module}.{name}"
        for module, names in _IMPORT.findall(source)
        for name in re.findall(r"\b\w+", re.sub(r"#.*|\bas \w+", "", names))
        if name not in _names(module)
    ]


@cache
def _names(module: str) -> set[str]:
    """The words of a module, and the modules of a package."""
    place = ROOT.joinpath(*module.split(".")[1:])
    modules = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    path = place / "__init__.py" if modules else place.with_suffix(".py")
    return modules | set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) if path.exists() else modules


def test_what_is_imported_of_the_package_is_there():
    """mypy is silent of modules that are missing, and scripts and tests are imported late or never."""
    folders = ("fairseq_syntax", "bench", "docs", "examples", "tests", "tools")
    files = [f for folder in folders for f in (ROOT.parent / folder).rglob("*.py")]
    assert not {str(f): m for f in files if (m := missing(f.read_text(encoding="utf-8")))}
    inside = "def f():\n    from fairseq_syntax.data.batch import SyntaxBatches, SyntaxBatch as Batch"
    assert missing(inside) == [".data.batch.SyntaxBatches"]
    assert missing("from fairseq_syntax.nowhere import (\n    one,  # 1\n)") == [".nowhere.one"]


DIGESTS = {
    "runtime/digests.py",
    "corpus/downloads.py",  # the digests that others publish, MD5 among them
    "use/serving/app.py",  # those of scripts, for browsers
}


def test_digests_have_one_place():
    """There each purpose has one, of one length, and files of former versions are compared with what it computes."""
    using = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if re.search(r"\b(hashlib|xxhash)\b", path.read_text(encoding="utf-8"))
    }
    assert using == DIGESTS


def upward(package: str, source: str) -> list[str]:
    """The packages that a file of a package imports and must not."""
    packages = {package_of(module) for module in imports(source)} - {"", package}
    return sorted(other for other in packages if LEVEL[other] >= LEVEL[package])


def test_every_package_has_its_floor():
    there = {p.stem for p in ROOT.iterdir() if (p.is_dir() and (p / "__init__.py").exists()) or p.suffix == ".py"}
    assert there - ENTRANCES == {name.split(".")[0] for name in LEVEL}


@pytest.mark.parametrize("package", LEVEL)
def test_no_import_upward_and_none_in_a_circle(package):
    path = ROOT / package.replace(".", "/")
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    wrong = {}
    for file in files:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if package_of(module) == package and (above := upward(package, file.read_text("utf-8"))):
            wrong[module] = above
    assert not wrong


def test_an_import_upward_is_seen_wherever_it_is():
    inside = "def f():\n    from fairseq_syntax.model import losses\n"
    assert upward("data", inside) == ["model"]
    assert upward("data", "import fairseq_syntax.tasks.x") == ["tasks"]
    assert upward("errors", "from fairseq_syntax import compat") == ["compat"]
    assert upward("corpus", "from fairseq_syntax.corpus import store") == ["corpus.store"]
    assert upward("model", inside) == [] and upward("systems", inside) == []


def test_the_task_knows_no_system_by_name():
    """What a system or a criterion adds to the task goes through hooks that any may have."""
    for path in (ROOT / "tasks").rglob("*.py"):
        assert not [m for m in imports(path.read_text(encoding="utf-8")) if m.startswith(("systems.", "criterions."))]


def loaded_by(statements: str) -> set[str]:
    """The modules of this package that are loaded after some statements in a new process, without its name."""
    report = "import sys; print(*(m for m in sys.modules if m.startswith('fairseq_syntax')))"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{statements}\n{report}"], check=True, capture_output=True, text=True
    )
    return {m.removeprefix("fairseq_syntax.") for m in run.stdout.split()} - {"fairseq_syntax"}


@pytest.fixture(scope="module")
def plugin() -> set[str]:
    """What fairseq's commands load of this package where ``--user-dir`` names it."""
    return loaded_by(
        f"import argparse, fairseq.utils as u; u.import_user_module(argparse.Namespace(user_dir={str(ROOT)!r}))\n"
        "from fairseq.tasks import TASK_REGISTRY; assert 'syntax_translation' in TASK_REGISTRY"
    )


@in_a_process
@pytest.mark.slow
def test_importing_the_package_only_defines():
    assert loaded_by("import fairseq_syntax") == set()


@in_a_process
@pytest.mark.slow
def test_fairseq_is_imported_without_its_logging_and_statistics():
    """Its speech tasks would send all that is logged to a notebook's cell; two libraries would double the time."""
    loaded_by(
        "import logging, sys; root = logging.getLogger(); before = root.level, list(root.handlers)\n"
        "from fairseq_syntax import ParsedLine, Translation, Translator, register; register()\n"
        "assert (root.level, root.handlers) == before\n"
        "assert not {'sklearn', 'sklearn.metrics', 'scipy.stats'} & set(sys.modules)\n"
        "from fairseq.criterions import sentence_prediction as classification\n"
        "from fairseq.tasks.audio_classification import sklearn_metrics\n"
        "assert classification.f1_score([1, 0, 1], [1, 1, 1]) == 0.8\n"
        "assert list(sklearn_metrics.confusion_matrix([0, 1], [1, 1]).ravel()) == [0, 1, 0, 1]\n"
        "from scipy.stats import pearsonr\n"
        "assert classification.pearsonr([1, 2, 3], [1, 2, 4]) == pearsonr([1, 2, 3], [1, 2, 4])"
    )


@in_a_process
@pytest.mark.slow
def test_user_dir_loads_the_plugin_alone(plugin):
    """Parsers, alignment and everything above the plugin wait until they are used."""
    assert "tasks.syntax_translation" in plugin and "systems.pascal" in plugin
    later = ("corpus.parsing", "corpus.filters", "inference.", "use", "lab", "cli")
    assert not [m for m in plugin if m.startswith(later)]


@in_a_process
@pytest.mark.slow
def test_what_registration_reaches_is_small(plugin):
    files = [ROOT / m.replace(".", "/") for m in plugin]
    files = [f / "__init__.py" if f.is_dir() else f.with_suffix(".py") for f in files]
    assert sum(len(f.read_text("utf-8").splitlines()) for f in files) <= 14_000


def test_what_docstrings_refer_to_is_there():
    """A name alone is one of the module; ``.NAME`` and names of methods are anywhere in the package."""
    texts = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    code = "\n".join(texts.values())
    defined = {
        *re.findall(r"\b(?:def|class) (\w+)", code),
        *re.findall(r"(?:self\.|^ *)(\w+)(?::.*|) = ", code, re.MULTILINE),
    }
    defined |= set(re.findall(r"^    (\w+): ", code, re.MULTILINE)) | {"ordered_indices", "batch_by_size"}  # fairseq's
    wrong = []
    for path, text in texts.items():
        here = {name for line in re.findall(r"^ *(?:def|class) (\w+)|^(\w+)\b.*=", text, re.MULTILINE) for name in line}
        here |= {name for _, names in _IMPORT.findall(text) for name in re.findall(r"\w+", names)}
        for role, name in re.findall(r":(func|class|meth|data|attr):`~?([A-Z.]?\w[\w.]*)`", text):
            known = here if role in ("func", "class", "data") and "." not in name else defined
            is_of_others = "." in name and name[0].islower()  # json.dumps
            if name.rpartition(".")[2] not in known and not is_of_others:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong


# Modules of one folder may be alternatives of one interface, as the readers of corpora are, and share its names.
ALTERNATIVES = {"cli", "compat", "corpus/parsing", "corpus/readers", "use"}
OTHERS = {
    "check",  # what a command checks of its arguments, and a back end of its installation
    "commands",
    "fingerprint",  # of a parser, and of values
    "install",  # what the plugin changes in fairseq
    "load",
    "main",
}


def test_a_public_name_stands_for_one_thing():
    """Of classes and functions: who has read one name does not meet it again for another thing."""
    places: dict[str, set[Path]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(path)
    twice = {name: paths for name, paths in places.items() if len(paths) > 1 and name not in OTHERS}
    assert not {
        name: sorted(str(path.relative_to(ROOT)) for path in paths)
        for name, paths in twice.items()
        if len({path.parent for path in paths}) > 1
        or paths.pop().parent.relative_to(ROOT).as_posix() not in ALTERNATIVES
    }
