"""Hardware and versions, to be reported with results."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fairseq_syntax.runtime.workers import cores

_PACKAGES = ("fairseq-syntax", "fairseq-fixed", "torch", "numpy", "sacrebleu", "nltk", "scipy", "stanza",
             "sentencepiece", "subword-nmt", "pyarrow")  # fmt: skip


@cache
def hardware() -> Mapping[str, Any]:
    """Hardware and versions of this process, without anything that identifies the machine or its user."""
    facts: dict[str, Any] = {"python": platform.python_version(), "system": platform.system()}
    # The processors available to this process, which may be fewer than the machine has.
    facts |= {"machine": platform.machine(), "cpu": _cpu(), "cpus": cores()}
    facts["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    facts["versions"] = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            facts["versions"][package] = metadata.version(package)
    import torch

    facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def _cpu() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or "unknown"


def described(one: Mapping[str, Any]) -> str:
    """Describe hardware and versions in words; missing values are left out."""
    gpus = ", ".join(one.get("gpus") or []) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    memory = f", {one['memory_gib']} GiB" if one.get("memory_gib") else ""
    machine = f"{one['cpus']} cores of {one['cpu']}{memory}, {gpus}"
    return f"{machine}; {one['system']} {one['machine']}, Python {one['python']}; {versions}"
