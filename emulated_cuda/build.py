"""Compiling the device, once for a PyTorch and a state of the sources."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "emulated_cuda_device"
SOURCES = Path(__file__).parent / "csrc"
# The device overrides what PyTorch does not promise to keep: the versions that were tried.
TRIED = ("2.13.",)


class Unavailable(RuntimeError):
    """There is no emulated device here, and why."""


def torch_folder() -> Path:
    """Where PyTorch is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("PyTorch is not installed")
    return Path(spec.submodule_search_locations[0])


def kept_library() -> Path:
    """Where the compiled device of this PyTorch and these sources is kept: beside PyTorch's own extensions."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path(cache) / "torch_extensions"
    version = importlib.metadata.version("torch")
    return Path(root) / "emulated_cuda" / f"torch-{version}-{digest.hexdigest()[:16]}.so"


def reason_against() -> str | None:
    """Why there can be no emulated device in this environment; None where there can be one."""
    try:
        libraries = torch_folder() / "lib"
    except Unavailable as error:
        return str(error)
    version = importlib.metadata.version("torch")
    if sys.platform != "linux":
        return "the emulated device needs Linux"
    if (libraries / "libtorch_cuda.so").exists():
        return "this PyTorch was built for CUDA, and the emulated device needs one for CPUs"
    if not version.startswith(TRIED) and not os.environ.get("EMULATED_CUDA_UNTRIED"):
        return f"the emulated device was not tried with PyTorch {version} (EMULATED_CUDA_UNTRIED=1 tries it)"
    if not kept_library().exists():
        if shutil.which(os.environ.get("CXX", "c++")) is None:
            return "there is no C++ compiler, which the emulated device is made with"
        if shutil.which("ninja") is None:
            return "there is no ninja, by which torch.utils.cpp_extension builds the emulated device"
    return None


def load() -> ctypes.CDLL:
    """The device's library, compiled first where it is not there (half a minute). Load it before ``import torch``.

    Several processes may ask at once: one compiles. A process that is killed meanwhile leaves nothing that the next one
    would wait for or take for whole.

    Raises:
        Unavailable: there is no compiler, or another PyTorch
    """
    reason = reason_against()
    if reason is not None:
        raise Unavailable(reason)
    kept = kept_library()
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
            if not kept.exists():
                _compile(kept)
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so", "libtorch.so"):  # as PyTorch loads them
        ctypes.CDLL(str(torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(kept))


def _compile(kept: Path) -> None:
    """In a process of its own, since what builds a library also imports PyTorch and loads what it has built."""
    for left in kept.parent.glob("building-*"):  # by processes that were killed: who has the lock is alone
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="building-") as directory:
        command = [sys.executable, __file__, directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = Path(directory) / f"{NAME}.so"
        if done.returncode or not made.exists():
            raise Unavailable(f"the emulated device does not compile:\n{(done.stdout + done.stderr)[-3000:]}")
        os.replace(made, kept)


if __name__ == "__main__":
    from torch.utils import cpp_extension

    cpp_extension.load(
        NAME,
        [str(SOURCES / "device.cpp")],
        extra_cflags=["-O1"],
        extra_ldflags=["-Wl,--as-needed"],  # it is loaded before PyTorch's Python library is
        build_directory=sys.argv[1],
        is_python_module=False,
    )
