"""``pytest -p emulated_cuda.pytest_plugin``: the tests of this run have emulated CUDA devices, two of them.

Where there can be none (a PyTorch that was built for CUDA, no compiler) it changes nothing, and ``reason`` says why.
A device that should be there and is not, such as one that does not compile, is an error.
"""

from __future__ import annotations

import emulated_cuda

reason = emulated_cuda.reason_against()

if reason is None:
    emulated_cuda.install(devices=2)


def pytest_report_header() -> str:
    """What the tests run on."""
    return f"no emulated CUDA device: {reason}" if reason else "CUDA devices: 2, emulated"
