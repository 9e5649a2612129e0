"""The distributions that own fairseq's files, and which one to install; importable where fairseq is not."""

from __future__ import annotations

import importlib.metadata

TESTED = "fairseq-fixed==0.12.3.1"
OWNERS = ("fairseq", "fairseq-fixed")  # distributions of the same files


def installed() -> list[str]:
    """Those of ``OWNERS`` that are installed."""
    return [name for name in OWNERS if any(importlib.metadata.distributions(name=name))]


def remedy() -> str:
    """The commands that install the tested one in place of what is there."""
    install = f"pip install {TESTED}"
    return f"pip uninstall --yes {' '.join(OWNERS)}; {install}" if "fairseq" in installed() else install
