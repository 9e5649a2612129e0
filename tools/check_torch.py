"""Asks pip what PyTorch it would install, and stops where that brings CUDA to a machine without a GPU.

Usage: python tools/check_torch.py REQUIREMENT [pip options, such as --index-url URL]

A CUDA build of PyTorch pulls several gigabytes of libraries. Exit status: 0 to go on, 1 not to.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys

CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")


def gpu_visible() -> bool:
    """Whether this machine shows an NVIDIA device."""
    if glob.glob("/dev/nvidia[0-9]*"):
        return True
    if not shutil.which("nvidia-smi"):
        return False
    return "GPU" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout


def cuda_requirements(report: dict) -> list[str]:
    """The CUDA packages that the packages of a pip installation report require on this machine."""
    from pip._vendor.packaging.requirements import Requirement

    found = []
    for item in report["install"]:
        for text in item["metadata"].get("requires_dist", []):
            requirement = Requirement(text)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name.lower().startswith(CUDA_PACKAGES):
                found.append(requirement.name)
    return found


def main(requirement: str, *pip_options: str) -> int:
    if os.environ.get("CUDA") == "1" or gpu_visible():
        return 0
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    done = subprocess.run([*command, "--report", "-", *pip_options, requirement], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return 1
    packages = cuda_requirements(json.loads(done.stdout))
    if not packages:
        return 0
    shown = ", ".join(packages[:3])
    print(
        f"""
{requirement} would come with CUDA here ({shown}, {len(packages)} packages in all): several gigabytes, and no GPU is
visible. Nothing has been installed. Give one of these to make:

  TORCH_INDEX_URL=URL   the index of PyTorch's CPU builds, as PyTorch's own "Get started" page names it
  TORCH='torch==...'    a version of which your package index or PIP_FIND_LINKS has a CPU build
  CUDA=1                to install the CUDA build all the same
""",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
