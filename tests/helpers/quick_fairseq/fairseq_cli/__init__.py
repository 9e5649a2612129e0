"""Stands in for fairseq's commands where only what a recipe does with them is tested: the same files, in moments."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def arguments() -> argparse.Namespace:
    """What the recipe's commands give; options that do not matter here are let pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", type=Path)
    for name in ("-s", "-t", "--seed", "--gen-subset", "--arch", "--lr"):
        parser.add_argument(name)
    for name in ("--destdir", "--trainpref", "--validpref", "--save-dir", "--path"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--testpref", default="")
    return parser.parse_known_args()[0]


def write(path: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.rename(path)
