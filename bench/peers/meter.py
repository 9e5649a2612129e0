"""What each toolkit is measured with, in its own process: tokens, processor time and memory.

The programs ``of_*.py`` beside this one run a toolkit in its own environment, so this module imports PyTorch alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

# The model, the same for all: 3 + 3 layers, one matrix for both embeddings and the output layer.
LAYERS, WIDTH, INNER, HEADS = 3, 256, 1024, 4
DROPOUT, SMOOTHING, LEARNING_RATE = 0.1, 0.1, 0.0005
BEAM, SENTENCES = 5, 64  # of the search: beam, and sentences of a batch


class Job(NamedTuple):
    """What a process has to do, as its JSON argument says.

    ``work`` is "train" or "search"; ``text`` the folder of pieces and dictionaries, ``folder`` that of the model.
    Training takes ``warmup`` updates and then ``updates`` that are timed. Translations have ``length`` pieces.
    """

    work: str
    system: str
    text: str
    folder: str
    seed: int
    warmup: int
    updates: int
    length: int

    @classmethod
    def given(cls) -> Job:
        """The job of this process."""
        return cls(**json.loads(sys.argv[1]))

    @property
    def model(self) -> Path:
        """The folder for the model."""
        return Path(self.folder)

    def path(self, name: str) -> str:
        """A file of the text."""
        return str(Path(self.text) / name)


class Training:
    """Processor seconds and target tokens of a number of updates, by whatever optimizer of PyTorch."""

    def __init__(self, job: Job) -> None:
        self.ends = (job.warmup, job.warmup + job.updates)
        self.tokens = self.done = 0
        self.marks: list[tuple[float, int]] = []
        register_optimizer_step_post_hook(self._update)

    def count(self, target: Tensor, padding: int) -> None:
        """Count the tokens of a batch.

        Args:
            target: what is to be predicted, [B, T]: pieces and the end of the sentence, without the start symbol
            padding: the value of places that are none
        """
        self.tokens += int((target != padding).sum())

    def _update(self, *_: Any) -> None:
        self.done += 1
        if self.done in self.ends:
            self.marks.append((time.process_time(), self.tokens))

    def report(self) -> dict[str, Any]:
        """What was measured."""
        (began, before), (ended, after) = self.marks
        return {"seconds": ended - began, "tokens": after - before, "memory": peak()}


def searching(search: Callable[[], Any]) -> dict[str, Any]:
    """Processor seconds of a search from the first layer that computes something, so without loading the model."""
    began: list[float] = []

    def first(*_: Any) -> None:
        began.append(time.process_time())
        hook.remove()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(first)
    search()
    return {"seconds": time.process_time() - began[0], "memory": peak()}


def check(translations: Path, length: int) -> None:
    """Raise a ValueError if a search ended before ``length`` pieces, as its time is then that of less work."""
    shortest = min(len(line.split()) for line in translations.read_text(encoding="utf-8").splitlines())
    if shortest < length:
        raise ValueError(f"a translation has {shortest} pieces instead of {length}")


def peak() -> int:
    """The most memory that this process has had, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def tell(measured: dict[str, Any], package: str) -> None:
    """Print what was measured, with the package's version, as the last line."""
    versions = {"version": metadata.version(package), "torch": torch.__version__}
    print("\n" + json.dumps(measured | versions), flush=True)
