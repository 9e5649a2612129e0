"""Builds the wheel and the source distribution, and tries each where nothing else of the checkout is.

Usage: python tools/release.py [--tests ARGUMENTS]   (``make release``)

Each is installed into a new environment under ``build/release`` as its user would, then the command answers, fairseq
finds the package by the path that it prints, and the fast tests run from a copy of ``tests/`` outside the checkout.
The files are left in ``dist/``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOR_TESTS = ("tests", "examples", "preprocess", "bench", "tools", "docs", "README.md", "CONTRIBUTING.md", "Makefile")
OWN = ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")  # of this run, and not for the commands
ALSO = ("CHANGELOG.md", "CITATION.bib", "CITATION.cff", "LICENSE", "MANIFEST.in", "pyproject.toml", "setup.py")


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command, shown as it would be typed; a failure ends this program."""
    print("$", " ".join(map(str, command)), flush=True)
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")
    }
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment)
    if done.returncode:
        sys.exit(f"release: this failed with status {done.returncode}: {' '.join(map(str, command))}")


def build(target: Path) -> list[Path]:
    """The two files of a release, newly made in ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target)
    return sorted(target.iterdir())


def try_out(artefact: Path, work: Path, tests: list[str]) -> None:
    """Install one file into an environment of its own, and run the fast tests against it."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = work / "venv"
    run("make", f"VENV={environment}", environment / ".fairseq")
    python = environment / "bin" / "python"
    constraints = environment / "constraints.txt"
    run(python, "-m", "pip", "install", "-c", constraints, "--no-build-isolation", f"{artefact}[dev]")
    run(environment / "bin" / "fairseq-syntax", "user-dir", cwd=work)
    # The tests, and what they read, but not the package: it must be the installed one.
    copy = work / "checkout"
    copy.mkdir()
    for name in (*FOR_TESTS, *ALSO):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    run(python, "-m", "pytest", "-m", "not slow and not gpu and not checkout", *tests, cwd=copy)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build and try the files of a release.")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=[], help="arguments for pytest")
    args = parser.parse_args()
    for artefact in build(ROOT / "dist"):
        try_out(artefact, ROOT / "build" / "release" / artefact.suffix.strip("."), args.tests)
    print("release: both files install and pass the fast tests")


if __name__ == "__main__":
    main()
