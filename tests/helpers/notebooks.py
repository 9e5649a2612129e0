"""A notebook, run in a folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_notebook(notebook: Any, folder: Path, ipython: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill in the outputs of a notebook's cells, run in ``folder`` by a kernel that imports this checkout.

    Args:
        ipython: where IPython keeps what it does between runs
    """
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))))
    monkeypatch.setenv("IPYTHONDIR", str(ipython))
    resources = {"metadata": {"path": str(folder)}}
    # at once: on a busy machine a kernel that is asked to end takes longer than nbclient waits, which is an error there
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources)
    client.shutdown_kernel = "immediate"
    # nbclient leaves Python's own handler of Ctrl-C behind; a shell turns Ctrl-C off for a job in the background
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        client.execute()
    finally:
        signal.signal(signal.SIGINT, interrupted)
