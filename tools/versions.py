"""Prints the row of CONTRIBUTING.md's table for the environment that runs this: what the tests ran with."""

from __future__ import annotations

import platform
from importlib.metadata import version

PACKAGES = ("torch", "numpy", "stanza", "sacrebleu", "scipy", "pyarrow")

if __name__ == "__main__":
    print("| " + " | ".join([platform.python_version(), *(version(name) for name in PACKAGES)]) + " |")
