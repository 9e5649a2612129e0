"""Installs PyTorch into the environment that runs this, and never stops to ask.

Usage: python tools/install_torch.py REQUIREMENT [pip options, such as --index-url URL]
       python tools/install_torch.py --constraint    prints what is installed, for pip's -c

On Linux on x86-64 the default index has PyTorch with CUDA, which is several gigabytes. So, in this order:

1. Where a GPU is visible, CUDA=1 is set or an index is named, pip installs what it finds.
2. Where pip finds a build without CUDA, that is installed.
3. Else uv, which knows PyTorch's own indexes, gets the build that suits the machine.
4. Where those cannot be reached, pip installs the default build after all, and says first how large it is.
"""

from __future__ import annotations

import glob
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from typing import Any

CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def gpu_visible() -> bool:
    """Whether this machine shows an NVIDIA device."""
    if glob.glob("/dev/nvidia[0-9]*"):
        return True
    if not shutil.which("nvidia-smi"):
        return False
    return "GPU" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout


def report(requirement: str, *options: str) -> dict[str, Any] | None:
    """pip's report of what it would install; None where it finds nothing."""
    command = [*PIP, "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *options, requirement]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return None if done.returncode else json.loads(done.stdout)


def cuda_requirements(report: dict[str, Any]) -> list[str]:
    """The CUDA packages that the packages of a report require on this machine."""
    from pip._vendor.packaging.requirements import Requirement

    found = []
    for item in report["install"]:
        for text in item["metadata"].get("requires_dist", []):
            requirement = Requirement(text)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name.lower().startswith(CUDA_PACKAGES):
                found.append(requirement.name)
    return found


def size(report: dict[str, Any]) -> str:
    """How much the files of a report are to download, in words."""
    total = 0
    for item in report["install"]:
        request = urllib.request.Request(item["download_info"]["url"], method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                total += int(answer.headers["Content-Length"])  # None if the index does not say
        except (OSError, ValueError, TypeError):
            return "several gigabytes"
    return f"{total / 1e9:.1f} GB in {len(report['install'])} packages"


def install_with_uv(requirement: str) -> bool:
    """Install by ``uv pip install --torch-backend=auto``; False where uv or its indexes cannot be had."""
    if subprocess.run([*PIP, "install", "--quiet", "uv"]).returncode:
        return False
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--torch-backend=auto"]
    return subprocess.run([*command, requirement]).returncode == 0


def constraint() -> str:
    """The installed PyTorch as a pip constraint.

    By the version that the package was released under: ``torch.__version__`` of the default build reads 2.13.0+cu130,
    which no index has and pip takes for another version than 2.13.0.
    """
    return f"torch=={importlib.metadata.version('torch')}"


def main(requirement: str, *options: str) -> int:
    if requirement == "--constraint":
        print(constraint())
        return 0
    install = [*PIP, "install", "--quiet", *options, requirement]
    if os.environ.get("CUDA") == "1" or options or gpu_visible():
        return subprocess.run(install).returncode
    alone = report(requirement, "--no-deps")
    if alone is None:
        return 1
    if cuda_requirements(alone):
        print(f"The default index has {requirement} with CUDA, and no GPU is visible: asking uv for a CPU build.")
        if install_with_uv(requirement):
            return 0
        whole = report(requirement)
        print(
            "PyTorch's own indexes cannot be reached. Installing the default build, with CUDA: "
            f"{size(whole) if whole else 'several gigabytes'}.\n"
            "Next time, name a smaller one by make TORCH_INDEX_URL=URL or PIP_FIND_LINKS.",
            flush=True,
        )
    return subprocess.run(install).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
