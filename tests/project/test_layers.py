"""The packages are floors of a house: none imports one above it, at the top of a file or inside a function."""

import ast
from pathlib import Path

import pytest

import fairseq_syntax

ROOT = Path(fairseq_syntax.__file__).parent
FLOORS = (
    ("errors",),
    ("compat", "console"),
    ("text",),
    ("parsing",),
    ("store",),
    ("data",),
    ("model",),
    ("systems",),
    ("criterions",),
    ("inference",),
    ("scoring",),
    ("figures",),
    ("experiments", "serving"),
    ("tasks",),
    ("cli",),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
ENTRANCES = {"__init__", "__main__"}  # they put the house together, and nothing imports from them but its name


def imports(source: str) -> set[str]:
    """The modules of this package that a file imports, wherever in it, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            modules = [node.module or ""]
            if node.module == "fairseq_syntax":
                modules = [f"fairseq_syntax.{alias.name}" for alias in node.names]
            found |= set(modules)
    return {m.removeprefix("fairseq_syntax.") for m in found if m.startswith("fairseq_syntax.")}


def upward(package: str, source: str) -> list[str]:
    """The imports of a file of a package that it must not have."""
    packages = {module.split(".")[0] for module in imports(source)} & FLOOR.keys()
    return sorted(other for other in packages - {package} if FLOOR[other] >= FLOOR[package])


def test_every_package_has_its_floor():
    there = {p.stem for p in ROOT.iterdir() if (p.is_dir() and (p / "__init__.py").exists()) or p.suffix == ".py"}
    assert there - ENTRANCES == FLOOR.keys()


@pytest.mark.parametrize("package", FLOOR)
def test_no_import_upward_and_none_in_a_circle(package):
    path = ROOT / package
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    wrong = {
        str(file.relative_to(ROOT)): found for file in files if (found := upward(package, file.read_text("utf-8")))
    }
    assert not wrong


def test_an_import_upward_is_seen_wherever_it_is():
    inside = "def f():\n    from fairseq_syntax.model import losses\n"
    assert upward("data", inside) == ["model"]
    assert upward("data", "import fairseq_syntax.tasks.x") == ["tasks"]
    assert upward("errors", "from fairseq_syntax import compat") == ["compat"]
    assert upward("model", inside) == [] and upward("systems", inside) == []


def test_the_task_knows_no_system_by_name():
    """What a system or a criterion adds to the task goes through hooks that any may have."""
    for path in (ROOT / "tasks").rglob("*.py"):
        assert not [m for m in imports(path.read_text(encoding="utf-8")) if m.startswith(("systems.", "criterions."))]
