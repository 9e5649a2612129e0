"""The package as users get it: what a wheel holds, and how the installation guards against large downloads."""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from fairseq.models import ARCH_MODEL_REGISTRY
from matrix_part import of_ten_seconds
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import fairseq_syntax

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fairseq_syntax", "hydra_plugins")  # of which the second has what Hydra imports at its start


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_versions_that_were_tried_are_the_lower_bounds():
    """CONTRIBUTING claims that every lower bound of the package ran: the list that it ran with must be those bounds."""
    lines = (ROOT / "tools/lowest.txt").read_text(encoding="utf-8").splitlines()
    tried = {name: Version(version) for name, version in (x.split("==") for x in lines if not x.startswith("#"))}
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.split("\ndependencies = [")[1].split("\n]")[0]
    bounds = {}
    for name, specifier in re.findall(r'^ +"([\w-]+)(.*?)",', block, re.MULTILINE):
        for one in SpecifierSet(specifier):
            if one.operator == ">=":
                bounds[name] = Version(one.version)
    assert set(tried) == set(bounds)
    for name, bound in bounds.items():  # "1.26" takes its newest patch; "3.10.4" is that very version
        assert tried[name].release[: len(bound.release)] == bound.release, name


def test_the_light_installation_has_the_bounds_of_the_whole_one():
    whole = set(re.findall(r'"([\w.-]+[<>=][^"]*|tqdm)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    lines = (ROOT / "examples/export/requirements.txt").read_text(encoding="utf-8").splitlines()
    light = {line for line in lines if not line.startswith("#")}
    assert len(light) > 10 and light <= whole


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of a copy of the sources, so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "examples" / "toy", source / "examples" / "toy")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*command, "--wheel-dir", source / "out", source], check=True, capture_output=True)
    return next((source / "out").glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_everything(wheel):
    assert wheel.name.startswith(f"fairseq_syntax-{fairseq_syntax.__version__}-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    checkout = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    toy = {name for name in names if name.startswith("fairseq_syntax/toy/")}
    assert {name for name in names if ".dist-info/" not in name} - toy == checkout
    # what `fairseq-syntax demo` runs: every program of the toy corpora, and what they read
    programs = {path.name for path in (ROOT / "examples" / "toy").iterdir() if path.suffix in (".py", ".txt", ".yaml")}
    assert {Path(name).name for name in toy} == programs
    assert "fairseq_syntax/py.typed" in names
    assert "fairseq-syntax = fairseq_syntax.cli:main" in entry_points
    assert "License: MIT" in metadata or "License-Expression: MIT" in metadata
    assert "Requires-Dist: fairseq-fixed==0.12.3.1" in metadata


@of_ten_seconds
@pytest.mark.slow
def test_the_wheel_works_from_anywhere(wheel, tmp_path):
    """Unpacked where no checkout is, it gives the console command, and fairseq finds it as a user directory."""
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONWARNINGS": "ignore"}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True).stdout

    assert run("-m", "fairseq_syntax", "--version").split() == ["fairseq-syntax", fairseq_syntax.__version__]
    # the demo's programs, and the package that they import, are those of the wheel
    corpus = ["--output", tmp_path / "corpus", "--train", 5, "--valid", 5, "--test", 5]
    run(target / "fairseq_syntax/toy/generate.py", *corpus)
    assert len((tmp_path / "corpus/test.src").read_text("utf-8").splitlines()) == 5
    assert (target / "fairseq_syntax/toy/toy.yaml").is_file()
    user_dir = run("-m", "fairseq_syntax", "user-dir").strip()
    assert Path(user_dir) == target / "fairseq_syntax"
    program = (
        "import sys, argparse; from fairseq import models, utils; "
        "utils.import_user_module(argparse.Namespace(user_dir=sys.argv[1])); "
        "print(sys.modules['fairseq_syntax'].__file__, 'pascal_transformer' in models.ARCH_MODEL_REGISTRY)"
    )
    assert run("-c", program, user_dir).split() == [str(target / "fairseq_syntax" / "__init__.py"), "True"]


@pytest.mark.checkout
@of_ten_seconds
@pytest.mark.slow
def test_a_source_distribution_has_all_that_its_tests_read_and_no_results(wheel):
    """As `make release` runs the tests that are in it, without a checkout."""
    source = wheel.parents[1]
    for name in ("bench", "docs", "emulated_cuda", "examples", "preprocess", "tests", "tools"):
        others = shutil.ignore_patterns("__pycache__", "_build", "generated", "runs")
        shutil.copytree(ROOT / name, source / name, ignore=others, dirs_exist_ok=True)
    folders = [path for path in source.iterdir() if (ROOT / path.name).is_dir() and path.name != "build"]
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    whole = {str(path.relative_to(source)) for path in files}
    model = source / "examples" / "toy" / "runs" / "toy" / "checkpoint_best.pt"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(b"model")
    build = "from setuptools import build_meta; build_meta.build_sdist('out')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    with tarfile.open(next((source / "out").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "examples/toy/toy.yaml" in whole and sorted(whole - names) == []
    assert not any("runs/" in name for name in names)


def test_every_python_package_is_found():
    """A directory of modules without __init__.py would be left out of the wheel."""
    for path in (ROOT / "fairseq_syntax").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path.parent


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fairseq_syntax.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and newest[1] == fairseq_syntax.__version__


def test_the_paper_of_every_architecture_is_cited():
    bibliography = (ROOT / "CITATION.bib").read_text(encoding="utf-8")
    cited = {name for notes in re.findall(r"note\s*= \{(.+)\}", bibliography) for name in notes.split(", ")}
    ours = (n for n, m in ARCH_MODEL_REGISTRY.items() if m.__module__.startswith("fairseq_syntax."))
    systems = {name for name in ours if name.endswith(("_transformer", "_lstm"))}
    from_no_paper = {"syntax_transformer", "parser_free_pascal_transformer", "parser_free_ldd_transformer"}
    assert {name.replace("\\_", "_") for name in cited} - {"fairseq-syntax multitask"} == systems - from_no_paper


def report(*requirements):
    item = {"metadata": {"name": "torch", "requires_dist": list(requirements)}, "download_info": {"url": "file:///x"}}
    return {"install": [item]}


def test_cuda_builds_are_told_from_cpu_builds():
    tool = load_tool("install_torch")
    assert tool.cuda_requirements(report("filelock", "sympy>=1.13", 'optree; extra == "optree"')) == []
    here = f'platform_system == "{platform.system()}"'
    assert tool.cuda_requirements(report("filelock", f"nvidia-cublas-cu12==12.8; {here}", f"triton; {here}")) == [
        "nvidia-cublas-cu12",
        "triton",
    ]
    assert tool.cuda_requirements(report('nvidia-cublas-cu12; platform_system == "Elsewhere"')) == []
    assert tool.cuda_requirements({"install": [{"metadata": {"name": "torch"}}]}) == []


@pytest.mark.parametrize(
    "cuda, gpu, packages, uv_works, installed_by",
    [
        ("", False, ["filelock"], True, "pip"),  # the default index has a CPU build
        ("", False, ["nvidia-cudnn"], True, "uv"),  # it has none, and uv finds one
        ("", False, ["nvidia-cudnn"], False, "pip"),  # nor can uv reach one: the default build, after saying its size
        ("", True, ["nvidia-cudnn"], True, "pip"),
        ("1", False, ["nvidia-cudnn"], True, "pip"),
    ],
)
def test_pytorch_is_installed_without_a_question(monkeypatch, capsys, cuda, gpu, packages, uv_works, installed_by):
    """The three ways, with stand-ins for pip and uv."""
    tool = load_tool("install_torch")
    monkeypatch.setenv("CUDA", cuda)
    monkeypatch.setattr(tool, "gpu_visible", lambda: gpu)
    monkeypatch.setattr(tool, "size", lambda report: "2.5 GB in 20 packages")
    calls = []

    def run(command, **kwargs):
        calls.append(" ".join(command[2:]))
        if "--dry-run" in command:
            return subprocess.CompletedProcess(command, 0, stdout=json.dumps(report(*packages)))
        return subprocess.CompletedProcess(command, int("--torch-backend=auto" in command and not uv_works))

    monkeypatch.setattr(tool.subprocess, "run", run)
    assert tool.main("torch==9.9") == 0
    assert ("--torch-backend=auto" in calls[-1]) == (installed_by == "uv") and calls[-1].endswith("torch==9.9")
    said = capsys.readouterr().out
    assert ("2.5 GB in 20 packages" in said) == (not uv_works)
    if cuda or gpu:
        assert len(calls) == 1


def test_the_size_of_a_download_is_asked_of_its_index(monkeypatch):
    tool = load_tool("install_torch")

    class Answer(dict):
        headers: ClassVar = {"Content-Length": "1500000000"}
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

    monkeypatch.setattr(tool.urllib.request, "urlopen", lambda request, timeout: Answer())
    assert tool.size(report("nvidia-cudnn")) == "1.5 GB in 1 packages"
    Answer.headers = Message()  # an index that does not say
    assert tool.size(report("nvidia-cudnn")) == "several gigabytes"
    monkeypatch.undo()
    assert tool.size(report()) == "several gigabytes"  # not to be had


def test_nothing_found_is_an_error(monkeypatch):
    tool = load_tool("install_torch")
    monkeypatch.setattr(tool, "gpu_visible", lambda: False)
    monkeypatch.setattr(tool.subprocess, "run", lambda command, **kwargs: subprocess.CompletedProcess(command, 1))
    assert tool.main("torch==9.9") == 1


def test_the_constraint_is_the_version_that_an_index_has(tmp_path):
    """The default build for Linux calls itself 2.13.0+cu130 and is released as 2.13.0: pip must find it installed."""
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0+cu130'\n")
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    (tmp_path / "torch-2.13.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n"
    )
    command = [sys.executable, str(ROOT / "tools" / "install_torch.py"), "--constraint"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "torch==2.13.0\n", done.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_make_installs_once_and_in_order(tmp_path):
    """With stand-ins for Python: each step runs once, in order, and not again until something changes."""
    for name in ("Makefile", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    log = tmp_path / "log"
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{log}"\n'
        'case "$*" in\n'
        '  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;\n'
        '  *"-c import torch") test -e .venv/has_torch ;;\n'
        '  *install_torch.py" --constraint") echo torch==2.13.0+cpu ;;\n'
        "  *install_torch*torch==*) touch .venv/has_torch ;;\n"
        '  *"uninstall --yes torch"*) rm .venv/has_torch ;;\n'
        "esac\n"
    )
    fake.chmod(0o755)

    def make(*targets):
        log.write_text("")
        command = ["make", "-s", f"PYTHON={fake}", *targets]
        # make hands its variables on to what it runs, and this may run in `make test VENV=…`
        variables = ("MAKE", "PYTHON", "TORCH", "CUDA", "FAIRSEQ", "ONLY", "JOBS", "VENV")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(variables)}
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
        return log.read_text().splitlines()

    steps = [line for line in make("demo") if "install" in line or "venv" in line or " demo" in line or "tools" in line]
    order = [
        "-m venv",
        "tools/install_torch.py torch==",
        "tools/install_torch.py --constraint",
        "numpy cython",
        "fairseq-fixed==",
        "-e .[dev]",
        "-m fairseq_syntax demo",
    ]
    assert [next(i for i, line in enumerate(steps) if part in line) for part in order] == list(range(len(order)))
    assert make("demo") == ["-m fairseq_syntax demo"]
    stamp = tmp_path / ".venv" / ".package"
    os.utime(stamp, (0, 0))
    again = make("test")
    runs = [line for line in again if "-m pytest" in line]
    assert "-e .[dev]" in again[0] and len(runs) == 2, "on a GPU or an emulated one, and the rest"
    assert again[-2:] == runs and "-m gpu" in runs[0] and "not gpu" in runs[1]
    # Another PyTorch than the one that is there, when it is asked for; the one that is there, when none is.
    for given in (["TORCH=torch==2.12.0"], ["TORCH=torch==2.12.0", "TORCH_INDEX_URL=http://index"], ["CUDA=1"]):
        actual = make("demo", *given)
        assert [line for line in actual if "uninstall" in line and "torch fairseq-fixed" in line] == actual[:1]
        assert any(line.startswith("tools/install_torch.py torch==") for line in actual)
        assert any("fairseq-fixed==" in line for line in actual)
        assert make("demo", *given) == make("demo") == ["-m fairseq_syntax demo"]
    # Another fairseq, which replaces the one that is there, and is replaced when that is asked for.
    for given in ("FAIRSEQ=./fairseq", "FAIRSEQ=fairseq-fixed==0.12.3.1"):
        actual = make("demo", given)
        assert actual[0].endswith("uninstall --yes fairseq-fixed")
        assert not any("install_torch.py torch" in line for line in actual)
        assert any(line.endswith(given.partition("=")[2]) for line in actual)
        assert make("demo", given) == make("demo") == ["-m fairseq_syntax demo"]
    # An environment that imports another checkout is left as it is.
    (tmp_path / "other").mkdir()
    stamp.write_text(str(tmp_path / "other"))
    os.utime(stamp, (0, 0))
    with pytest.raises(subprocess.CalledProcessError):
        make("docs")
    assert not any("-e .[dev]" in line for line in log.read_text().splitlines())
    assert "make demo" in subprocess.run(["make", "help"], cwd=tmp_path, capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_a_matrix_of_no_python_fails():
    done = subprocess.run(["make", "-C", ROOT, "matrix", "PYTHONS=no-python"], capture_output=True, text=True)
    assert done.returncode != 0 and "no-python: not there" in done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_make_names_an_old_python(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "old").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old").chmod(0o755)
    done = subprocess.run(["make", "demo", f"PYTHON={tmp_path}/old"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "older than 3.10" in done.stderr
