"""Builds the wheel and the source distribution, and tries each where nothing else of the checkout is.

Usage: python tools/release.py [--index-url URL] [--no-demo] [--tests ARGUMENTS]   (``make release``)

Each is installed into a new environment under ``build/release`` as its user would. There the command says its version,
prints a path in that environment, and the fast tests run as the source distribution has them; the wheel also runs
``fairseq-syntax demo``, which trains two models. The files are left in ``dist/``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fairseq_syntax.corpus.downloads import unpack_archive

ROOT = Path(__file__).resolve().parents[1]
OWN = ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")  # of this run, and not for the commands


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command, shown as it would be typed, and return its output, shown too; a failure ends this program."""
    print("$", " ".join(map(str, command)), flush=True)
    # One thread a process: the tests run in as many processes as there are cores, and threads would wait for others.
    environment = {"OMP_NUM_THREADS": "1"} | {key: value for key, value in os.environ.items() if key not in OWN}
    process = subprocess.Popen(
        [str(part) for part in command], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        sys.exit(f"release: this failed with status {process.returncode}: {' '.join(map(str, command))}")
    return "".join(lines)


def version() -> str:
    """The version that the sources state."""
    found = re.search(r'^__version__ = "(.+)"', (ROOT / "fairseq_syntax/__init__.py").read_text("utf-8"), re.M)
    if found is None:
        sys.exit("release: fairseq_syntax/__init__.py states no version")
    return found[1]


def uncommitted() -> str:
    """What the checkout has that no commit has: it would be in the source distribution."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def build(target: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of a release, newly made in ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    # setuptools puts into a wheel whatever an earlier build left there
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target)
    wheels, sources = (list(target.glob(f"*{ending}")) for ending in (".whl", ".tar.gz"))
    if len(wheels) != 1 or len(sources) != 1 or not all(version() in path.name for path in (*wheels, *sources)):
        sys.exit(f"release: one wheel and one source distribution of {version()} were due: {[*wheels, *sources]}")
    return wheels[0], sources[0]


def unpack_tests(source: Path, folder: Path) -> Path:
    """Unpack a source distribution without its package: the tests must import the installed one; where they are."""
    unpack_archive(source, folder)
    (unpacked,) = folder.iterdir()
    shutil.rmtree(unpacked / "fairseq_syntax")
    shutil.rmtree(unpacked / "fairseq_syntax.egg-info")
    return unpacked


def try_out(artefact: Path, source: Path, work: Path, make: list[str], tests: list[str], demo: bool) -> None:
    """Install one file into an environment of its own, and run the fast tests of the source distribution against it."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = work / "venv"
    run("make", f"VENV={environment}", *make, environment / ".fairseq")
    python, command = environment / "bin" / "python", environment / "bin" / "fairseq-syntax"
    constraints = environment / "constraints.txt"
    run(python, "-m", "pip", "install", "-c", constraints, "--no-build-isolation", f"{artefact}[dev]")
    if (said := run(command, "--version", cwd=work).split()) != ["fairseq-syntax", version()]:
        sys.exit(f"release: {artefact.name} says that it is {said}")
    if environment.resolve() not in Path(run(command, "user-dir", cwd=work).strip()).resolve().parents:
        sys.exit(f"release: {artefact.name} is not what was imported")
    if demo:
        run(command, "demo", "--output", work / "demo", cwd=work)
    cores = ["-n", str(os.cpu_count()), "--dist", "worksteal"] if (os.cpu_count() or 1) > 1 else []
    fast = "not slow and not gpu and not checkout"
    run(python, "-m", "pytest", *cores, "-m", fast, *tests, cwd=unpack_tests(source, work / "source"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build and try the files of a release.")
    parser.add_argument("--index-url", metavar="URL", help="of PyTorch")
    parser.add_argument("--no-demo", action="store_true", help="do not train the models of the demo")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=[], help="arguments for pytest")
    args = parser.parse_args()
    if found := uncommitted():
        print(f"release: these are in no commit, but would be in the source distribution:\n{found}", flush=True)
    make = [f"PYTHON={sys.executable}", *([f"TORCH_INDEX_URL={args.index_url}"] if args.index_url else [])]
    wheel, source = build(ROOT / "dist")
    work = ROOT / "build" / "release"
    try_out(wheel, source, work / "wheel", make, args.tests, demo=not args.no_demo)
    try_out(source, source, work / "sdist", make, args.tests, demo=False)
    print(f"release: both files install, work and pass the fast tests; when it is {version()}: git tag v{version()}")


if __name__ == "__main__":
    main()
